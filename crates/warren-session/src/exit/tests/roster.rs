//! The roster of the exit's fleet, and which clients get it.

use super::*;
use crate::ROSTER;
use crate::key::tests_key;
use crate::message::{ExitLoad, Fleet, Roster};
use crate::roster::{
    ExitState, FleetKey, FollowedFleet, RosterChange, RosterExit, RosterNews, RosterRefusal, SignedRoster,
    begin, change, rotate,
};

/// The Hello of a client that follows rosters and has the roster with this serial.
fn follower(serial: Option<u64>) -> Message {
    let Message::Hello(hello) = hello(NONCE_A) else { unreachable!() };
    let fleet = serial.map(|serial| Fleet { name: "acme".into(), serial });
    Message::Hello(Hello { features: ROSTER, fleet, ..hello })
}

fn rosters(actions: &[Action]) -> Vec<(u64, Roster)> {
    let roster = |action: &Action| {
        let Action::Send { connection, bytes } = action else { return None };
        let mut decoder = MessageDecoder::new();
        decoder.push(bytes);
        let Ok(Some(Message::Roster(roster))) = decoder.next() else { return None };
        Some((*connection, roster))
    };
    actions.iter().filter_map(roster).collect()
}

fn exit() -> Exit {
    Exit::with(SessionConfig { features: ROSTER, ..network() })
}

fn admit(old: &SignedRoster, number: u8, key: &FleetKey) -> SignedRoster {
    let exit = RosterExit {
        name: format!("exit{number}"),
        public_keys: vec![tests_key(number)],
        endpoints: vec![format!("192.0.2.{number}:443").parse().unwrap()],
        region: String::new(),
        weight: 1,
        state: ExitState::Serving,
    };
    change(old, RosterChange::Admit(exit), key, UNIX_EPOCH).unwrap()
}

fn first(key: &FleetKey) -> SignedRoster {
    begin("acme".parse().unwrap(), Vec::new(), key, UNIX_EPOCH).unwrap()
}

#[test]
fn client_gets_the_roster_with_its_welcome_unless_it_has_it() {
    let key = FleetKey::generate().unwrap();
    let first = first(&key);
    let second = admit(&first, 1, &key);
    for (known, gets) in [(None, true), (Some(1), true), (Some(2), false), (Some(3), false)] {
        let mut exit = exit();
        assert_eq!(exit.sessions.set_roster(second.as_bytes()), Ok(RosterNews::Newer));
        let told = rosters(&exit.say(1, ALICE, &follower(known)));
        let expected = Roster { signed: second.as_bytes().to_vec(), loads: Vec::new() };
        assert_eq!(told, if gets { vec![(1, expected)] } else { Vec::new() }, "{known:?}");
    }
}

#[test]
fn older_client_and_client_that_does_not_follow_get_nothing() {
    let key = FleetKey::generate().unwrap();
    let mut exit = exit();
    exit.sessions.set_roster(first(&key).as_bytes()).unwrap();
    assert!(rosters(&exit.say(1, ALICE, &hello(NONCE_A))).is_empty());
    exit.sessions.set_roster(admit(&first(&key), 1, &key).as_bytes()).unwrap();
    assert!(rosters(&exit.actions()).is_empty());
    assert!(rosters(&exit.say(2, ALICE, &exit.attach(1))).is_empty());
}

#[test]
fn exit_without_a_fleet_says_nothing_of_one() {
    let mut exit = exit();
    assert!(rosters(&exit.say(1, ALICE, &follower(None))).is_empty());
    assert!(rosters(&exit.say(2, ALICE, &exit.attach(1))).is_empty());
}

#[test]
fn every_connection_hears_of_a_newer_roster_and_so_does_one_that_joins_later() {
    let key = FleetKey::generate().unwrap();
    let first = first(&key);
    let mut exit = exit();
    exit.sessions.set_roster(first.as_bytes()).unwrap();
    exit.say(1, ALICE, &follower(Some(1)));
    exit.say(2, ALICE, &exit.attach(1));
    assert!(rosters(&exit.say(3, ALICE, &exit.attach(2))).is_empty(), "nothing is new since Welcome");

    let second = admit(&first, 1, &key);
    assert_eq!(exit.sessions.set_roster(second.as_bytes()), Ok(RosterNews::Newer));
    let told = rosters(&exit.actions());
    assert_eq!(told.iter().map(|(connection, _)| *connection).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(told.iter().all(|(_, roster)| roster.signed == second.as_bytes()));
    assert_eq!(exit.sessions.set_roster(second.as_bytes()), Ok(RosterNews::Known));
    assert!(rosters(&exit.actions()).is_empty());
    assert_eq!(rosters(&exit.say(4, ALICE, &exit.attach(3))).len(), 1);
}

#[test]
fn exit_relays_no_older_roster_and_none_of_another_key() {
    let [key, other] = [(); 2].map(|()| FleetKey::generate().unwrap());
    let first = first(&key);
    let second = admit(&first, 1, &key);
    let forged = admit(&admit(&self::first(&other), 1, &other), 2, &other);
    let mut exit = exit();
    exit.sessions.set_roster(second.as_bytes()).unwrap();
    exit.say(1, ALICE, &follower(Some(2)));
    let refused =
        [first.as_bytes(), forged.as_bytes(), b"".as_slice()].map(|roster| exit.sessions.set_roster(roster));
    assert!(matches!(refused[0], Err(RosterRefusal::Older { .. })));
    assert!(matches!(refused[1], Err(RosterRefusal::OtherSigner { .. })));
    assert!(matches!(refused[2], Err(RosterRefusal::Invalid(_))));
    assert!(rosters(&exit.actions()).is_empty());
    // Control: the fleet's key, and a key to which it has handed over.
    let third = rotate(&second, &key, &other, UNIX_EPOCH).unwrap();
    assert_eq!(exit.sessions.set_roster(third.as_bytes()), Ok(RosterNews::NewKey));
    assert_eq!(rosters(&exit.actions()).len(), 1);
}

#[test]
fn exit_knows_the_fleet_s_key_after_a_restart() {
    let [key, other] = [(); 2].map(|()| FleetKey::generate().unwrap());
    let fleet = FleetNews { fleet: Some(FollowedFleet::begin(first(&key))), loads: Vec::new() };
    let mut exit = Exit::with(SessionConfig { features: ROSTER, fleet, ..network() });
    let forged = admit(&first(&other), 1, &other);
    assert!(matches!(exit.sessions.set_roster(forged.as_bytes()), Err(RosterRefusal::OtherSigner { .. })));
}

#[test]
fn client_that_has_the_roster_hears_how_busy_the_exits_are() {
    let key = FleetKey::generate().unwrap();
    let mut exit = exit();
    exit.sessions.set_roster(first(&key).as_bytes()).unwrap();
    let loads = vec![ExitLoad { exit: "exit1".into(), permille: 400 }];
    exit.sessions.set_loads(loads.clone());
    assert_eq!(rosters(&exit.say(1, ALICE, &follower(Some(1)))), [(1, Roster { signed: Vec::new(), loads })]);
}
