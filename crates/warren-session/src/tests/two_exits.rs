//! One client moves between two exits of its fleet. Paths fail and recover. Exits are drained, refuse sessions, crash, or carry
//! no packets. The store is late. Each seed makes its own trouble. The rules are checked after each step (`checks`). Once the
//! trouble is over, the client must be at one exit, and the store must know which.
#![allow(clippy::wildcard_enum_match_arm, reason = "test code")]

mod checks;
mod client;
mod store;
mod trouble;
mod world;

use warren_simulation::{Random, find_every_bug, hold_from, outcome, seeds};

use self::trouble::Trouble;
use self::world::World;
use crate::planted_moves::Bug;

/// The seeds to run. `WARREN_SIMULATION=FROM..TO` runs others, for example to repeat one that failed.
const SEEDS: std::ops::Range<u64> = 0..10_000;

/// `--ignored` runs these, in some minutes.
const MANY_SEEDS: std::ops::Range<u64> = 0..1_000_000;

/// Most seeds that may pass before a planted bug is found.
const SEEDS_FOR_A_BUG: u64 = 2_000;

#[test]
fn moves_keep_their_promises_whatever_happens() {
    hold_from(seeds(SEEDS), run);
}

#[test]
#[ignore = "takes minutes"]
fn moves_keep_their_promises_from_many_seeds() {
    hold_from(seeds(MANY_SEEDS), run);
}

#[test]
fn every_planted_bug_of_moves_is_found_and_found_again_by_its_seed() {
    find_every_bug::<Bug>(SEEDS_FOR_A_BUG, |seed| outcome(|| run(seed)));
}

#[test]
fn without_trouble_an_exit_that_is_drained_sends_its_client_to_the_other() {
    let mut world = World::new(1);
    world.wait(2_000);
    assert_eq!((world.client.in_use.exit, world.client.is_shown_up), (0, true));
    world.drain(0, true);
    world.wait(3_000);
    assert_eq!((world.client.in_use.exit, world.client.beside.is_some()), (1, true));
    world.settle();
    assert_eq!(world.client.in_use.exit, 1);
    assert_eq!(world.client.downs, 0, "without a gap");
}

#[test]
fn a_client_that_could_not_move_is_not_thrown_off_the_exit_where_it_stays() {
    let mut world = World::new(1);
    world.wait(2_000);
    world.sites[1].carries = false;
    world.improve();
    world.wait(12_000);
    assert_eq!(world.store.holder(), Some(0), "the store knows where the client is");
    world.wait(120_000);
    assert_eq!((world.client.in_use.exit, world.client.downs), (0, 0));
}

#[test]
fn nothing_grows_with_a_thousand_moves() {
    let mut world = World::new(1);
    world.tick = 250;
    world.wait(5_000);
    let mut sizes = Vec::new();
    for number in 0..1_000 {
        let exit = world.client.in_use.exit;
        world.drain(exit, true);
        world.wait(5_000);
        world.drain(exit, false);
        assert_ne!(world.client.in_use.exit, exit, "move {number}");
        world.wait(36_000);
        assert!(world.client.beside.is_none());
        sizes.push(world.size());
    }
    // Sometimes the latest rows and dates are still on their way to the store.
    assert!(sizes[900..].iter().max() <= sizes[..100].iter().max(), "{:?} {:?}", &sizes[..10], &sizes[990..]);
}

fn run(seed: u64) {
    let mut random = Random::new(seed);
    let mut world = World::new(seed);
    world.wait(1_500);
    for _ in 0..10 + random.below(25) {
        Trouble::draw(&mut random).make(&mut world);
        // Short pauses end within a step of a move. Long pauses last until the move has ended.
        let pause = match random.below(4) {
            0 => random.below(60_000),
            1 => random.below(6_000),
            _ => random.below(400),
        };
        world.wait(pause);
    }
    world.settle();
}
