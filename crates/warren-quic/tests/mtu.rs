//! MTU discovery finds the path's MTU after the handshake.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "helpers of tests may panic")]

mod common;

use std::net::{Ipv6Addr, SocketAddr};

use common::{Drivers, Pair, relay::Relay};
use warren_quic::{
    settings::TransportSettings,
    socket::{SocketConfig, bind},
};

test_every_driver!(
    an_ethernet_path_is_found_exactly_under_ipv4,
    an_ethernet_path_is_found_exactly_under_ipv6,
    a_smaller_path_is_found_to_within_a_few_bytes,
    the_smallest_path_is_left_at_its_mtu,
);

async fn an_ethernet_path_is_found_exactly_under_ipv4(drivers: Drivers) {
    let mut pair = Pair::new(drivers, &TransportSettings::default());
    let relay = Relay::new(pair.exit_address, 1_472).await;
    found(&mut pair, relay.address, 1_472..=1_472).await;
}

async fn an_ethernet_path_is_found_exactly_under_ipv6(drivers: Drivers) {
    let address = SocketAddr::from((Ipv6Addr::LOCALHOST, 0));
    let settings = TransportSettings::default();
    let mut pair = Pair::with(
        drivers.client(settings.clone()),
        drivers.exit(settings),
        bind(SocketConfig::new(address)).unwrap(),
    );
    let address = pair.exit_address;
    found(&mut pair, address, 1_452..=1_452).await;
}

async fn a_smaller_path_is_found_to_within_a_few_bytes(drivers: Drivers) {
    let mut pair = Pair::new(drivers, &TransportSettings::default());
    let relay = Relay::new(pair.exit_address, 1_300).await;
    found(&mut pair, relay.address, 1_285..=1_300).await;
}

async fn the_smallest_path_is_left_at_its_mtu(drivers: Drivers) {
    let mut pair = Pair::new(drivers, &TransportSettings::default());
    let relay = Relay::new(pair.exit_address, 1_200).await;
    found(&mut pair, relay.address, 1_200..=1_210).await;
}

async fn found(pair: &mut Pair, address: SocketAddr, expected: std::ops::RangeInclusive<u16>) {
    let (at_client, at_exit) = pair.connect_to(address).await;
    pair.until("both sides know the MTU", |pair| {
        expected.contains(&pair.client.stats(at_client).mtu)
            && expected.contains(&pair.exit.stats(at_exit).mtu)
    })
    .await;
    assert!(pair.client.endpoint.max_datagram_size(at_client).unwrap() < usize::from(*expected.end()));
}
