//! In which order peers and tests come, and how long the whole takes.

use std::time::Duration;

/// Beyond its seconds, what a test takes to start and end.
const TEST_OVERHEAD: Duration = Duration::from_millis(700);
/// Making hosts, bringing a tunnel up, taking both down.
const VISIT_OVERHEAD: Duration = Duration::from_secs(3);

/// Shuffles with a seed, the same way for the same seed (SplitMix64 and Fisher-Yates).
#[derive(Clone, Debug)]
pub(crate) struct Shuffle {
    state: u64,
}

impl Shuffle {
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    pub(crate) fn shuffled<T: Clone>(&mut self, items: &[T]) -> Vec<T> {
        let mut items = items.to_vec();
        for end in (1..items.len()).rev() {
            let span = u64::try_from(end).unwrap_or(u64::MAX).saturating_add(1);
            let pick = usize::try_from(self.next() % span).unwrap_or(0);
            items.swap(end, pick);
        }
        items
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// What is planned of a run, in time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) peers: u32,
    pub(crate) tests: u32,
    /// Of one test in a round that is kept.
    pub(crate) seconds: u32,
    /// Rounds that are kept.
    pub(crate) rounds: u32,
}

impl Plan {
    /// Seconds of a test in the round that is thrown away: enough to warm up what there is to warm up.
    const FIRST_ROUND_SECONDS: u32 = 1;

    /// The seconds of each test in a round; round 0 is the one that is thrown away.
    pub(crate) fn test_seconds(&self, round: u32) -> u32 {
        if round == 0 { Self::FIRST_ROUND_SECONDS.min(self.seconds) } else { self.seconds }
    }

    /// The time of one test.
    pub(crate) fn test(&self, round: u32) -> Duration {
        Duration::from_secs(self.test_seconds(round).into()) + TEST_OVERHEAD
    }

    /// The time of one peer's turn in a round.
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
