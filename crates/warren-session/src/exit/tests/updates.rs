//! Changes that an operator makes during sessions, and which clients are told of them.

use super::*;
use crate::UPDATES;
use crate::key::tests_key;
use crate::message::Update;

/// An exit that rotates its key. It has a session of two connections whose client accepts updates, and a session whose client
/// does not.
fn exit_with_sessions() -> Exit {
    let config = SessionConfig { features: UPDATES, exit_keys: vec![tests_key(0)], ..network() };
    let mut exit = Exit::with(config);
    exit.say(9, BOB, &hello(NONCE_B));
    assert!(exit.welcome.take().unwrap().exit_keys.is_empty(), "an older version is told nothing new");
    let Message::Hello(hello) = hello(NONCE_A) else { unreachable!() };
    exit.say(1, ALICE, &Message::Hello(Hello { features: UPDATES, ..hello }));
    exit.say(2, ALICE, &exit.attach(1));
    exit
}

fn updates(actions: &[Action]) -> Vec<(u64, Update)> {
    let update = |action: &Action| {
        let Action::Send { connection, bytes } = action else { return None };
        let mut decoder = MessageDecoder::new();
        decoder.push(bytes);
        let Ok(Some(Message::Update(update))) = decoder.next() else { return None };
        Some((*connection, update))
    };
    actions.iter().filter_map(update).collect()
}

fn with_dns(exit: &Exit, dns: &str) -> Announced {
    Announced { dns: vec![dns.parse().unwrap()], ..exit.sessions.announced() }
}

#[test]
fn every_connection_of_a_session_hears_of_a_change_and_older_versions_hear_nothing() {
    let mut exit = exit_with_sessions();
    assert_eq!(exit.welcome.as_ref().unwrap().exit_keys, [tests_key(0).0.to_vec()]);

    let announced = with_dns(&exit, "9.9.9.9");
    assert_eq!(exit.sessions.announce(announced.clone()), Ok((1, 1)));
    let told = updates(&exit.actions());
    assert_eq!(told.iter().map(|(connection, _)| *connection).collect::<Vec<_>>(), [1, 2]);
    assert!(told.iter().all(|(_, update)| update.number == 1 && update.dns == [vec![9; 4]]), "{told:?}");

    assert_eq!(exit.sessions.announce(announced), Ok((0, 0)), "nothing has changed");
    assert!(updates(&exit.actions()).is_empty());
    let wrong = with_dns(&exit, "127.0.0.1");
    assert!(exit.sessions.check_announced(&wrong).is_err() && exit.sessions.announce(wrong).is_err());
    assert!(updates(&exit.actions()).is_empty());
}

#[test]
fn a_connection_that_joins_later_hears_of_the_latest_change() {
    let mut exit = exit_with_sessions();
    assert!(updates(&exit.say(3, ALICE, &exit.attach(2))).is_empty(), "nothing has changed since Welcome");
    for dns in ["9.9.9.9", "9.9.9.8"] {
        let announced = with_dns(&exit, dns);
        exit.sessions.announce(announced).unwrap();
    }
    exit.actions();

    let told = updates(&exit.say(4, ALICE, &exit.attach(2)));

    assert!(
        matches!(&told[..], [(4, update)] if update.number == 2 && update.dns == [vec![9, 9, 9, 8]]),
        "{told:?}"
    );
}

#[test]
fn a_client_has_the_new_key_once_the_exit_has_proven_that_to_it_and_not_before() {
    let mut exit = exit_with_sessions();
    let keys = |exit: &Exit| [ALICE, BOB].map(|key| exit.sessions.registry().by_key(key).unwrap().exit_key);
    assert!(!exit.sessions.proved(exit.now, ALICE, tests_key(0)));
    assert_eq!(keys(&exit), [None, None], "with one key there is nothing to record");

    let rotated = Announced { exit_keys: vec![tests_key(1), tests_key(0)], ..exit.sessions.announced() };
    exit.sessions.announce(rotated).unwrap();
    let told = updates(&exit.actions());
    assert_eq!(told[0].1.exit_keys, [tests_key(1), tests_key(0)].map(|key| key.0.to_vec()));
    assert!(!exit.sessions.proved(exit.now, ALICE, tests_key(0)));
    assert!(!exit.sessions.proved(exit.now, STRANGER, tests_key(1)));
    assert_eq!(keys(&exit), [None, None]);
    assert!(exit.sessions.proved(exit.now, ALICE, tests_key(1)));
    assert!(!exit.sessions.proved(exit.now, ALICE, tests_key(1)), "it is recorded once");
    assert_eq!(keys(&exit), [Some(tests_key(1)), None]);

    // The store gets this within seconds, like the date of a session that has ended.
    exit.advance(10);
    assert_eq!(exit.disk.by_key(ALICE).unwrap().exit_key, Some(tests_key(1)));
    let text = toml::to_string(&exit.disk).unwrap();
    let read: ClientRegistry = toml::from_str(&text).unwrap();
    assert_eq!(read.by_key(ALICE).unwrap().exit_key, Some(tests_key(1)));
}

#[test]
fn in_a_fleet_the_registry_shows_at_which_exit_a_client_was_last() {
    let mut exit = exit_with_sessions();
    let key = |exit: &Exit| exit.sessions.registry().by_key(ALICE).unwrap().exit_key;
    exit.sessions.keep_copy();
    assert!(!exit.sessions.proved(exit.now, ALICE, tests_key(0)), "this is no new key");
    assert_eq!(key(&exit), Some(tests_key(0)));

    let rotated = Announced { exit_keys: vec![tests_key(1), tests_key(0)], ..exit.sessions.announced() };
    exit.sessions.announce(rotated).unwrap();
    assert!(exit.sessions.proved(exit.now, ALICE, tests_key(1)));
    exit.sessions.proved(exit.now, ALICE, tests_key(0));
    assert_eq!(key(&exit), Some(tests_key(1)), "a connection from before the rotation is no step back");
}
