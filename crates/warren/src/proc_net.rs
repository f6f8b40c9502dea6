//! Reads facts about this host from `/proc/net`: routes, local addresses, and ports in use.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

pub(crate) const IPV4_ROUTES: &str = "/proc/net/route";
pub(crate) const IPV6_ROUTES: &str = "/proc/net/ipv6_route";
pub(crate) const IPV4_ADDRESSES: &str = "/proc/net/fib_trie";
pub(crate) const IPV6_ADDRESSES: &str = "/proc/net/if_inet6";

/// The text of a file. Empty if it cannot be read, for instance on a host without IPv6.
pub(crate) fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Networks to which this host has a route or in which it has an address. Default routes are left out.
pub(crate) fn networks_of_this_host() -> Vec<IpNet> {
    let (ipv4, ipv6) = (read(IPV4_ROUTES), read(IPV6_ROUTES));
    let mut networks: Vec<IpNet> = ipv4_routes(&ipv4).map(|route| IpNet::V4(route.network)).collect();
    let locals = local_addresses(&read(IPV4_ADDRESSES));
    networks.extend(locals.into_iter().map(|local| IpNet::from(IpAddr::V4(local))));
    networks.extend(ipv6_routes(&ipv6).map(|route| IpNet::V6(route.network)));
    networks.retain(|network| network.prefix_len() > 0);
    networks.sort();
    networks.dedup();
    networks
}

/// The device of the default route.
pub(crate) fn egress_device() -> Option<String> {
    default_device_ipv4(&read(IPV4_ROUTES)).or_else(|| default_device_ipv6(&read(IPV6_ROUTES)))
}

fn default_device_ipv4(text: &str) -> Option<String> {
    let defaults = ipv4_routes(text).filter(|route| route.network == Ipv4Net::default());
    defaults.map(|route| (route.metric, route.device.to_owned())).min().map(|(_, device)| device)
}

fn default_device_ipv6(text: &str) -> Option<String> {
    // Routes on the loopback device are skipped, because the kernel has a default route there that rejects all packets.
    let defaults =
        ipv6_routes(text).filter(|route| route.network == Ipv6Net::default() && route.device != "lo");
    defaults.map(|route| (route.metric, route.device.to_owned())).min().map(|(_, device)| device)
}

/// A line of `/proc/net/route`.
pub(crate) struct Ipv4Route<'a> {
    pub(crate) device: &'a str,
    pub(crate) network: Ipv4Net,
    /// The unspecified address if the network is on-link.
    pub(crate) gateway: Ipv4Addr,
    metric: u32,
}

impl<'a> Ipv4Route<'a> {
    fn read(line: &'a str) -> Option<Self> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [device, destination, gateway, _, _, _, metric, mask, ..] = fields.as_slice() else {
            return None;
        };
        // Addresses are hexadecimal words in the host's byte order.
        let address =
            |field: &str| u32::from_str_radix(field, 16).ok().map(|word| Ipv4Addr::from(word.to_ne_bytes()));
        Some(Self {
            device,
            network: Ipv4Net::with_netmask(address(destination)?, address(mask)?).ok()?,
            gateway: address(gateway)?,
            metric: metric.parse().ok()?,
        })
    }
}

/// The routes in the text of `/proc/net/route`.
pub(crate) fn ipv4_routes(text: &str) -> impl Iterator<Item = Ipv4Route<'_>> {
    // The first line has the names of the columns.
    text.lines().skip(1).filter_map(Ipv4Route::read)
}

/// A line of `/proc/net/ipv6_route`.
pub(crate) struct Ipv6Route<'a> {
    pub(crate) device: &'a str,
    pub(crate) network: Ipv6Net,
    /// The unspecified address if the network is on-link.
    pub(crate) next_hop: Ipv6Addr,
    metric: u32,
}

impl<'a> Ipv6Route<'a> {
    fn read(line: &'a str) -> Option<Self> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [destination, length, _, _, next_hop, metric, _, _, _, device] = fields.as_slice() else {
            return None;
        };
        // Unlike in `/proc/net/route`, addresses are in network byte order, and all other numbers are hexadecimal too.
        let address = |field: &str| u128::from_str_radix(field, 16).ok().map(Ipv6Addr::from);
        Some(Self {
            device,
            network: Ipv6Net::new(address(destination)?, u8::from_str_radix(length, 16).ok()?).ok()?,
            next_hop: address(next_hop)?,
            metric: u32::from_str_radix(metric, 16).ok()?,
        })
    }
}

/// The routes in the text of `/proc/net/ipv6_route`.
pub(crate) fn ipv6_routes(text: &str) -> impl Iterator<Item = Ipv6Route<'_>> {
    // Unlike `/proc/net/route`, this file has no line with the names of the columns.
    text.lines().filter_map(Ipv6Route::read)
}

/// The local addresses in the text of `/proc/net/fib_trie`. In this file, a local address is a leaf with `/32 host LOCAL` below
/// it.
pub(crate) fn local_addresses(trie: &str) -> Vec<Ipv4Addr> {
    let mut leaf = None;
    let mut addresses = Vec::new();
    for line in trie.lines() {
        if let Some((_, address)) = line.split_once("|-- ") {
            leaf = address.trim().parse::<Ipv4Addr>().ok();
        } else if line.contains("/32 host LOCAL") {
            addresses.extend(leaf);
        }
    }
    addresses
}

/// The local ports in the text of `/proc/net/udp` or `/proc/net/udp6`.
pub(crate) fn udp_ports(text: &str) -> Vec<u16> {
    let port = |line: &str| {
        let (_, port) = line.split_whitespace().nth(1)?.rsplit_once(':')?;
        u16::from_str_radix(port, 16).ok()
    };
    // The first line has the names of the columns.
    text.lines().skip(1).filter_map(port).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEADER: &str =
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n";

    #[test]
    fn routes_are_read_as_the_kernel_writes_them() {
        let text = HEADER.to_owned()
            + "eth0\t00000000\t010011AC\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
               eth0\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n";
        // The test data is in little-endian byte order.
        if cfg!(target_endian = "little") {
            let networks: Vec<String> = ipv4_routes(&text).map(|route| route.network.to_string()).collect();
            assert_eq!(networks, ["0.0.0.0/0", "172.17.0.0/16"]);
        }
        let text = "fd000000000000010000000000000000 40 00000000000000000000000000000000 00 \
                    00000000000000000000000000000000 00000100 00000001 00000000 00000001     eth0\n";
        let networks: Vec<String> = ipv6_routes(text).map(|route| route.network.to_string()).collect();
        assert_eq!(networks, ["fd00:0:0:1::/64"]);
    }

    #[test]
    fn default_route_with_the_lowest_metric_is_taken() {
        let text = HEADER.to_owned()
            + "wlan0\t00000000\t0101A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0\n\
               eth0\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n\
               eth1\t0001A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";
        assert_eq!(default_device_ipv4(&text).as_deref(), Some("eth0"));
        let zero = "0".repeat(32);
        let text = format!(
            "{zero} 00 {zero} 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003     eth0\n\
             {zero} 00 {zero} 00 {zero} ffffffff 00000001 00000000 00200200       lo\n"
        );
        assert_eq!(default_device_ipv6(&text).as_deref(), Some("eth0"));
    }

    #[test]
    fn local_addresses_and_ports_are_read_as_the_kernel_writes_them() {
        let trie = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n     \
                    |-- 10.7.0.1\n        /32 host LOCAL\n     |-- 10.7.255.255\n        /32 link BROADCAST\n";
        assert_eq!(local_addresses(trie), [Ipv4Addr::new(10, 7, 0, 1)]);
        let udp = "  sl  local_address rem_address   st\n  12: 00000000:01BB 00000000:0000 07\n";
        assert_eq!(udp_ports(udp), [443]);
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_panic(text in "[0-9a-f:./|\t \n-]{0,200}|.{0,60}") {
            let _ = (ipv4_routes(&text).count(), ipv6_routes(&text).count());
            let _ = (local_addresses(&text), udp_ports(&text));
            let _ = (default_device_ipv4(&text), default_device_ipv6(&text));
        }
    }
}
