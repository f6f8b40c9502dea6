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
        Self { allow, resolvers: host.resolvers.clone(), on_link: super::on_link(host) }
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

const DNS: u16 = 53;
