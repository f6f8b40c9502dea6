//! Sessions whose clients have a newer one at another exit of the fleet.

use super::*;
use crate::message::{Stay, encode};

#[test]
fn the_session_of_a_client_that_has_moved_goes_on_until_its_time_is_over() {
    let mut exit = Exit::new();
    exit.say(2, BOB, &hello(NONCE_B));
    exit.say(1, ALICE, &hello(NONCE_A));

    exit.sessions.elsewhere(exit.now, ALICE, &[NONCE_A; 16], 1);
    // The control: another process uses bob's key at another exit.
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
    // The store reports an older session late.
    exit.sessions.elsewhere(exit.now, ALICE, &[NONCE_A; 16], 2);
    assert!(matches!(exit.actions()[..], [Action::Stays { key: ALICE, .. }]));
    exit.advance(60);
    assert_eq!(exit.sessions.sessions().count(), 1);
    // The control: the store reports a newer session.
    exit.sessions.elsewhere(exit.now, ALICE, &[NONCE_A; 16], 4);
    assert_eq!(closed(&exit.advance(31)), [(1, Goodbye::Superseded)]);
}

#[test]
fn a_client_that_says_again_and_again_that_it_stays_costs_the_store_eight_writes_in_half_a_minute() {
    let mut exit = Exit::new();
    exit.say(1, ALICE, &hello(NONCE_A));
    exit.say(2, BOB, &hello(NONCE_B));
    let mut claims = 0;
    // From the exit's point of view, the client moves to another exit and stays.
    let mut stays = |exit: &mut Exit, connection: u64, (key, nonce): (PublicKey, u8)| {
        exit.sessions.elsewhere(exit.now, key, &[nonce; 16], claims + 1);
        claims += 2;
        exit.sessions.received(exit.now, connection, &encode(&Message::Stay(Stay { claim: claims })));
        exit.actions().iter().filter(|action| matches!(action, Action::Stays { .. })).count()
    };

    let written: usize = (0..5_000).map(|_| stays(&mut exit, 1, (ALICE, NONCE_A))).sum();

    assert_eq!(written, 8);
    assert_eq!(exit.sessions.stays_refused(), 4_992);
    // The same holds if the store reports the other sessions late.
    exit.sessions.received(exit.now, 1, &encode(&Message::Stay(Stay { claim: u64::MAX })));
    exit.sessions.elsewhere(exit.now, ALICE, &[NONCE_A; 16], 1);
    assert_eq!(exit.actions(), []);
    // The control: another client may stay each time, although its moves fail as fast as moves can.
    for _ in 0..100 {
        assert_eq!(stays(&mut exit, 2, (BOB, NONCE_B)), 1);
        exit.advance(5);
    }
    let session_of = |exit: &Exit, key| exit.sessions.sessions().any(|session| session.key() == key);
    assert!(session_of(&exit, BOB) && !session_of(&exit, ALICE), "a session whose stay was refused is over");
    assert_eq!(exit.sessions.stays_refused(), 4_994);
    exit.advance(31);
    let deadlines = exit.sessions.deadlines.len();
    stays(&mut exit, 2, (BOB, NONCE_B));
    exit.advance(31);
    assert_eq!(exit.sessions.deadlines.len(), deadlines, "nothing is kept of clients that stay no more");
}

#[test]
fn a_stay_that_changes_nothing_is_not_counted_and_costs_nothing() {
    let mut exit = Exit::new();
    exit.say(1, ALICE, &hello(NONCE_A));
    for claim in 1..5_000 {
        exit.sessions.received(exit.now, 1, &encode(&Message::Stay(Stay { claim })));
    }
    assert_eq!(exit.actions(), []);
    assert_eq!(exit.sessions.stays_refused(), 0);
    // The control: a Stay with a higher number has an effect.
    exit.sessions.elsewhere(exit.now, ALICE, &[NONCE_A; 16], 5_000);
    exit.sessions.received(exit.now, 1, &encode(&Message::Stay(Stay { claim: 5_001 })));
    assert!(matches!(exit.actions()[..], [Action::Stays { key: ALICE, .. }]));
}

fn closed(actions: &[Action]) -> Vec<(u64, Goodbye)> {
    let close = |action: &Action| {
        let Action::Close { connection, reason } = action else { return None };
        Some((*connection, *reason))
    };
    actions.iter().filter_map(close).collect()
}
