//! Helps to write the texts of Warren's nftables tables.

use std::{fmt::Write, net::Ipv4Addr};

use ipnet::IpNet;

use crate::Family;

/// Writes a chain, one statement per line. A chain that is only reached by jumps has an empty header.
pub(crate) fn chain(text: &mut String, name: &str, header: &str, rules: &[String]) {
    let header = if header.is_empty() { String::new() } else { format!("\t{header}\n") };
    let rules: String = rules.iter().map(|rule| format!("\t{rule}\n")).collect();
    // Writing to a String cannot fail.
    let _ = write!(text, "chain {name} {{\n{header}{rules}}}\n");
}

/// The chains of a table of family `arp`.
///
/// Without this table, the kernel would answer ARP requests for the TUN's inner address on other links. The IPv6 counterpart is
/// not needed, because the kernel answers neighbour discovery only on the link of the address.
pub(crate) fn arp(inner: Ipv4Addr) -> String {
    let mut text = String::new();
    let rule = format!("arp daddr ip {inner} counter drop");
    chain(&mut text, "input", "type filter hook input priority filter; policy accept;", &[rule]);
    text
}

/// Returns the networks of one family as elements of a set, without overlaps, which nft refuses. `None` if there are no networks.
pub(crate) fn elements(networks: &[IpNet], family: Family) -> Option<String> {
    let networks: Vec<IpNet> =
        networks.iter().filter(|network| Family::of(network) == family).map(IpNet::trunc).collect();
    let networks: Vec<String> = IpNet::aggregate(&networks).iter().map(ToString::to_string).collect();
    (!networks.is_empty()).then(|| networks.join(", "))
}

/// The [`elements`] of each IP version that has networks, with nft's keyword for the version.
pub(crate) fn by_version(networks: &[IpNet]) -> impl Iterator<Item = (&'static str, String)> {
    let of = |(family, word)| Some((word, elements(networks, family)?));
    [(Family::Ipv4, "ip"), (Family::Ipv6, "ip6")].into_iter().filter_map(of)
}
