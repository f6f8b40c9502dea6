//! Runs random seeds of trouble, which must find every planted bug.

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use warren_simulation::{find_every_bug, hold_from, outcome, seeds};

use super::operator::{Change, Elsewhere};
use super::run_bytes;
use super::store::Mood;
use super::trouble::{Step, Which};
use super::world::{Room, World};
use crate::planted::Bug;

#[path = "../../../../../fuzz/src/corpus.rs"]
#[allow(unreachable_pub, clippy::print_stderr, reason = "other crates' tests have the file, too")]
mod replayed;

/// The seeds to run. `WARREN_SIMULATION=FROM..TO` runs others, for example to repeat one that failed.
const SEEDS: std::ops::Range<u64> = 0..1_500;

/// The seeds that must pass before a release. `--ignored` runs them, which takes some minutes.
const MANY_SEEDS: std::ops::Range<u64> = 0..10_000;

/// Most seeds that may pass before a planted bug is found.
const SEEDS_FOR_A_BUG: u64 = 1_000;

#[test]
fn sessions_keep_their_promises_whatever_happens() {
    hold_from(seeds(SEEDS), run);
}

#[test]
#[ignore = "takes minutes"]
fn sessions_keep_their_promises_from_many_seeds() {
    hold_from(MANY_SEEDS, run);
}

#[test]
fn every_planted_bug_is_found_and_found_again_by_its_seed() {
    find_every_bug::<Bug>(SEEDS_FOR_A_BUG, |seed| outcome(|| run(seed)));
}

#[test]
fn events_in_the_order_of_any_bytes() {
    replayed::replay("sessions", run_bytes);
}

proptest! {
    #[test]
    fn any_order_of_events_keeps_the_promises(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        run_bytes(&bytes);
    }
}

#[test]
fn without_trouble_everybody_is_up() {
    let mut world = World::new(1, Room::Enough);
    world.settle();
    assert_eq!(
        world.up(),
        [false, true, true, true, true],
        "the last host came later with the key of the first"
    );
}

/// The steps of a seed, which are the same each time.
fn run(seed: u64) {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let random = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(ProptestConfig::default(), random);
    let scenario = (any::<bool>(), prop::collection::vec(step(), 1..250));
    let (tight, steps) = scenario.new_tree(&mut runner).unwrap().current();
    let mut world = World::new(seed, if tight { Room::Tight } else { Room::Enough });
    for step in &steps {
        world.take(step);
    }
    world.settle();
}

fn step() -> impl Strategy<Value = Step> {
    let which = || any::<u32>().prop_map(Which);
    prop_oneof![
        30 => which().prop_map(Step::Deliver),
        12 => (1..40usize).prop_map(Step::DeliverMany),
        4 => which().prop_map(Step::CutBothSides),
        3 => which().prop_map(Step::CutClientSide),
        3 => which().prop_map(Step::CutExitSide),
        3 => which().prop_map(Step::Silence),
        8 => (1..400u64).prop_map(Step::Wait),
        4 => (400..90_000u64).prop_map(Step::Wait),
        2 => Just(Step::WaitForTimeout),
        1 => Just(Step::CrashExit),
        1 => Just(Step::ShutExitDown),
        3 => Just(Step::StartExit),
        3 => Just(Step::Announce),
        2 => (which(), any::<bool>()).prop_map(|(host, politely)| Step::RestartClient(host, politely)),
        2 => which().prop_map(Step::RemoveClient),
        1 => (which(), any::<bool>()).prop_map(|(key, disabled)| Step::SetDisabled(key, disabled)),
        2 => which().prop_map(Step::AddClient),
        3 => (which(), which(), any::<bool>()).prop_map(|(host, key, politely)| Step::ChangeKey(host, key, politely)),
        7 => (which(), change(), prop::bool::weighted(0.9)).prop_map(|(client, change, is_saved)| Step::SetClient(client, change, is_saved)),
        2 => (which(), 1..20_000u64).prop_map(|(client, seconds)| Step::Invite(client, seconds)),
        3 => (which(), which()).prop_map(|(token, key)| Step::Enrol(token, key)),
        2 => prop_oneof![-20_000..20_000i64, -2_000_000_000..2_000_000_000i64].prop_map(Step::SetClock),
        3 => (which(), prop::collection::vec(any::<u8>(), 0..300)).prop_map(|(wire, bytes)| Step::SayToExit(wire, bytes)),
        2 => (which(), prop::collection::vec(any::<u8>(), 0..300)).prop_map(|(wire, bytes)| Step::SayToClient(wire, bytes)),
        3 => (any::<u64>(), 0..3u32).prop_map(|(session, index)| Step::ForgeAttach(session, index)),
        3 => (which(), which(), 0..3u32).prop_map(|(host, key, index)| Step::StealToken(host, key, index)),
        2 => any::<bool>().prop_map(Step::Stranger),
        2 => (which(), any::<bool>()).prop_map(|(key, says_hello)| Step::Knock(key, says_hello)),
        3 => prop::sample::select(vec![Mood::Prompt, Mood::Slow, Mood::Down]).prop_map(Step::StoreMood),
        6 => (1..4usize).prop_map(Step::StoreWorks),
        1 => Just(Step::Relink),
        1 => (which(), any::<bool>()).prop_map(|(session, is_same)| Step::MovedAway(session, is_same)),
        3 => (which(), elsewhere()).prop_map(|(client, change)| Step::Elsewhere(client, change)),
    ]
}

fn elsewhere() -> impl Strategy<Value = Elsewhere> {
    use Elsewhere::*;
    prop::sample::select(vec![Add, Add, Remove, Disable, Enable, Enrol, Enrol, TakeAddress, Lease, Lease])
}

fn change() -> impl Strategy<Value = Change> {
    let which = || any::<u32>().prop_map(Which);
    prop_oneof![
        4 => which().prop_map(Change::NextKey),
        1 => (0..8u8).prop_map(Change::Ipv4),
        2 => which().prop_map(Change::Prefixes),
        1 => which().prop_map(Change::RateLimit),
    ]
}
