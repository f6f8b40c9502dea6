//! Networks in the configuration, and which of them can be an exit's inner prefixes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::wording::quoted;

/// A network in CIDR notation without host bits. The error continues after the key's name.
pub(crate) fn parse(text: &str) -> Result<IpNet, String> {
    let Ok(network) = text.parse::<IpNet>() else {
        let advice = match text.parse::<IpAddr>() {
            Ok(IpAddr::V4(address)) => {
                format!("lacks a prefix length; write \"{address}/32\" for this one address")
            }
            Ok(IpAddr::V6(address)) => {
                format!("lacks a prefix length; write \"{address}/128\" for this one address")
            }
            Err(_) => "must be a network such as \"10.0.0.0/8\" or \"fd00::/8\"".to_owned(),
        };
        return Err(format!("is {}, but {advice}", quoted(text)));
    };
    if network.trunc() != network {
        return Err(format!("is {}, but has host bits set; write \"{}\"", quoted(text), network.trunc()));
    }
    Ok(network)
}

/// An exit's inner IPv4 prefix, from which clients get addresses. The error continues after the key's name.
pub fn ipv4_pool(text: &str) -> Result<Ipv4Net, String> {
    let IpNet::V4(network) = parse(text)? else {
        return Err(format!("is {}, but must be an IPv4 network such as \"10.66.0.0/16\"", quoted(text)));
    };
    // A /30 is the smallest network with an address for the exit and one for a client.
    if !(8..=30).contains(&network.prefix_len()) {
        return Err(format!("is {}, but must have a prefix length from 8 to 30", quoted(text)));
    }
    let first = network.network();
    let last = network.broadcast();
    if [first, last]
        .iter()
        .any(|ip| ip.is_multicast() || ip.is_loopback() || ip.is_link_local() || is_reserved(*ip))
    {
        return Err(format!("is {}, but must be unicast, such as \"10.66.0.0/16\"", quoted(text)));
    }
    Ok(network)
}

/// An exit's inner IPv6 prefix, from which clients get addresses. The error continues after the key's name.
pub fn ipv6_pool(text: &str) -> Result<Ipv6Net, String> {
    let IpNet::V6(network) = parse(text)? else {
        return Err(format!("is {}, but must be an IPv6 network such as \"fd66:6666::/64\"", quoted(text)));
    };
    // Clients can have no address of a /127: its only two are reserved, as `client_address` says.
    if !(32..=126).contains(&network.prefix_len()) {
        return Err(format!("is {}, but must have a prefix length from 32 to 126", quoted(text)));
    }
    let first = network.network();
    // Every allowed network is narrower than the multicast and link-local blocks, so its first address decides.
    let is_unusable =
        first.is_multicast() || first.is_unicast_link_local() || network.contains(&Ipv6Addr::LOCALHOST);
    if is_unusable || first.to_ipv4_mapped().is_some() {
        return Err(format!("is {}, but must be unicast, such as \"fd66:6666::/64\"", quoted(text)));
    }
    Ok(network)
}

/// Whether a client can have `address` in the exit's inner prefixes. The error is a sentence.
pub fn client_address(address: IpAddr, ipv4: Option<Ipv4Net>, ipv6: Option<Ipv6Net>) -> Result<(), String> {
    let (pool, reserved) = match address {
        IpAddr::V4(address) => {
            let Some(pool) = ipv4 else { return Err("the exit has no inner IPv4 prefix".to_owned()) };
            // The first host address is the exit's own.
            let gateway = pool.hosts().next() == Some(address);
            (IpNet::V4(pool), gateway || address == pool.network() || address == pool.broadcast())
        }
        IpAddr::V6(address) => {
            let Some(pool) = ipv6 else { return Err("the exit has no inner IPv6 prefix".to_owned()) };
            // The first address is the subnet-router anycast address (RFC 4291 section 2.6.1), the second the exit's
            // own.
            let first = u128::from(pool.network());
            let offset = u128::from(address).checked_sub(first);
            (IpNet::V6(pool), offset.is_some_and(|offset| offset < 2))
        }
    };
    if !pool.contains(&address) {
        return Err(format!("{address} is outside the exit's prefix {pool}; choose an address in it"));
    }
    if reserved {
        return Err(format!("{address} is not free for clients in {pool}; choose another address in it"));
    }
    Ok(())
}

/// 0.0.0.0/8 and 240.0.0.0/4 (RFC 6890).
fn is_reserved(address: Ipv4Addr) -> bool {
    let [first, ..] = address.octets();
    first == 0 || first >= 240
}
