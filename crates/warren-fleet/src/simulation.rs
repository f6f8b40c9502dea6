//! A whole fleet from seeds, in virtual time: exits' real state machines, their real links, and a store in memory. Paths to the store
//! are cut, links and exits start again, and the store is compacted and restored from old backups. Recoveries are the real ones, too.
//!
//! What must hold is checked all the time (`checks.rs`), and once the trouble is over.
#![allow(clippy::wildcard_enum_match_arm, reason = "test code")]

mod checks;
mod client;
mod exit;
mod recovery;
mod site;
pub(crate) mod store;
mod trouble;
mod world;

use warren_simulation::{Random, finds, outcome, seeds};

use self::trouble::Trouble;
use self::world::World;
use crate::planted::Bug;

/// Number of seeds to run. `WARREN_SIMULATION=FROM..TO` runs others, for example to repeat one that failed.
const SEEDS: std::ops::Range<u64> = 0..400;

/// `--ignored` runs these, in some minutes.
const MANY_SEEDS: std::ops::Range<u64> = 0..10_000;

/// Most seeds that may pass before a planted bug is found.
const SEEDS_FOR_A_BUG: u64 = 1_000;

#[test]
fn a_fleet_keeps_its_promises_whatever_happens() {
    run_all(seeds(SEEDS));
}

#[test]
#[ignore = "takes minutes"]
fn a_fleet_keeps_its_promises_from_many_seeds() {
    run_all(seeds(MANY_SEEDS));
}

#[test]
#[allow(clippy::print_stdout, reason = "says which seed found what")]
fn planted_bugs_are_found_by_the_fleet() {
    for bug in [
        Bug::ReadThenPut,
        Bug::NewestBasis,
        Bug::CompactionIgnored,
        Bug::LateTransactionMissed,
        Bug::TombstoneForgotten,
        Bug::RestoreUnnoticed,
        Bug::NewsForgotten,
        Bug::ReopenedTooEarly,
    ] {
        let found = (0..SEEDS_FOR_A_BUG).find(|seed| finds(bug, || run(*seed)));
        println!("{bug:?}: found by {found:?}");
        assert!(
            found.is_some_and(|seed| outcome(|| run(seed)).is_kept),
            "{bug:?} is not found, or without it"
        );
    }
}

fn run_all(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        assert!(outcome(|| run(seed)).is_kept, "repeat it with WARREN_SIMULATION={seed}..{}", seed + 1);
    }
}

fn run(seed: u64) {
    let mut random = Random::new(seed);
    let mut world = World::new(seed);
    world.wait(2_000);
    for _ in 0..15 + random.below(25) {
        Trouble::draw(&mut random).make(&mut world, &mut random);
        let pause = match random.below(8) {
            0 => random.below(14_000),
            1..=3 => random.below(2_500),
            _ => random.below(300),
        };
        world.wait(pause);
    }
    world.settle();
}
