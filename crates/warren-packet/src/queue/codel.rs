//! CoDel (RFC 8289): decides from the waits of packets when to drop or mark one.

use std::time::{Duration, Instant};

/// How long packets may wait before CoDel signals.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Longest wait that does not count as a standing queue (RFC 8289 section 4.3).
    pub target: Duration,
    /// How long waits may exceed the target before the first signal: about the longest round trip of the flows (section 4.2).
    pub interval: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { target: Duration::from_millis(5), interval: Duration::from_millis(100) }
    }
}

impl Patience {
    /// The patience for flows over a path with this round-trip time.
    ///
    /// The target is two thirds of the round-trip time. CUBIC gives up three tenths of its window at a signal, and a single
    /// flow must still fill the path afterwards. Other flows do not wait in that flow's queue. At 30 ms and 200 Mbit/s, one
    /// flow gets 179 to 182 Mbit/s with this target, and 176 with 5 ms (bench/LOG.md). The interval is twice the round-trip
    /// time, because the flows' own round trips include the way beyond the exit, and the time for which repairs hold packets
    /// back.
    pub(super) fn for_path(round_trip: Duration) -> Self {
        let Self { target, interval } = Self::default();
        // An estimate that is far too large must not turn CoDel off.
        let round_trip = round_trip.min(Duration::from_secs(1));
        Self {
            target: (round_trip * 2 / 3).clamp(target, 10 * target),
            interval: (2 * round_trip).max(interval),
        }
    }
}

/// CoDel's state for one flow.
#[derive(Debug, Default)]
pub struct Codel {
    /// The time at which the waits will have exceeded the target for an interval. `None` while they do not exceed it.
    first_above: Option<Instant>,
    dropping: bool,
    drop_next: Option<Instant>,
    /// Number of signals in this dropping state. `last_count` is the number at the start of the latest dropping state.
    count: u32,
    last_count: u32,
}

impl Codel {
    /// Whether to drop or mark the packet that leaves now after waiting for `sojourn`. `is_short` says that the remaining backlog
    /// is at most one send, which is not congestion.
    pub fn signals(&mut self, now: Instant, patience: Patience, sojourn: Duration, is_short: bool) -> bool {
        let is_above = self.has_been_above(now, patience, sojourn, is_short);
        if !is_above {
            self.dropping = false;
            return false;
        }
        if self.dropping {
            let Some(next) = self.drop_next.filter(|next| *next <= now) else { return false };
            self.count = self.count.saturating_add(1);
            // Counted from the time at which the signal was due. Otherwise packets that leave late would slow down the control
            // law.
            self.drop_next = Some(control_law(next, patience.interval, self.count));
            return true;
        }
        self.dropping = true;
        // A queue that builds up again soon needs about the previous signalling rate (section 5.4).
        let was_recent =
            self.drop_next.is_some_and(|next| now.saturating_duration_since(next) < 16 * patience.interval);
        let delta = self.count.saturating_sub(self.last_count);
        self.count = if was_recent && delta > 1 { delta } else { 1 };
        self.last_count = self.count;
        self.drop_next = Some(control_law(now, patience.interval, self.count));
        true
    }

    fn has_been_above(
        &mut self,
        now: Instant,
        patience: Patience,
        sojourn: Duration,
        is_short: bool,
    ) -> bool {
        if sojourn < patience.target || is_short {
            self.first_above = None;
            return false;
        }
        now >= *self.first_above.get_or_insert(now + patience.interval)
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
    fn a_long_path_has_more_patience() {
        let of = |ms: u32| {
            let Patience { target, interval } = Patience::for_path(ms * MS);
            (target, interval)
        };
        assert_eq!(of(0), (5 * MS, 100 * MS));
        assert_eq!(of(30), (20 * MS, 100 * MS));
        assert_eq!(of(150), (50 * MS, 300 * MS));
        assert_eq!(of(30_000), (50 * MS, 2_000 * MS));
    }

    #[test]
    fn a_burst_shorter_than_an_interval_is_let_through() {
        let (mut codel, start) = (Codel::default(), Instant::now());
        for ms in 0..99 {
            assert!(!codel.signals(start + ms * MS, Patience::default(), 50 * MS, false));
        }
        assert!(!codel.signals(start + 99 * MS, Patience::default(), 4 * MS, false));
        assert!(
            !codel.signals(start + 150 * MS, Patience::default(), 50 * MS, false),
            "the interval starts anew"
        );
    }

    #[test]
    fn a_standing_queue_is_signalled_ever_faster_until_it_is_short() {
        let (mut codel, start) = (Codel::default(), Instant::now());
        let signals: Vec<u32> = (0..1_000)
            .filter(|ms| codel.signals(start + *ms * MS, Patience::default(), 20 * MS, false))
            .collect();
        assert_eq!(signals[..4], [100, 200, 271, 329]);
        assert!(!codel.signals(start + 1_000 * MS, Patience::default(), 20 * MS, true));
        assert!(!codel.dropping);
    }

    #[test]
    fn a_queue_that_comes_back_soon_is_signalled_at_the_rate_that_held_it_down() {
        let (mut codel, start) = (Codel::default(), Instant::now());
        let run = |codel: &mut Codel, from: u32| {
            (from..from + 600)
                .filter(|ms| codel.signals(start + *ms * MS, Patience::default(), 20 * MS, false))
                .count()
        };
        let first = run(&mut codel, 0);
        codel.signals(start + 600 * MS, Patience::default(), MS, false);
        assert!(run(&mut codel, 601) > first);
    }
}
