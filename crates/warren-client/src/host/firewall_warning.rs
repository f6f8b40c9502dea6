//! The warning about features that do not work on a client's host without nft.

use ipnet::IpNet;
use warren_host::dns;

/// Warns about a tunnel to these networks if this host lacks nft. `None` if it has nft.
pub(crate) fn missing(include: &[IpNet]) -> Option<String> {
    if warren_host::has_nft() { None } else { warning(include) }
}

/// Warns about a tunnel to these networks on a host without nft. `None` if the tunnel takes no traffic.
pub(super) fn warning(include: &[IpNet]) -> Option<String> {
    if include.is_empty() {
        return None;
    }
    let names = match dns::is_full(include) {
        true => ", programs bound to another network device send their DNS queries outside the tunnel",
        false => "",
    };
    Some(format!(
        "nft is missing: connections from outside to this host, such as SSH, are answered through the tunnel and so break{names}, and \
         containers cannot use the tunnel; install nftables, then run `warren down` and `warren up`"
    ))
}
