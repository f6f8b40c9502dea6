//! The order of peers and tests, and the planned time.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::random::Random;

/// Time that a test takes in addition to its measured seconds, to start and to end.
const TEST_OVERHEAD: Duration = Duration::from_millis(700);
/// Time to make the hosts, bring a tunnel up, and remove tunnel and hosts.
const VISIT_OVERHEAD: Duration = Duration::from_secs(3);

/// A Fisher-Yates shuffle. The same seed gives the same order.
#[derive(Clone, Debug)]
pub(crate) struct Shuffle(Random);

impl Shuffle {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Random::new(seed))
    }

    /// Returns a seed from the clock, so that each run has another one.
    pub(crate) fn seed_from_clock() -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
    }

    pub(crate) fn shuffled<T: Clone>(&mut self, items: &[T]) -> Vec<T> {
        let mut items = items.to_vec();
        for end in (1..items.len()).rev() {
            items.swap(end, self.0.below(end + 1));
        }
        items
    }
}

/// The planned size of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) peers: u32,
    pub(crate) tests: u32,
    /// Measured seconds of a test, except in the discarded round.
    pub(crate) seconds: u32,
    /// Number of rounds, without the discarded one.
    pub(crate) rounds: u32,
}

impl Plan {
    /// Seconds of a test in the discarded round, which only warms up the machine.
    const FIRST_ROUND_SECONDS: u32 = 1;

    /// Returns the seconds of each test in a round. Round 0 is discarded.
    pub(crate) fn test_seconds(&self, round: u32) -> u32 {
        if round == 0 { Self::FIRST_ROUND_SECONDS.min(self.seconds) } else { self.seconds }
    }

    /// Returns the planned time of one test.
    pub(crate) fn test(&self, round: u32) -> Duration {
        Duration::from_secs(self.test_seconds(round).into()) + TEST_OVERHEAD
    }

    /// Returns the planned time of a visit to one peer.
    pub(crate) fn visit(&self, round: u32) -> Duration {
        VISIT_OVERHEAD + self.test(round) * self.tests
    }

    pub(crate) fn total(&self) -> Duration {
        (0..=self.rounds).map(|round| self.visit(round) * self.peers).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_a_permutation_that_the_seed_decides() {
        let items: Vec<u32> = (0..20).collect();
        let shuffled = Shuffle::new(7).shuffled(&items);
        assert_eq!(shuffled, Shuffle::new(7).shuffled(&items));
        assert_ne!(shuffled, Shuffle::new(8).shuffled(&items));
        assert_ne!(shuffled, items);
        let mut sorted = shuffled;
        sorted.sort_unstable();
        assert_eq!(sorted, items);
    }

    #[test]
    fn every_item_comes_first_about_equally_often() {
        let mut shuffle = Shuffle::new(1);
        let mut first = [0_u32; 4];
        for _ in 0..4_000 {
            let order = shuffle.shuffled(&[0_usize, 1, 2, 3]);
            first[order[0]] += 1;
        }
        assert!(first.iter().all(|&count| (850..1_150).contains(&count)), "{first:?}");
    }

    #[test]
    fn default_run_is_planned_in_under_a_quarter_of_an_hour() {
        let plan = Plan { peers: 5, tests: 9, seconds: 3, rounds: 3 };
        assert_eq!(plan.test_seconds(0), 1);
        assert!(plan.total() < Duration::from_secs(13 * 60), "{:?}", plan.total());
    }
}
