//! Lists in WireGuard's files, of servers and of clients.

use std::net::IpAddr;

use ipnet::IpNet;

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
