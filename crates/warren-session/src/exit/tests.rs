mod changes;
mod harness;
mod moving;
mod roster;
mod store;
mod updates;
mod wireguard;

use std::net::Ipv4Addr;
use std::time::UNIX_EPOCH;

use self::harness::*;
use super::ExitAction as Action;
use super::*;
use crate::clients::{Client, ClientChange, Invitation};
use crate::goodbye::{Versions, Violation};
use crate::invite::InviteToken;
use crate::message::{
    Attach, Attached, Enrol, Enrolled, Hello, Message, MessageDecoder, Network, Welcome, encode,
};
use crate::{AttachToken, PROTOCOL_VERSION};

#[test]
fn hello_opens_a_session_and_attaches_before_it_welcomes() {
    let mut exit = Exit::new();
    let actions = exit.say(1, ALICE, &hello(NONCE_A));
    let [
        Action::Store(_),
        Action::Open { session, lease, .. },
        Action::Attach { connection: 1, index: 0, .. },
        Action::Send { .. },
    ] = actions.as_slice()
    else {
        panic!("{actions:?}")
    };
    let welcome = exit.welcome.clone().unwrap();
    assert_eq!(welcome.session, session.0);
    assert_eq!(lease.ipv4.unwrap().to_string(), "10.66.0.2");
    assert_eq!(welcome.ipv4, Some(Network { address: vec![10, 66, 0, 2], prefix_length: 24 }));
    assert_eq!(welcome.gateway_ipv4, [10, 66, 0, 1]);
    assert_eq!(exit.disk.by_key(ALICE).unwrap().lease(), *lease, "what is stored");
}

#[test]
fn a_key_that_is_not_enrolled_hears_only_that() {
    let token = AttachToken::new([0; 16]).as_bytes().to_vec();
    let says = [
        encode(&hello(NONCE_A)),
        encode(&Message::Attach(Attach { session: 1, attach_token: token, index: 0 })),
        vec![0xff; 3],
        vec![0, 2, 0x0a, 0x7f],
    ];
    for bytes in says {
        let mut exit = Exit::new();
        exit.sessions.connected(exit.now, 1, STRANGER, NETWORK);
        exit.sessions.received(exit.now, 1, &bytes);
        assert_eq!(exit.closes(), [(1, Goodbye::NotEnrolled)], "{bytes:02x?}");
        assert_eq!(exit.sessions.sessions().count(), 0);
    }
}

#[test]
fn a_stranger_s_message_is_of_4_kib_at_most_and_not_waited_for_if_it_would_be_longer() {
    // The control: an enrolled client's message may be longer.
    for (key, length, is_closed) in [(STRANGER, 4_096, false), (STRANGER, 4_097, true), (ALICE, 4_097, false)]
    {
        let mut exit = Exit::new();
        exit.sessions.connected(exit.now, 1, key, NETWORK);
        exit.sessions.received(exit.now, 1, &u16::to_be_bytes(length));
        assert_eq!(!exit.closes().is_empty(), is_closed, "{length} bytes");
    }
}

#[test]
fn an_invitation_enrols_one_key_which_may_ask_again() {
    let mut exit = Exit::new();
    let token = InviteToken::new([3; 16]);
    exit.invite("phone", &token, Duration::from_secs(60));
    let ask = Message::Enrol(Enrol { token: token.to_wire(), name: String::new() });

    for connection in [1, 2] {
        let answers = exit.say(connection, STRANGER, &ask);
        let [.., Action::Send { bytes, .. }] = answers.as_slice() else { panic!("{answers:?}") };
        assert_eq!(*bytes, encode(&Message::Enrolled(Enrolled { name: "phone".into() })));
        assert_eq!(answers.iter().any(is_store), connection == 1, "{answers:?}");
    }
    assert_eq!(exit.sessions.registry().by_key(STRANGER).unwrap().name, "phone");

    exit.say(3, PublicKey([0x99; 32]), &ask);
    assert_eq!(exit.last_closes, [(3, Goodbye::InvitationVoid)], "another key");
}

#[test]
fn a_void_invitation_enrols_nobody() {
    let mut exit = Exit::new();
    let (withdrawn, expired) = (InviteToken::new([3; 16]), InviteToken::new([4; 16]));
    exit.invite("phone", &withdrawn, Duration::from_secs(600));
    exit.add(Client::new("phone", PublicKey([0x77; 32]), UNIX_EPOCH)).unwrap();
    exit.invite("tablet", &expired, Duration::from_secs(60));
    exit.advance(61);
    let unknown = InviteToken::new([5; 16]).to_wire();
    let tokens = [withdrawn.to_wire(), expired.to_wire(), unknown, String::new(), "?".repeat(500)];

    for (connection, token) in (1..).zip(tokens) {
        exit.say(connection, STRANGER, &Message::Enrol(Enrol { token, name: String::new() }));
        assert_eq!(exit.last_closes, [(connection, Goodbye::InvitationVoid)]);
    }
    assert!(exit.sessions.registry().by_key(STRANGER).is_none());
}

#[test]
fn another_version_is_answered_with_both() {
    let mut exit = Exit::new();
    let mut decoder = MessageDecoder::new();
    let actions = exit.say(1, ALICE, &Message::Hello(Hello { version: 9, ..Hello::default() }));
    let versions = Versions { exit: PROTOCOL_VERSION, client: 9 };
    let [Action::Send { bytes, .. }, Action::Close { reason: Goodbye::Version(Some(closed)), .. }] =
        actions.as_slice()
    else {
        panic!("{actions:?}")
    };
    assert_eq!(*closed, versions);
    decoder.push(bytes);
    let Ok(Some(Message::Goodbye(goodbye))) = decoder.next() else { panic!("no goodbye") };
    assert_eq!(Goodbye::from_message(&goodbye), Some(Goodbye::Version(Some(versions))));
}

#[test]
fn what_hello_must_not_hold_is_refused() {
    let base = || Hello { version: PROTOCOL_VERSION, nonce: vec![1; 16], ..Hello::default() };
    let prefix = |address: &[u8], prefix_length| Network { address: address.to_vec(), prefix_length };
    let refused = [
        (Hello { name: "a b".into(), ..base() }, Violation::BadName),
        (Hello { name: "n".repeat(64), ..base() }, Violation::BadName),
        (Hello { nonce: vec![1; 15], ..base() }, Violation::BadNonce),
        (Hello { prefixes: vec![prefix(&[10, 0, 0, 1], 8)], ..base() }, Violation::BadPrefix),
        (Hello { prefixes: vec![prefix(&[10, 0, 0], 8)], ..base() }, Violation::BadPrefix),
        (Hello { prefixes: vec![prefix(&[10, 0, 0, 0], 8); 65], ..base() }, Violation::BadPrefix),
    ];
    for (hello, violation) in refused {
        let mut exit = Exit::new();
        exit.say(1, ALICE, &Message::Hello(hello));
        assert_eq!(exit.last_closes, [(1, Goodbye::Protocol(violation))]);
        assert_eq!(exit.sessions.sessions().count(), 0);
    }
}

#[test]
fn the_number_of_connections_is_clamped() {
    for (wanted, granted) in [(0, 1), (1, 1), (4, 4), (5, 4), (u32::MAX, 4)] {
        let mut exit = Exit::new();
        let Message::Hello(hello) = hello(NONCE_A) else { panic!() };
        exit.say(1, ALICE, &Message::Hello(Hello { connections_wanted: wanted, ..hello }));
        assert_eq!(exit.welcome.unwrap().connections, granted, "{wanted} wanted");
    }
}

#[test]
fn attach_joins_a_session_and_takes_the_place_of_an_older_connection() {
    let mut exit = Exit::new();
    exit.say(1, ALICE, &hello(NONCE_A));
    let joined = exit.say(2, ALICE, &exit.attach(3));
    assert!(matches!(
        joined[..],
        [Action::Attach { connection: 2, index: 3, .. }, Action::Send { connection: 2, .. }]
    ));
    let again = exit.say(3, ALICE, &exit.attach(3));
    assert!(
        matches!(
            again[..],
            [
                Action::Detach { connection: 2, index: 3, .. },
                Action::Attach { connection: 3, index: 3, .. },
                Action::Send { connection: 2, .. },
                Action::Close { connection: 2, reason: Goodbye::Superseded },
                Action::Send { connection: 3, .. },
            ]
        ),
        "{again:?}"
    );
    let attached: Vec<_> = exit.sessions.sessions().next().unwrap().attached().collect();
    assert_eq!(attached, [(0, 1), (3, 3)]);
}

#[test]
fn attach_needs_session_token_own_key_and_an_index_in_range() {
    let mut exit = Exit::new();
    exit.say(1, ALICE, &hello(NONCE_A));
    let Message::Attach(right) = exit.attach(1) else { panic!() };
    let mut token = right.attach_token.clone();
    token[15] ^= 1;
    let unknown = Goodbye::UnknownSession;
    let refused = [
        (ALICE, Attach { session: right.session + 1, ..right.clone() }, unknown),
        (ALICE, Attach { attach_token: token, ..right.clone() }, unknown),
        (ALICE, Attach { attach_token: vec![], ..right.clone() }, unknown),
        (BOB, right.clone(), unknown),
        (ALICE, Attach { index: 4, ..right.clone() }, Goodbye::Protocol(Violation::BadIndex)),
        (ALICE, Attach { index: u32::MAX, ..right.clone() }, Goodbye::Protocol(Violation::BadIndex)),
    ];
    for (number, (key, attach, reason)) in (10..).zip(refused) {
        exit.say(number, key, &Message::Attach(attach));
        assert_eq!(exit.last_closes, [(number, reason)]);
    }
    exit.say(20, ALICE, &Message::Attach(right));
    assert_eq!(exit.last_closes, []);
}

#[test]
fn the_newest_host_wins_and_the_older_one_is_told_for_good_even_later() {
    let mut exit = Exit::new();
    exit.say(1, ALICE, &hello(NONCE_A));
    let (old_attach, old_lease) = (exit.attach(0), exit.lease_of(ALICE));
    let actions = exit.say(2, ALICE, &hello(NONCE_B));
    assert_eq!(exit.last_closes, [(1, Goodbye::Replaced)]);
    assert!(actions.iter().any(|action| matches!(action, Action::End { reason: EndReason::Replaced, .. })));
    assert_eq!((exit.sessions.sessions().count(), exit.lease_of(ALICE)), (1, old_lease));
    // The older host had lost its connections and now returns. Neither Attach nor Hello is accepted.
    exit.say(3, ALICE, &old_attach);
    assert_eq!(exit.last_closes, [(3, Goodbye::Replaced)]);
    exit.say(4, ALICE, &hello(NONCE_A));
    assert_eq!(exit.last_closes, [(4, Goodbye::Replaced)]);
    assert_eq!(exit.sessions.sessions().count(), 1);
}

#[test]
fn the_same_process_begins_anew_without_being_taken_for_another_host() {
    let mut exit = Exit::new();
    exit.say(1, ALICE, &hello(NONCE_A));
    let before = exit.lease_of(ALICE);
    exit.say(2, ALICE, &hello(NONCE_A));
    assert_eq!(exit.last_closes, [(1, Goodbye::Superseded)]);
    assert!(!Goodbye::Superseded.is_final());
    assert_eq!((exit.sessions.sessions().count(), exit.lease_of(ALICE)), (1, before));
}

#[test]
fn a_session_without_connections_can_be_attached_to_until_it_times_out() {
    let mut exit = Exit::new();
    exit.say(1, ALICE, &hello(NONCE_A));
    let attach = exit.attach(2);
    exit.sessions.closed(exit.now, 1);
    exit.advance(29);
    exit.say(2, ALICE, &attach);
    assert_eq!(exit.last_closes, []);
    exit.advance(3_600);
    assert_eq!(exit.sessions.sessions().count(), 1, "a session with a connection never times out");
    exit.sessions.closed(exit.now, 2);
    let actions = exit.advance(30);
    assert!(matches!(actions[..], [.., Action::End { reason: EndReason::TimedOut, .. }]), "{actions:?}");
    assert!(matches!(exit.advance(5)[..], [Action::Store(_)]));
    exit.say(3, ALICE, &attach);
    assert_eq!(exit.last_closes, [(3, Goodbye::UnknownSession)]);
}

#[test]
fn a_session_ends_with_its_last_connection_if_that_was_silent_for_the_idle_timeout() {
    let mut exit = Exit::new();
    exit.say(1, ALICE, &hello(NONCE_A));
    let attach = exit.attach(2);
    exit.say(2, ALICE, &attach);
    exit.sessions.timed_out(exit.now, 1);
    assert_eq!(exit.sessions.sessions().count(), 1);
    exit.sessions.timed_out(exit.now, 2);
    assert_eq!(exit.sessions.sessions().count(), 0);
}

#[test]
fn a_session_knows_whether_its_client_can_go_elsewhere_unless_the_client_is_older() {
    for says in [None, Some(false), Some(true)] {
        let mut exit = Exit::new();
        let Message::Hello(hello) = hello(1) else { panic!("not a Hello") };
        exit.say(1, ALICE, &Message::Hello(Hello { has_other_exit: says, ..hello }));
        let session = exit.sessions.sessions().next().unwrap();
        assert_eq!(session.has_other_exit(), says);
    }
}

#[test]
fn a_client_was_last_seen_when_its_latest_packet_came() {
    let mut exit = Exit::new();
    exit.say(1, ALICE, &hello(1));
    let session = SessionId(exit.welcome.as_ref().unwrap().session);
    let opened = exit.sessions.clock.at(exit.now);
    let seen = |exit: &Exit| exit.sessions.registry().by_key(ALICE).unwrap().last_seen.unwrap();
    let after = |seconds| opened + Duration::from_secs(seconds);

    exit.advance(100);
    exit.sessions.heard(exit.now, session);
    exit.advance(20);
    // The wall clock is read after the packet and before the registry is asked.
    exit.sessions.set_wall_clock(exit.now, after(120));
    let online = exit.sessions.session(session).map(|session| exit.sessions.seen_at(session));
    assert_eq!(online, Some(after(100)));

    exit.advance(30);
    exit.sessions.timed_out(exit.now, 1);
    assert_eq!(seen(&exit), after(100), "not when the exit gave it up");

    // Messages on the control stream count, too.
    exit.say(2, ALICE, &hello(1));
    exit.advance(40);
    exit.sessions.received(exit.now, 2, &encode(&Goodbye::ClientStopped.to_message()));
    exit.actions();
    assert_eq!(seen(&exit), after(190));
}

#[test]
fn a_connection_that_says_nothing_is_closed_after_five_seconds() {
    let mut exit = Exit::new();
    exit.sessions.connected(exit.now, 1, ALICE, NETWORK);
    exit.sessions.connected(exit.now, 2, STRANGER, NETWORK);
    exit.sessions.received(exit.now, 1, &[0]);
    exit.advance(4);
    assert_eq!(exit.last_closes, []);
    exit.advance(1);
    assert_eq!(exit.last_closes, [(1, Goodbye::TimedOut), (2, Goodbye::NotEnrolled)]);
}

#[test]
fn messages_out_of_order_close_the_connection_and_leave_the_session() {
    let second =
        [hello(NONCE_A), Message::Welcome(Welcome::default()), Message::Attached(Attached { index: 0 })];
    for message in second {
        let mut exit = Exit::new();
        exit.say(1, ALICE, &hello(NONCE_A));
        exit.sessions.received(exit.now, 1, &encode(&message));
        assert_eq!(exit.closes(), [(1, Goodbye::Protocol(Violation::OutOfOrder))]);
        assert_eq!(exit.sessions.sessions().count(), 1);
    }
    let mut exit = Exit::new();
    exit.say(1, ALICE, &Message::Welcome(Welcome::default()));
    assert_eq!(exit.last_closes, [(1, Goodbye::Protocol(Violation::OutOfOrder))]);
}

#[test]
fn an_empty_pool_is_said_and_a_client_offline_gives_its_address_up() {
    let mut exit =
        Exit::with(SessionConfig { ipv4: Some("10.66.0.0/30".parse().unwrap()), ..SessionConfig::default() });
    exit.say(1, ALICE, &hello(NONCE_A));
    exit.say(2, BOB, &hello(NONCE_B));
    assert_eq!(exit.last_closes, [(2, Goodbye::PoolEmpty)]);
    exit.sessions.received(exit.now, 1, &encode(&Goodbye::ClientStopped.to_message()));
    assert_eq!(exit.closes(), [(1, Goodbye::ClientStopped)]);
    exit.say(3, BOB, &hello(NONCE_B));
    assert_eq!(exit.last_closes, []);
    assert_eq!(exit.lease_of(ALICE), crate::pool::Lease::default());
}

#[test]
fn removing_a_client_cuts_it_off_and_frees_its_addresses() {
    let mut exit = Exit::new();
    exit.say(1, ALICE, &hello(NONCE_A));
    exit.sessions.connected(exit.now, 2, ALICE, NETWORK);
    assert_eq!(
        exit.change(|sessions, now| sessions.remove_client(now, "alice")).unwrap().0.unwrap().public_key,
        ALICE
    );
    assert_eq!(exit.closes(), [(1, Goodbye::Revoked), (2, Goodbye::Revoked)]);
    assert_eq!(exit.sessions.sessions().count(), 0);
    assert_eq!(exit.sessions.pool().lease_of(ALICE), crate::pool::Lease::default());
    exit.say(3, ALICE, &hello(NONCE_A));
    assert_eq!(exit.last_closes, [(3, Goodbye::NotEnrolled)]);
    assert!(exit.sessions.remove_client(exit.now, "alice").is_err());
}

#[test]
fn a_disabled_client_is_cut_off_and_comes_back_with_its_addresses() {
    let mut exit = Exit::new();
    exit.say(1, ALICE, &hello(NONCE_A));
    let lease = exit.lease_of(ALICE);
    exit.disable("alice");
    assert_eq!(exit.closes(), [(1, Goodbye::Disabled)]);
    exit.say(2, ALICE, &hello(NONCE_A));
    assert_eq!(exit.last_closes, [(2, Goodbye::Disabled)]);
    exit.change(|sessions, now| sessions.change_client(now, "alice", &ClientChange::Enable)).unwrap();
    exit.say(3, ALICE, &hello(NONCE_A));
    assert_eq!((exit.last_closes.len(), exit.lease_of(ALICE)), (0, lease));
}

#[test]
fn leases_outlive_the_exit() {
    let mut exit = Exit::new();
    exit.say(1, ALICE, &hello(NONCE_A));
    exit.say(2, BOB, &hello(NONCE_B));
    let (leases, attach) = ([ALICE, BOB].map(|key| exit.lease_of(key)), exit.attach(0));
    let file = toml::to_string(exit.sessions.registry()).unwrap();
    let mut restarted = Exit::from_file(&file);
    restarted.say(1, BOB, &attach);
    assert_eq!(restarted.last_closes, [(1, Goodbye::UnknownSession)]);
    restarted.say(2, BOB, &hello(NONCE_B));
    restarted.say(3, ALICE, &hello(NONCE_A));
    assert_eq!([ALICE, BOB].map(|key| restarted.lease_of(key)), leases);
}

#[test]
fn shutdown_says_goodbye_to_everybody_and_to_those_who_still_come() {
    let mut exit = Exit::new();
    exit.say(1, ALICE, &hello(NONCE_A));
    exit.sessions.connected(exit.now, 2, BOB, NETWORK);
    exit.sessions.shutdown(exit.now, Goodbye::Restarting);
    assert_eq!(exit.closes(), [(1, Goodbye::Restarting), (2, Goodbye::Restarting)]);
    exit.sessions.connected(exit.now, 3, BOB, NETWORK);
    assert_eq!(exit.closes(), [(3, Goodbye::Restarting)]);
}

#[test]
fn only_prefixes_that_the_operator_set_are_granted() {
    let mut exit = Exit::new();
    let prefixes = vec!["192.168.0.0/16".parse().unwrap()];
    let carol = PublicKey([3; 32]);
    exit.add(Client { prefixes, ..Client::new("carol", carol, UNIX_EPOCH) }).unwrap();
    let Message::Hello(hello) = hello(NONCE_A) else { panic!() };
    let wanted = ["192.168.7.0/24", "192.168.7.0/24", "192.0.0.0/8", "0.0.0.0/0"];
    let wanted = wanted.map(|prefix| Network::from(prefix.parse::<ipnet::IpNet>().unwrap()));
    exit.say(1, carol, &Message::Hello(Hello { prefixes: wanted.to_vec(), ..hello }));
    assert_eq!(exit.sessions.sessions().next().unwrap().prefixes(), ["192.168.7.0/24".parse().unwrap()]);
}

#[test]
fn a_client_that_cannot_be_is_not_added() {
    let mut exit = Exit::new();
    exit.say(1, ALICE, &hello(NONCE_A));
    let before = exit.sessions.registry().clone();
    let carol = |address: &str| Client {
        ipv4: Some(address.parse().unwrap()),
        ..Client::new("carol", PublicKey([3; 32]), UNIX_EPOCH)
    };
    for address in ["10.67.0.2", "10.66.0.1", "10.66.0.2"] {
        let error = exit.add(carol(address)).unwrap_err().to_string();
        assert!(error.contains("client \"carol\": the address"), "{error}");
    }
    let around = Client { ipv4: None, prefixes: vec!["10.0.0.0/8".parse().unwrap()], ..carol("10.66.0.9") };
    assert!(matches!(exit.add(around), Err(AdminError::Config(SessionConfigError::PrefixInPool { .. }))));
    assert_eq!(exit.sessions.registry(), &before);
}

#[test]
fn connections_that_wait_are_bounded() {
    let mut exit = Exit::new();
    for number in 0..1_000 {
        exit.sessions.connected(exit.now, number, ALICE, NETWORK);
        exit.sessions.connected(
            exit.now,
            1_000 + number,
            PublicKey([u8::try_from(number % 200).unwrap() + 50; 32]),
            NETWORK,
        );
    }
    let closes = exit.closes();
    assert_eq!(2_000 - closes.len(), 4 + 8 + 128, "of one network");
    for number in 0..1_000 {
        let network = Ipv4Addr::new(203, 0, u8::try_from(number % 4).unwrap(), 0).into();
        exit.sessions.connected(exit.now, 2_000 + number, STRANGER, network);
    }
    let others = exit.closes();
    assert_eq!(1_000 - others.len(), 128, "of others, for whom there is room");
    let closes = [closes, others].concat();
    assert!(closes.iter().all(|(_, reason)| *reason == Goodbye::Full));
    exit.advance(5);
    assert_eq!(exit.sessions.connections.len(), 0);
    exit.say(5_000, ALICE, &hello(NONCE_A));
    assert_eq!(exit.last_closes, [], "room again");
}

fn is_store(action: &Action) -> bool {
    matches!(action, Action::Store(_))
}
