//! Rests of a worker that large packets from the carrier wake often, as network cards moderate their interrupts: what comes meanwhile
//! is dealt with in one wake-up, and the programs at both ends of it have the core. All of its work waits for as long, timers too.

use std::time::{Duration, Instant};

/// How long a rest is, to which the kernel's timer slack of 50 us comes (timerslack_ns in proc(5)).
pub(super) const REST: Duration = Duration::from_micros(200);
/// Work is frequent if it ends so soon after that before it, the rest between them included.
const FREQUENT: Duration = Duration::from_micros(400);
/// Mean bytes of packets from which on they are taken for bulk. Small ones are somebody's questions and answers, or so many that a
/// worker has no time to rest.
const LARGE: u64 = 600;

/// What a worker had written to the TUN, and when, the last time it ran out of work.
pub(super) struct Rest {
    ended: Instant,
    packets: u64,
    bytes: u64,
}

impl Rest {
    pub(super) fn new(now: Instant) -> Self {
        Self { ended: now, packets: 0, bytes: 0 }
    }

    /// Whether a worker that has just run out of work is to rest, having written `packets` with `bytes` to the TUN since it was started.
    pub(super) fn is_due(&mut self, now: Instant, packets: u64, bytes: u64) -> bool {
        let written = packets.saturating_sub(self.packets);
        let are_large = written > 0 && bytes.saturating_sub(self.bytes) / written >= LARGE;
        let is_frequent = now.saturating_duration_since(self.ended) < FREQUENT;
        *self = Self { ended: now, packets, bytes };
        are_large && is_frequent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After how many of a hundred pieces of work, one each `apart` with packets of so many bytes, a rest is due.
    fn rests(apart: Duration, packets: u64, bytes: u64) -> usize {
        let start = Instant::now();
        let mut rest = Rest::new(start);
        (1..=100_u32)
            .filter(|turn| {
                let number = u64::from(*turn);
                rest.is_due(start + apart * *turn, number * packets, number * packets * bytes)
            })
            .count()
    }

    #[test]
    fn rests_under_bulk_alone() {
        assert_eq!(rests(Duration::from_micros(150), 4, 1_200), 100);
        assert_eq!(rests(Duration::from_micros(350), 1, LARGE), 100);
    }

    #[test]
    fn neither_small_packets_nor_few_wake_ups_make_a_worker_rest() {
        assert_eq!(rests(Duration::from_micros(150), 100, 120), 0);
        assert_eq!(rests(Duration::from_micros(400), 4, 1_200), 0);
        assert_eq!(rests(Duration::from_micros(150), 0, 0), 0);
    }

    #[test]
    fn a_pause_ends_it() {
        let start = Instant::now();
        let mut rest = Rest::new(start);
        assert!(rest.is_due(start + Duration::from_micros(100), 1, 1_200));
        assert!(!rest.is_due(start + Duration::from_millis(100), 2, 2_400));
        assert!(rest.is_due(start + Duration::from_millis(100) + REST, 3, 3_600));
    }
}
