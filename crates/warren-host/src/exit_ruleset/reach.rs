//! The destinations that clients may reach. The rules check only new flows, so this check finds the earlier flows that they would
//! now refuse.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::exit_host::ExitHost;
use crate::special_purpose::is_special;

/// The destinations that an exit's rules accept and refuse for clients' new flows.
#[derive(Clone, Debug)]
pub struct Reach {
    allow: Vec<IpNet>,
    resolvers: Vec<IpAddr>,
    on_link: Vec<IpNet>,
}

impl Reach {
    /// The destinations with the rules for this host.
    pub fn of(host: &ExitHost) -> Self {
        let allow = host.allow.iter().map(IpNet::trunc).collect();
        Self { allow, resolvers: host.resolvers.clone(), on_link: on_link(host) }
    }

    /// Whether the rules refuse a new flow to this address. `port` is the destination port if the flow is of TCP or UDP.
    /// Addresses of clients and of networks behind clients are refused too, because rules of their own decide about them.
    pub fn refuses(&self, to: IpAddr, port: Option<u16>) -> bool {
        let is_query = port == Some(DNS) && self.resolvers.contains(&to);
        let is_allowed = is_query || self.allow.iter().any(|network| network.contains(&to));
        !is_allowed && is_dropped(&IpNet::from(to), &self.on_link)
    }
}

/// Whether the rules drop new flows to this network, unless the operator has allowed it.
pub(super) fn is_dropped(network: &IpNet, on_link: &[IpNet]) -> bool {
    is_special(network) || on_link.iter().any(|link| link.contains(network))
}

/// The networks on the host's links that are part of the internet. A neighbour can advertise any number of networks. If there are
/// more than [`MOST_ON_LINK`], this returns fewer, wider networks that contain them all. So clients cannot reach any of them in
/// either case.
pub(super) fn on_link(host: &ExitHost) -> Vec<IpNet> {
    let mut networks = all_on_link(host);
    // Widens the networks one bit at a time, so that none gets wider than the limit requires.
    for length in (0..=IPV6_LENGTH).rev() {
        if networks.len() <= MOST_ON_LINK {
            break;
        }
        let widened = |network: &IpNet| {
            IpNet::new(network.addr(), network.prefix_len().min(length)).unwrap_or(*network).trunc()
        };
        networks = IpNet::aggregate(&networks.iter().map(widened).collect());
    }
    networks
}

fn all_on_link(host: &ExitHost) -> Vec<IpNet> {
    let networks: Vec<IpNet> = host.surroundings.links.iter().map(|link| link.network).collect();
    IpNet::aggregate(&networks).into_iter().filter(|network| !is_special(network)).collect()
}

/// Whether there are more networks on the host's links than the rules can list.
pub(crate) fn has_too_many_links(host: &ExitHost) -> bool {
    all_on_link(host).len() > MOST_ON_LINK
}

/// Maximum number of networks on the host's links in the rules.
pub(super) const MOST_ON_LINK: usize = 4_096;

/// Bits of an IPv6 address.
const IPV6_LENGTH: u8 = 128;

const DNS: u16 = 53;
