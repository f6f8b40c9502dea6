//! The longest turn of a worker in CPU time of its thread, which no other thread changes. Counted only with log level `debug`, because
//! each look at that clock is a system call.

use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};

/// The longest turn so far.
pub(super) struct LongestTurn {
    longest: Duration,
    began: Duration,
}

impl LongestTurn {
    /// Counts if the log shows it in the end.
    pub(super) fn if_logged() -> Option<Self> {
        tracing::enabled!(tracing::Level::DEBUG)
            .then(|| Self { longest: Duration::ZERO, began: Duration::ZERO })
    }

    /// A turn begins.
    pub(super) fn begin(&mut self) {
        self.began = of_this_thread();
    }

    /// The turn ends.
    pub(super) fn end(&mut self) {
        self.longest = self.longest.max(of_this_thread().saturating_sub(self.began));
    }

    /// In microseconds.
    pub(super) fn micros(&self) -> u128 {
        self.longest.as_micros()
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
    fn sleep_takes_no_cpu_time_and_work_does() {
        let mut turn = LongestTurn { longest: Duration::ZERO, began: Duration::ZERO };
        turn.begin();
        std::thread::sleep(Duration::from_millis(100));
        turn.end();
        let asleep = turn.micros();
        assert!(asleep < 50_000, "{asleep}");
        turn.begin();
        while of_this_thread() < turn.began + Duration::from_millis(60) {}
        turn.end();
        turn.begin();
        turn.end();
        assert!(turn.micros() >= 60_000, "{}", turn.micros());
    }
}
