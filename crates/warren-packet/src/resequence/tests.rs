//! Tests of whole lanes. The oracle is the fuzz target's: it is given random bytes, and has to find each planted bug.

#[allow(dead_code, unreachable_pub, reason = "the files are modules of fuzz/ as well")]
#[path = "../../../../fuzz/src/input.rs"]
mod input;
#[allow(unreachable_pub, reason = "it is a module of fuzz/ as well")]
#[path = "../../../../fuzz/src/resequence.rs"]
mod oracle;

use std::ops::Range;

use proptest::prelude::*;
use warren_simulation::{Random, find_every_bug, outcome, seeds};

use super::planted::Bug;

/// Number of seeds to run. `WARREN_SIMULATION=FROM..TO` runs others, for example to repeat one that failed.
const SEEDS: Range<u64> = 0..400;
/// Most seeds that may pass before a planted bug is found.
const SEEDS_FOR_A_BUG: u64 = 100;

#[test]
fn whatever_a_peer_sends_is_released_once_in_order_and_in_time() {
    for seed in seeds(SEEDS) {
        assert!(outcome(|| run(seed)).is_kept, "repeat it with WARREN_SIMULATION={seed}..{}", seed + 1);
    }
}

#[test]
fn every_planted_bug_is_found_and_found_again_by_its_seed() {
    find_every_bug::<Bug>(SEEDS_FOR_A_BUG, |seed| outcome(|| run(seed)));
}

proptest! {
    #[test]
    fn any_steps_of_a_peer_hold_what_the_oracle_expects(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        oracle::run(&bytes);
    }
}

/// Gives the oracle a few hundred steps.
fn run(seed: u64) {
    let mut random = Random::new(seed);
    let mut bytes = vec![0; 1_500];
    random.fill(&mut bytes);
    oracle::run(&bytes);
}
