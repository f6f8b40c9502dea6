//! The control stream, and how connections end.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "helpers of tests may panic")]

mod common;

use std::{
    future::poll_fn,
    net::UdpSocket,
    task::Poll,
    thread,
    time::{Duration, Instant},
};

use common::{Drivers, Pair, RESET_KEY, Side, loopback_socket};
use tokio::sync::oneshot;
use warren_quic::{
    driver::{CloseReason, Endpoint, MAX_CONTROL_BACKLOG, SendError},
    key::PrivateKey,
    settings::TransportSettings,
    socket::{SocketConfig, bind},
    strangers::Strangers,
};

test_every_driver!(
    control_bytes_pass_both_ways_in_order,
    the_control_stream_carries_more_than_its_window_over_time,
    a_peer_that_takes_no_control_bytes_loses_the_connection,
    close_delivers_control_bytes_first_and_its_code,
    close_does_not_wait_long_for_a_peer_that_is_gone,
    shutdown_tells_the_peers,
    an_exit_that_was_killed_and_started_again_resets_its_old_connections_at_once,
    a_silent_exit_resets_its_old_connections_as_well,
);

fn pattern(length: usize) -> Vec<u8> {
    (0..=250).cycle().take(length).collect()
}

async fn control_bytes_pass_both_ways_in_order(drivers: Drivers) {
    let mut pair = Pair::new(drivers, &TransportSettings::default());
    let (at_client, at_exit) = pair.connect().await;
    let (question, answer) = (pattern(MAX_CONTROL_BACKLOG), pattern(MAX_CONTROL_BACKLOG / 2));
    for part in question.chunks(1_000) {
        pair.client.endpoint.send_control(at_client, part).unwrap();
    }
    pair.until("the exit has received the question", |pair| {
        pair.exit.control_of(at_exit).len() == question.len()
    })
    .await;
    pair.exit.endpoint.send_control(at_exit, &answer).unwrap();
    pair.until("the client has received the answer", |pair| {
        pair.client.control_of(at_client).len() == answer.len()
    })
    .await;
    assert_eq!(pair.exit.control_of(at_exit), question);
    assert_eq!(pair.client.control_of(at_client), answer);
}

async fn the_control_stream_carries_more_than_its_window_over_time(drivers: Drivers) {
    let mut pair = Pair::new(drivers, &TransportSettings::default());
    let (at_client, at_exit) = pair.connect().await;
    for round in 1..=10 {
        pair.client.endpoint.send_control(at_client, &pattern(30_000)).unwrap();
        pair.until("a part has arrived", |pair| pair.exit.control_of(at_exit).len() == round * 30_000).await;
    }
}

async fn a_peer_that_takes_no_control_bytes_loses_the_connection(drivers: Drivers) {
    let mut pair = Pair::new(drivers, &TransportSettings::default());
    let (at_client, _) = pair.connect().await;
    // The exit is not polled meanwhile and reads nothing, so its window and then the backlog fill up.
    let refused = (0..200).find_map(|_| pair.client.endpoint.send_control(at_client, &pattern(1_000)).err());
    assert!(matches!(refused, Some(SendError::Closed(_))), "{refused:?}");
    pair.until("it is closed", |pair| !pair.client.closed.is_empty()).await;
    assert!(matches!(pair.client.close_reason(), CloseReason::Transport(_)));
}

async fn close_delivers_control_bytes_first_and_its_code(drivers: Drivers) {
    for (way, code) in [("client closes", 3), ("exit closes", u32::MAX)] {
        let mut pair = Pair::new(drivers, &TransportSettings::default());
        let (at_client, at_exit) = pair.connect().await;
        pair.client.endpoint.send_control(at_client, b"hello").unwrap();
        pair.until("the stream is open", |pair| pair.exit.control_of(at_exit) == b"hello").await;

        let goodbye = pattern(20_000);
        let start = Instant::now();
        let peer_reason = CloseReason::Peer { code: code.into(), reason: way.to_owned() };
        if way == "client closes" {
            pair.client.endpoint.send_control(at_client, &goodbye).unwrap();
            pair.client.endpoint.close(at_client, code, way);
            assert!(matches!(
                pair.client.endpoint.send_control(at_client, b"late"),
                Err(SendError::Closed(_))
            ));
        } else {
            pair.exit.endpoint.send_control(at_exit, &goodbye).unwrap();
            pair.exit.endpoint.close(at_exit, code, way);
        }
        pair.until("both are closed", |pair| !pair.client.closed.is_empty() && !pair.exit.closed.is_empty())
            .await;
        assert!(start.elapsed() < Duration::from_millis(150), "the close did not wait for its deadline");
        if way == "client closes" {
            assert_eq!(pair.exit.control_of(at_exit), [b"hello".as_slice(), &goodbye].concat());
            assert_eq!(
                (pair.client.close_reason(), pair.exit.close_reason()),
                (&CloseReason::Local, &peer_reason)
            );
        } else {
            assert_eq!(pair.client.control_of(at_client), goodbye);
            assert_eq!(
                (pair.exit.close_reason(), pair.client.close_reason()),
                (&CloseReason::Local, &peer_reason)
            );
        }
        assert!(pair.client.endpoint.max_datagram_size(at_client).is_none());
    }
}

async fn close_does_not_wait_long_for_a_peer_that_is_gone(drivers: Drivers) {
    let mut pair = Pair::new(drivers, &TransportSettings::default());
    let relay = common::relay::Relay::new(pair.exit_address, 65_536).await;
    let (at_client, at_exit) = pair.connect_to(relay.address).await;
    pair.client.endpoint.send_control(at_client, b"hello").unwrap();
    pair.until("the stream is open", |pair| pair.exit.control_of(at_exit) == b"hello").await;

    relay.limit.store(0, std::sync::atomic::Ordering::Relaxed);
    let start = Instant::now();
    pair.client.endpoint.send_control(at_client, b"anybody there?").unwrap();
    pair.client.endpoint.close(at_client, 1, "");
    pair.until("it is closed", |pair| !pair.client.closed.is_empty()).await;
    let waited = start.elapsed();
    assert!(waited > Duration::from_millis(190) && waited < Duration::from_millis(400), "{waited:?}");
}

async fn shutdown_tells_the_peers(drivers: Drivers) {
    let mut pair = Pair::new(drivers, &TransportSettings::default());
    pair.connect().await;
    pair.connect().await;
    let Pair { mut client, exit, .. } = pair;
    let start = Instant::now();
    exit.endpoint.shutdown().await;
    assert!(start.elapsed() < Duration::from_millis(500), "{:?}", start.elapsed());
    let closed = poll_fn(|cx| {
        client.poll(cx);
        if client.closed.len() == 2 { Poll::Ready(()) } else { Poll::Pending }
    });
    tokio::time::timeout(Duration::from_secs(1), closed).await.unwrap();
    assert!(client.closed.iter().all(|(_, reason)| matches!(reason, CloseReason::Peer { code: 0, .. })));
}

async fn an_exit_that_was_killed_and_started_again_resets_its_old_connections_at_once(drivers: Drivers) {
    assert_reset_after_restart(drivers, false).await;
}

async fn a_silent_exit_resets_its_old_connections_as_well(drivers: Drivers) {
    assert_reset_after_restart(drivers, true).await;
}

async fn assert_reset_after_restart(drivers: Drivers, silent: bool) {
    // Each process has its own `Strangers`.
    let settings = || TransportSettings { strangers: Strangers::new(silent), ..Default::default() };
    let exit_key = PrivateKey::generate().unwrap();
    let listen = loopback_socket();
    let address = listen.local_addr().unwrap();
    let first = Killable::start(drivers.exit(settings()), exit_key.clone(), listen);

    let mut client = Side::new(
        Endpoint::client(drivers.client(TransportSettings::default()), PrivateKey::generate().unwrap())
            .unwrap(),
    );
    let id = client.endpoint.connect(loopback_socket(), address, &[exit_key.public()]).unwrap();
    // An exit that acknowledges MTU probes has completed the handshake.
    wait(&mut client, |client| client.endpoint.stats(id).is_some_and(|stats| stats.mtu > 1_400)).await;

    first.kill();
    let listen = bind(SocketConfig::new(address)).unwrap();
    let second = Killable::start(drivers.exit(settings()), exit_key, listen);
    let start = Instant::now();
    client.endpoint.send_datagram(id, vec![0; 100].into()).unwrap();
    wait(&mut client, |client| !client.closed.is_empty()).await;
    assert_eq!(*client.close_reason(), CloseReason::Reset);
    assert!(start.elapsed() < Duration::from_millis(500), "{:?}", start.elapsed());
    second.kill();
}

async fn wait(side: &mut Side, mut holds: impl FnMut(&mut Side) -> bool) {
    let mut tick = tokio::time::interval(Duration::from_millis(2));
    let holds = poll_fn(|cx| {
        while tick.poll_tick(cx).is_ready() {}
        side.poll(cx);
        if holds(side) { Poll::Ready(()) } else { Poll::Pending }
    });
    tokio::time::timeout(common::PATIENCE, holds).await.unwrap();
}

/// An exit in its own runtime, which can vanish silently like a killed process.
struct Killable {
    stop: oneshot::Sender<()>,
    thread: thread::JoinHandle<()>,
}

impl Killable {
    fn start(settings: TransportSettings, key: PrivateKey, listen: UdpSocket) -> Self {
        let (stop, stopped) = oneshot::channel();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let mut exit = runtime.block_on(async {
                let endpoint = Endpoint::exit(settings, vec![key], vec![listen], RESET_KEY);
                Side::new(endpoint.unwrap())
            });
            let forever = poll_fn(|cx| {
                exit.poll(cx);
                Poll::<()>::Pending
            });
            runtime.block_on(async {
                tokio::select! { () = forever => {}, _ = stopped => {} }
            });
            // Ends the tasks first, because they could still send something.
            drop(runtime);
        });
        Self { stop, thread }
    }

    fn kill(self) {
        self.stop.send(()).unwrap();
        self.thread.join().unwrap();
    }
}
