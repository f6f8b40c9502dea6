//! The resolvers that a file in the format of resolv.conf(5) names.

use std::{
    fs,
    net::{IpAddr, SocketAddr, SocketAddrV6},
};

/// Reads the resolvers that a text in the format of resolv.conf(5) names, in order.
///
/// The zone of a link-local address, as in `fe80::1%eth0`, is left out.
///
/// ```
/// let text = "search lan\nnameserver 192.0.2.1\nnameserver fe80::1%eth0\n";
/// let named = warren_host::dns::nameservers(text);
/// assert_eq!(named, ["192.0.2.1".parse::<std::net::IpAddr>()?, "fe80::1".parse()?]);
/// # Ok::<_, std::net::AddrParseError>(())
/// ```
pub fn nameservers(text: &str) -> Vec<IpAddr> {
    named(text).map(|(address, _)| address).collect()
}

/// Like [`nameservers`], with the port and the device of a link-local address. A link-local address without a device is left out,
/// because no query can be sent to it.
pub(super) fn to_ask(text: &str) -> Vec<SocketAddr> {
    let server = |(address, device): (IpAddr, &str)| match address {
        IpAddr::V6(address) if address.is_unicast_link_local() => {
            // The name is checked, so that the path below cannot lead to another directory.
            let is_name = !device.contains('/') && !["", ".", ".."].contains(&device);
            let index = is_name.then(|| fs::read_to_string(format!("/sys/class/net/{device}/ifindex")));
            let index = device.parse().ok().or_else(|| index?.ok()?.trim().parse().ok())?;
            Some(SocketAddrV6::new(address, DNS_PORT, 0, index).into())
        }
        IpAddr::V4(_) | IpAddr::V6(_) => Some(SocketAddr::new(address, DNS_PORT)),
    };
    named(text).filter_map(server).collect()
}

/// The resolvers, each with its zone, which may be empty.
fn named(text: &str) -> impl Iterator<Item = (IpAddr, &str)> {
    text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let word = (words.next()? == "nameserver").then(|| words.next())??;
        let (address, zone) = word.split_once('%').unwrap_or((word, ""));
        Some((address.parse().ok()?, zone))
    })
}

/// The lines of resolv.conf(5) that name these resolvers.
pub fn nameserver_lines(servers: &[IpAddr]) -> String {
    servers.iter().map(|server| format!("nameserver {server}\n")).collect()
}

pub(super) const DNS_PORT: u16 = 53;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nameservers_are_read_as_the_resolver_reads_them() {
        let text = "# nameserver 1.1.1.1\nsearch lan\nnameserver 192.0.2.1 # ours\nnameserver\tfe80::1%eth0\n nameserver  ::1 \n\
                    nameserver x\nnameserver\n";
        let found: Vec<String> = nameservers(text).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["192.0.2.1", "fe80::1", "::1"]);
    }

    #[test]
    fn a_link_local_resolver_is_asked_on_its_device_alone() {
        let text = "nameserver 192.0.2.1\nnameserver fe80::1%lo\nnameserver fe80::2%7\nnameserver fe80::3\n\
                    nameserver fe80::4%../x\nnameserver 2001:db8::1\n";
        let found: Vec<String> = to_ask(text).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["192.0.2.1:53", "[fe80::1%1]:53", "[fe80::2%7]:53", "[2001:db8::1]:53"]);
    }
}
