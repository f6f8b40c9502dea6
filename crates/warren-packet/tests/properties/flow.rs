//! A flow stays on one connection in both directions, and flows spread over all connections.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use warren_packet::tuple::FiveTuple;

fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<u32>().prop_map(|a| Ipv4Addr::from(a).into()),
        any::<u128>().prop_map(|a| Ipv6Addr::from(a).into())
    ]
}

fn five_tuple() -> impl Strategy<Value = FiveTuple> {
    (address(), address(), any::<u8>(), any::<u16>(), any::<u16>()).prop_map(
        |(source, destination, protocol, source_port, destination_port)| FiveTuple {
            source,
            destination,
            protocol,
            source_port,
            destination_port,
        },
    )
}

fn next(address: IpAddr, by: u16) -> IpAddr {
    match address {
        IpAddr::V4(address) => Ipv4Addr::from(address.to_bits().wrapping_add(by.into())).into(),
        IpAddr::V6(address) => Ipv6Addr::from(address.to_bits().wrapping_add(by.into())).into(),
    }
}

/// Flows that differ as little as real flows do.
fn family(first: FiveTuple, kind: u8, index: u16) -> FiveTuple {
    let mut tuple = first;
    match kind {
        // Parallel connections of one client to one server.
        0 => tuple.source_port = first.source_port.wrapping_add(index),
        // Many clients behind one address range, one service.
        1 => tuple.source = next(first.source, index),
        // A ping to many hosts with one identifier.
        2 => {
            tuple.destination = next(first.destination, index);
            tuple.destination_port = first.source_port;
        }
        // Linux increments ephemeral ports by two.
        3 => tuple.source_port = first.source_port.wrapping_add(index.wrapping_mul(2)),
        // An ICMP identifier in both ports, counting up.
        4 => {
            tuple.source_port = first.source_port.wrapping_add(index);
            tuple.destination_port = tuple.source_port;
        }
        _ => {
            tuple.source = next(first.source, index / 64);
            tuple.destination_port = first.destination_port.wrapping_add(index % 64);
        }
    }
    tuple
}

/// The chi-squared statistic. For an even spread its mean is `n - 1` and its variance `2 (n - 1)`.
fn chi_squared(counts: &[u32], flows: u16) -> f64 {
    let mean = f64::from(flows) / counts.len() as f64;
    counts.iter().map(|&count| (f64::from(count) - mean).powi(2) / mean).sum()
}

proptest! {
    #[test]
    fn both_directions_hash_alike(tuple in five_tuple(), connections: u32) {
        prop_assert_eq!(tuple.symmetric_hash(), tuple.reversed().symmetric_hash());
        let index = tuple.connection_index(connections);
        prop_assert_eq!(index, tuple.reversed().connection_index(connections));
        prop_assert!(index < connections || connections == 0);
    }

    #[test]
    fn flows_spread_evenly(first in five_tuple(), kind in 0..6u8) {
        const FLOWS: u16 = 4_096;
        for connections in [4u32, 32] {
            let mut by_index = vec![0; connections as usize];
            let mut by_remainder = by_index.clone();
            for index in 0..FLOWS {
                let tuple = family(first, kind, index);
                by_index[tuple.connection_index(connections) as usize] += 1;
                by_remainder[(tuple.symmetric_hash() % connections) as usize] += 1;
            }
            // Exceeded once in ten million runs by chance.
            let limit = if connections == 4 { 36.0 } else { 90.0 };
            prop_assert!(chi_squared(&by_index, FLOWS) < limit, "{by_index:?}");
            prop_assert!(chi_squared(&by_remainder, FLOWS) < limit, "{by_remainder:?}");
        }
    }
}
