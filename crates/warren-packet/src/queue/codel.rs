//! CoDel (RFC 8289): decides from the waits of packets when to drop or mark one.

use std::time::{Duration, Instant};

/// Longest wait that does not count as a standing queue (RFC 8289 section 4.3).
pub(super) const TARGET: Duration = Duration::from_millis(5);
/// How long waits may exceed the target before the first signal, at least: about the longest round trip of most flows (section 4.2).
pub(super) const INTERVAL: Duration = Duration::from_millis(100);

/// The interval of a path. The flows' own round trips are longer than the path's by what lies beyond the exit and by what repairs hold
/// back.
pub(super) fn interval(round_trip: Duration) -> Duration {
    INTERVAL.max(2 * round_trip.min(Duration::from_secs(1)))
}

/// The state of one flow.
#[derive(Debug, Default)]
pub(super) struct Codel {
    /// When waits will have exceeded the target for an interval. `None` while they do not exceed it.
    first_above: Option<Instant>,
    dropping: bool,
    drop_next: Option<Instant>,
    /// Number of signals in this dropping state, and the count at the start of the latest one.
    count: u32,
    last_count: u32,
}

impl Codel {
    /// Whether to drop or mark the packet that leaves now after waiting for `sojourn`. `is_short` says that the remaining backlog
    /// is at most one send, which is not congestion.
    pub(super) fn signals(
        &mut self,
        (now, interval): (Instant, Duration),
        sojourn: Duration,
        is_short: bool,
    ) -> bool {
        let is_above = self.has_been_above((now, interval), sojourn, is_short);
        if !is_above {
            self.dropping = false;
            return false;
        }
        if self.dropping {
            let Some(next) = self.drop_next.filter(|next| *next <= now) else { return false };
            self.count = self.count.saturating_add(1);
            self.drop_next = Some(control_law(next, interval, self.count));
            return true;
        }
        self.dropping = true;
        // A queue that builds up again soon needs about the previous signalling rate (section 5.4).
        let was_recent =
            self.drop_next.is_some_and(|next| now.saturating_duration_since(next) < 16 * interval);
        let delta = self.count.saturating_sub(self.last_count);
        self.count = if was_recent && delta > 1 { delta } else { 1 };
        self.last_count = self.count;
        self.drop_next = Some(control_law(now, interval, self.count));
        true
    }

    fn has_been_above(
        &mut self,
        (now, interval): (Instant, Duration),
        sojourn: Duration,
        is_short: bool,
    ) -> bool {
        if sojourn < TARGET || is_short {
            self.first_above = None;
            return false;
        }
        now >= *self.first_above.get_or_insert(now + interval)
    }
}

/// The interval shrinks with the square root of the count, which lowers TCP's rate linearly (section 3.2).
fn control_law(time: Instant, interval: Duration, count: u32) -> Instant {
    time + interval.div_f64(f64::from(count).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_burst_shorter_than_an_interval_is_let_through() {
        let (mut codel, start) = (Codel::default(), Instant::now());
        for ms in 0..99 {
            assert!(!codel.signals((start + ms * MS, INTERVAL), 50 * MS, false));
        }
        assert!(!codel.signals((start + 99 * MS, INTERVAL), 4 * MS, false));
        assert!(!codel.signals((start + 150 * MS, INTERVAL), 50 * MS, false), "the interval starts anew");
    }

    #[test]
    fn a_standing_queue_is_signalled_ever_faster_until_it_is_short() {
        let (mut codel, start) = (Codel::default(), Instant::now());
        let signals: Vec<u32> =
            (0..1_000).filter(|ms| codel.signals((start + *ms * MS, INTERVAL), 20 * MS, false)).collect();
        assert_eq!(signals[..4], [100, 200, 271, 329]);
        assert!(!codel.signals((start + 1_000 * MS, INTERVAL), 20 * MS, true));
        assert!(!codel.dropping);
    }

    #[test]
    fn a_queue_that_comes_back_soon_is_signalled_at_the_rate_that_held_it_down() {
        let (mut codel, start) = (Codel::default(), Instant::now());
        let run = |codel: &mut Codel, from: u32| {
            (from..from + 600)
                .filter(|ms| codel.signals((start + *ms * MS, INTERVAL), 20 * MS, false))
                .count()
        };
        let first = run(&mut codel, 0);
        codel.signals((start + 600 * MS, INTERVAL), MS, false);
        assert!(run(&mut codel, 601) > first);
    }
}
