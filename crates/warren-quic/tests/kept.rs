//! Kept datagrams through a relay that loses some: each datagram that does not arrive comes back.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests may panic")]

mod common;

use std::{
    collections::BTreeSet,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use common::{Drivers, Pair, Way, number, numbered, relay::Relay};
use warren_quic::{
    driver::{ConnectionId, SendError},
    settings::{Congestion, Driver::Warren, TransportSettings},
};

const WARREN: Drivers = Drivers { client: Warren, exit: Warren };

test_every_driver!(kept_datagrams_arrive_or_come_back);

impl Pair {
    /// Sends numbered datagrams that are kept, each with its number as the context.
    async fn send_kept(&mut self, way: Way, from: ConnectionId, numbers: std::ops::Range<u64>) {
        let mut next = numbers.start;
        self.until("all datagrams are taken", |pair| {
            while next < numbers.end {
                let datagram = numbered(next, 1_000);
                match pair.sender(way).endpoint.send_datagram_kept(from, datagram.clone(), next) {
                    Ok(()) => next += 1,
                    Err(SendError::Blocked(returned)) => {
                        assert_eq!(returned, datagram);
                        return false;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            true
        })
        .await;
    }
}

async fn kept_datagrams_arrive_or_come_back(drivers: Drivers) {
    const COUNT: u64 = 2_000;
    let mut pair = Pair::new(drivers, &TransportSettings::default());
    let relay = Relay::new(pair.exit_address, 1_472).await;
    let (at_client, at_exit) = pair.connect_to(relay.address).await;
    relay.lose_one_of.store(20, Ordering::Relaxed);
    let started = Instant::now();
    for (way, sender) in [(Way::Up, at_client), (Way::Down, at_exit)] {
        pair.send_kept(way, sender, 0..COUNT).await;
        pair.until("nothing is kept", |pair| {
            let stats = pair.sender(way).stats(sender);
            stats.datagrams_sent == COUNT && stats.kept_bytes == 0
        })
        .await;
        let heard: BTreeSet<_> =
            pair.receiver(way).datagrams.iter().map(|(_, datagram)| number(datagram)).collect();
        let side = pair.sender(way);
        let counts = side.endpoint.loss_counts(sender).unwrap();
        assert!(counts.lost_packets > 0 && counts.lost_packets < counts.sent_packets);
        assert!(counts.rtt > Duration::ZERO);
        assert_eq!(side.stats(sender).datagrams_accepted, COUNT);
        let returned: BTreeSet<_> = side.lost.iter().map(|(_, lost)| lost.context).collect();
        assert_eq!(returned.len(), side.lost.len(), "one came back twice");
        assert_eq!(counts.returned, returned.len() as u64);
        if !side.endpoint.keeps_datagrams() {
            assert!(returned.is_empty());
            continue;
        }
        assert!(side.lost.iter().all(|(connection, lost)| {
            *connection == sender && number(&lost.data) == lost.context && lost.sent >= started
        }));
        assert!((0..COUNT).all(|number| heard.contains(&number) || returned.contains(&number)));
        assert!(returned.len() > 10, "{}", returned.len());
    }
}

/// More datagrams than fit into the inbox at once. `Side::poll_once` checks the inbox's limit.
#[tokio::test]
async fn everything_comes_back_after_a_black_out() {
    let settings = TransportSettings { congestion: Congestion::Off.into(), ..Default::default() };
    let mut pair = Pair::new(WARREN, &settings);
    let relay = Relay::new(pair.exit_address, 1_472).await;
    let (at_client, at_exit) = pair.connect_to(relay.address).await;
    // The client sends no probes for datagrams before the exit has confirmed the handshake.
    pair.exit.endpoint.send_datagram(at_exit, numbered(0, 100)).unwrap();
    pair.until("the exit is heard", |pair| !pair.client.datagrams.is_empty()).await;
    relay.limit.store(0, Ordering::Relaxed);
    pair.send_kept(Way::Up, at_client, 0..1_000).await;
    pair.until("a loss probe handed out the oldest", |pair| pair.client.lost.len() >= 2).await;
    let contexts: Vec<_> = pair.client.lost.iter().take(2).map(|(_, lost)| lost.context).collect();
    assert_eq!(contexts, [0, 1]);
    let counts = pair.client.endpoint.loss_counts(at_client).unwrap();
    assert!((900_000..1_200_000).contains(&counts.kept_bytes), "{}", counts.kept_bytes);
    assert_eq!(counts.lost_packets, 0, "the end was not reported");
    // On a busy machine, datagrams may still wait in the relay's socket. They would arrive after the black-out.
    pair.until("the relay has lost them all", |_| relay.lost_loaded.load(Ordering::Relaxed) >= 1_000).await;
    relay.limit.store(1_472, Ordering::Relaxed);
    pair.until("all came back", |pair| pair.client.lost.len() == 1_000).await;
    let returned: BTreeSet<_> = pair.client.lost.iter().map(|(_, lost)| lost.context).collect();
    assert_eq!(returned, (0..1_000).collect());
    assert_eq!(pair.client.endpoint.loss_counts(at_client).unwrap().kept_bytes, 0);
}

#[tokio::test]
async fn closed_connection_takes_and_returns_nothing() {
    let mut pair = Pair::new(WARREN, &TransportSettings::default());
    let (at_client, _) = pair.connect().await;
    pair.send_kept(Way::Up, at_client, 0..20).await;
    pair.client.endpoint.close(at_client, 0, "");
    pair.until("it is closed", |pair| !pair.client.closed.is_empty()).await;
    assert_eq!(pair.client.last[&at_client].kept_bytes, 0);
    assert!(pair.client.endpoint.loss_counts(at_client).is_none());
    let refused = pair.client.endpoint.send_datagram_kept(at_client, numbered(0, 100), 0).unwrap_err();
    assert!(matches!(&refused, SendError::Closed(datagram) if datagram.len() == 100), "{refused}");
}
