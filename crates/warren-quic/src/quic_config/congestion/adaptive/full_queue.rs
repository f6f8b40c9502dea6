//! Finds out whether the bottleneck's queue is full. If packets are lost only while the queue is full, congestion is the cause.

use std::time::Duration;

/// A queue is near its longest if its length is at least this share of the longest.
const NEAR: f64 = 0.7;
/// Losses near a full queue show an overflow only if they exceed this many bursts of the usual length.
const STRAY_BURSTS: f64 = 4.0;
/// Near a full queue, the share of lost packets must be at least this many times the share at other times.
const MORE: f64 = 3.0;
/// Share of the counts that is left after a round.
const LEFT: f64 = 1.0 - 1.0 / 64.0;
/// If a queue overflows a second time within this many rounds, it is full.
const OVERFLOW_ROUNDS: u32 = 64;

/// Packets that were delivered and lost. Recent ones count more than old ones.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    delivered: f64,
    lost: f64,
}

impl Counts {
    fn all(&self) -> f64 {
        self.delivered + self.lost
    }
}

/// The longest queue of recent rounds. Packets are counted separately for queues near that length and for shorter queues.
#[derive(Clone, Debug, Default)]
pub(super) struct FullQueue {
    longest: Duration,
    near: Counts,
    others: Counts,
    /// Packets that were acknowledged, and that were lost, since the last call of [`Self::count`].
    delivered: u32,
    lost: u32,
    /// Rounds left in which one more overflow means that the queue is full.
    rounds_left: u32,
}

impl FullQueue {
    pub(super) fn on_ack(&mut self) {
        self.delivered += 1;
    }

    pub(super) fn on_packet_lost(&mut self) {
        self.lost += 1;
    }

    /// Whether a queueing delay is near the longest.
    pub(super) fn is_near(&self, queue: Duration) -> bool {
        queue >= self.longest.mul_f64(NEAR)
    }

    /// Counts the packets of an ACK frame or of a loss. `may_be_full` says whether the queue was near its longest
    /// according to the acknowledgement.
    pub(super) fn count(&mut self, may_be_full: bool) {
        let counts = if may_be_full { &mut self.near } else { &mut self.others };
        counts.delivered += f64::from(std::mem::take(&mut self.delivered));
        counts.lost += f64::from(std::mem::take(&mut self.lost));
    }

    /// Records a queueing delay that several acknowledgements had.
    pub(super) fn note(&mut self, queue: Duration) {
        self.longest = self.longest.max(queue);
    }

    pub(super) fn end_round(&mut self) {
        // The longest queue is forgotten within some 64 rounds, because the path may have changed.
        self.longest -= self.longest / 64;
        self.rounds_left = self.rounds_left.saturating_sub(1);
        for counts in [&mut self.near, &mut self.others] {
            counts.delivered *= LEFT;
            counts.lost *= LEFT;
        }
    }

    /// Whether clearly more packets are lost near a full queue. `burst` is the number of packets that the path
    /// usually loses in a row.
    pub(super) fn overflows(&self, burst: f64) -> bool {
        let (near, others) = (self.near.all(), self.others.all());
        let expected = near * self.others.lost / others.max(1.0);
        // If the queue is near its longest most of the time, there is nothing to compare with.
        near < others && self.near.lost > STRAY_BURSTS * burst + MORE * expected
    }

    /// Records that an overflow was answered. Returns whether it was the second one within a short time.
    pub(super) fn answered(&mut self) -> bool {
        self.near = Counts::default();
        std::mem::replace(&mut self.rounds_left, OVERFLOW_ROUNDS) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A round of 1,000 packets. A tenth of them are near the full queue.
    fn round(full: &mut FullQueue, lost_near: u32, lost_otherwise: u32) {
        for (packets, lost, may_be_full) in [(100, lost_near, true), (900, lost_otherwise, false)] {
            (full.delivered, full.lost) = (packets - lost, lost);
            full.count(may_be_full);
        }
        full.end_round();
    }

    #[test]
    fn losses_near_a_full_queue_count_and_random_ones_do_not() {
        let (mut overflowing, mut random) = (FullQueue::default(), FullQueue::default());
        for _ in 0..50 {
            round(&mut random, 1, 9);
            assert!(!random.overflows(1.0));
        }
        for _ in 0..5 {
            assert!(!overflowing.overflows(1.0));
            round(&mut overflowing, 1, 0);
        }
        assert!(overflowing.overflows(1.0) && !overflowing.overflows(4.0));
        assert!(!overflowing.answered() && !overflowing.overflows(1.0));
        assert!(overflowing.answered());
    }

    #[test]
    fn one_overflow_is_forgotten_in_time() {
        let mut full = FullQueue::default();
        assert!(!full.answered());
        (0..OVERFLOW_ROUNDS).for_each(|_| round(&mut full, 0, 0));
        assert!(!full.answered());
    }
}
