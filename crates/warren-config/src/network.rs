//! Parses networks in the configuration, and checks which of them can be an exit's inner prefixes.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use warren_session::pool::{gateway_ipv4, gateway_ipv6};

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
    if overlaps(network.into(), NOT_UNICAST_IPV4) {
        return Err(format!("is {}, but must be unicast, such as \"10.66.0.0/16\"", quoted(text)));
    }
    Ok(network)
}

/// An exit's inner IPv6 prefix, from which clients get addresses. The error continues after the key's name.
pub fn ipv6_pool(text: &str) -> Result<Ipv6Net, String> {
    let IpNet::V6(network) = parse(text)? else {
        return Err(format!("is {}, but must be an IPv6 network such as \"fd66:6666::/64\"", quoted(text)));
    };
    // A /127 has no address for a client, because both of its addresses are reserved (`client_address`).
    if !(32..=126).contains(&network.prefix_len()) {
        return Err(format!("is {}, but must have a prefix length from 32 to 126", quoted(text)));
    }
    if overlaps(network.into(), NOT_UNICAST_IPV6) {
        return Err(format!("is {}, but must be unicast, such as \"fd66:6666::/64\"", quoted(text)));
    }
    Ok(network)
}

/// Whether a client can have `address` in the exit's inner prefixes. The error is a sentence.
pub fn client_address(address: IpAddr, ipv4: Option<Ipv4Net>, ipv6: Option<Ipv6Net>) -> Result<(), String> {
    let (pool, reserved) = match address {
        IpAddr::V4(address) => {
            let Some(pool) = ipv4 else { return Err("the exit has no inner IPv4 prefix".to_owned()) };
            let reserved = [pool.network(), gateway_ipv4(pool).addr(), pool.broadcast()];
            (IpNet::V4(pool), reserved.contains(&address))
        }
        IpAddr::V6(address) => {
            let Some(pool) = ipv6 else { return Err("the exit has no inner IPv6 prefix".to_owned()) };
            (IpNet::V6(pool), [pool.network(), gateway_ipv6(pool).addr()].contains(&address))
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

/// "This network" (0.0.0.0/8), loopback, link-local (RFC 6890), and multicast and reserved addresses (224.0.0.0/4 and
/// 240.0.0.0/4).
const NOT_UNICAST_IPV4: &[&str] = &["0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3"];

/// Unspecified and loopback, IPv4-mapped (RFC 4291 section 2.5), link-local, and multicast.
const NOT_UNICAST_IPV6: &[&str] = &["::/127", "::ffff:0:0/96", "fe80::/10", "ff00::/8"];

/// Whether two networks share an address. If so, one contains the other.
fn overlaps(network: IpNet, others: &[&str]) -> bool {
    let mut others = others.iter().filter_map(|text| text.parse::<IpNet>().ok());
    others.any(|other| other.contains(&network) || network.contains(&other))
}
