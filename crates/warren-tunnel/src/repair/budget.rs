//! How many bytes may be sent again: a share of the bytes sent.

use super::planted::{Bug, is_planted};

/// Datagrams sent again may take twice the lost share plus this much, because the momentary loss differs from the measured loss.
const SPARE: f64 = 0.01;
/// Largest share of the bytes. It also bounds the harm of a wrong measure of the loss.
const MOST: f64 = 0.15;
/// How many bytes may be saved up. A burst of losses needs fewer.
const SAVED: f64 = 256.0 * 1024.0;

/// A token bucket.
#[derive(Debug)]
pub(super) struct Budget {
    share: f64,
    bytes: f64,
}

impl Default for Budget {
    fn default() -> Self {
        // Full from the start: a flow that loses one of its first packets is slow for seconds.
        Self { share: SPARE, bytes: SAVED }
    }
}

impl Budget {
    /// Sets the share from the measured loss, from 0 to 1.
    pub(super) fn set_share(&mut self, loss: f64) {
        self.share = (2.0 * loss + SPARE).min(MOST);
    }

    /// Counts bytes that are sent for the first time.
    pub(super) fn earn(&mut self, bytes: usize) {
        self.bytes = (self.bytes + bytes as f64 * self.share).min(SAVED);
    }

    /// Takes bytes for a repair. If the budget has too few, takes none and returns false.
    pub(super) fn spend(&mut self, bytes: usize) -> bool {
        let left = self.bytes - bytes as f64;
        let is_enough = left >= 0.0 || is_planted(Bug::BudgetIgnored);
        if is_enough {
            self.bytes = left;
        }
        is_enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repairs_take_no_more_than_their_share() {
        for (loss, share) in [(0.0, 0.01), (0.01, 0.03), (0.5, 0.15)] {
            let mut budget = Budget::default();
            budget.set_share(loss);
            let (mut sent, mut repaired) = (0, 0);
            for _ in 0..100_000 {
                budget.earn(1_000);
                sent += 1_000;
                while budget.spend(1_000) {
                    repaired += 1_000;
                }
            }
            let most = f64::from(sent) * share + SAVED;
            assert!(f64::from(repaired) <= most && f64::from(repaired) > 0.9 * most, "{repaired} at {loss}");
        }
    }
}
