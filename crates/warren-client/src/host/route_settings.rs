//! The settings of a profile from which the plan of routes is made.

use std::net::IpAddr;

use ipnet::IpNet;
use warren_host::dns::{self, Servers};
use warren_host::{GuestNetwork, Ports};
use warren_session::client::SessionGrant;

use warren_config::{ClientProfile, Lan};

/// The profile's settings for routes and DNS resolvers.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RouteSettings {
    pub(super) include: Vec<IpNet>,
    /// Whether the exit chooses the networks in `include`.
    pub(super) of_exit: bool,
    pub(super) exclude: Vec<IpNet>,
    pub(super) lan: bool,
    /// Whether queries to the LAN's resolvers are blocked even if the profile sets no resolvers, or lists one outside the tunnel.
    pub(super) lan_without_dns: bool,
    pub(super) servers: Servers,
    /// Whether `warren exec` can put programs inside or outside of the tunnel.
    pub(super) exec: bool,
    /// Names below these domains are looked up at the tunnel's resolvers. If the list is empty, all names are looked up there.
    pub(super) domains: Vec<String>,
    pub(super) allowed_forwards: Vec<Ports>,
}

impl RouteSettings {
    /// `is_closed` tells whether the kill switch is closed.
    pub(super) fn of(profile: &ClientProfile, is_closed: bool) -> Self {
        // Without nft, nothing can block queries to the LAN's resolvers. So the LAN is reachable only if the profile explicitly
        // asks for it.
        let lan_without_dns = profile.routes.lan == Lan::UnlessKillSwitch;
        let is_safe = !lan_without_dns || warren_host::has_nft();
        Self {
            include: profile.routes.include.clone(),
            of_exit: profile.routes.of_exit,
            exclude: profile.routes.exclude.clone(),
            lan: is_safe && profile.routes.lan.is_reachable(is_closed),
            lan_without_dns,
            servers: profile.dns.servers.clone(),
            domains: profile.dns.domains.clone(),
            allowed_forwards: profile.allowed_forwards.clone(),
            exec: false,
        }
    }

    /// Applies the networks that the exit has chosen, if the profile leaves the choice to the exit. Returns whether they have
    /// changed.
    pub(super) fn take_routes(&mut self, welcome: &SessionGrant) -> bool {
        let is_news = self.of_exit && self.include != welcome.routes;
        if is_news {
            self.include.clone_from(&welcome.routes);
        }
        is_news
    }

    /// Returns the networks that go through the tunnel while this LAN stays outside it: those that the profile includes, and each
    /// listed resolver that would otherwise stay outside with the LAN.
    pub(super) fn include_beside(&self, lan: &[IpNet], guests: &[GuestNetwork]) -> Vec<IpNet> {
        let claimed = dns::claimed(&self.include, &self.exclude, lan, &self.servers);
        // A container or a virtual machine on this host does not belong to the LAN.
        let is_guest = |server: &IpAddr| guests.iter().any(|guest| guest.network.contains(server));
        let claimed = claimed.into_iter().filter(|server| !is_guest(server)).map(IpNet::from);
        self.include.iter().copied().chain(claimed).collect()
    }

    /// Returns the networks that stay outside the tunnel while this LAN does: those that the profile excludes, and the LAN's.
    pub(super) fn exclude_beside(&self, lan: &[IpNet], guests: &[GuestNetwork]) -> Vec<IpNet> {
        // A LAN may claim addresses of this host's containers. Those stay with the containers, whose network has a route of its own.
        let is_guests = |claimed: &IpNet| guests.iter().any(|guest| guest.network.contains(claimed));
        let lan = lan.iter().filter(|network| !is_guests(network));
        self.exclude.iter().chain(lan).copied().collect()
    }
}
