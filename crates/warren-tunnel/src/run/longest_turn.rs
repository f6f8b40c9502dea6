//! The longest turn of a worker, in CPU time of its thread, which does not depend on other threads. It is measured only at log level
//! `debug`, because each reading of that clock is a system call.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, Timespec, clock_gettime};

/// How often the longest turn is logged. Each period has its own longest turn.
const PERIOD: Duration = Duration::from_secs(5);

/// The longest turn of this period.
pub(super) struct LongestTurn {
    longest: Duration,
    began: Duration,
    since: Instant,
}

impl LongestTurn {
    /// Returns a measure only if the log shows the result.
    pub(super) fn if_logged() -> Option<Self> {
        tracing::enabled!(tracing::Level::DEBUG).then(Self::new)
    }

    fn new() -> Self {
        Self { longest: Duration::ZERO, began: Duration::ZERO, since: Instant::now() }
    }

    /// Records that a turn begins.
    pub(super) fn begin(&mut self) {
        self.began = of_this_thread();
    }

    /// Records that the turn, which began at `now`, ends.
    pub(super) fn end(&mut self, now: Instant) {
        self.longest = self.longest.max(of_this_thread().saturating_sub(self.began));
        if now.duration_since(self.since) >= PERIOD {
            tracing::debug!(cpu_us = %self.longest.as_micros(), "the longest turn of five seconds");
            *self = Self { since: now, ..Self::new() };
        }
    }
}

/// CPU time of the calling thread.
fn of_this_thread() -> Duration {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(tv_sec.try_into().unwrap_or_default(), tv_nsec.try_into().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleep_takes_no_cpu_time_and_each_period_counts_for_itself() {
        let mut turn = LongestTurn::new();
        let start = turn.since;
        turn.begin();
        std::thread::sleep(Duration::from_millis(100));
        turn.end(start);
        assert!(turn.longest < Duration::from_millis(50), "{:?}", turn.longest);

        turn.begin();
        while of_this_thread() < turn.began + Duration::from_millis(60) {}
        turn.end(start);
        turn.begin();
        turn.end(start);
        assert!(turn.longest >= Duration::from_millis(60), "{:?}", turn.longest);
        turn.end(start + PERIOD);
        assert_eq!((turn.longest, turn.since), (Duration::ZERO, start + PERIOD));
    }
}
