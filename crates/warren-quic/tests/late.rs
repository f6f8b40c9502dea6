//! A datagram that thousands of others have overtaken is still delivered, and only once.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "helpers of tests may panic")]

mod common;

use std::{iter::repeat_n, sync::atomic::Ordering, time::Duration};

use common::{Drivers, Pair, Way, number, relay::Relay};
use warren_quic::settings::{Congestion, TransportSettings};

/// A path MTU that is too small for two datagrams in one packet.
const MTU: usize = 1_200;
const SIZE: usize = 1_000;
/// How many numbers behind the newest packet the exit still distinguishes new packets from repeated ones (patch `late-packets`),
/// minus the numbers that noq skips.
const REACH: usize = 8_000;
/// A connection's first keys serve at most a thousand packets and are soon discarded.
const FIRST_KEYS: usize = 1_000;

test_every_driver!(
    what_thousands_have_overtaken_is_delivered_once,
    what_more_have_overtaken_counts_as_repeated,
);

async fn what_thousands_have_overtaken_is_delivered_once(drivers: Drivers) {
    let mut delivered = delivered_beside_a_late_one(drivers, REACH, REACH + 1).await;

    assert_eq!(delivered.pop(), Some(0), "the first datagram sent is delivered last");
    assert!(delivered.into_iter().eq(1..=REACH as u64));
}

async fn what_more_have_overtaken_counts_as_repeated(drivers: Drivers) {
    let delivered = delivered_beside_a_late_one(drivers, REACH + 400, REACH + 400).await;

    assert!(delivered.into_iter().eq(1..=REACH as u64 + 400));
}

/// Numbers of the `expected` datagrams that the exit received, in order. `others` datagrams overtake the first one.
async fn delivered_beside_a_late_one(drivers: Drivers, others: usize, expected: usize) -> Vec<u64> {
    let settings = TransportSettings { congestion: Congestion::Off.into(), ..TransportSettings::default() };
    let mut pair = Pair::new(drivers, &settings);
    let relay = Relay::new(pair.exit_address, MTU).await;
    let (at_client, _) = pair.connect_to(relay.address).await;
    pair.send_all(Way::Up, at_client, repeat_n(SIZE, FIRST_KEYS)).await;
    pair.until("the first keys are used up", |pair| pair.exit.datagrams.len() == FIRST_KEYS).await;
    pair.exit.datagrams.clear();

    relay.overtaken_by.store(others, Ordering::Relaxed);
    pair.send_all(Way::Up, at_client, repeat_n(SIZE, 1 + others)).await;
    pair.until("all datagrams that do not count as repeated have arrived", |pair| {
        pair.exit.datagrams.len() >= expected
    })
    .await;
    // Leaves time for datagrams that must not arrive.
    pair.run_for(Duration::from_millis(100)).await;
    pair.exit.datagrams.iter().map(|(_, datagram)| number(datagram)).collect()
}
