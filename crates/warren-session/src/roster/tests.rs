//! Tests of rosters: the signed bytes, the refusals, and which roster may follow another one.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use proptest::prelude::*;
use prost::Message as _;

use super::*;
use crate::key::tests_key;

#[test]
fn a_roster_reads_back_as_it_was_signed() {
    let key = key(1);
    let signed = fleet(&key, 3);
    let read = SignedRoster::decode(signed.as_bytes()).unwrap();
    assert_eq!(read, signed);
    let roster = read.content();
    assert_eq!((roster.fleet.as_str(), roster.serial, roster.signer), ("acme", 1, key.public()));
    let names: Vec<_> = roster.exits.iter().map(|exit| exit.name.as_str()).collect();
    assert_eq!(names, ["exit0", "exit1", "exit2"]);
    assert_eq!(roster.exit("exit1"), Some(&exit(1)));
    assert_eq!(roster.issued_at, NOW);
}

/// The encoding is fixed, because signatures depend on it.
#[test]
fn the_bytes_of_a_roster_are_those_of_version_1() {
    let key = key(1);
    let empty = begin("a".parse().unwrap(), Vec::new(), &key, UNIX_EPOCH + Duration::from_secs(300)).unwrap();
    let mut expected = vec![0x0a, 0x2a, 0x0a, 0x01, b'a', 0x10, 0x01, 0x18, 0xac, 0x02, 0x22, 0x20];
    expected.extend(key.public().as_bytes());
    expected.extend([0x12, 0x40]);
    assert_eq!(empty.as_bytes()[..expected.len()], expected);
    assert_eq!(empty.as_bytes().len(), expected.len() + 64);
}

#[test]
fn each_changed_bit_is_noticed() {
    let signed = fleet(&key(1), 2);
    for bit in 0..signed.as_bytes().len() * 8 {
        let mut bytes = signed.as_bytes().to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(SignedRoster::decode(&bytes).is_err(), "bit {bit}");
    }
    for length in 0..signed.as_bytes().len() {
        assert!(SignedRoster::decode(&signed.as_bytes()[..length]).is_err(), "{length} bytes");
    }
    assert!(SignedRoster::decode(&[signed.as_bytes(), &[0x18, 0x01]].concat()).is_err(), "a further field");
}

/// A signature that the same key made for something else is not valid for a roster.
#[test]
fn a_signature_is_good_for_a_roster_only() {
    let key = key(1);
    let roster = fleet(&key, 1).content().encode();
    for text in [roster.clone(), [b"warren fleet key handover, version 1\0".as_slice(), &roster].concat()] {
        let forged = wire::SignedRoster { roster: roster.clone(), signature: key.sign(&text) };
        let read = SignedRoster::decode(&forged.encode_to_vec());
        assert_eq!(read, Err(RosterError::Signature { signer: key.public() }));
    }
}

#[test]
fn names_keys_and_endpoints_are_there_once() {
    let with = |change: fn(&mut RosterExit)| {
        let mut exits = vec![exit(0), exit(1)];
        change(&mut exits[1]);
        refused(exits)
    };
    assert!(matches!(
        with(|exit| exit.name = "exit0".to_owned()),
        RosterError::Twice { what: "the name", .. }
    ));
    assert!(matches!(
        with(|exit| exit.public_keys.push(tests_key(0))),
        RosterError::Twice { what: "the key", .. }
    ));
    let endpoint = |exit: &mut RosterExit| exit.endpoints.push("192.0.2.1:443".parse().unwrap());
    assert!(matches!(with(endpoint), RosterError::Twice { what: "the endpoint", .. }));
}

#[test]
fn what_is_out_of_its_bounds_is_not_signed() {
    let with = |change: fn(&mut RosterExit)| {
        let mut one = exit(0);
        change(&mut one);
        refused(vec![one])
    };
    assert!(matches!(with(|exit| exit.name = "Exit".to_owned()), RosterError::Name { .. }));
    assert!(matches!(with(|exit| exit.public_keys.clear()), RosterError::Keys { .. }));
    assert!(matches!(
        with(|exit| exit.public_keys = (0..3).map(tests_key).collect()),
        RosterError::Keys { .. }
    ));
    assert!(matches!(
        with(|exit| exit.public_keys = vec![crate::PublicKey([2; 32])]),
        RosterError::Keys { .. }
    ));
    assert!(matches!(with(|exit| exit.endpoints.clear()), RosterError::Endpoints { count: 0, .. }));
    let many = |exit: &mut RosterExit| exit.endpoints = (1..10).map(endpoint).collect();
    assert!(matches!(with(many), RosterError::Endpoints { count: 9, .. }));
    assert!(matches!(with(|exit| exit.region = "ä".to_owned()), RosterError::Region { .. }));
    assert!(matches!(with(|exit| exit.region = "x".repeat(33)), RosterError::Region { .. }));
    assert!(matches!(with(|exit| exit.weight = 0), RosterError::Weight { .. }));
    assert!(matches!(with(|exit| exit.weight = 1_001), RosterError::Weight { .. }));
    assert!(matches!(refused((0..65).map(exit).collect()), RosterError::TooManyExits { count: 65 }));
    let long = |number| RosterExit {
        endpoints: (0..8)
            .map(|place| format!("{}.e{number}-{place}:443", "x".repeat(60)).parse().unwrap())
            .collect(),
        ..exit(number)
    };
    assert!(matches!(refused((0..64).map(long).collect()), RosterError::TooLong { .. }));
    assert!(begin("acme".parse().unwrap(), (0..64).map(exit).collect(), &key(1), NOW).is_ok());
}

#[test]
fn exits_are_admitted_replaced_drained_and_removed() {
    let key = key(1);
    let changed = |old: &SignedRoster, what| change(old, what, &key, NOW);
    let roster = fleet(&key, 1);
    let roster = changed(&roster, RosterChange::Admit(exit(1))).unwrap();
    let nearer = RosterExit { weight: 7, ..exit(0) };
    let roster = changed(&roster, RosterChange::Admit(nearer)).unwrap();
    let name = || "exit1".to_owned();
    let roster = changed(&roster, RosterChange::State { name: name(), state: ExitState::Draining }).unwrap();
    let content = roster.content();
    assert_eq!((content.serial, content.exits.len()), (4, 2));
    assert_eq!((content.exits[0].weight, content.exits[1].state), (7, ExitState::Draining));
    let roster = changed(&roster, RosterChange::Remove { name: name() }).unwrap();
    assert_eq!(roster.content().exits.len(), 1);
    let gone = changed(&roster, RosterChange::Weight { name: name(), weight: 1 });
    assert_eq!(gone.unwrap_err(), ChangeError::NoExit { name: name() });
    let other = change(&roster, RosterChange::Remove { name: name() }, &self::key(2), NOW);
    assert!(matches!(other, Err(ChangeError::OtherKey { .. })));
}

#[test]
fn a_follower_takes_newer_rosters_of_its_fleet_and_no_other() {
    let (key, other) = (key(1), key(2));
    let first = fleet(&key, 1);
    let second = change(&first, RosterChange::Admit(exit(1)), &key, NOW).unwrap();
    let conflicting = change(&first, RosterChange::Admit(exit(2)), &key, NOW).unwrap();
    let foreign = begin("evil".parse().unwrap(), vec![exit(3)], &key, NOW).unwrap();
    let forged = change(&fleet(&other, 1), RosterChange::Admit(exit(3)), &other, NOW).unwrap();

    let mut followed = FollowedFleet::begin(first.clone());
    assert_eq!(followed.take(first.as_bytes()), Ok(RosterNews::Known));
    assert_eq!(followed.take(second.as_bytes()), Ok(RosterNews::Newer));
    let known = followed.clone();
    assert_eq!(followed.take(first.as_bytes()), Err(RosterRefusal::Older { newest: 2, offered: 1 }));
    assert_eq!(followed.take(conflicting.as_bytes()), Err(RosterRefusal::Conflicting { serial: 2 }));
    assert!(matches!(followed.take(foreign.as_bytes()), Err(RosterRefusal::OtherFleet { .. })));
    let signer = other.public();
    assert_eq!(
        followed.take(forged.as_bytes()),
        Err(RosterRefusal::OtherSigner { key: key.public(), signer })
    );
    assert!(matches!(followed.take(b"x"), Err(RosterRefusal::Invalid(_))));
    assert_eq!(followed, known);
}

#[test]
fn what_is_followed_survives_its_text() {
    let followed = FollowedFleet::begin(fleet(&key(1), 2));
    let text = String::from(followed.clone());
    assert_eq!(FollowedFleet::try_from(text.clone()).unwrap(), followed);
    for length in 0..text.len() {
        assert!(FollowedFleet::try_from(text[..length].to_owned()).is_err());
    }
}

#[test]
fn followers_of_the_old_key_follow_the_new_one_and_never_go_back() {
    let keys: Vec<_> = (1..=6).map(key).collect();
    let mut rosters = vec![fleet(&keys[0], 1)];
    for pair in keys.windows(2) {
        rosters.push(rotate(rosters.last().unwrap(), &pair[0], &pair[1], NOW).unwrap());
    }
    let stale = change(&rosters[0], RosterChange::Admit(exit(9)), &keys[0], NOW).unwrap();
    // The client has missed one change of the key, or as many as a roster proves.
    for missed in 1..=MAX_HANDOVERS {
        let mut followed = FollowedFleet::begin(rosters[0].clone());
        assert_eq!(followed.take(rosters[missed].as_bytes()), Ok(RosterNews::NewKey));
        assert_eq!(followed.key(), keys[missed].public());
        assert!(matches!(followed.take(stale.as_bytes()), Err(RosterRefusal::OtherSigner { .. })));
    }
    let mut followed = FollowedFleet::begin(rosters[0].clone());
    let missed_five = followed.take(rosters[5].as_bytes());
    assert!(matches!(missed_five, Err(RosterRefusal::OtherSigner { .. })));
    let used = rotate(&rosters[1], &keys[1], &keys[0], NOW);
    assert_eq!(used, Err(ChangeError::UsedKey));
    assert_eq!(rotate(&rosters[1], &keys[1], &keys[1], NOW), Err(ChangeError::UsedKey));
}

#[test]
fn a_handover_counts_only_in_its_fleet_and_by_its_signature() {
    let (old, new, thief) = (key(1), key(2), key(3));
    let elsewhere = begin("other".parse().unwrap(), Vec::new(), &old, NOW).unwrap();
    let elsewhere = rotate(&elsewhere, &old, &new, NOW).unwrap();
    let mut roster = fleet(&old, 1).content().clone();
    roster.serial = 2;
    roster.signer = new.public();
    roster.handovers = elsewhere.content().handovers.clone();
    assert_eq!(SignedRoster::sign(&roster, &new), Err(RosterError::Handovers));
    // A thief signs its own handover in the name of the old key.
    let own = rotate(&fleet(&thief, 1), &thief, &new, NOW).unwrap();
    roster.handovers = own.content().handovers.clone();
    let sound = SignedRoster::sign(&roster, &new).unwrap();
    let mut followed = FollowedFleet::begin(fleet(&old, 1));
    assert!(matches!(followed.take(sound.as_bytes()), Err(RosterRefusal::OtherSigner { .. })));
    // The signer must be in the chain, and the chain must have no gap.
    roster.signer = old.public();
    assert_eq!(SignedRoster::sign(&roster, &old), Err(RosterError::Handovers));
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_a_panic(bytes: Vec<u8>) {
        prop_assert!(SignedRoster::decode(&bytes).is_err());
    }

    /// Bytes that the fleet's own key has signed.
    #[test]
    fn whatever_is_signed_is_read_only_if_it_is_what_would_be_written(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
    ) {
        let key = key(1);
        let mut roster = fleet(&key, 2).content().encode();
        for (at, byte) in changes {
            let at = at.index(roster.len());
            roster[at] = byte;
        }
        let signature = key.sign(&[b"warren fleet roster, version 1\0".as_slice(), &roster].concat());
        let bytes = wire::SignedRoster { roster: roster.clone(), signature }.encode_to_vec();
        if let Ok(read) = SignedRoster::decode(&bytes) {
            prop_assert_eq!(read.content().encode(), roster);
            prop_assert_eq!(read.as_bytes(), bytes.as_slice());
        }
    }

    /// Rosters of any signers in any order.
    #[test]
    fn the_serial_of_what_is_followed_only_grows(steps in prop::collection::vec((0..4_u8, 0..2_u8), 0..20)) {
        let keys = [key(1), key(2)];
        let mut rosters: Vec<Vec<SignedRoster>> = Vec::new();
        for key in &keys {
            let mut all = vec![fleet(key, 1)];
            for number in 1..4 {
                all.push(change(all.last().unwrap(), RosterChange::Admit(exit(number)), key, NOW).unwrap());
            }
            rosters.push(all);
        }
        let mut followed = FollowedFleet::begin(rosters[0][0].clone());
        for (serial, signer) in steps {
            let before = followed.clone();
            let offered = &rosters[usize::from(signer)][usize::from(serial)];
            let taken = followed.take(offered.as_bytes());
            let (newest, offered) = (before.roster().serial, u64::from(serial) + 1);
            prop_assert_eq!(taken.is_ok(), signer == 0 && offered >= newest);
            prop_assert_eq!(followed.roster().serial, if signer == 0 { newest.max(offered) } else { newest });
            prop_assert_eq!(followed.key(), keys[0].public());
        }
    }
}

const NOW: SystemTime = UNIX_EPOCH;

fn key(number: u8) -> FleetKey {
    use base64::Engine as _;
    FleetKey::from_file_text(&base64::engine::general_purpose::STANDARD.encode([number; 32])).unwrap()
}

/// The first roster of a fleet with this many exits.
fn fleet(key: &FleetKey, exits: u8) -> SignedRoster {
    begin("acme".parse().unwrap(), (0..exits).map(exit).collect(), key, NOW).unwrap()
}

fn exit(number: u8) -> RosterExit {
    RosterExit {
        name: format!("exit{number}"),
        public_keys: vec![tests_key(number)],
        endpoints: vec![endpoint(number + 1)],
        region: "Amsterdam, NL".to_owned(),
        weight: 1,
        state: ExitState::Serving,
    }
}

fn endpoint(number: u8) -> RosterEndpoint {
    format!("192.0.2.{number}:443").parse().unwrap()
}

/// Why these exits cannot be in a roster.
fn refused(exits: Vec<RosterExit>) -> RosterError {
    match begin("acme".parse().unwrap(), exits, &key(1), NOW) {
        Err(ChangeError::Invalid(error)) => error,
        other => panic!("{other:?}"),
    }
}
