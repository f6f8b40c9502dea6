mod harness;

use std::time::Duration;

use self::harness::*;
use super::ClientAction as Action;
use super::*;
use crate::UPDATES;
use crate::goodbye::Versions;
use crate::message::{Attached, Message, MessageDecoder, Network, encode};

#[test]
fn connection_zero_opens_the_session_and_the_others_join_it() {
    let mut client = Client::new(3);
    assert_eq!(client.actions(), [Action::Connect { index: 0 }]);
    client.session.connected(client.now, 0);
    assert!(
        matches!(client.said(0), Message::Hello(hello) if hello.connections_wanted == 3 && hello.name == "my-host")
    );
    client.receive(0, &Message::Welcome(welcome(3)));
    let actions = client.actions();
    assert!(
        matches!(
            actions[..],
            [
                Action::Welcome(_),
                Action::Attach { index: 0 },
                Action::Connect { index: 1 },
                Action::Connect { index: 2 }
            ]
        ),
        "{actions:?}"
    );
    client.session.connected(client.now, 2);
    let Message::Attach(attach) = client.said(2) else { panic!() };
    assert_eq!((attach.session, attach.index, attach.attach_token), (77, 2, vec![5; 16]));
    client.receive(2, &Message::Attached(Attached { index: 2 }));
    assert_eq!(client.actions(), [Action::Attach { index: 2 }]);
    assert_eq!(*client.session.state(), ClientState::Up { attached: 2 });
}

#[test]
fn an_address_that_somebody_here_has_is_refused_and_asked_for_again() {
    let refusal = |address: &str, owner| {
        let mut client = Client::new(1);
        client.session.set_taken([(address.parse().unwrap(), owner)].into_iter().collect());
        client.actions();
        client.session.connected(client.now, 0);
        assert!(client.session.awaits_welcome(0));
        client.said(0);
        client.receive(0, &Message::Welcome(welcome(1)));
        assert!(!client.session.awaits_welcome(0));
        client.actions()
    };
    let (own, exits) = ("10.66.0.2", "10.66.0.1");
    for (address, owner, says) in [
        (
            own,
            AddressOwner::Host,
            "10.66.0.2 as this client's inner address, which is an address of this host",
        ),
        (own, AddressOwner::Gateway, "the address of this host's gateway"),
        ("::ffff:10.66.0.2", AddressOwner::Exit, "the exit's address outside the tunnel"),
        (exits, AddressOwner::Gateway, "10.66.0.1 as the exit's inner address, which is"),
        (own, AddressOwner::KnownExit, "the address of an exit of the profile"),
        (own, AddressOwner::Resolver, "the address of this host's resolver"),
    ] {
        let actions = refusal(address, owner);
        let bad = Goodbye::Protocol(Violation::BadWelcome);
        assert!(actions.contains(&Action::Close { index: 0, reason: bad }), "{actions:?}");
        let is_told =
            |action: &Action| matches!(action, Action::Down { reason, .. } if reason.contains(says));
        assert!(actions.iter().any(is_told), "{says}: {actions:?}");
        assert!(!actions.iter().any(|action| matches!(action, Action::Welcome(_) | Action::Stopped { .. })));
    }
    // The controls: a neighbour's address in the same network is allowed. So is the exit's own inner address if only another
    // exit, or a resolver outside the tunnel, has it.
    for (address, owner) in [
        ("10.66.0.3", AddressOwner::Gateway),
        (exits, AddressOwner::KnownExit),
        (exits, AddressOwner::Resolver),
    ] {
        assert!(refusal(address, owner).iter().any(|a| matches!(a, Action::Welcome(_))), "{owner:?}");
    }
}

#[test]
fn a_client_that_stays_says_so_on_each_connection_and_on_later_ones() {
    let mut client = Client::up(2);
    let stays = |client: &mut Client| {
        let said = |action| {
            let Action::Send { index, bytes } = action else { return None };
            assert_eq!(bytes, encode(&Message::Stay(message::Stay { claim: 5 })));
            Some(index)
        };
        client.actions().into_iter().filter_map(said).collect::<Vec<_>>()
    };

    client.session.stay(5);

    assert_eq!(stays(&mut client), [0, 1]);
    client.advance(60);
    client.lose(1);
    client.actions();
    client.session.connected(client.now, 1);
    client.said(1);
    client.receive(1, &Message::Attached(Attached { index: 1 }));
    assert_eq!(stays(&mut client), [1], "its exit may not have read it before");
}

#[test]
fn a_lost_connection_attaches_again_by_itself_and_at_once() {
    let mut client = Client::up(2);
    client.advance(60);
    client.lose(1);
    assert_eq!(client.actions(), [Action::Detach { index: 1 }, Action::Connect { index: 1 }]);
    client.session.connected(client.now, 1);
    assert!(matches!(client.said(1), Message::Attach(attach) if attach.index == 1));
    assert_eq!(*client.session.state(), ClientState::Up { attached: 1 });
}

#[test]
fn when_all_are_lost_it_says_down_and_connection_zero_tries_for_all() {
    let mut client = Client::up(3);
    client.advance(60);
    for index in [2, 0, 1] {
        client.lose(index);
    }
    let actions = client.actions();
    let downs: Vec<_> = actions.iter().filter(|action| matches!(action, Action::Down { .. })).collect();
    assert!(matches!(downs[..], [Action::Down { reason, goodbye: None }] if reason == "gone"), "{actions:?}");
    assert!(matches!(client.session.state(), ClientState::Down { .. }));
    // The running attempts fail as well. From then on, one attempt runs at a time.
    client.lose(2);
    client.lose(0);
    for _ in 0..40 {
        client.now = client.session.timeout().unwrap();
        client.session.handle_timeout(client.now);
        for action in client.actions() {
            assert!(!matches!(action, Action::Connect { index: 1.. }), "{action:?}");
        }
    }
    client.reach(0);
    assert!(matches!(client.said(0), Message::Attach(_)));
    client.receive(0, &Message::Attached(Attached { index: 0 }));
    let actions = client.actions();
    let connects = actions.iter().filter(|action| matches!(action, Action::Connect { .. })).count();
    assert_eq!(connects, 2, "the others follow: {actions:?}");
}

#[test]
fn connection_zero_does_not_wait_out_its_own_outage_when_all_are_lost() {
    let mut client = Client::up(2);
    client.advance(60);
    client.lose(0);
    for _ in 0..40 {
        client.lose(0);
        client.now = client.session.timeout().unwrap();
        client.session.handle_timeout(client.now);
    }
    client.lose(0);
    assert!(client.session.timeout().unwrap() > client.now + Duration::from_secs(2));
    client.actions();
    client.lose(1);
    assert!(client.actions().contains(&Action::Connect { index: 0 }));
}

#[test]
fn an_unknown_session_begins_anew_with_hello_on_connection_zero() {
    let mut client = Client::up(2);
    client.advance(60);
    client.lose(0);
    client.lose(1);
    client.actions();
    client.session.connected(client.now, 0);
    assert!(matches!(client.said(0), Message::Attach(_)));
    client.receive(0, &Goodbye::UnknownSession.to_message());
    let closed = Action::Close { index: 0, reason: Goodbye::UnknownSession };
    assert_eq!(client.actions(), [closed, Action::Connect { index: 0 }]);
    client.session.connected(client.now, 0);
    assert!(matches!(client.said(0), Message::Hello(_)));
    assert!(client.session.welcome().is_none());
}

#[test]
fn an_unknown_session_on_any_connection_drops_all_of_it() {
    let mut client = Client::up(2);
    client.advance(60);
    client.lose(1);
    client.actions();
    client.session.connected(client.now, 1);
    client.actions();
    client.receive(1, &Goodbye::UnknownSession.to_message());
    assert_eq!(
        client.actions(),
        [
            Action::Close { index: 1, reason: Goodbye::UnknownSession },
            Action::Detach { index: 0 },
            Action::Close { index: 0, reason: Goodbye::Superseded },
            Action::Down {
                reason: Goodbye::UnknownSession.to_string(),
                goodbye: Some(Goodbye::UnknownSession)
            },
            Action::Connect { index: 0 },
        ]
    );
}

#[test]
fn a_changed_network_cuts_waits_short() {
    let mut client = Client::up(1);
    client.advance(60);
    client.lose(0);
    for _ in 0..30 {
        client.lose(0);
        client.now = client.session.timeout().unwrap();
        client.session.handle_timeout(client.now);
    }
    client.lose(0);
    assert!(client.session.timeout().unwrap() > client.now);
    client.actions();

    client.session.hurry(client.now);

    client.session.handle_timeout(client.now);
    assert_eq!(client.actions(), [Action::Connect { index: 0 }]);
}

#[test]
fn another_way_takes_the_place_of_every_connection_and_the_session_goes_on() {
    let mut client = Client::up(2);

    client.session.change_ways(client.now);

    let gone = |index| [Action::Detach { index }, Action::Close { index, reason: Goodbye::Superseded }];
    assert_eq!(client.actions(), [gone(0), gone(1)].concat());
    client.session.connected(client.now, 0);
    assert!(matches!(client.said(0), Message::Attach(_)));
    client.receive(0, &Message::Attached(Attached { index: 0 }));
    assert_eq!(client.actions(), [Action::Attach { index: 0 }, Action::Connect { index: 1 }]);
}

#[test]
fn the_nonce_stays_the_same_for_the_life_of_the_process() {
    let mut client = Client::new(1);
    client.session.connected(client.now, 0);
    let Message::Hello(first) = client.said(0) else { panic!() };
    client.lose(0);
    client.reach(0);
    assert!(
        matches!(client.said(0), Message::Hello(second) if second.nonce == first.nonce && first.nonce.len() == 16)
    );
}

#[test]
fn a_restarting_exit_is_asked_again_after_a_pause() {
    let mut client = Client::up(1);
    client.advance(60);
    client.receive(0, &Goodbye::Restarting.to_message());
    let actions = client.actions();
    let [Action::Detach { index: 0 }, Action::Close { index: 0, .. }, Action::Down { goodbye, .. }] =
        actions.as_slice()
    else {
        panic!("{actions:?}")
    };
    assert_eq!(*goodbye, Some(Goodbye::Restarting));
    let wait = client.session.timeout().unwrap() - client.now;
    assert!((Duration::from_millis(200)..=Duration::from_millis(300)).contains(&wait), "{wait:?}");
    client.reach(0);
    assert!(matches!(client.said(0), Message::Hello(_)), "the session is gone with the exit");
}

#[test]
fn every_restart_of_an_exit_is_an_outage_of_its_own() {
    let mut client = Client::up(1);
    for _ in 0..3 {
        client.advance(86_400);
        client.receive(0, &Goodbye::Restarting.to_message());
        let wait = client.session.timeout().unwrap() - client.now;
        assert!(wait <= Duration::from_millis(300), "{wait:?}");
        client.reach(0);
        client.receive(0, &Message::Welcome(welcome(1)));
    }
}

#[test]
fn final_goodbyes_stop_it_whether_they_come_as_message_or_close_code() {
    let version = Goodbye::Version(Some(Versions { exit: 2, client: 1 }));
    for reason in [Goodbye::NotEnrolled, Goodbye::Revoked, Goodbye::Replaced, Goodbye::Disabled, version] {
        let mut client = Client::up(2);
        client.receive(1, &reason.to_message());
        client.stopped_with(&Stop::Goodbye(reason));
        let mut client = Client::up(2);
        client.session.closed(client.now, 0, ConnectionEnd::Goodbye(reason));
        client.stopped_with(&Stop::Goodbye(reason));
    }
}

#[test]
fn nothing_is_final_before_the_exit_s_key_is_proven() {
    for reason in Goodbye::ALL {
        // The close may come during the first handshake, or while a lost connection reconnects.
        let mut client = Client::new(2);
        client.actions();
        client.session.closed(client.now, 0, ConnectionEnd::Goodbye(reason));
        let actions = client.actions();
        assert!(matches!(&actions[..], [Action::Down { goodbye: None, .. }]), "{actions:?}");
        assert!(client.session.timeout().is_some(), "it is tried again after {reason:?}");

        let mut client = Client::up(2);
        client.lose(1);
        client.advance(1);
        assert!(client.actions().contains(&Action::Connect { index: 1 }));
        client.session.closed(client.now, 1, ConnectionEnd::Goodbye(reason));
        assert_eq!(client.actions(), [], "the session goes on after {reason:?}");
        assert!(client.session.timeout().is_some(), "it is tried again after {reason:?}");
    }
}

#[test]
fn a_draining_exit_ends_nothing_by_its_word_if_the_client_can_move_without_a_gap() {
    let mut client = Client::up(2);
    client.session.set_moves_without_gap(true);
    client.advance(60);

    client.receive(0, &Goodbye::Draining.to_message());
    client.receive(1, &Goodbye::Draining.to_message());

    assert_eq!(client.actions(), [Action::AskedToLeave, Action::AskedToLeave]);
    assert_eq!(*client.session.state(), ClientState::Up { attached: 2 });
    // The exit refuses a lost connection from now on. The other connections continue.
    client.lose(1);
    assert_eq!(client.actions(), [Action::Detach { index: 1 }, Action::Connect { index: 1 }]);
    client.session.connected(client.now, 1);
    client.actions();
    client.receive(1, &Goodbye::Draining.to_message());
    assert_eq!(client.actions(), [Action::Close { index: 1, reason: Goodbye::Draining }]);
    assert_eq!(*client.session.state(), ClientState::Up { attached: 1 });
    // The exit's drain has lasted long enough, so it closes the connection.
    client.session.closed(client.now, 0, ConnectionEnd::Goodbye(Goodbye::Draining));
    assert!(client.actions().iter().any(|action| matches!(action, Action::Down { .. })));
    // The control: a client that cannot move leaves at once.
    let mut client = Client::up(2);
    client.receive(0, &Goodbye::Draining.to_message());
    let actions = client.actions();
    let is_down = |action: &Action| matches!(action, Action::Down { goodbye: Some(Goodbye::Draining), .. });
    assert!(actions.iter().any(is_down) && !actions.contains(&Action::AskedToLeave), "{actions:?}");
}

#[test]
fn every_session_of_a_client_process_has_its_nonce() {
    let nonce_of = |nonce, fill: u8| {
        let config = ClientConfig { connections: 1, nonce, ..ClientConfig::default() };
        let mut session = ClientSession::new(config, Box::new(move |bytes| bytes.fill(fill)));
        let now = Instant::now();
        session.start(now);
        session.connected(now, 0);
        let mut client = Client { session, now };
        let Message::Hello(hello) = client.said(0) else { panic!("no Hello") };
        hello.nonce
    };
    assert_eq!(nonce_of(Some([9; 16]), 1), nonce_of(Some([9; 16]), 2));
    // The control: without a configured nonce, each session draws its own nonce.
    assert_ne!(nonce_of(None, 1), nonce_of(None, 2));
}

#[test]
fn stop_says_goodbye_on_every_open_connection() {
    let mut client = Client::up(2);
    client.lose(1);
    client.advance(1);
    client.actions();
    client.session.stop(client.now);
    let actions = client.actions();
    assert!(
        matches!(
            actions[..],
            [
                Action::Send { index: 0, .. },
                Action::Detach { index: 0 },
                Action::Close { index: 0, reason: Goodbye::ClientStopped },
                Action::Close { index: 1, reason: Goodbye::ClientStopped },
                Action::Stopped { reason: Stop::Requested },
            ]
        ),
        "{actions:?}"
    );
    client.lose(0);
    client.session.start(client.now);
    client.advance(60);
    assert_eq!(client.actions(), []);
}

#[test]
fn an_attempt_that_is_not_answered_is_closed_after_five_seconds() {
    let mut client = Client::new(1);
    client.session.connected(client.now, 0);
    client.actions();
    client.advance(4);
    assert_eq!(client.actions(), []);
    client.advance(1);
    let actions = client.actions();
    assert!(
        matches!(&actions[..], [Action::Close { index: 0, reason: Goodbye::TimedOut }, Action::Down { reason, .. }]
            if reason.contains("did not answer")),
        "{actions:?}"
    );
}

#[test]
fn attempts_thin_out_while_the_exit_is_away_and_never_cease() {
    let mut client = Client::new(1);
    let (began, mut attempts) = (client.now, Vec::new());
    while client.now - began < Duration::from_secs(3_600) {
        while client.actions().contains(&Action::Connect { index: 0 }) {
            attempts.push(client.now - began);
            client.lose(0);
        }
        client.now = client.session.timeout().unwrap();
        client.session.handle_timeout(client.now);
    }
    assert_eq!(attempts[..2], [Duration::ZERO, Duration::ZERO], "the first retry is at once");
    for pair in attempts[1..].windows(2) {
        let gap = pair[1] - pair[0];
        let (shortest, longest) = (pair[1] / 16, pair[1] / 4);
        assert!(gap >= Duration::from_millis(200).max(shortest.min(Duration::from_secs(24))), "{pair:?}");
        assert!(gap <= Duration::from_millis(300).max(longest.min(Duration::from_secs(30))), "{pair:?}");
    }
    assert!((100..200).contains(&attempts.len()), "{} attempts", attempts.len());
}

#[test]
fn an_exit_that_accepts_and_drops_at_once_is_not_asked_without_a_pause() {
    let mut client = Client::new(1);
    let (began, mut attempts) = (client.now, 0);
    while client.now - began < Duration::from_secs(60) {
        if client.actions().contains(&Action::Connect { index: 0 }) {
            attempts += 1;
            client.session.connected(client.now, 0);
            let is_hello = matches!(client.said(0), Message::Hello(_));
            let attached = Message::Attached(Attached { index: 0 });
            let answer = if is_hello { Message::Welcome(welcome(1)) } else { attached };
            client.receive(0, &answer);
            client.receive(0, &Goodbye::UnknownSession.to_message());
        }
        client.now = client.session.timeout().unwrap();
        client.session.handle_timeout(client.now);
    }
    assert!((10..40).contains(&attempts), "{attempts} attempts in a minute");
}

#[test]
fn what_the_exit_must_not_say_closes_the_connection_and_is_tried_again_later() {
    let out_of_order = [
        Message::Attached(Attached { index: 0 }),
        Message::Hello(message::Hello::default()),
        Message::Welcome(message::Welcome { mtu: 1_279, ..welcome(1) }),
    ];
    for wrong in out_of_order {
        let mut client = Client::new(1);
        client.session.connected(client.now, 0);
        client.actions();
        client.receive(0, &wrong);
        let actions = client.actions();
        assert!(
            matches!(actions[..], [Action::Close { reason: Goodbye::Protocol(_), .. }, Action::Down { .. }]),
            "{wrong:?}: {actions:?}"
        );
        assert!(client.session.timeout().unwrap() > client.now);
    }
    let mut client = Client::up(1);
    client.receive(0, &Message::Welcome(welcome(1)));
    let close = Action::Close { index: 0, reason: Goodbye::Protocol(Violation::OutOfOrder) };
    assert_eq!(client.actions()[..2], [Action::Detach { index: 0 }, close]);
}

#[test]
fn events_of_connections_that_are_not_there_are_ignored() {
    let mut client = Client::up(2);
    for index in [2, 7, u32::MAX] {
        client.session.connected(client.now, index);
        client.receive(index, &Message::Attached(Attached { index }));
        client.session.closed(client.now, index, ConnectionEnd::Lost("gone".into()));
    }
    assert_eq!(client.actions(), []);
    assert_eq!(*client.session.state(), ClientState::Up { attached: 2 });
}

#[test]
fn a_change_is_taken_once_and_in_order_whatever_connection_brings_it() {
    let mut client = Client::with_features(2, UPDATES);
    let update =
        |number, last| message::Update { number, dns: vec![vec![9, 9, 9, last]], ..Default::default() };
    let mut actions = Vec::new();
    for (index, number) in [(0, 1_u8), (0, 2), (1, 1), (1, 2)] {
        client.receive(index, &Message::Update(update(number.into(), number)));
        actions.extend(client.actions());
    }

    let named: Vec<_> = actions
        .iter()
        .map(|action| {
            let Action::Changed(grant) = action else { panic!("{action:?}") };
            grant.dns[0].to_string()
        })
        .collect();
    assert_eq!(named, ["9.9.9.1", "9.9.9.2"]);
    assert_eq!(client.session.welcome().unwrap().dns[0].to_string(), "9.9.9.2");
}

#[test]
fn changes_that_come_faster_than_the_host_follows_leave_only_the_latest() {
    let mut client = Client::with_features(1, UPDATES);
    for number in 1..=200_u8 {
        let dns = vec![vec![9, 9, 9, number]];
        client.receive(
            0,
            &Message::Update(message::Update { number: number.into(), dns, ..Default::default() }),
        );
    }

    let actions = client.actions();
    let [Action::Changed(grant)] = actions.as_slice() else { panic!("{actions:?}") };
    assert_eq!(grant.dns[0].to_string(), "9.9.9.200");
}

#[test]
fn keys_of_the_exit_are_passed_on_with_the_connection_that_named_them() {
    let mut client = Client::with_features(2, UPDATES);
    let keys = [1, 0].map(crate::key::tests_key);
    let exit_keys = keys.map(|key| key.0.to_vec()).to_vec();
    client.receive(1, &Message::Update(message::Update { number: 1, exit_keys, ..Default::default() }));
    assert_eq!(client.actions(), [Action::ExitKeys { index: 1, keys: keys.to_vec() }]);
}

#[test]
fn a_change_that_cannot_be_used_or_was_not_agreed_on_costs_the_connection_and_nothing_else() {
    for (features, update, violation) in [
        (
            UPDATES,
            message::Update { number: 1, dns: vec![vec![127, 0, 0, 1]], ..Default::default() },
            Violation::BadWelcome,
        ),
        (
            UPDATES,
            message::Update { number: 1, exit_keys: vec![vec![0; 32]], ..Default::default() },
            Violation::BadWelcome,
        ),
        (0, message::Update { number: 1, ..Default::default() }, Violation::OutOfOrder),
    ] {
        let mut client = Client::with_features(2, features);
        client.receive(1, &Message::Update(update));
        let reason = Goodbye::Protocol(violation);
        assert_eq!(client.actions(), [Action::Detach { index: 1 }, Action::Close { index: 1, reason }]);
        assert_eq!(*client.session.state(), ClientState::Up { attached: 1 });
        assert!(client.session.welcome().unwrap().dns.is_empty());
    }
}

#[test]
fn roster_is_handed_on_if_both_sides_know_of_rosters_and_only_the_latest_counts() {
    let roster = |number| Message::Roster(message::Roster { signed: vec![number], loads: Vec::new() });
    let mut client = Client::with_features(2, crate::ROSTER);
    client.receive(0, &roster(1));
    client.receive(1, &roster(2));
    let expected = message::Roster { signed: vec![2], loads: Vec::new() };
    assert_eq!(client.actions(), [Action::Roster { index: 1, roster: Box::new(expected) }]);

    let mut client = Client::with_features(2, UPDATES);
    client.receive(0, &roster(1));
    assert!(matches!(client.actions().first(), Some(Action::Detach { index: 0 })), "it broke the protocol");
}

#[test]
fn hello_names_the_fleet_that_the_client_follows() {
    let mut client = Client::new(1);
    client.session.set_fleet(Some(("acme".parse().unwrap(), 7)), true);
    client.actions();
    client.session.connected(client.now, 0);
    let Message::Hello(hello) = client.said(0) else { panic!("no Hello") };
    assert_eq!(hello.fleet, Some(message::Fleet { name: "acme".into(), serial: 7 }));
}
