//! An exit that receives more than it can process. The loud client loses its excess datagrams, and each datagram is delivered or counted.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "helpers of tests may panic")]

mod common;

use std::{future::poll_fn, mem::swap, net::Ipv4Addr, task::Poll, time::Duration};

use common::{PATIENCE, Pair, Side, numbered};
use tokio::time::{sleep, timeout};
use warren_quic::{
    driver::{ConnectionId, Endpoint},
    key::PrivateKey,
    settings::{Congestion, Driver, TransportSettings},
    socket::{SocketConfig, bind},
};

/// The time that the exit spends on the results of one poll, as with a slow TUN device.
const SLOW: Duration = Duration::from_millis(5);
/// Datagrams in one step: first before the exit can notice that it is behind, then afterwards.
const FIRST: u64 = 30;
const THEN: u64 = 150;
const SIZE: usize = 1_100;

#[tokio::test]
async fn who_brings_more_than_an_exit_takes_loses_it_and_nobody_else_does() {
    let settings = TransportSettings {
        driver: Driver::Warren,
        congestion: Congestion::Off.into(),
        udp_gso: false,
        ..TransportSettings::default()
    };
    // Room for slightly more than one step.
    let address = (Ipv4Addr::LOCALHOST, 0).into();
    let listen = bind(SocketConfig { buffer_bytes: 256 * 1024, ..SocketConfig::new(address) }).unwrap();
    let mut pair = Pair::with(settings.clone(), settings.clone(), listen);
    let (loud, loud_at_exit) = pair.connect().await;
    let mut other = Side::new(Endpoint::client(settings, PrivateKey::generate().unwrap()).unwrap());
    swap(&mut pair.client, &mut other);
    let (quiet, quiet_at_exit) = pair.connect().await;

    let (mut sent, mut steps) = (0, 0);
    for count in [FIRST; 10].into_iter().chain([THEN; 60]) {
        for _ in 0..count {
            sent += u64::from(other.endpoint.send_datagram(loud, numbered(sent, SIZE)).is_ok());
        }
        pair.client.endpoint.send_datagram(quiet, numbered(steps, SIZE)).unwrap();
        steps += 1;
        step(&mut pair, &mut other).await;
    }

    let delivered = |pair: &Pair, by: ConnectionId| {
        pair.exit.datagrams.iter().filter(|(connection, _)| *connection == by).count() as u64
    };
    // From here on, nothing but the exit itself wakes it.
    let drained = poll_fn(|cx| {
        pair.exit.poll(cx);
        pair.exit.endpoint.flush(cx);
        let lost = sent - delivered(&pair, loud_at_exit);
        let dropped = pair.exit.endpoint.socket_stats().intake_drops;
        if delivered(&pair, quiet_at_exit) == steps && lost <= dropped {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    });
    let in_time = timeout(PATIENCE, drained).await;

    let stats = pair.exit.endpoint.socket_stats();
    let loud = delivered(&pair, loud_at_exit);
    assert!(
        in_time.is_ok(),
        "{loud} of {sent} and {} of {steps}, {stats:?}",
        delivered(&pair, quiet_at_exit)
    );
    assert!(stats.intake_drops > 1_000 && loud > 3_000, "{loud} of {sent}, {stats:?}");
    assert_eq!(stats.dropped, 0, "the socket's buffer never overflowed");
    assert!(pair.exit.closed.is_empty());
}

/// Both clients send their datagrams, and the exit processes the results of one poll.
async fn step(pair: &mut Pair, other: &mut Side) {
    for _ in 0..4 {
        poll_fn(|cx| {
            for side in [&mut pair.client, other] {
                side.poll(cx);
                side.endpoint.flush(cx);
            }
            Poll::Ready(())
        })
        .await;
    }
    // Lets the runtime notice the received datagrams.
    sleep(Duration::from_millis(1)).await;
    poll_fn(|cx| {
        pair.exit.poll_once(cx);
        pair.exit.endpoint.flush(cx);
        Poll::Ready(())
    })
    .await;
    std::thread::sleep(SLOW);
}
