//! Sessions whose clients have a newer one at another exit of the fleet.

use super::*;
use crate::message::{Stay, encode};

#[test]
fn the_session_of_a_client_that_has_moved_goes_on_until_its_time_is_over() {
    let mut exit = Exit::new();
    exit.say(2, BOB, &hello(NONCE_B));
    exit.say(1, ALICE, &hello(NONCE_A));

    exit.sessions.elsewhere(exit.now, ALICE, &[NONCE_A; 16], 1);
    // The control: another process has bob's key at another exit.
    exit.sessions.elsewhere(exit.now, BOB, &[NONCE_A; 16], 0);

    assert_eq!(exit.closes(), [(2, Goodbye::Replaced)]);
    exit.advance(29);
    exit.sessions.elsewhere(exit.now, ALICE, &[NONCE_A; 16], 1);
    let attach = exit.attach(1);
    exit.say(3, ALICE, &attach);
    assert_eq!(exit.sessions.sessions().count(), 1, "a lost connection may still come back");
    assert_eq!(
        closed(&exit.advance(2)),
        [(1, Goodbye::Superseded), (3, Goodbye::Superseded)],
        "none of these ends the client"
    );
    assert_eq!(exit.sessions.sessions().count(), 0);
}

#[test]
fn a_client_that_moves_back_has_its_new_session_alone() {
    let mut exit = Exit::new();
    exit.say(1, ALICE, &hello(NONCE_A));
    exit.sessions.elsewhere(exit.now, ALICE, &[NONCE_A; 16], 1);

    let actions = exit.say(2, ALICE, &hello(NONCE_A));

    assert_eq!(closed(&actions), [(1, Goodbye::Superseded)]);
    exit.advance(60);
    assert_eq!(exit.sessions.sessions().count(), 1, "the time of the old one does not count for it");
}

#[test]
fn a_client_that_stays_keeps_its_session_whenever_the_store_hears_of_the_other() {
    let mut exit = Exit::new();
    exit.say(1, ALICE, &hello(NONCE_A));
    exit.sessions.elsewhere(exit.now, ALICE, &[NONCE_A; 16], 2);
    let stay = |exit: &mut Exit, claim| {
        exit.sessions.received(exit.now, 1, &encode(&Message::Stay(Stay { claim })));
        exit.actions()
    };
    assert_eq!(stay(&mut exit, 0), [], "not newer than the session");

    let actions = stay(&mut exit, 3);

    assert!(matches!(actions[..], [Action::Stays { key: ALICE, .. }]), "{actions:?}");
    assert_eq!(stay(&mut exit, 3), [], "each connection says it");
    exit.advance(60);
    // The store was late.
    exit.sessions.elsewhere(exit.now, ALICE, &[NONCE_A; 16], 2);
    assert!(matches!(exit.actions()[..], [Action::Stays { key: ALICE, .. }]));
    exit.advance(60);
    assert_eq!(exit.sessions.sessions().count(), 1);
    // The control: a newer session.
    exit.sessions.elsewhere(exit.now, ALICE, &[NONCE_A; 16], 4);
    assert_eq!(closed(&exit.advance(31)), [(1, Goodbye::Superseded)]);
}

fn closed(actions: &[Action]) -> Vec<(u64, Goodbye)> {
    let close = |action: &Action| {
        let Action::Close { connection, reason } = action else { return None };
        Some((*connection, *reason))
    };
    actions.iter().filter_map(close).collect()
}
