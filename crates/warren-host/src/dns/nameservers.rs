//! The resolvers that a file in the format of resolv.conf(5) names.

use std::net::IpAddr;

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
    let server = |line: &str| {
        let mut words = line.split_whitespace();
        let address = (words.next()? == "nameserver").then(|| words.next())??;
        address.split('%').next()?.parse().ok()
    };
    text.lines().filter_map(server).collect()
}

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
}
