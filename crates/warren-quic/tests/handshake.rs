//! Who may connect to whom, and how each refusal is reported.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "helpers of tests may panic")]

mod common;

use std::{
    future::poll_fn,
    net::Ipv4Addr,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::Poll,
    time::Duration,
};

use common::{Drivers, Pair, Side, loopback_socket, relay::Relay};
use noq::crypto::rustls::QuicServerConfig;
use tokio::time::timeout;
use warren_quic::{
    driver::{CloseReason, ConnectError, Endpoint, EndpointError},
    key::PrivateKey,
    settings::TransportSettings,
    strangers::{Strangers, Turned},
    tls,
};

test_every_driver!(
    both_sides_learn_the_key_the_other_proved,
    any_of_several_pinned_keys_will_do,
    an_exit_with_another_key_is_refused_and_its_key_named,
    a_server_of_another_protocol_is_told_apart,
    what_is_not_kept_is_closed_and_a_handshake_with_it,
    a_handshake_closed_by_its_own_side_ends_as_local,
    silence_ends_a_connection_after_the_idle_timeout,
    keep_alives_hold_an_idle_connection,
    a_crowd_is_taken_in_past_the_point_where_addresses_must_be_proven,
    a_silent_exit_takes_a_crowd_in_as_well,
    an_idle_connection_lets_its_worker_sleep,
    a_client_of_another_quic_version_is_told_which_there_are,
    misuse_is_refused_with_its_reason,
);

async fn both_sides_learn_the_key_the_other_proved(drivers: Drivers) {
    let mut pair = Pair::new(drivers, &TransportSettings::default());
    let (at_client, at_exit) = pair.connect().await;
    assert_eq!(pair.client.connected, [(at_client, pair.exit_key)]);
    assert_eq!(pair.exit.connected, [(at_exit, pair.client_key)]);
}

async fn any_of_several_pinned_keys_will_do(drivers: Drivers) {
    let mut pair = Pair::new(drivers, &TransportSettings::default());
    let pinned = [PrivateKey::generate().unwrap().public(), pair.exit_key];
    pair.client.endpoint.connect(loopback_socket(), pair.exit_address, &pinned).unwrap();
    pair.until("it is connected", |pair| !pair.client.connected.is_empty()).await;
}

async fn an_exit_with_another_key_is_refused_and_its_key_named(drivers: Drivers) {
    let mut pair = Pair::new(drivers, &TransportSettings::default());
    let other = PrivateKey::generate().unwrap().public();
    pair.client.endpoint.connect(loopback_socket(), pair.exit_address, &[other]).unwrap();
    pair.until("the client gives up", |pair| !pair.client.closed.is_empty()).await;
    assert_eq!(*pair.client.close_reason(), CloseReason::WrongPeerKey { presented: pair.exit_key });
    pair.run_for(Duration::from_millis(100)).await;
    assert!(pair.exit.connected.is_empty() && pair.exit.closed.is_empty(), "the exit never saw a connection");
}

async fn a_server_of_another_protocol_is_told_apart(drivers: Drivers) {
    let mut tls = tls::exit(&PrivateKey::generate().unwrap()).unwrap();
    tls.alpn_protocols = vec![b"other/1".to_vec()];
    let config = noq::ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls).unwrap()));
    let server = noq::Endpoint::server(config, (Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let address = server.local_addr().unwrap();
    tokio::spawn(async move {
        while let Some(incoming) = server.accept().await {
            drop(incoming.await)
        }
    });

    let mut pair = Pair::new(drivers, &TransportSettings::default());
    pair.client.endpoint.connect(loopback_socket(), address, &[pair.exit_key]).unwrap();
    pair.until("the client gives up", |pair| !pair.client.closed.is_empty()).await;
    assert_eq!(*pair.client.close_reason(), CloseReason::NoCommonProtocol);
}

async fn what_is_not_kept_is_closed_and_a_handshake_with_it(drivers: Drivers) {
    for closes in [false, true] {
        let mut pair = Pair::new(drivers, &TransportSettings::default());
        let (_, kept) = pair.connect().await;
        let (other, _) = pair.connect().await;
        let relay = Relay::new(pair.exit_address, 65_536).await;
        relay.mutes_client.store(true, Relaxed);
        let late = pair.client.endpoint.connect(loopback_socket(), relay.address, &[pair.exit_key]).unwrap();
        let is_open = |side: &Side, of| side.connected.iter().any(|(id, _)| *id == of);
        pair.until("the client knows the exit's key", |pair| is_open(&pair.client, late)).await;
        assert_eq!(pair.exit.connected.len(), 2, "the exit does not know the client's");

        if closes {
            pair.exit.endpoint.close_others(7, "gone", |connection| connection == kept);
        }

        relay.mutes_client.store(false, Relaxed);
        if closes {
            pair.until("both connections are closed", |pair| pair.client.closed.len() == 2).await;
            assert!(
                pair.client.closed.contains(&(other, CloseReason::Peer { code: 7, reason: "gone".into() }))
            );
            assert_eq!(pair.exit.connected.len(), 2, "the late connection was never established");
        } else {
            pair.until("the late connection is established", |pair| pair.exit.connected.len() == 3).await;
            assert_eq!(pair.client.closed, []);
        }
        assert!(!pair.exit.closed.iter().any(|(id, _)| *id == kept), "{:?}", pair.exit.closed);
    }
}

async fn a_handshake_closed_by_its_own_side_ends_as_local(drivers: Drivers) {
    let mut pair = Pair::new(drivers, &TransportSettings::default());
    let nobody = loopback_socket();
    let address = nobody.local_addr().unwrap();
    let id = pair.client.endpoint.connect(loopback_socket(), address, &[pair.exit_key]).unwrap();
    pair.run_for(Duration::from_millis(50)).await;
    pair.client.endpoint.close(id, 1, "no answer");
    pair.until("it is closed", |pair| !pair.client.closed.is_empty()).await;
    assert_eq!(*pair.client.close_reason(), CloseReason::Local);
}

async fn silence_ends_a_connection_after_the_idle_timeout(drivers: Drivers) {
    let settings = TransportSettings {
        idle_timeout: Duration::from_secs(1),
        keep_alive: Some(Duration::from_millis(300)),
        ..Default::default()
    };
    let mut pair = Pair::new(drivers, &settings);
    let nobody = loopback_socket();
    let address = nobody.local_addr().unwrap();
    pair.client.endpoint.connect(loopback_socket(), address, &[pair.exit_key]).unwrap();
    pair.until("the handshake times out", |pair| !pair.client.closed.is_empty()).await;
    assert_eq!(*pair.client.close_reason(), CloseReason::TimedOut);
}

async fn keep_alives_hold_an_idle_connection(drivers: Drivers) {
    let settings = TransportSettings {
        idle_timeout: Duration::from_secs(1),
        keep_alive: Some(Duration::from_millis(300)),
        ..Default::default()
    };
    let mut pair = Pair::new(drivers, &settings);
    pair.connect().await;
    pair.run_for(Duration::from_millis(2_500)).await;
    assert_eq!((pair.client.closed.len(), pair.exit.closed.len()), (0, 0));
}

async fn a_crowd_is_taken_in_past_the_point_where_addresses_must_be_proven(drivers: Drivers) {
    let strangers = Strangers::default();
    take_in_a_crowd(drivers, 160, &strangers).await;
    assert!(strangers.turned_away(Turned::AddressUnproven) > 0);
}

async fn a_silent_exit_takes_a_crowd_in_as_well(drivers: Drivers) {
    let strangers = Strangers::new(true);
    take_in_a_crowd(drivers, 100, &strangers).await;
    assert!(strangers.turned_away(Turned::AddressUnproven) > 0);
    assert_eq!(strangers.turned_away(Turned::NoProof), 0);
}

/// Connects `number` clients, all from one network.
async fn take_in_a_crowd(drivers: Drivers, number: usize, strangers: &Strangers) {
    let settings = TransportSettings { strangers: strangers.clone(), ..Default::default() };
    let mut pair = Pair::new(drivers, &settings);
    for _ in 0..number {
        pair.client.endpoint.connect(loopback_socket(), pair.exit_address, &[pair.exit_key]).unwrap();
    }
    pair.until("all are connected", |pair| {
        assert_eq!(pair.client.closed, []);
        pair.client.connected.len() == number && pair.exit.connected.len() == number
    })
    .await;
}

async fn an_idle_connection_lets_its_worker_sleep(drivers: Drivers) {
    let settings = TransportSettings { keep_alive: None, ..Default::default() };
    let mut pair = Pair::new(drivers, &settings);
    pair.connect().await;
    // Lets MTU discovery and the last acknowledgements finish.
    pair.run_for(Duration::from_millis(500)).await;
    let mut polls = 0;
    let idle = poll_fn(|cx| {
        polls += 1;
        pair.client.poll(cx);
        pair.exit.poll(cx);
        pair.client.endpoint.flush(cx);
        pair.exit.endpoint.flush(cx);
        Poll::<()>::Pending
    });
    let _elapsed = timeout(Duration::from_millis(500), idle).await;
    assert!(polls < 20, "{polls}");
}

async fn a_client_of_another_quic_version_is_told_which_there_are(drivers: Drivers) {
    let mut pair = Pair::new(drivers, &TransportSettings::default());
    let stranger = loopback_socket();
    let (long_header, version, own_id, exit_id) = (0xc0, [0xba, 0xba, 0xba, 0xba], [1; 8], [2; 8]);
    let mut packet = [&[long_header][..], &version, &[8], &exit_id, &[8], &own_id].concat();
    packet.resize(1_200, 0);
    stranger.send_to(&packet, pair.exit_address).unwrap();

    let mut answer = [0; 1_500];
    let mut length = None;
    pair.until("there is an answer", |_| {
        length = stranger.recv(&mut answer).ok();
        length.is_some()
    })
    .await;
    let answer = &answer[..length.unwrap()];
    // Version Negotiation (RFC 9000 section 17.2.1): version 0, both IDs swapped, then the versions.
    assert_eq!(answer[1..5], [0; 4]);
    assert_eq!(answer[5..23], [&[8][..], &own_id, &[8], &exit_id].concat());
    assert!(answer[23..].chunks(4).any(|version| version == [0, 0, 0, 1]));
}

async fn misuse_is_refused_with_its_reason(drivers: Drivers) {
    let key = || PrivateKey::generate().unwrap();
    let settings = || drivers.client(TransportSettings::default());
    let exit =
        |keys, sockets, reset_key: &[u8]| Endpoint::exit(settings(), keys, sockets, reset_key).unwrap_err();
    assert!(matches!(exit(vec![], vec![loopback_socket()], &[0; 32]), EndpointError::NoIdentity));
    assert!(matches!(exit(vec![key()], vec![], &[0; 32]), EndpointError::NoSocket));
    assert!(matches!(exit(vec![key()], vec![loopback_socket()], &[0; 31]), EndpointError::ResetKey(31)));

    let mut client = Side::new(Endpoint::client(settings(), key()).unwrap()).endpoint;
    let remote = ([127, 0, 0, 1], 1).into();
    assert!(matches!(client.connect(loopback_socket(), remote, &[]), Err(ConnectError::NoExitKey)));
    let remote = ([0, 0, 0, 0, 0, 0, 0, 1], 1).into();
    let error = client.connect(loopback_socket(), remote, &[key().public()]).unwrap_err();
    assert!(matches!(error, ConnectError::Address { .. }), "{error}");
}
