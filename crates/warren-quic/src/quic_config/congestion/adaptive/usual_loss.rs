//! The usual loss of a path: random loss, which does not come from congestion.

use super::rounds::{Round, loss_share};

/// A round's loss is unusual if it exceeds [`UNUSUAL`] times the usual loss by more than this many bursts of the usual length.
const STRAY_BURSTS: f64 = 4.0;
const UNUSUAL: f64 = 3.0;
/// Longer bursts come from a full queue, which drops the end of each burst that a sender sends.
const LONGEST_BURST: f64 = 12.0;
/// A round's loss means congestion even without a queue (a policer, or a very short queue) if it exceeds twice the usual loss by
/// this share of the packets.
const EXCESS_LOSS: f64 = 0.05;
/// Rounds over which the usual loss is averaged.
const LOSS_ROUNDS: f64 = 32.0;

/// The usual loss of a path.
#[derive(Clone, Debug, Default)]
pub(super) struct UsualLoss {
    /// Share of packets that are lost.
    loss: f64,
    /// Share of packets that begin a burst of losses. Packets that are lost in a row count once.
    bursts: f64,
    /// The number of rounds in these averages.
    rounds: f64,
}

impl UsualLoss {
    /// Adds a round whose loss was not congestion.
    pub(super) fn add(&mut self, round: &Round) {
        // A plain average at first, then one that forgets old rounds.
        self.rounds = (self.rounds + 1.0).min(LOSS_ROUNDS);
        let bursts = loss_share(round.bursts, round.delivered + round.lost - round.bursts);
        self.loss += (round.loss() - self.loss) / self.rounds;
        self.bursts += (bursts - self.bursts) / self.rounds;
    }

    /// Records that the path loses this share of packets, no matter how loaded it is.
    pub(super) fn set(&mut self, loss: f64) {
        // The bursts are scaled with the loss, so that their usual length stays the same.
        self.bursts *= if self.loss > 0.0 { loss / self.loss } else { 0.0 };
        self.loss = loss;
    }

    /// Whether a round has lost much more than usual.
    pub(super) fn is_exceeded(&self, round: &Round) -> bool {
        round.lost as f64 >= STRAY_BURSTS && round.loss() > 2.0 * self.loss + EXCESS_LOSS
    }

    /// Whether clearly more packets are lost than usual.
    pub(super) fn is_unusual(&self, delivered: u64, lost: u64) -> bool {
        let usual = self.loss * (delivered + lost) as f64;
        lost as f64 > STRAY_BURSTS * self.burst() + UNUSUAL * usual
    }

    /// The usual number of packets lost in a row.
    pub(super) fn burst(&self) -> f64 {
        if self.bursts > 0.0 { (self.loss / self.bursts).clamp(1.0, LONGEST_BURST) } else { 1.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(delivered: u64, lost: u64, bursts: u64) -> Round {
        Round { delivered, lost, bursts, ..Round::default() }
    }

    #[test]
    fn a_path_that_loses_bursts_is_allowed_bursts() {
        let (mut single, mut bursts) = (UsualLoss::default(), UsualLoss::default());
        for _ in 0..100 {
            single.add(&round(990, 10, 10));
            bursts.add(&round(990, 10, 2));
        }
        assert!(single.is_unusual(60, 10));
        assert!(!bursts.is_unusual(60, 10));
        assert!(bursts.is_unusual(60, 25));
    }

    #[test]
    fn what_is_lost_whatever_the_load_is_usual_at_once() {
        let mut usual = UsualLoss::default();
        assert!(usual.is_exceeded(&round(800, 200, 200)));
        usual.set(0.2);
        assert!(!usual.is_exceeded(&round(800, 200, 200)));
        assert!(!usual.is_unusual(800, 200));
    }
}
