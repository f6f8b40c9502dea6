//! Clients that connect with WireGuard.

use super::*;
use crate::clients::{PresharedKey, WireGuardClient};

const PHONE: PublicKey = PublicKey([3; 32]);
const NEXT: PublicKey = PublicKey([4; 32]);

/// An exit with a WireGuard client that has a network behind it.
fn exit_with_phone() -> Exit {
    let mut exit = Exit::new();
    let mut phone = Client::new("phone", PHONE, UNIX_EPOCH);
    phone.wireguard = Some(WireGuardClient::default());
    phone.prefixes = vec!["192.168.7.0/24".parse().unwrap()];
    exit.add(phone).unwrap();
    exit
}

fn up(exit: &mut Exit, connection: u64) -> Vec<Action> {
    exit.sessions.wireguard_up(exit.now, connection, PHONE);
    exit.actions()
}

fn ends(actions: &[Action]) -> Vec<EndReason> {
    let reason = |action: &Action| {
        let Action::End { reason, .. } = action else { return None };
        Some(*reason)
    };
    actions.iter().filter_map(reason).collect()
}

fn set(actions: &[Action]) -> Vec<(PublicKey, bool)> {
    let change = |action: &Action| {
        let Action::SetWireGuard { key, client } = action else { return None };
        Some((*key, client.is_some()))
    };
    actions.iter().filter_map(change).collect()
}

#[test]
fn a_client_that_is_there_gets_a_session_with_everything_that_is_its_own_and_is_told_nothing() {
    let mut exit = exit_with_phone();
    let actions = up(&mut exit, 1);
    let opened = actions.iter().find_map(|action| {
        let Action::Open { name, lease, prefixes, connections, features, .. } = action else { return None };
        Some((name.clone(), *lease, prefixes.len(), *connections, *features))
    });
    let (name, lease, prefixes, connections, features) = opened.unwrap();
    assert_eq!((name.as_str(), prefixes, connections, features), ("phone", 1, 1, 0));
    assert!(lease.ipv4.is_some() && lease.ipv6.is_some());
    assert!(actions.iter().any(|action| matches!(action, Action::Attach { connection: 1, index: 0, .. })));
    assert!(!actions.iter().any(|action| matches!(action, Action::Send { .. } | Action::Close { .. })));

    exit.sessions.timed_out(exit.now, 1);
    assert_eq!(ends(&exit.actions()), [EndReason::TimedOut], "it does not wait for other connections");
    up(&mut exit, 2);
    assert_eq!(exit.lease_of(PHONE), lease, "it keeps its addresses");
}

#[test]
fn a_wireguard_client_is_exported_and_read_back() {
    let mut exit = exit_with_phone();
    let secret = WireGuardClient { preshared_key: Some(PresharedKey::new([7; 32])) };
    exit.set("phone", |client| client.wireguard = Some(secret)).unwrap();
    let text = toml::to_string(exit.sessions.registry()).unwrap();
    let read: ClientRegistry = toml::from_str(&text).unwrap();
    assert_eq!(read, *exit.sessions.registry(), "{text}");
}

#[test]
fn what_may_come_in_by_wireguard_follows_the_registry_after_its_session_has_ended() {
    let mut exit = exit_with_phone();
    up(&mut exit, 1);
    exit.sessions.change_client(exit.now, "phone", &ClientChange::Disable).unwrap();
    let actions = exit.actions();
    assert_eq!((ends(&actions), set(&actions)), (vec![EndReason::Disabled], vec![(PHONE, false)]));
    let end = actions.iter().position(|action| matches!(action, Action::End { .. }));
    let refused = actions.iter().position(|action| matches!(action, Action::SetWireGuard { .. }));
    assert!(end < refused);
    // This message was on its way when the client was disabled.
    assert!(ends(&up(&mut exit, 2)).is_empty() && exit.sessions.sessions().next().is_none());
    assert_eq!(exit.last_closes.len(), 1, "its connection is closed");

    exit.sessions.change_client(exit.now, "phone", &ClientChange::Enable).unwrap();
    assert_eq!(set(&exit.actions()), [(PHONE, true)]);
    let other = WireGuardClient { preshared_key: Some(PresharedKey::new([7; 32])) };
    up(&mut exit, 3);
    exit.sessions.set_client("phone", |client| client.wireguard = Some(other)).unwrap();
    let actions = exit.actions();
    assert_eq!((ends(&actions), set(&actions)), (vec![EndReason::Changed], vec![(PHONE, true)]));
    exit.sessions.remove_client(exit.now, "phone").unwrap();
    assert_eq!(set(&exit.actions()), [(PHONE, false)]);
}

#[test]
fn no_connection_of_warren_proves_a_wireguard_key_and_a_next_key_is_warrens() {
    let mut exit = exit_with_phone();
    exit.say(1, PHONE, &hello(NONCE_A));
    assert_eq!(exit.last_closes, [(1, Goodbye::NotEnrolled)]);
    exit.sessions.set_client("phone", |client| client.next_public_key = Some(NEXT)).unwrap();
    exit.actions();
    up(&mut exit, 2);

    let actions = exit.say(3, NEXT, &hello(NONCE_A));

    assert_eq!(ends(&actions), [EndReason::Replaced]);
    assert_eq!(set(&actions), [(PHONE, false)]);
    let upgraded = exit.sessions.registry().by_key(NEXT).unwrap();
    assert!(upgraded.wireguard.is_none() && upgraded.name == "phone");
    assert!(ends(&up(&mut exit, 4)).is_empty());
    assert_eq!(exit.sessions.sessions().count(), 1, "the old key is refused");
}

#[test]
fn an_invitation_upgrades_a_client_that_keeps_its_session_until_it_comes_with_its_new_key() {
    let mut exit = exit_with_phone();
    up(&mut exit, 1);
    let lease = exit.lease_of(PHONE);
    let token = InviteToken::new([7; InviteToken::LENGTH]);
    exit.invite("phone", &token, Duration::from_secs(60));
    assert_eq!(exit.sessions.sessions().count(), 1);

    let enrol = Message::Enrol(Enrol { token: token.to_wire(), name: String::new() });
    let actions = exit.say(2, NEXT, &enrol);
    assert!(actions.iter().any(|action| matches!(action, Action::Send { connection: 2, .. })), "{actions:?}");
    assert!(ends(&actions).is_empty() && set(&actions).is_empty(), "{actions:?}");

    let actions = exit.say(3, NEXT, &hello(NONCE_A));
    assert_eq!((ends(&actions), set(&actions)), (vec![EndReason::Replaced], vec![(PHONE, false)]));
    assert_eq!(exit.lease_of(NEXT), lease, "it keeps its addresses");
    // The answer to the enrolment may have been lost, so the client asks again.
    let actions = exit.say(4, NEXT, &enrol);
    assert!(actions.iter().any(|action| matches!(action, Action::Send { connection: 4, .. })), "{actions:?}");
}

#[test]
fn a_drain_ends_the_session_of_a_client_that_can_be_told_nothing() {
    let mut exit = exit_with_phone();
    up(&mut exit, 1);
    exit.say(2, ALICE, &hello(NONCE_A));
    exit.sessions.drain(exit.now);
    assert_eq!(ends(&exit.actions()), [EndReason::Shutdown(Goodbye::Draining)]);
    assert_eq!(exit.sessions.sessions().map(Session::key).collect::<Vec<_>>(), [ALICE]);
    up(&mut exit, 3);
    assert_eq!(exit.sessions.sessions().count(), 1);
}
