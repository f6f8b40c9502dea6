//! Tests a store that answers late, refuses, or has other writers.

use super::*;
use crate::clients::{RowChange, RowId};

const PHONE: InviteToken = InviteToken::new([3; 16]);

/// An exit with an open invitation, whose store has stopped answering.
fn waiting_exit() -> Exit {
    let mut exit = Exit::new();
    exit.invite("phone", &PHONE, Duration::from_secs(600));
    exit.answer = None;
    exit
}

fn enrol(token: &InviteToken) -> Message {
    Message::Enrol(Enrol { token: token.to_wire(), name: String::new() })
}

fn enrolled() -> Vec<u8> {
    encode(&Message::Enrolled(Enrolled { name: "phone".into() }))
}

fn hears_enrolled(actions: &[Action]) -> Vec<u64> {
    let heard = actions.iter().filter_map(|action| {
        let Action::Send { connection, bytes } = action else { return None };
        (*bytes == enrolled()).then_some(*connection)
    });
    heard.collect()
}

#[test]
fn an_enrolment_is_in_force_and_told_once_it_is_stored() {
    let mut exit = waiting_exit();
    let asked = exit.say(1, STRANGER, &enrol(&PHONE));
    assert!(matches!(asked[..], [Action::Store(_)]), "{asked:?}");
    assert!(exit.sessions.registry().by_key(STRANGER).is_none());
    // The client does not wait for the answer, and asks again on another connection.
    assert_eq!(exit.say(2, STRANGER, &enrol(&PHONE)), []);
    exit.sessions.closed(exit.now, 1);

    let answered = exit.answer(Ok(()));

    assert_eq!(hears_enrolled(&answered), [2], "the first connection is gone");
    assert!(answered.contains(&Action::Enrolled { name: "phone".into() }));
    assert_eq!(exit.sessions.registry().by_key(STRANGER).map(|client| client.name.as_str()), Some("phone"));
    exit.answer = Some(Ok(()));
    exit.sessions.received(exit.now, 2, &encode(&hello(NONCE_A)));
    exit.actions();
    assert!(exit.welcome.is_some(), "Hello follows on the same connection");
}

#[test]
fn what_a_client_says_while_it_waits_is_read_later_and_bounded() {
    let mut exit = waiting_exit();
    exit.say(1, STRANGER, &enrol(&PHONE));
    exit.sessions.received(exit.now, 1, &encode(&hello(NONCE_A)));
    exit.say(2, STRANGER, &enrol(&PHONE));
    exit.sessions.received(exit.now, 2, &[0; 5_000]);
    assert_eq!(exit.closes(), [(2, Goodbye::NotEnrolled)]);
    exit.answer(Ok(()));
    assert_eq!((exit.sessions.sessions().count(), exit.welcome.is_some()), (1, true));
}

#[test]
fn a_store_that_is_away_or_silent_costs_neither_token_nor_key() {
    let mut exit = waiting_exit();
    exit.say(1, STRANGER, &enrol(&PHONE));
    exit.advance(2);
    assert_eq!(exit.last_closes, []);
    exit.advance(1);
    assert_eq!(exit.last_closes, [(1, Goodbye::NotStored)], "after 3 s without an answer");
    assert!(!Goodbye::NotStored.is_final());
    exit.say(2, STRANGER, &enrol(&PHONE));
    exit.answer(Err(StoreRefusal::Unavailable));
    assert_eq!(exit.last_closes, [(2, Goodbye::NotStored)]);
    assert!(exit.sessions.registry().by_key(STRANGER).is_none());

    exit.answer = Some(Ok(()));
    let again = exit.say(3, STRANGER, &enrol(&PHONE));
    assert_eq!(hears_enrolled(&again), [3]);
}

#[test]
fn a_token_is_not_void_for_another_key_before_the_store_has_said_so() {
    let other = PublicKey([0x98; 32]);
    for outcome in [Ok(()), Err(StoreRefusal::Unavailable)] {
        let mut exit = waiting_exit();
        exit.say(1, STRANGER, &enrol(&PHONE));
        exit.say(2, other, &enrol(&PHONE));
        assert_eq!(exit.last_closes, [(2, Goodbye::NotStored)], "not for good");
        exit.answer(outcome);
        exit.answer = Some(Ok(()));
        let again = exit.say(3, other, &enrol(&PHONE));
        let is_void = exit.last_closes == [(3, Goodbye::InvitationVoid)];
        assert_eq!(
            (is_void, hears_enrolled(&again).len()),
            if outcome.is_ok() { (true, 0) } else { (false, 1) }
        );
    }
}

#[test]
fn an_enrolment_that_another_exit_won_is_void_or_known() {
    for winner in [PublicKey([0x98; 32]), STRANGER] {
        let mut exit = waiting_exit();
        exit.say(1, STRANGER, &enrol(&PHONE));
        let mut elsewhere = exit.disk.clone();
        elsewhere.redeem(&PHONE, winner, UNIX_EPOCH).unwrap();
        let delta = elsewhere.rows().filter(|row| exit.disk.row(row.id()) != *row).collect();
        assert_eq!(exit.sessions.apply(exit.now, delta), []);
        let answered = exit.answer(Err(StoreRefusal::Conflict));
        if winner == STRANGER {
            assert_eq!(hears_enrolled(&answered), [1]);
        } else {
            assert_eq!(exit.last_closes, [(1, Goodbye::InvitationVoid)]);
        }
    }
}

#[test]
fn removing_an_invitation_ends_an_enrolment_that_waits() {
    let mut exit = waiting_exit();
    exit.say(1, STRANGER, &enrol(&PHONE));
    exit.sessions.remove_client(exit.now, "phone").unwrap();
    assert_eq!(exit.closes(), [(1, Goodbye::InvitationVoid)]);
    exit.answer(Ok(()));
    assert!(exit.sessions.registry().by_key(STRANGER).is_none(), "stored, and removed since");
    exit.answer(Ok(()));
    assert_eq!(exit.disk.by_key(STRANGER), None);
    exit.say(2, STRANGER, &hello(NONCE_A));
    assert_eq!(exit.last_closes, [(2, Goodbye::NotEnrolled)]);
}

#[test]
fn an_invitation_that_was_redeemed_elsewhere_before_its_withdrawal_was_stored_leaves_no_client() {
    for is_withdrawn in [true, false] {
        let mut exit = waiting_exit();
        let before = exit.disk.clone();
        exit.disk.redeem(&PHONE, STRANGER, UNIX_EPOCH).unwrap();
        let enrolment: Vec<_> = exit.disk.rows().filter(|row| before.row(row.id()) != *row).collect();
        if is_withdrawn {
            exit.sessions.remove_client(exit.now, "phone").unwrap();
            exit.actions();
            exit.answer(Err(StoreRefusal::Conflict));
        }

        assert_eq!(exit.sessions.apply(exit.now, enrolment), []);

        assert_eq!(exit.sessions.registry().by_key(STRANGER).is_none(), is_withdrawn);
        exit.actions();
        while !exit.unanswered.is_empty() {
            exit.answer(Ok(()));
            exit.advance(1);
        }
        // The control: without the withdrawal, the client is there.
        assert_eq!(exit.disk.by_key(STRANGER).is_none(), is_withdrawn);
        assert_eq!(exit.disk.has_removed(STRANGER), is_withdrawn);
        exit.say(1, STRANGER, &hello(NONCE_A));
        assert_eq!(exit.last_closes == [(1, Goodbye::NotEnrolled)], is_withdrawn);
    }
}

#[test]
fn a_name_that_an_enrolment_waits_for_is_nobody_else_s() {
    let mut exit = waiting_exit();
    exit.say(1, STRANGER, &enrol(&PHONE));
    let carol = Client::new("phone", PublicKey([8; 32]), UNIX_EPOCH);
    assert_eq!(exit.add(carol.clone()), Err(AdminError::Busy));
    let rename = ClientChange::Rename { to: "phone".into() };
    assert_eq!(exit.sessions.change_client(exit.now, "alice", &rename), Err(AdminError::Busy));
    exit.answer(Err(StoreRefusal::Unavailable));
    exit.answer = Some(Ok(()));
    exit.add(carol).unwrap();
}

#[test]
fn an_exit_that_leaves_stores_what_it_asked_and_opens_nothing() {
    let mut exit = waiting_exit();
    exit.say(1, STRANGER, &enrol(&PHONE));
    exit.sessions.connected(exit.now, 2, ALICE, NETWORK);
    exit.sessions.drain(exit.now);
    exit.sessions.received(exit.now, 2, &encode(&hello(NONCE_A)));
    assert_eq!(exit.closes(), [(2, Goodbye::Draining)]);
    assert_eq!(hears_enrolled(&exit.answer(Ok(()))), [1]);

    let mut exit = waiting_exit();
    exit.say(1, STRANGER, &enrol(&PHONE));
    exit.sessions.shutdown(exit.now, Goodbye::Restarting);
    assert_eq!(exit.closes(), [(1, Goodbye::Restarting)]);
    exit.answer(Ok(()));
    assert!(exit.sessions.registry().by_key(STRANGER).is_some());
}

#[test]
fn a_client_is_shut_out_at_once_and_the_store_is_told_until_it_knows() {
    let mut exit = Exit::new();
    exit.say(1, ALICE, &hello(NONCE_A));
    exit.say(2, BOB, &hello(NONCE_B));
    exit.answer = Some(Err(StoreRefusal::Unavailable));
    exit.change(|sessions, now| sessions.remove_client(now, "alice")).unwrap();
    exit.disable("bob");
    assert_eq!(exit.closes(), [(2, Goodbye::Disabled)]);
    assert!(exit.disk.by_key(ALICE).is_some());
    exit.answer = Some(Ok(()));
    exit.advance(5);
    assert!(exit.disk.by_key(ALICE).is_none() && exit.disk.by_key(BOB).is_some_and(|bob| bob.disabled));
    assert_eq!(exit.disk.removed_after(None).count(), 1);
}

#[test]
fn a_change_that_was_on_its_way_does_not_let_a_disabled_client_in() {
    let mut exit = Exit::new();
    exit.answer = None;
    exit.set("alice", |alice| alice.prefixes = vec!["192.168.7.0/24".parse().unwrap()]).unwrap();
    exit.disable("alice");
    // The first answer concerns the change, the second the row that contains both the change and the disabling.
    exit.answer(Ok(()));
    exit.answer(Ok(()));
    for registry in [exit.sessions.registry(), &exit.disk] {
        let alice = registry.by_key(ALICE).unwrap();
        assert!(alice.disabled && alice.prefixes.len() == 1, "both changes are in force");
    }
}

#[test]
fn a_client_can_be_disabled_while_the_store_is_asked_to_enable_it() {
    for outcome in [Ok(()), Err(StoreRefusal::Unavailable)] {
        let mut exit = Exit::new();
        exit.disable("alice");
        exit.answer = None;
        exit.change(|sessions, now| sessions.change_client(now, "alice", &ClientChange::Enable)).unwrap();
        exit.disable("alice");
        exit.answer(outcome);
        exit.answer = Some(Ok(()));
        while !exit.unanswered.is_empty() {
            exit.answer(Ok(()));
        }
        for registry in [exit.sessions.registry(), &exit.disk] {
            assert!(registry.by_key(ALICE).unwrap().disabled, "the last word was to disable: {outcome:?}");
        }
    }
}

#[test]
fn a_disabled_client_does_not_have_an_address_in_the_store_before_its_former_holder_gave_it_up() {
    let mut exit = Exit::with(SessionConfig { ipv4: Some("10.66.0.0/30".parse().unwrap()), ..network() });
    exit.say(1, ALICE, &hello(NONCE_A));
    let address = exit.lease_of(ALICE).ipv4;
    exit.sessions.closed(exit.now, 1);
    exit.advance(SESSION_TIMEOUT.as_secs() + 1);
    exit.answer = None;
    exit.set("alice", |alice| alice.prefixes = vec!["192.168.7.0/24".parse().unwrap()]).unwrap();
    exit.say(2, BOB, &hello(NONCE_B));
    assert_eq!(exit.lease_of(BOB).ipv4, address, "the only one");
    exit.disable("bob");
    let has_address =
        |disk: &ClientRegistry, key| disk.by_key(key).is_some_and(|client| client.leased_ipv4 == address);
    let mut holders = Vec::new();
    while !exit.unanswered.is_empty() {
        exit.answer(Ok(()));
        holders.push([ALICE, BOB].map(|key| has_address(&exit.disk, key)));
    }
    assert_eq!(holders.first(), Some(&[true, false]));
    assert_eq!(holders.last(), Some(&[false, true]));
}

#[test]
fn a_name_is_free_for_another_client_once_its_removal_is_stored_with_it() {
    let mut exit = Exit::new();
    exit.answer = Some(Err(StoreRefusal::Unavailable));
    exit.change(|sessions, now| sessions.remove_client(now, "alice")).unwrap();
    exit.answer = Some(Ok(()));
    // If the store learned only of this change, it would have two clients of one name.
    exit.add(Client::new("alice", PublicKey([8; 32]), UNIX_EPOCH)).unwrap();
    assert_eq!(exit.disk.by_name("alice").map(|client| client.public_key), Some(PublicKey([8; 32])));
}

#[test]
fn a_client_that_is_removed_elsewhere_is_cut_off() {
    let mut exit = Exit::new();
    exit.say(1, ALICE, &hello(NONCE_A));
    let mut elsewhere = exit.disk.clone();
    let ((), before) = elsewhere.transact(|registry| registry.remove("alice", UNIX_EPOCH).map(drop)).unwrap();
    exit.sessions.apply(exit.now, elsewhere.changes_since(&before));
    assert_eq!(exit.closes(), [(1, Goodbye::Revoked)]);
    exit.say(2, ALICE, &hello(NONCE_A));
    assert_eq!(exit.last_closes, [(2, Goodbye::NotEnrolled)]);
    assert!(exit.add(Client::new("alice", ALICE, UNIX_EPOCH)).is_err(), "the key is a removed one here, too");
}

#[test]
fn the_store_decides_who_has_an_address() {
    let mut exit = Exit::new();
    exit.say(1, ALICE, &hello(NONCE_A));
    let ipv4 = exit.lease_of(ALICE).ipv4;
    let carol = Client { ipv4, ..Client::new("carol", PublicKey([8; 32]), UNIX_EPOCH) };
    assert_eq!(exit.sessions.apply(exit.now, vec![carol.into()]), []);
    assert_eq!(exit.closes(), [(1, Goodbye::UnknownSession)]);
    exit.say(2, ALICE, &hello(NONCE_A));
    assert_ne!(exit.lease_of(ALICE).ipv4, ipv4);
    exit.say(3, PublicKey([8; 32]), &hello(NONCE_B));
    assert_eq!(exit.lease_of(PublicKey([8; 32])).ipv4, ipv4);
}

#[test]
fn a_row_that_this_exit_cannot_use_is_told_and_lets_nobody_in() {
    let mut exit = Exit::new();
    exit.say(1, ALICE, &hello(NONCE_A));
    let alice = exit.disk.by_key(ALICE).unwrap().clone();
    let outside = Client { ipv4: Some([192, 0, 2, 9].into()), ..alice };
    let unusable = exit.sessions.apply(exit.now, vec![RowChange::from(outside)]);
    assert!(matches!(unusable[..], [AdminError::Config(SessionConfigError::StaticAddress { .. })]));
    assert_eq!(exit.closes(), [(1, Goodbye::Revoked)]);
}

#[test]
fn an_address_that_is_promised_goes_to_nobody_else() {
    let mut exit = Exit::new();
    exit.answer = None;
    exit.set("alice", |alice| alice.ipv4 = Some([10, 66, 0, 2].into())).unwrap();
    exit.say(1, BOB, &hello(NONCE_B));
    assert_eq!(exit.lease_of(BOB).ipv4, Some([10, 66, 0, 3].into()));
}

#[test]
fn leases_do_not_wait_for_the_store_and_reach_it_in_one_request_at_a_time() {
    let mut exit = Exit::new();
    exit.answer = None;
    exit.say(1, ALICE, &hello(NONCE_A));
    exit.say(2, BOB, &hello(NONCE_B));
    assert_eq!((exit.sessions.sessions().count(), exit.unanswered.len()), (2, 1));
    exit.answer(Err(StoreRefusal::Conflict));
    exit.now += Duration::from_millis(100);
    exit.advance(0);
    while !exit.unanswered.is_empty() {
        exit.answer(Ok(()));
    }
    assert_eq!(
        [ALICE, BOB].map(|key| exit.disk.by_key(key).unwrap().lease()),
        [ALICE, BOB].map(|key| exit.lease_of(key))
    );
}

#[test]
fn a_removal_reaches_a_client_that_has_changed_its_key_at_another_exit_meanwhile() {
    let next = PublicKey([0x77; 32]);
    let mut exit = Exit::new();
    exit.set("alice", |client| client.next_public_key = Some(next)).unwrap();
    exit.answer = None;
    let mut elsewhere = exit.disk.clone();
    elsewhere.take_next_key(ALICE, UNIX_EPOCH);
    let before = exit.disk.clone();
    let ids: std::collections::BTreeSet<_> =
        before.rows().chain(elsewhere.rows()).map(|row| row.id()).collect();
    let delta = ids.iter().filter(|id| before.row(**id) != elsewhere.row(**id)).map(|id| elsewhere.row(*id));
    let delta: Vec<_> = delta.collect();

    exit.sessions.remove_client(exit.now, "alice").unwrap();
    exit.actions();
    exit.disk = elsewhere;
    exit.sessions.apply(exit.now, delta);
    exit.answer(Err(StoreRefusal::Conflict));
    exit.answer = Some(Ok(()));
    while !exit.unanswered.is_empty() {
        exit.answer(Ok(()));
    }
    exit.advance(1);

    // `Exit::answer` panics if the store would have a client with a removed key.
    assert!(exit.disk.by_key(next).is_none() && exit.disk.has_removed(next));
    assert!(exit.sessions.registry().by_key(next).is_none());
    // The control: the other client stays.
    assert!(exit.disk.by_key(BOB).is_some());
}

/// An exit of a fleet with the clients alice and bob, who have no addresses yet.
fn fleet_exit() -> Exit {
    let mut exit = Exit::new();
    exit.sessions.keep_copy();
    exit
}

/// The client in the changes of the oldest unanswered request.
fn asked_client(exit: &Exit, key: PublicKey) -> Client {
    let changes = &exit.unanswered.first().expect("a request").changes;
    let client = changes.iter().find_map(|change| match change {
        RowChange::Client { key: changed, client } if *changed == key => client.clone(),
        RowChange::Client { .. } | RowChange::Invitation { .. } | RowChange::Removed { .. } => None,
    });
    client.expect("a change of the client")
}

#[test]
fn in_a_fleet_a_client_is_stored_with_its_addresses() {
    for is_fleet in [true, false] {
        let mut exit = if is_fleet { fleet_exit() } else { Exit::new() };
        exit.invite("phone", &PHONE, Duration::from_secs(600));
        exit.answer = None;
        exit.say(1, STRANGER, &enrol(&PHONE));
        let asked = asked_client(&exit, STRANGER).lease();
        assert_eq!((asked.ipv4.is_some(), asked.ipv6.is_some()), (is_fleet, is_fleet));
        exit.answer(Ok(()));
        assert_eq!(exit.lease_of(STRANGER), asked, "the pool has them, too");
    }
}

#[test]
fn in_a_fleet_a_client_without_addresses_waits_for_the_store() {
    for outcome in [Ok(()), Err(StoreRefusal::Unavailable), Err(StoreRefusal::Conflict)] {
        let mut exit = fleet_exit();
        exit.answer = None;
        exit.say(1, ALICE, &hello(NONCE_A));
        assert_eq!((exit.sessions.sessions().count(), exit.welcome.is_some()), (0, false));
        let asked = asked_client(&exit, ALICE).lease();
        exit.answer(outcome);
        if outcome.is_ok() {
            assert!(exit.welcome.is_some());
            assert_eq!(exit.lease_of(ALICE), asked);
        } else {
            assert_eq!(exit.last_closes, [(1, Goodbye::NotStored)]);
            assert_eq!(exit.lease_of(ALICE), crate::pool::Lease::default());
        }
    }
}

#[test]
fn both_connections_of_a_client_that_waits_for_addresses_are_greeted() {
    let mut exit = fleet_exit();
    exit.answer = None;
    exit.say(1, ALICE, &hello(NONCE_A));
    exit.say(2, ALICE, &hello(NONCE_A));
    assert_eq!(exit.unanswered.len(), 1, "asked once");
    exit.sessions.closed(exit.now, 1);
    exit.answer(Ok(()));
    let attached: Vec<_> = exit.sessions.sessions().flat_map(|session| session.attached()).collect();
    assert_eq!(attached, [(0, 2)], "the first connection is gone");
}

#[test]
fn two_exits_give_one_address_to_two_clients_only_if_the_store_lets_them() {
    let mut exit = fleet_exit();
    exit.answer = None;
    exit.say(1, ALICE, &hello(NONCE_A));
    let lease = asked_client(&exit, ALICE).lease();
    // The other exit has given bob the same addresses, and this exit does not know it yet.
    let mut elsewhere = exit.disk.clone();
    elsewhere.record_lease(BOB, lease);
    let delta = elsewhere.rows().filter(|row| exit.disk.row(row.id()) != *row).collect();
    assert_eq!(exit.sessions.apply(exit.now, delta), []);
    exit.answer(Err(StoreRefusal::Conflict));
    assert_eq!(exit.last_closes, [(1, Goodbye::NotStored)]);
    exit.answer = Some(Ok(()));
    exit.say(2, ALICE, &hello(NONCE_A));
    assert!(exit.welcome.is_some());
    let (alice, bob) = (exit.lease_of(ALICE), exit.lease_of(BOB));
    assert!(bob == lease && alice.addresses().all(|address| !bob.contains(address)), "{alice:?} {bob:?}");
}

#[test]
fn in_a_full_network_of_a_fleet_the_store_hears_who_loses_an_address() {
    // The network has only one address for two clients.
    let config = SessionConfig { ipv4: Some("10.66.0.0/30".parse().unwrap()), ipv6: None, ..network() };
    let mut exit = Exit::with(config);
    exit.sessions.keep_copy();
    exit.say(1, ALICE, &hello(NONCE_A));
    exit.sessions.closed(exit.now, 1);
    exit.advance(3_600);
    exit.say(2, BOB, &hello(NONCE_B));
    assert_eq!(exit.lease_of(ALICE).ipv4, None);
    assert!(exit.lease_of(BOB).ipv4.is_some());
    assert_eq!(exit.disk.by_key(ALICE).unwrap().lease(), exit.lease_of(ALICE));
    assert_eq!(exit.disk.by_key(BOB).unwrap().lease(), exit.lease_of(BOB));
}

#[test]
fn a_client_of_a_request_never_gets_an_address_that_the_same_request_sets_for_another() {
    let mut exit = fleet_exit();
    exit.answer = None;
    let key = |number: u8| PublicKey([number; 32]);
    // Every address of the network is needed: the operator sets half of them, and the exit chooses the others.
    let clients = (2..=254).map(|number: u8| {
        let ipv4 = number.is_multiple_of(2).then(|| Ipv4Addr::new(10, 66, 0, number));
        Client { ipv4, ..Client::new(format!("new{number}"), key(number), UNIX_EPOCH) }
    });
    let clients = clients.filter(|client| client.public_key != BOB).collect();
    exit.sessions.add_clients(clients).unwrap();
    exit.actions();
    let mut seen = std::collections::BTreeSet::new();
    for change in &exit.unanswered[0].changes {
        let RowChange::Client { client: Some(client), .. } = change else { panic!("{change:?}") };
        assert!(client.lease().addresses().all(|address| seen.insert(address)), "{client:?}");
    }
    assert!(seen.len() > 400, "{}", seen.len());
}

#[test]
fn a_client_that_loses_an_address_does_not_get_it_back_by_the_same_request() {
    // There is only one IPv4 address. Alice has it, and she has no IPv6 address.
    let config = SessionConfig { ipv4: Some("10.66.0.0/30".parse().unwrap()), ..network() };
    let mut exit = Exit::with(config);
    exit.sessions.keep_copy();
    let mut elsewhere = exit.disk.clone();
    let lease = crate::pool::Lease { ipv4: Some("10.66.0.2".parse().unwrap()), ipv6: None };
    elsewhere.record_lease(ALICE, lease);
    let delta = elsewhere.rows().filter(|row| exit.disk.row(row.id()) != *row).collect();
    assert_eq!(exit.sessions.apply(exit.now, delta), []);
    exit.answer = None;
    exit.say(1, BOB, &hello(NONCE_B));
    assert_eq!(asked_client(&exit, ALICE).lease(), crate::pool::Lease::default());
    assert_eq!(asked_client(&exit, BOB).lease().ipv4, lease.ipv4);
}

#[test]
fn clients_that_come_together_to_a_full_network_take_addresses_of_different_clients() {
    let config = SessionConfig { ipv4: Some("10.66.0.0/29".parse().unwrap()), ipv6: None, ..network() };
    let mut exit = Exit::with(config);
    exit.sessions.keep_copy();
    for number in 10..15 {
        exit.add(Client::new(format!("old{number}"), PublicKey([number; 32]), UNIX_EPOCH)).unwrap();
    }
    exit.answer = None;
    exit.say(1, ALICE, &hello(NONCE_A));
    exit.say(2, BOB, &hello(NONCE_B));
    assert_eq!(exit.unanswered.len(), 2, "both have asked");
    exit.answer(Ok(()));
    exit.answer(Ok(()));
    assert_eq!(exit.sessions.sessions().count(), 2);
}

#[test]
fn nothing_is_stored_for_a_client_of_another_version() {
    let mut exit = fleet_exit();
    let Message::Hello(hello) = hello(NONCE_A) else { unreachable!() };
    exit.say(1, ALICE, &Message::Hello(Hello { version: PROTOCOL_VERSION + 1, ..hello }));
    assert!(matches!(exit.last_closes[..], [(1, Goodbye::Version(_))]), "{:?}", exit.last_closes);
    assert_eq!(exit.lease_of(ALICE), crate::pool::Lease::default());
}

/// Lets the store answer every request until none is left. The store refuses a request if `refuses` is true for one of its rows.
/// Returns the number of refused requests.
fn answer_all(exit: &mut Exit, refuses: impl Fn(&RowChange) -> bool) -> usize {
    let mut refused = 0;
    while let Some(request) = exit.unanswered.first() {
        let is_refused = request.changes.iter().any(&refuses);
        refused += usize::from(is_refused);
        exit.answer(if is_refused { Err(StoreRefusal::Conflict) } else { Ok(()) });
    }
    refused
}

/// Lets a tenth of a second pass, and the store answer.
fn pass(exit: &mut Exit, refuses: impl Fn(&RowChange) -> bool) -> usize {
    exit.now += Duration::from_millis(100);
    exit.advance(0);
    answer_all(exit, refuses)
}

#[test]
fn a_row_that_the_store_keeps_refusing_holds_up_no_other_row_and_no_enrolment() {
    let of_alice = |row: &RowChange| row.id() == RowId::Client(ALICE);
    let mut exit = fleet_exit();
    exit.invite("phone", &PHONE, Duration::from_secs(600));
    exit.answer = None;
    exit.disable("alice");
    exit.sessions.remove_client(exit.now, "bob").unwrap();
    exit.actions();
    answer_all(&mut exit, of_alice);
    // The control: everything is in one request, which the store refuses.
    assert!(exit.disk.by_key(BOB).is_some());

    let refused: usize = (0..5).map(|_| pass(&mut exit, of_alice)).sum();

    assert!(exit.disk.by_key(BOB).is_none() && exit.disk.has_removed(BOB), "refused {refused} times");
    let asked = exit.say(1, STRANGER, &enrol(&PHONE));
    assert!(
        matches!(&asked[..], [Action::Store(request)] if !request.changes.iter().any(of_alice)),
        "{asked:?}"
    );
    exit.answer(Ok(()));
    assert!(exit.disk.by_key(STRANGER).is_some());
    // The refused row is sent again now and then.
    let refused: usize = (0..100).map(|_| pass(&mut exit, of_alice)).sum();
    assert!((1..=3).contains(&refused), "{refused} times in ten seconds");
    assert!(exit.sessions.owes() && !exit.disk.by_key(ALICE).unwrap().disabled);
    (0..51).for_each(|_| _ = pass(&mut exit, |_| false));
    assert!(exit.disk.by_key(ALICE).unwrap().disabled && !exit.sessions.owes());
    // Later requests contain all owed rows again.
    exit.set("alice", |alice| alice.disabled = false).unwrap();
    answer_all(&mut exit, |_| false);
    exit.disable("alice");
    assert!(exit.unanswered.iter().any(|request| request.changes.iter().any(of_alice)));
}

#[test]
fn rows_that_the_store_refuses_alone_are_tried_together() {
    let mut exit = fleet_exit();
    exit.answer = None;
    exit.disable("alice");
    exit.disable("bob");
    let is_for_both = |request: &StoreRequest| {
        let has = |key| request.changes.iter().any(|row| row.id() == RowId::Client(key));
        has(ALICE) && has(BOB)
    };
    // Another exit holds something that both rows need, and gives it up later.
    for tenth in 0..100 {
        exit.now += Duration::from_millis(100);
        exit.advance(0);
        while let Some(request) = exit.unanswered.first() {
            let is_stored = tenth > 20 && is_for_both(request);
            exit.answer(if is_stored { Ok(()) } else { Err(StoreRefusal::Conflict) });
        }
    }
    assert!([ALICE, BOB].iter().all(|key| exit.disk.by_key(*key).unwrap().disabled) && !exit.sessions.owes());
}

#[test]
fn a_store_that_answers_again_gets_everything_in_one_request() {
    let of_alice = |row: &RowChange| row.id() == RowId::Client(ALICE);
    let mut exit = fleet_exit();
    exit.answer = None;
    exit.disable("alice");
    answer_all(&mut exit, of_alice);
    (0..5).for_each(|_| _ = pass(&mut exit, of_alice));
    exit.disable("bob");
    assert!(!exit.unanswered.iter().any(|request| request.changes.iter().any(of_alice)), "it is apart");
    answer_all(&mut exit, of_alice);

    exit.sessions.store_answers();
    exit.actions();

    assert!(exit.unanswered.iter().any(|request| request.changes.iter().any(of_alice)));
}
