//! What WireGuard's files of servers and of clients have in common: the names of settings, and lists.

use std::net::IpAddr;

use ipnet::IpNet;
use warren_config::suggestion;

/// The settings of `[Interface]`, according to wg-quick(8) and wg(8).
pub(crate) const INTERFACE: [&str; 12] = [
    "PrivateKey",
    "Address",
    "DNS",
    "MTU",
    "Table",
    "ListenPort",
    "FwMark",
    "PreUp",
    "PostUp",
    "PreDown",
    "PostDown",
    "SaveConfig",
];
/// The settings of `[Peer]`.
pub(crate) const PEER: [&str; 5] =
    ["PublicKey", "PresharedKey", "AllowedIPs", "Endpoint", "PersistentKeepalive"];

/// The setting of this name among those that a section has. Upper and lower case count the same. The error is the setting that
/// was probably meant.
pub(crate) fn setting(known: &[&'static str], name: &str) -> Result<&'static str, Option<&'static str>> {
    let called = |name: &str| known.iter().copied().find(|known| known.eq_ignore_ascii_case(name));
    called(name).ok_or_else(|| {
        let lowered: Vec<String> = known.iter().map(|known| known.to_ascii_lowercase()).collect();
        suggestion(name, lowered.iter().map(String::as_str)).and_then(called)
    })
}

/// The items between commas.
pub(crate) fn items(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|item| !item.is_empty())
}

/// Networks between commas. An address counts as a network of one. The error is the first item that is neither.
pub(crate) fn networks(list: &str) -> Result<Vec<IpNet>, &str> {
    let network = |item| {
        let address = || str::parse::<IpAddr>(item).ok().map(IpNet::from);
        item.parse().ok().or_else(address).ok_or(item)
    };
    items(list).map(network).collect()
}
