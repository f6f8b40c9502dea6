//! Signs of other flows at the bottleneck, and how long to compete with them.

use std::time::{Duration, Instant};

/// How long CUBIC competes before the controller checks again whose queue it is. Each check that finds the rival again doubles
/// this time.
const FIRST_COMPETITION: Duration = Duration::from_secs(5);
const LONGEST_COMPETITION: Duration = Duration::from_secs(40);
/// A competition that begins this soon after the last one is with the same rival, and lasts twice as long.
const SAME_RIVAL: Duration = Duration::from_secs(10);
/// A flow that has lost packets to a full queue needs about this long to get its share back.
const RECOVERY: Duration = Duration::from_secs(30);

/// If queues build up while the path carries less than this share of what it carried during earlier queues, a rival takes
/// the rest.
const SQUEEZED: f64 = 0.8;
/// Share of a new rate in the average, and the share of the largest average that is left after a queue.
const RATE_SHARE: f64 = 0.5;
const MOST_LEFT: f64 = 1.0 - 1.0 / 1024.0;
/// Number of queues in a row at such a low rate that show a rival.
const SQUEEZED_QUEUES: u32 = 4;

/// What the controller knows about other flows.
#[derive(Clone, Debug)]
pub(super) struct Rivals {
    competition: Duration,
    /// When the last competition ended, or will end.
    last_competition: Option<Instant>,
    /// The time until which another flow may still be getting its share back.
    recover_until: Option<Instant>,
    /// The average rate at the last queues, and the largest such average, in bytes per second. The largest average decays slowly.
    rate: f64,
    most: f64,
    squeezed: u32,
}

impl Default for Rivals {
    fn default() -> Self {
        Self {
            competition: FIRST_COMPETITION,
            last_competition: None,
            recover_until: None,
            rate: 0.0,
            most: 0.0,
            squeezed: 0,
        }
    }
}

impl Rivals {
    /// Records a queue at this rate. Returns an even share of the path's rate if the rate has dropped so far that another flow must have
    /// taken the rest.
    pub(super) fn on_queue(&mut self, rate: f64) -> Option<f64> {
        self.rate += (rate - self.rate) * if self.most > 0.0 { RATE_SHARE } else { 1.0 };
        self.squeezed = if self.rate < SQUEEZED * self.most { self.squeezed + 1 } else { 0 };
        self.most = self.rate.max(self.most * MOST_LEFT);
        if self.squeezed < SQUEEZED_QUEUES {
            return None;
        }
        let share = self.most / 2.0;
        (self.most, self.squeezed) = (0.0, 0);
        Some(share)
    }

    /// Leaves other flows time to recover, because they may have lost packets too.
    pub(super) fn let_recover(&mut self, now: Instant) {
        self.recover_until = self.recover_until.max(Some(now + RECOVERY));
    }

    /// Whether other flows may be recovering from a loss.
    pub(super) fn may_recover(&self, now: Instant) -> bool {
        self.recover_until.is_some_and(|until| now < until)
    }

    /// Whether a rival that shows up now is a new one.
    pub(super) fn is_new(&self, now: Instant) -> bool {
        self.last_competition.is_none_or(|last| now >= last + SAME_RIVAL)
    }

    /// Begins a competition. Returns when to check again.
    pub(super) fn compete(&mut self, now: Instant) -> Instant {
        self.competition = match self.is_new(now) {
            false => (self.competition * 2).min(LONGEST_COMPETITION),
            true => FIRST_COMPETITION,
        };
        let until = now + self.competition;
        self.last_competition = Some(until);
        self.let_recover(until);
        until
    }

    /// Records that the last competition had no rival.
    pub(super) fn were_none(&mut self) {
        (self.last_competition, self.recover_until) = (None, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rival_is_known_by_queues_at_lower_rates() {
        let mut rivals = Rivals::default();
        let mut queues_until_rival = |rate: f64| (1..20).find(|_| rivals.on_queue(rate).is_some());
        assert_eq!(queues_until_rival(1_000.0), None);
        assert_eq!(queues_until_rival(900.0), None);
        assert!(queues_until_rival(500.0).is_some_and(|queues| queues >= 4));
        // By now, the lower rate counts as what the path carries.
        assert_eq!(queues_until_rival(500.0), None);
    }

    #[test]
    fn one_fast_round_makes_no_rival() {
        let mut rivals = Rivals::default();
        for _ in 0..20 {
            assert!(
                ![1_000.0, 1_000.0, 2_000.0, 1_000.0, 900.0]
                    .into_iter()
                    .any(|rate| rivals.on_queue(rate).is_some())
            );
        }
    }

    #[test]
    fn a_rival_that_stays_is_competed_with_for_longer() {
        let (mut rivals, start) = (Rivals::default(), Instant::now());
        let first = rivals.compete(start);
        assert_eq!(first, start + FIRST_COMPETITION);
        let second = rivals.compete(first);
        assert_eq!(second, first + 2 * FIRST_COMPETITION);
        let later = second + SAME_RIVAL;
        assert!(rivals.may_recover(later));
        assert_eq!(rivals.compete(later), later + FIRST_COMPETITION);
        rivals.were_none();
        assert!(!rivals.may_recover(later));
    }
}
