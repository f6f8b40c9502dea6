//! If a connection gets no answer for a while, the datagrams that waited in it are dropped.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "helpers of tests may panic")]

mod common;

use std::sync::atomic::Ordering;

use common::{Drivers, Pair, number, numbered, relay::Relay};
use warren_quic::{
    driver::{ConnectionId, SendError},
    settings::{Driver::Warren, TransportSettings},
};

/// The path MTU.
const PATH: usize = 1_472;
/// Datagrams sent after the silence are numbered from here on.
const FRESH: u64 = 1_000_000;
/// At most this many old datagrams may arrive, carried by loss probes that are sent before the path is known to be back.
const PROBED: usize = 8;

#[tokio::test]
async fn what_waited_through_a_silence_is_dropped_and_counted_and_what_is_fresh_arrives() {
    let drivers = Drivers { client: Warren, exit: Warren };
    let mut pair = Pair::new(drivers, &TransportSettings::default());
    let relay = Relay::new(pair.exit_address, PATH).await;
    let (at_client, _) = pair.connect_to(relay.address).await;

    relay.limit.store(0, Ordering::Relaxed);
    let mut taken = 0;
    pair.until("the path is silent", |pair| {
        fill(pair, at_client, &mut taken);
        pair.client.answers == [(at_client, false)]
    })
    .await;
    let refused = pair.client.endpoint.send_datagram(at_client, numbered(taken, 1_000)).unwrap_err();
    assert!(matches!(refused, SendError::Blocked(_)), "{refused}");
    let before = pair.client.stats(at_client);
    let waiting = before.datagrams_accepted - before.datagrams_sent;
    assert!(waiting > PROBED as u64 && before.send_drops_stale == 0, "{waiting}");

    relay.limit.store(PATH, Ordering::Relaxed);
    pair.client.writable.clear();
    pair.until("the path answers again", |pair| pair.client.answers.len() == 2).await;
    assert!(!pair.client.writable.is_empty(), "the client reports room to send");
    for fresh in FRESH..FRESH + 4 {
        pair.client.endpoint.send_datagram(at_client, numbered(fresh, 1_000)).unwrap();
    }
    let numbers =
        |pair: &Pair| pair.exit.datagrams.iter().map(|(_, datagram)| number(datagram)).collect::<Vec<_>>();
    pair.until("the fresh datagrams arrive", |pair| {
        numbers(pair).iter().filter(|number| **number >= FRESH).count() == 4
    })
    .await;

    let old = numbers(&pair).iter().filter(|number| **number < FRESH).count();
    assert!(old <= PROBED, "{old} of {waiting} old datagrams arrived");
    let after = pair.client.stats(at_client);
    assert!(after.send_drops_stale > 0, "{after:?}");
    assert_eq!(after.datagrams_accepted, taken + 4);
    assert_eq!(after.datagrams_accepted, after.datagrams_sent + after.send_drops_stale);
    assert!(pair.client.closed.is_empty());
}

/// Sends until the connection is blocked.
fn fill(pair: &mut Pair, connection: ConnectionId, taken: &mut u64) {
    while pair.client.endpoint.send_datagram(connection, numbered(*taken, 1_000)).is_ok() {
        *taken += 1;
    }
}
