//! Changes of clients while they are connected, and draining.

use super::*;
use crate::clients::{ClientRegistry, RateLimit};

#[test]
fn a_client_with_another_address_comes_back_with_it() {
    let mut exit = Exit::new();
    exit.say(1, ALICE, &hello(NONCE_A));
    exit.say(2, BOB, &hello(NONCE_B));
    let before = exit.lease_of(ALICE);

    exit.set("alice", |client| client.ipv4 = Some([10, 66, 0, 77].into())).unwrap();

    assert_eq!(exit.closes(), [(1, Goodbye::UnknownSession)], "only alice's session ends, and not for good");
    exit.say(3, ALICE, &hello(NONCE_A));
    let after = exit.lease_of(ALICE);
    assert_eq!((after.ipv4, after.ipv6), (Some([10, 66, 0, 77].into()), before.ipv6));
    exit.set("alice", |_| {}).unwrap();
    assert_eq!(exit.closes(), [], "a change of nothing is none");
}

#[test]
fn a_client_that_is_offline_loses_its_addresses_when_it_is_moved_or_removed_and_keeps_them_with_another_key()
{
    let mut exit = Exit::new();
    exit.say(1, ALICE, &hello(NONCE_A));
    exit.say(2, BOB, &hello(NONCE_B));
    exit.sessions.timed_out(exit.now, 1);
    exit.actions();
    assert!(exit.sessions.take_lost_addresses().is_empty(), "alice is only away");
    let lease = exit.lease_of(ALICE);

    let next = PublicKey([7; 32]);
    exit.set("alice", |client| client.next_public_key = Some(next)).unwrap();
    exit.say(3, next, &hello(0xcc));
    assert_eq!(exit.lease_of(next), lease);
    exit.sessions.timed_out(exit.now, 3);
    exit.actions();
    assert!(exit.sessions.take_lost_addresses().is_empty(), "another key");

    exit.set("alice", |client| client.ipv4 = Some([10, 66, 0, 77].into())).unwrap();
    assert_eq!(exit.sessions.take_lost_addresses(), [IpAddr::from(lease.ipv4.unwrap())]);
    exit.change(|sessions, now| sessions.remove_client(now, "alice")).unwrap();
    let both = [[10, 66, 0, 77].into(), IpAddr::from(lease.ipv6.unwrap())];
    assert_eq!(exit.sessions.take_lost_addresses(), both);
}

#[test]
fn an_address_that_cannot_be_changes_nothing() {
    let mut exit = Exit::new();
    exit.say(1, ALICE, &hello(NONCE_A));
    exit.say(2, BOB, &hello(NONCE_B));
    let before = exit.sessions.registry().clone();
    let bobs = exit.lease_of(BOB).ipv4;

    for address in [bobs, Some([10, 66, 0, 1].into()), Some([192, 0, 2, 1].into())] {
        assert!(exit.set("alice", |client| client.ipv4 = address).is_err());
    }
    assert!(exit.set("nobody", |_| {}).is_err());

    assert_eq!(exit.closes(), []);
    assert_eq!(*exit.sessions.registry(), before);
}

#[test]
fn a_rate_limit_is_changed_without_ending_a_session() {
    let mut exit = Exit::new();
    exit.say(1, ALICE, &hello(NONCE_A));
    let limit = |exit: &Exit| exit.sessions.registry().by_key(ALICE).unwrap().rate_limit;

    exit.set("alice", |client| client.rate_limit = RateLimit::new(5_000_000)).unwrap();
    assert_eq!(limit(&exit), RateLimit::new(5_000_000));
    let mut edited = exit.sessions.registry().clone();
    let alice = edited.by_key(ALICE).unwrap().clone();
    edited.replace(Client { rate_limit: RateLimit::new(64_000), ..alice }).unwrap();
    exit.adopt(edited).unwrap();

    assert_eq!(limit(&exit), RateLimit::new(64_000));
    assert_eq!(exit.closes(), []);
    assert_eq!(exit.sessions.sessions().count(), 1);
}

#[test]
fn a_client_keeps_what_is_its_own_with_another_key_and_its_session_until_then() {
    let mut exit = Exit::new();
    exit.say(1, ALICE, &hello(NONCE_A));
    let lease = exit.lease_of(ALICE);
    let next = PublicKey([7; 32]);
    let set = |exit: &mut Exit, name: &str, key| exit.set(name, |client| client.next_public_key = Some(key));

    set(&mut exit, "alice", next).unwrap();
    assert!(set(&mut exit, "bob", next).is_err(), "it is promised to alice");
    assert!(set(&mut exit, "bob", ALICE).is_err());
    assert_eq!(exit.closes(), []);
    exit.say(2, next, &hello(0xcc));

    assert_eq!(exit.last_closes, [(1, Goodbye::Replaced)]);
    assert_eq!(exit.lease_of(next), lease);
    assert_eq!(exit.sessions.registry().by_key(next).unwrap().name, "alice");
    exit.say(3, ALICE, &hello(NONCE_A));
    assert_eq!(exit.last_closes, [(3, Goodbye::NotEnrolled)]);
    exit.say(4, BOB, &hello(NONCE_B));
    assert_ne!(exit.lease_of(BOB).ipv4, lease.ipv4);
}

#[test]
fn a_disabled_client_is_not_admitted_with_its_next_key_either() {
    let mut exit = Exit::new();
    let next = PublicKey([7; 32]);
    exit.set("alice", |client| client.next_public_key = Some(next)).unwrap();
    exit.disable("alice");
    exit.say(1, next, &hello(NONCE_A));
    assert_eq!(exit.last_closes, [(1, Goodbye::NotEnrolled)]);
    assert_eq!(exit.sessions.registry().by_name("alice").unwrap().public_key, ALICE);
}

#[test]
fn several_clients_are_enrolled_all_or_none() {
    let mut exit = Exit::new();
    exit.say(1, ALICE, &hello(NONCE_A));
    let before = exit.sessions.registry().clone();
    let client = |number: u8, name: &str, host: u8| {
        let mut client = Client::new(name, PublicKey([number; 32]), UNIX_EPOCH);
        client.ipv4 = Some([10, 66, 0, host].into());
        client
    };

    for refused in [client(9, "dave", 77), client(9, "carol", 78), client(9, "dave", 1)] {
        let clients = vec![client(8, "carol", 77), refused];
        assert!(exit.change(|sessions, _| sessions.add_clients(clients)).is_err());
        assert_eq!(*exit.sessions.registry(), before);
    }
    exit.change(|sessions, _| sessions.add_clients(vec![client(8, "carol", 77), client(9, "dave", 78)]))
        .unwrap();

    exit.say(2, PublicKey([9; 32]), &hello(0xdd));
    assert_eq!(exit.lease_of(PublicKey([9; 32])).ipv4, Some([10, 66, 0, 78].into()));
    assert_eq!(exit.closes(), []);
}

#[test]
fn a_change_that_could_not_be_stored_is_none() {
    let mut exit = Exit::new();
    exit.say(1, ALICE, &hello(NONCE_A));
    exit.say(2, BOB, &hello(NONCE_B));
    let before = exit.sessions.registry().clone();
    let changes: [fn(&mut ExitSessions, Instant) -> bool; 3] = [
        |sessions, _| sessions.add_client(Client::new("carol", PublicKey([8; 32]), UNIX_EPOCH), None).is_ok(),
        |sessions, _| sessions.set_client("alice", move_away).is_ok(),
        |sessions, now| {
            sessions.change_client(now, "bob", &ClientChange::Rename { to: "dave".into() }).is_ok()
        },
    ];

    exit.answer = Some(Err(StoreRefusal::Unavailable));
    for change in changes {
        assert!(exit.change(|sessions, now| Ok::<_, ()>(change(sessions, now))).unwrap());
        assert_eq!(*exit.sessions.registry(), before);
        assert_eq!(exit.closes(), [], "nobody is told of it");
    }

    assert_eq!(exit.sessions.sessions().count(), 2);
    exit.answer = Some(Ok(()));
    exit.set("alice", move_away).unwrap();
    assert_eq!(exit.closes(), [(1, Goodbye::UnknownSession)], "what succeeds is in force");
    exit.say(3, ALICE, &hello(NONCE_A));
    assert_eq!(exit.lease_of(ALICE).ipv4, Some([10, 66, 0, 77].into()));
}

fn move_away(client: &mut Client) {
    client.ipv4 = Some([10, 66, 0, 77].into());
}

#[test]
fn an_edited_registry_is_taken_over_without_touching_who_is_in_both() {
    let mut exit = Exit::new();
    exit.say(1, ALICE, &hello(NONCE_A));
    exit.say(2, BOB, &hello(NONCE_B));
    let carol = PublicKey([3; 32]);
    let mut edited = ClientRegistry::new();
    edited.add(Client::new("alice-2", ALICE, UNIX_EPOCH)).unwrap();
    edited.add(Client::new("carol", carol, UNIX_EPOCH)).unwrap();

    exit.adopt(edited).unwrap();

    assert_eq!(exit.closes(), [(2, Goodbye::Revoked)]);
    let names: Vec<_> = exit.sessions.registry().iter().map(|client| client.name.as_str()).collect();
    assert_eq!(names, ["alice-2", "carol"]);
    exit.say(3, carol, &hello(0xcc));
    assert_eq!(exit.last_closes, []);
}

#[test]
fn an_edit_brings_no_removed_key_back_and_removes_none_that_only_changes() {
    let mut exit = Exit::new();
    let backup = exit.sessions.registry().clone();
    let mut edited = backup.clone();
    edited.remove("bob", UNIX_EPOCH).unwrap();
    let mut alice = edited.by_name("alice").cloned().unwrap();
    move_away(&mut alice);
    edited.replace(alice).unwrap();

    exit.adopt(edited).unwrap();

    let removed = exit.sessions.registry().removed_after(None).map(|removed| removed.public_key);
    assert_eq!(removed.collect::<Vec<_>>(), [BOB]);
    let refused = exit.adopt(backup.clone()).unwrap_err().to_string();
    assert!(refused.contains("\"bob\" cannot have the key"), "{refused}");
    exit.change(|sessions, _| sessions.add_client(Client::new("bob", BOB, UNIX_EPOCH), Some(BOB))).unwrap();
    exit.adopt(backup).unwrap();
}

#[test]
fn a_rotation_that_is_finished_in_the_file_keeps_the_addresses_and_ends_the_old_key() {
    let next = PublicKey([7; 32]);
    let mut exit = Exit::new();
    exit.say(1, ALICE, &hello(NONCE_A));
    exit.say(2, BOB, &hello(NONCE_B));
    let lease = exit.lease_of(ALICE);
    exit.set("alice", |client| client.next_public_key = Some(next)).unwrap();
    // Bob is not in the file, and carol comes after alice.
    let mut edited = ClientRegistry::new();
    edited.add(Client::new("alice", next, UNIX_EPOCH)).unwrap();
    edited.add(Client::new("carol", PublicKey([3; 32]), UNIX_EPOCH)).unwrap();

    exit.adopt(edited.clone()).unwrap();

    let mut closes = exit.closes();
    closes.sort_unstable_by_key(|(connection, _)| *connection);
    assert_eq!(closes, [(1, Goodbye::Revoked), (2, Goodbye::Revoked)]);
    exit.adopt(edited).unwrap();
    exit.say(3, ALICE, &hello(NONCE_A));
    assert_eq!(exit.last_closes, [(3, Goodbye::NotEnrolled)]);
    exit.say(4, next, &hello(NONCE_A));
    exit.say(5, PublicKey([3; 32]), &hello(NONCE_B));
    assert_eq!((exit.last_closes.as_slice(), exit.lease_of(next)), ([].as_slice(), lease));
    let removed = exit.sessions.registry().removed_after(None).map(|removed| removed.public_key);
    assert_eq!(removed.collect::<Vec<_>>(), [ALICE, BOB]);
}

#[test]
fn a_next_key_can_go_to_another_client_in_an_edit() {
    let next = PublicKey([7; 32]);
    for is_bobs_next in [true, false] {
        let mut exit = Exit::new();
        exit.say(1, BOB, &hello(NONCE_B));
        exit.set("alice", |client| client.next_public_key = Some(next)).unwrap();
        let bob = Client::new("bob", if is_bobs_next { BOB } else { next }, UNIX_EPOCH);
        let mut edited = ClientRegistry::new();
        edited.add(Client { next_public_key: is_bobs_next.then_some(next), ..bob }).unwrap();

        exit.adopt(edited.clone()).unwrap();

        let registry = exit.sessions.registry().clone();
        assert_eq!(registry.check_edited(&registry, UNIX_EPOCH), Ok(()), "what is saved can be read again");
        exit.adopt(edited).unwrap();
        exit.say(2, next, &hello(NONCE_A));
        assert_eq!(exit.sessions.registry().by_key(next).map(|client| client.name.as_str()), Some("bob"));
    }
}

#[test]
fn an_invitation_that_is_gone_from_the_file_is_withdrawn_and_none_comes_back() {
    let mut exit = Exit::new();
    let [leaked, kept, used] = [1, 2, 3].map(|byte| InviteToken::new([byte; 16]));
    for (name, token) in [("leaked", &leaked), ("kept", &kept), ("used", &used)] {
        exit.invite(name, token, Duration::from_secs(600));
    }
    let backup = exit.sessions.registry().clone();
    let open = |exit: &Exit| -> Vec<String> {
        let open = exit.sessions.registry().open_invitations(UNIX_EPOCH);
        open.into_iter().map(|invitation| invitation.name.clone()).collect()
    };
    let mut edited = backup.clone();
    edited.remove("leaked", UNIX_EPOCH).unwrap();

    exit.adopt(edited).unwrap();

    assert_eq!(open(&exit), ["kept", "used"]);
    let refused = exit.adopt(backup).unwrap_err().to_string();
    assert!(refused.contains("\"leaked\" is not open at this exit"), "{refused}");
    assert_eq!(open(&exit), ["kept", "used"]);
    exit.say(1, PublicKey([8; 32]), &enrol(&leaked));
    assert_eq!(exit.last_closes, [(1, Goodbye::InvitationVoid)]);
    // This invitation is used after the file was written.
    let before = exit.sessions.registry().clone();
    exit.say(2, PublicKey([9; 32]), &enrol(&used));
    exit.adopt(before).unwrap();
    assert_eq!(open(&exit), ["kept"]);
    exit.say(3, PublicKey([8; 32]), &enrol(&used));
    assert_eq!(exit.last_closes, [(3, Goodbye::InvitationVoid)]);
    exit.say(4, PublicKey([9; 32]), &hello(NONCE_A));
    assert_eq!(exit.last_closes, [], "who used it is a client still");
}

fn enrol(token: &InviteToken) -> Message {
    Message::Enrol(Enrol { token: token.to_wire(), name: String::new() })
}

#[test]
fn a_client_s_retired_key_is_nobody_s_any_more() {
    let mut exit = Exit::new();
    let set = |exit: &mut Exit, name, key| exit.set(name, |client| client.next_public_key = Some(key));
    let next = PublicKey([7; 32]);
    set(&mut exit, "alice", next).unwrap();
    exit.say(1, next, &hello(NONCE_A));

    for name in ["alice", "bob"] {
        let refused = set(&mut exit, name, ALICE).unwrap_err().to_string();
        assert!(refused.contains("taken from \"alice\" for good"), "{refused}");
    }
    assert!(exit.add(Client::new("carol", ALICE, UNIX_EPOCH)).is_err());
}

#[test]
fn clients_can_exchange_their_addresses_in_one_edit() {
    let [first, second] = [9, 10].map(|last| Some([10, 66, 0, last].into()));
    let registry = |alices, bobs| {
        let mut registry = ClientRegistry::new();
        for (name, key, ipv4) in [("alice", ALICE, alices), ("bob", BOB, bobs)] {
            registry.add(Client { ipv4, ..Client::new(name, key, UNIX_EPOCH) }).unwrap();
        }
        registry
    };
    let mut exit = Exit::start(network(), registry(first, second));
    exit.say(1, ALICE, &hello(NONCE_A));
    let alices_ipv6 = exit.lease_of(ALICE).ipv6;

    exit.adopt(registry(second, first)).unwrap();

    assert_eq!(exit.closes(), [(1, Goodbye::UnknownSession)]);
    assert_eq!((exit.lease_of(ALICE).ipv4, exit.lease_of(BOB).ipv4), (second, first));
    assert_eq!(exit.lease_of(ALICE).ipv6, alices_ipv6, "what was not changed stays");
}

#[test]
fn a_registry_that_cannot_be_changes_nothing() {
    let mut exit = Exit::new();
    exit.say(1, ALICE, &hello(NONCE_A));
    let before = exit.sessions.registry().clone();
    let mut edited = ClientRegistry::new();
    let outside = Some([192, 0, 2, 9].into());
    edited.add(Client { ipv4: outside, ..Client::new("carol", PublicKey([3; 32]), UNIX_EPOCH) }).unwrap();

    assert!(exit.adopt(edited).is_err());

    assert_eq!(exit.closes(), []);
    assert_eq!(*exit.sessions.registry(), before);
}

#[test]
fn draining_ends_each_session_when_its_client_has_left() {
    let mut exit = Exit::new();
    exit.say(1, ALICE, &hello(NONCE_A));
    exit.say(2, BOB, &hello(NONCE_B));
    let attach = exit.attach(1);
    exit.say(3, BOB, &attach);

    exit.sessions.drain(exit.now);

    assert_eq!(exit.closes(), [], "packets flow until the client has gone");
    assert_eq!(exit.sessions.sessions().count(), 2);
    exit.sessions.closed(exit.now, 1);
    exit.sessions.closed(exit.now, 2);
    assert_eq!(exit.sessions.sessions().count(), 1, "bob has a connection left");
    exit.sessions.connected(exit.now, 4, ALICE, NETWORK);
    assert_eq!(exit.closes(), [(4, Goodbye::Draining)], "nobody comes back");
    exit.sessions.closed(exit.now, 3);
    assert_eq!(exit.sessions.sessions().count(), 0);
}

#[test]
fn a_retired_key_ends_every_session_and_nobodys_for_good() {
    let mut exit = Exit::new();
    exit.say(1, ALICE, &hello(NONCE_A));
    let attach = exit.attach(1);
    exit.say(2, ALICE, &attach);
    exit.say(3, BOB, &hello(NONCE_B));
    exit.sessions.connected(exit.now, 4, BOB, NETWORK);
    let leased = |exit: &Exit| -> Vec<_> {
        exit.sessions.sessions().map(|session| (session.key, session.lease)).collect()
    };
    let before = leased(&exit);

    exit.sessions.retire_key(exit.now);

    let mut closed = exit.closes();
    closed.sort_by_key(|(connection, _)| *connection);
    assert_eq!(closed, [1, 2, 3, 4].map(|connection| (connection, Goodbye::UnknownSession)));
    assert_eq!(exit.sessions.sessions().count(), 0);
    exit.say(5, ALICE, &hello(NONCE_A));
    exit.say(6, BOB, &hello(NONCE_B));
    assert_eq!(leased(&exit), before, "they are let in again, with their addresses");
}

#[test]
fn a_client_that_comes_and_goes_has_the_exit_write_every_five_seconds_at_most() {
    let mut exit = Exit::new();
    exit.say(1, ALICE, &hello(NONCE_A));
    let mut written = 0;
    for turn in 0..100 {
        let actions = exit.say(2 + turn, ALICE, &hello(u8::try_from(turn).unwrap()));
        written += actions.iter().filter(|action| is_store(action)).count();
    }
    assert_eq!(written, 0, "the lease has not changed");
    assert_eq!(exit.advance(4), []);
    assert!(matches!(exit.advance(1)[..], [Action::Store(_)]));
    assert_eq!(exit.advance(60), [], "once");

    exit.say(200, ALICE, &hello(NONCE_B));
    exit.sessions.shutdown(exit.now, Goodbye::Restarting);
    assert!(exit.actions().last().is_some_and(is_store), "whoever leaves waits for nothing");
}

#[test]
fn a_next_key_that_is_late_is_no_stranger() {
    let mut exit = Exit::new();
    let next = PublicKey([7; 32]);
    exit.set("alice", |client| client.next_public_key = Some(next)).unwrap();
    exit.sessions.connected(exit.now, 1, next, NETWORK);
    exit.advance(5);
    assert_eq!(exit.last_closes, [(1, Goodbye::TimedOut)]);
}

#[test]
fn a_client_s_key_is_enrolled_and_not_disabled_or_the_next_one_of_such_a_client() {
    let mut exit = Exit::new();
    let next = PublicKey([7; 32]);
    exit.set("alice", |client| client.next_public_key = Some(next)).unwrap();
    let are_clients = |exit: &Exit| [ALICE, next, BOB, STRANGER].map(|key| exit.sessions.is_client(key));
    assert_eq!(are_clients(&exit), [true, true, true, false]);
    exit.disable("alice");
    assert_eq!(are_clients(&exit), [false, false, true, false]);
}

#[test]
fn strangers_that_have_all_of_their_places_keep_no_client_out() {
    let mut exit = Exit::new();
    let next = PublicKey([7; 32]);
    exit.set("alice", |client| client.next_public_key = Some(next)).unwrap();
    for number in 0..1_000_u32 {
        let network = Ipv4Addr::from_bits(0xcb00_0000 + (number % 8) * 256).into();
        let stranger = PublicKey(std::array::from_fn(|_| 100 + u8::try_from(number % 100).unwrap()));
        exit.sessions.connected(exit.now, number.into(), stranger, network);
    }
    assert_eq!(exit.closes().len(), 1_000 - 256, "the rest is turned away");

    exit.say(2_000, BOB, &hello(NONCE_B));
    exit.say(2_001, next, &hello(NONCE_A));

    assert_eq!(exit.last_closes, []);
    let mut keys: Vec<_> = exit.sessions.sessions().map(|session| session.key).collect();
    keys.sort();
    assert_eq!(
        keys,
        if BOB < next { [BOB, next] } else { [next, BOB] },
        "also with a key that was set and is new"
    );
}
