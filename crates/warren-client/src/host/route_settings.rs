//! The settings of a profile from which the plan of routes is made.

use std::net::IpAddr;

use ipnet::IpNet;
use warren_host::GuestNetwork;
use warren_host::dns::{self, Servers};

use warren_config::ClientProfile;

/// The profile's settings for where packets and DNS queries go.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RouteSettings {
    pub(super) include: Vec<IpNet>,
    pub(super) exclude: Vec<IpNet>,
    pub(super) lan: bool,
    pub(super) servers: Servers,
    /// Whether single programs have a side of their own.
    pub(super) exec: bool,
}

impl RouteSettings {
    pub(super) fn of(profile: &ClientProfile) -> Self {
        Self {
            include: profile.routes.include.clone(),
            exclude: profile.routes.exclude.clone(),
            lan: profile.routes.lan,
            servers: profile.dns.clone(),
            exec: false,
        }
    }

    /// The networks that go through the tunnel beside this LAN: those that the profile includes, and each listed resolver that the LAN
    /// would take out of them.
    pub(super) fn include_beside(&self, lan: &[IpNet], guests: &[GuestNetwork]) -> Vec<IpNet> {
        let claimed = dns::claimed(&self.include, &self.exclude, lan, &self.servers);
        // A container or a virtual machine on this host does not belong to the LAN.
        let is_guest = |server: &IpAddr| guests.iter().any(|guest| guest.network.contains(server));
        let claimed = claimed.into_iter().filter(|server| !is_guest(server)).map(IpNet::from);
        self.include.iter().copied().chain(claimed).collect()
    }
}
