//! Inner prefixes drawn at random, clear of the networks that this host uses.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::cli::own_networks::local_addresses;

/// Room for 4,093 clients, and 4,096 such networks to draw from.
const IPV4_PREFIX_LENGTH: u8 = 20;

/// An unused network of 10.0.0.0/8; nothing if 256 draws were all in use.
pub(super) fn draw_ipv4(
    taken: &[IpNet],
    mut random: impl FnMut() -> anyhow::Result<u64>,
) -> anyhow::Result<Option<Ipv4Net>> {
    for _ in 0..256 {
        let [_, second, third, ..] = random()?.to_be_bytes();
        // Home and office routers like 10.0 and 10.1 best, and those are what clients meet.
        if second < 2 {
            continue;
        }
        let address = Ipv4Addr::new(10, second, third, 0);
        let network = Ipv4Net::new_assert(address, IPV4_PREFIX_LENGTH).trunc();
        if !taken.iter().any(|other| overlap(other, &IpNet::V4(network))) {
            return Ok(Some(network));
        }
    }
    Ok(None)
}

/// The first subnet of a unique local prefix with a random directories ID (RFC 4193 section 3.1).
pub(super) fn draw_ipv6(mut random: impl FnMut() -> anyhow::Result<u64>) -> anyhow::Result<Ipv6Net> {
    const SUBNET_BITS: u64 = 0xffff;
    let global_id = (0xfd << 56) | ((random()? >> 8) & !SUBNET_BITS);
    let network = u128::from(global_id) << 64;
    Ok(Ipv6Net::new_assert(Ipv6Addr::from(network), 64))
}

/// Whether two networks have an address in common.
pub(super) fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(other) || other.contains(one)
}

/// Networks that this host has a route to or an address in, but for default routes.
pub(crate) fn networks_of_this_host() -> Vec<IpNet> {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let mut networks = ipv4_routes(&read("/proc/net/route"));
    networks.extend(ipv4_addresses(&read("/proc/net/fib_trie")));
    networks.extend(ipv6_routes(&read("/proc/net/ipv6_route")));
    networks.retain(|network| network.prefix_len() > 0);
    networks.sort();
    networks.dedup();
    networks
}

/// Destinations in `/proc/net/route`: hexadecimal words in the host's byte order.
fn ipv4_routes(text: &str) -> Vec<IpNet> {
    let route = |line: &str| {
        let mut fields = line.split_whitespace().skip(1);
        let word =
            |field: &str| u32::from_str_radix(field, 16).ok().map(|word| Ipv4Addr::from(word.to_ne_bytes()));
        let destination = word(fields.next()?)?;
        let mask = word(fields.nth(5)?)?;
        Ipv4Net::with_netmask(destination, mask).ok().map(IpNet::V4)
    };
    text.lines().skip(1).filter_map(route).collect()
}

fn ipv4_addresses(trie: &str) -> Vec<IpNet> {
    local_addresses(trie).into_iter().map(|address| IpAddr::V4(address).into()).collect()
}

/// Destinations in `/proc/net/ipv6_route`: 32 hexadecimal digits and a prefix length in hexadecimal.
fn ipv6_routes(text: &str) -> Vec<IpNet> {
    let route = |line: &str| {
        let mut fields = line.split_whitespace();
        let destination = u128::from_str_radix(fields.next()?, 16).ok()?;
        let length = u8::from_str_radix(fields.next()?, 16).ok()?;
        Ipv6Net::new(Ipv6Addr::from(destination), length).ok().map(IpNet::V6)
    };
    text.lines().filter_map(route).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    #[test]
    fn routes_are_read_as_the_kernel_writes_them() {
        let route = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
                     eth0\t00000000\t010011AC\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
                     eth0\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n";
        // The words are in the byte order of the machine that wrote them.
        if cfg!(target_endian = "little") {
            assert_eq!(ipv4_routes(route), [net("0.0.0.0/0"), net("172.17.0.0/16")]);
        }
        let route = "fd000000000000010000000000000000 40 00000000000000000000000000000000 00 \
                     00000000000000000000000000000000 00000100 00000001 00000000 00000001     eth0\n";
        assert_eq!(ipv6_routes(route), [net("fd00:0:0:1::/64")]);
    }

    #[test]
    fn local_addresses_are_read_as_the_kernel_writes_them() {
        let trie = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n     \
                    |-- 10.7.0.1\n        /32 host LOCAL\n     |-- 10.7.255.255\n        /32 link BROADCAST\n";
        assert_eq!(ipv4_addresses(trie), [net("10.7.0.1/32")]);
    }

    #[test]
    fn nothing_is_drawn_when_everything_is_in_use() {
        let mut word = 0_u64;
        let drawn = draw_ipv4(&[net("10.0.0.0/8")], || {
            word = word.wrapping_add(0x0101_0000_0000_0000);
            Ok(word)
        });
        assert_eq!(drawn.unwrap(), None);
    }

    proptest! {
        #[test]
        fn drawn_ipv4_prefix_is_private_and_clear_of_the_host(seeds in prop::collection::vec(any::<u64>(), 256), taken: u32, length in 9_u8..=32) {
            let taken = IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::from(0x0a00_0000 | (taken >> 8)), length).trunc());
            let mut seeds = seeds.into_iter();
            let drawn = draw_ipv4(&[taken], || Ok(seeds.next().unwrap())).unwrap();
            if let Some(drawn) = drawn {
                prop_assert!(drawn.network().is_private() && drawn.trunc() == drawn);
                prop_assert!(!overlap(&taken, &IpNet::V4(drawn)));
                prop_assert!(warren_config::ipv4_pool(&drawn.to_string()).is_ok());
            }
        }

        #[test]
        fn drawn_ipv6_prefix_is_unique_local(seed: u64) {
            let drawn = draw_ipv6(|| Ok(seed)).unwrap();
            prop_assert!(drawn.to_string().starts_with("fd") && drawn.prefix_len() == 64 && drawn.trunc() == drawn);
            prop_assert_eq!(drawn.network().segments()[3], 0);
            prop_assert!(warren_config::ipv6_pool(&drawn.to_string()).is_ok());
        }

        #[test]
        fn any_text_is_read_without_panic(text: String) {
            let _ = (ipv4_routes(&text), ipv4_addresses(&text), ipv6_routes(&text));
        }
    }
}
