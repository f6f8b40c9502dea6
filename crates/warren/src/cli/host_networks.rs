//! Finds the networks of the exit's own host, which cannot be behind a client.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::bail;
use ipnet::{IpNet, Ipv6Net};

use crate::proc_net::{self, Ipv4Route, local_addresses, read};
use warren_config::ExitSettings;
use warren_exit::DEVICE;

/// Refuses clients' prefixes that would redirect traffic for this host's own networks, gateways or resolvers.
///
/// # Errors
/// The prefix and what it overlaps.
pub(crate) fn refuse(prefixes: &[IpNet], config: &ExitSettings) -> anyhow::Result<()> {
    if prefixes.is_empty() {
        return Ok(());
    }
    let mut own = ipv4(&read(proc_net::IPV4_ROUTES), &read(proc_net::IPV4_ADDRESSES));
    own.extend(ipv6_networks(&read(proc_net::IPV6_ADDRESSES)));
    own.extend(ipv6_gateways(&read(proc_net::IPV6_ROUTES)));
    refuse_overlap(prefixes, &own, &config.dns)
}

fn refuse_overlap(prefixes: &[IpNet], own: &[IpNet], resolvers: &[IpAddr]) -> anyhow::Result<()> {
    // A default route is refused elsewhere, with its own message.
    for prefix in prefixes.iter().filter(|prefix| prefix.prefix_len() > 0) {
        if let Some(network) = own.iter().find(|own| own.contains(prefix) || prefix.contains(*own)) {
            bail!("the prefix {prefix} overlaps {network}, a network of the exit's own host; choose another");
        }
        if let Some(resolver) = resolvers.iter().find(|resolver| prefix.contains(*resolver)) {
            bail!(
                "the prefix {prefix} contains {resolver}, a resolver in [dns] of exit.toml; choose another"
            );
        }
    }
    Ok(())
}

/// Returns this host's addresses, the on-link networks that contain them, and its gateways. Networks without an address of this
/// host are left out.
fn ipv4(routes: &str, trie: &str) -> Vec<IpNet> {
    let routes: Vec<Ipv4Route> = proc_net::ipv4_routes(routes).collect();
    // A running exit has its own inner address on its device. That address is not one of the host's networks.
    let is_inner = |address: &Ipv4Addr| {
        routes.iter().any(|route| route.device == DEVICE && route.network.contains(address))
    };
    let locals: Vec<Ipv4Addr> =
        local_addresses(trie).into_iter().filter(|local| !local.is_loopback() && !is_inner(local)).collect();
    let on_link = routes.iter().filter(|route| route.gateway.is_unspecified() && route.device != DEVICE);
    let on_link = on_link
        .filter(|route| {
            // A default route without a gateway, for example over PPP, is not a network of this host.
            route.network.prefix_len() > 0 && locals.iter().any(|local| route.network.contains(local))
        })
        .map(|route| IpNet::V4(route.network));
    let gateways = routes.iter().map(|route| route.gateway).filter(|gateway| !gateway.is_unspecified());
    on_link.chain(locals.iter().copied().chain(gateways).map(|address| IpAddr::V4(address).into())).collect()
}

/// The networks in `/proc/net/if_inet6`. The fields of a line are address, index, prefix length, scope, flags and device.
fn ipv6_networks(text: &str) -> Vec<IpNet> {
    let network = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [address, _, length, _, _, device] = fields.as_slice() else { return None };
        let address = Ipv6Addr::from(u128::from_str_radix(address, 16).ok()?);
        let is_elsewhere = *device == DEVICE || address.is_loopback() || address.is_unicast_link_local();
        let network = Ipv6Net::new(address, u8::from_str_radix(length, 16).ok()?).ok()?;
        (!is_elsewhere).then(|| IpNet::V6(network.trunc()))
    };
    text.lines().filter_map(network).collect()
}

/// Returns the gateways that do not have a link-local address. Link-local gateways are left out, because no client can have such
/// a prefix.
fn ipv6_gateways(text: &str) -> Vec<IpNet> {
    let next_hops = proc_net::ipv6_routes(text).map(|route| route.next_hop);
    let reachable = next_hops.filter(|hop| !hop.is_unspecified() && !hop.is_unicast_link_local());
    reachable.map(|hop| IpAddr::V6(hop).into()).collect()
}

#[cfg(test)]
mod tests {
    use ipnet::Ipv4Net;

    use super::*;

    const HEADER: &str = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n";

    fn route(device: &str, destination: &str, gateway: &str) -> String {
        let word = |address: Ipv4Addr| format!("{:08X}", u32::from_ne_bytes(address.octets()));
        let network: Ipv4Net = destination.parse().unwrap();
        let [to, mask] = [network.network(), network.netmask()].map(word);
        format!("{device}\t{to}\t{}\t0001\t0\t0\t0\t{mask}\t0\t0\t0\n", word(gateway.parse().unwrap()))
    }

    #[test]
    fn own_networks_are_those_with_an_own_address_and_not_what_is_routed_to_others() {
        let routes = HEADER.to_owned()
            + &route("eth0", "0.0.0.0/0", "192.0.2.1")
            + &route("eth1", "192.168.1.0/24", "0.0.0.0")
            + &route("wg0", "192.168.7.0/24", "0.0.0.0")
            + &route(DEVICE, "10.66.0.0/16", "0.0.0.0")
            + &route(DEVICE, "172.30.0.0/24", "0.0.0.0");
        let leaf = |address: &str| format!("     |-- {address}\n        /32 host LOCAL\n");
        let trie = leaf("127.0.0.1") + &leaf("192.168.1.5") + &leaf("203.0.113.9") + &leaf("10.66.0.1");
        let network = |text: &str| text.parse::<IpNet>().unwrap();

        let own = ipv4(&routes, &trie);

        let expected = ["192.168.1.0/24", "192.168.1.5/32", "203.0.113.9/32", "192.0.2.1/32"];
        assert_eq!(own, expected.map(network));
        let resolvers = ["192.168.9.53".parse().unwrap()];
        for (prefix, says) in [
            ("192.168.1.128/25", "overlaps 192.168.1.0/24"),
            ("192.0.0.0/16", "overlaps 192.0.2.1/32"),
            ("192.168.9.0/24", "contains 192.168.9.53"),
        ] {
            let refused = refuse_overlap(&[network(prefix)], &own, &resolvers).unwrap_err().to_string();
            assert!(refused.contains(says), "{refused}");
        }
        for free in ["192.168.7.0/24", "172.30.0.0/24"] {
            refuse_overlap(&[network(free)], &own, &resolvers).unwrap();
        }
    }

    #[test]
    fn ipv6_networks_and_gateways_of_the_host_are_read() {
        let addresses = "20010db8000000000000000000000005 02 40 00 80     eth0\n\
                         fe800000000000000000000000000005 02 40 20 80     eth0\n\
                         00000000000000000000000000000001 01 80 10 80       lo\n\
                         fd660000000000000000000000000001 05 40 00 80 warren-exit\n";
        assert_eq!(ipv6_networks(addresses), ["2001:db8::/64".parse().unwrap()]);
        let zero = "0".repeat(32);
        let routes = format!(
            "{zero} 00 {zero} 00 20010db8000000010000000000000001 00000400 00000001 00000000 00000003 eth0\n{zero} 00 {zero} 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003 eth0\n"
        );
        assert_eq!(ipv6_gateways(&routes), ["2001:db8:0:1::1/128".parse().unwrap()]);
    }
}
