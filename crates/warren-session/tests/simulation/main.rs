//! Runs one exit against several clients over a network that delivers in any order, loses, and cuts, while both sides
//! restart and the operator changes the registry. Every action is checked against a model as it is carried out
//! (`exit_model`, `host`), and once the trouble is over everybody must be connected again.

#![expect(
    clippy::indexing_slicing,
    reason = "a simulation: an index that is not there is a failure to be seen"
)]
#![expect(clippy::unwrap_used, reason = "likewise")]

mod exit_model;
mod host;
mod network;
mod trouble;
mod world;

use proptest::prelude::*;

use self::trouble::Step;
use self::world::{Room, World};

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sessions_keep_their_promises_whatever_happens(seed: u64, tight: bool, steps in prop::collection::vec(step(), 1..250)) {
        let mut world = World::new(seed, if tight { Room::Tight } else { Room::Enough });
        for step in &steps {
            world.take(step);
        }
        world.settle();
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

fn step() -> impl Strategy<Value = Step> {
    let which = any::<prop::sample::Index>;
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
        2 => (which(), any::<bool>()).prop_map(|(host, politely)| Step::RestartClient(host, politely)),
        1 => which().prop_map(Step::RemoveClient),
        1 => (which(), any::<bool>()).prop_map(|(key, disabled)| Step::SetDisabled(key, disabled)),
        2 => which().prop_map(Step::AddClient),
        3 => (which(), prop::collection::vec(any::<u8>(), 0..300)).prop_map(|(wire, bytes)| Step::SayToExit(wire, bytes)),
        2 => (which(), prop::collection::vec(any::<u8>(), 0..300)).prop_map(|(wire, bytes)| Step::SayToClient(wire, bytes)),
        3 => (which(), any::<u64>(), any::<u32>()).prop_map(|(wire, session, index)| Step::ForgeAttach(wire, session, index)),
        2 => any::<bool>().prop_map(Step::Stranger),
    ]
}
