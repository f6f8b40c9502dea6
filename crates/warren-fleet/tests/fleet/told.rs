//! What an exit is told while its link starts again, loses its lease, or finds something in the store that it cannot read.

use std::time::Duration;

use super::support::exit::key;
use super::support::fleet_ok;
use super::support::proxy::{CUT, OPEN};
use super::{client, three_exits, three_exits_one_behind_a_way};
use warren_fleet_link::StoreLink;

#[test]
fn a_drain_and_a_roster_that_came_while_the_link_was_down_reach_the_exit() {
    let mut fleet = three_exits();
    let a = fleet.exits[0].directory.clone();
    fleet_ok(&a, &["drain", "b"]);
    fleet.store.etcdctl_ok(&["put", "/warren/fleet/ro", "one"]);
    fleet.exits[1].wait("it is drained", |seen| {
        (seen.drain == Some(true) && seen.roster.as_deref() == Some(b"one")).then_some(())
    });
    // The disk has them by then.
    std::thread::sleep(Duration::from_millis(1_500));
    fleet.exits[1].stop_link("TERM");
    fleet.store.etcdctl_ok(&["put", "/warren/fleet/ro", "two"]);
    fleet.exits[1].seen(|seen| (seen.wholes, seen.store) = (0, None));
    fleet.exits[1].seen(|seen| seen.order.clear());
    fleet.exits[1].start_link();
    fleet.exits[1].wait("the exit has the newer roster", |seen| {
        (seen.roster.as_deref() == Some(b"two")).then_some(())
    });
    let told = |exit: &super::Exit| {
        exit.seen(|seen| {
            let drains = seen.order.iter().filter_map(|message| match message {
                super::FleetMessage::Drain { on } => Some(*on),
                _ => None,
            });
            drains.collect::<Vec<_>>()
        })
    };
    assert!(told(&fleet.exits[1]).iter().all(|on| *on), "the restart has ended the drain");

    // A drain that ends, or begins, while the link is down.
    for on in [false, true] {
        fleet.exits[1].stop_link("KILL");
        fleet_ok(&a, if on { &["drain", "b"] } else { &["drain", "b", "--end"] });
        fleet.exits[1].start_link();
        fleet.exits[1].wait("the exit knows of the drain", |seen| (seen.drain == Some(on)).then_some(()));
    }
    // The control: nobody drains this exit.
    assert!(told(&fleet.exits[2]).iter().all(|on| !on));
}

#[test]
fn a_drain_and_a_roster_behind_a_compaction_reach_the_exit() {
    let (fleet, ways) = three_exits_one_behind_a_way();
    let [a, _, c] = &fleet.exits[..] else { panic!() };
    ways.set(CUT);
    c.wait("the store is away", |seen| matches!(seen.store, Some(StoreLink::Away { .. })).then_some(()));
    fleet_ok(&a.directory, &["drain", "c"]);
    fleet.store.etcdctl_ok(&["put", "/warren/fleet/ro", "one"]);
    a.store(&[client("anna", key(1)).into()]);
    fleet.store.etcdctl_ok(&["compact", &fleet.store.revision().to_string()]);
    ways.set(OPEN);
    c.wait("it is drained", |seen| (seen.drain == Some(true)).then_some(()));
    c.wait("it has the roster", |seen| (seen.roster.as_deref() == Some(b"one")).then_some(()));
    assert!(c.log().contains("has compacted"), "the link went on where it was");
}
