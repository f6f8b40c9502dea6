//! Sessions whose clients have a newer one at another exit of the fleet.

use super::*;

#[test]
fn the_session_of_a_client_that_has_moved_goes_on_until_its_time_is_over() {
    let mut exit = Exit::new();
    exit.say(2, BOB, &hello(NONCE_B));
    exit.say(1, ALICE, &hello(NONCE_A));

    exit.sessions.elsewhere(exit.now, ALICE, &[NONCE_A; 16]);
    // The control: another process has bob's key at another exit.
    exit.sessions.elsewhere(exit.now, BOB, &[NONCE_A; 16]);

    assert_eq!(exit.closes(), [(2, Goodbye::Replaced)]);
    exit.advance(29);
    exit.sessions.elsewhere(exit.now, ALICE, &[NONCE_A; 16]);
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
    exit.sessions.elsewhere(exit.now, ALICE, &[NONCE_A; 16]);

    let actions = exit.say(2, ALICE, &hello(NONCE_A));

    assert_eq!(closed(&actions), [(1, Goodbye::Superseded)]);
    exit.advance(60);
    assert_eq!(exit.sessions.sessions().count(), 1, "the time of the old one does not count for it");
}

fn closed(actions: &[Action]) -> Vec<(u64, Goodbye)> {
    let close = |action: &Action| {
        let Action::Close { connection, reason } = action else { return None };
        Some((*connection, *reason))
    };
    actions.iter().filter_map(close).collect()
}
