//! Short sleeps of a worker that is often woken by large packets from the carrier. They work like a network card's
//! interrupt moderation: one wake-up handles everything that arrived during the sleep. Meanwhile, other programs
//! get the core. All of the worker's work waits, timers included.

use std::time::{Duration, Instant};

use crate::counters::Totals;

/// Length of a rest. The kernel's timer slack adds 50 us (timerslack_ns in proc(5)).
const REST: Duration = Duration::from_micros(200);
/// Length of a rest while traffic flows one way only. Nothing then waits for an answer, so a longer rest does no harm.
// UDP of 1,200 bytes at 300 Mbit/s takes 6.3 CPU s per GB with 500 us, and 8.4 with 200 us (bench/LOG.md, "A longer
// rest where nothing goes the other way").
const ONE_WAY_REST: Duration = Duration::from_micros(500);
/// The long rest is used only if at most this many packets arrived since the worker last ran out of work. A default
/// socket buffer holds about ninety packets of 1,200 bytes.
const FEW: u64 = 32;
/// Work is frequent if it ends at most this long after the work before it. This includes a short rest between them.
const FREQUENT: Duration = Duration::from_micros(400);
/// Packets count as bulk if their mean size is at least this many bytes. Smaller ones are requests and answers, or come
/// so fast that a worker has no time to rest.
// When packets of any size counted, 120-byte UDP fell from 375 to about 300 thousand packets a second (bench/LOG.md, "A
// worker that rests where large packets come often").
const LARGE: u64 = 600;

/// The time when the worker last ran out of work, and its counters at that time.
pub(super) struct Rest {
    ended: Instant,
    /// The length of the rest that followed.
    length: Duration,
    written_packets: u64,
    written_bytes: u64,
    read_packets: u64,
}

impl Rest {
    pub(super) fn new(now: Instant) -> Self {
        Self { ended: now, length: Duration::ZERO, written_packets: 0, written_bytes: 0, read_packets: 0 }
    }

    /// How long to rest now that the worker has run out of work; `None` if it should not rest. `totals` counts from the
    /// worker's start.
    pub(super) fn due(&mut self, now: Instant, totals: &Totals) -> Option<Duration> {
        let written = totals.tun_written_packets.saturating_sub(self.written_packets);
        let bytes = totals.tun_written_bytes.saturating_sub(self.written_bytes);
        let is_answered = totals.tun_read_packets > self.read_packets;
        let are_large = written > 0 && bytes / written >= LARGE;
        let since = now.saturating_duration_since(self.ended);
        // `FREQUENT` includes a short rest. The extra time of a long rest is added.
        let is_frequent = since < FREQUENT + self.length.saturating_sub(REST);
        let length = if is_answered || written > FEW { REST } else { ONE_WAY_REST };
        let due = (are_large && is_frequent).then_some(length);
        *self = Self {
            ended: now,
            length: due.unwrap_or_default(),
            written_packets: totals.tun_written_packets,
            written_bytes: totals.tun_written_bytes,
            read_packets: totals.tun_read_packets,
        };
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECES: u32 = 100;

    /// Returns the rests that are due after pieces of work that are `apart` from each other. Each piece brings `packets` packets
    /// of `bytes` bytes and sends `answers` answers.
    fn rests(apart: Duration, packets: u64, bytes: u64, answers: u64) -> Vec<Duration> {
        let start = Instant::now();
        let mut rest = Rest::new(start);
        (1..=PIECES)
            .filter_map(|turn| rest.due(start + apart * turn, &totals(turn.into(), packets, bytes, answers)))
            .collect()
    }

    /// The totals after `turns` pieces of work.
    fn totals(turns: u64, packets: u64, bytes: u64, answers: u64) -> Totals {
        Totals {
            tun_written_packets: turns * packets,
            tun_written_bytes: turns * packets * bytes,
            tun_read_packets: turns * answers,
            ..Totals::default()
        }
    }

    #[test]
    fn rests_under_bulk_alone() {
        assert_eq!(rests(Duration::from_micros(150), 4, 1_200, 1), [REST; PIECES as usize]);
        assert_eq!(rests(Duration::from_micros(350), 1, LARGE, 1), [REST; PIECES as usize]);
    }

    #[test]
    fn neither_small_packets_nor_few_wake_ups_make_a_worker_rest() {
        for answers in [0, 1] {
            assert_eq!(rests(Duration::from_micros(150), 100, 120, answers), []);
            assert_eq!(rests(Duration::from_micros(400), 4, 1_200, answers), []);
            assert_eq!(rests(Duration::from_micros(150), 0, 0, answers), []);
        }
    }

    #[test]
    fn rests_longer_where_nothing_goes_the_other_way() {
        assert_eq!(rests(Duration::from_micros(650), 20, 1_200, 0), []);
        let start = Instant::now();
        let mut rest = Rest::new(start);
        let mut now = start;
        for turn in 1..=u64::from(PIECES) {
            now += Duration::from_micros(if turn == 1 { 150 } else { 650 });
            assert_eq!(rest.due(now, &totals(turn, 20, 1_200, 0)), Some(ONE_WAY_REST), "{turn}");
        }
        assert_eq!(rests(Duration::from_micros(150), FEW + 1, 1_200, 0), [REST; PIECES as usize]);
    }

    #[test]
    fn a_pause_ends_it() {
        let start = Instant::now();
        let mut rest = Rest::new(start);
        assert!(rest.due(start + Duration::from_micros(100), &totals(1, 1, 1_200, 1)).is_some());
        assert!(rest.due(start + Duration::from_millis(100), &totals(2, 1, 1_200, 1)).is_none());
        assert!(rest.due(start + Duration::from_millis(100) + REST, &totals(3, 1, 1_200, 1)).is_some());
    }
}
