//! The facts about an exit and its host. The exit's plan and firewall are computed from them.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::{DeviceName, Family, ForwardedPorts, Surroundings, facts::ServicePort};

/// The facts that an exit's plan depends on. It has 16 fields because the plan follows from each of these facts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExitHost {
    /// The TUN device.
    pub device: DeviceName,
    /// Bytes of the largest inner packet.
    pub mtu: u16,
    /// The gateway's address with the pool's prefix length.
    pub ipv4: Option<Ipv4Net>,
    /// The IPv6 counterpart of `ipv4`.
    pub ipv6: Option<Ipv6Net>,
    /// Whether IPv4 packets to the internet get this host's address.
    pub nat_ipv4: bool,
    /// The IPv6 counterpart of `nat_ipv4`. Not needed if the prefix is routed to this host.
    pub nat_ipv6: bool,
    /// The device towards the internet.
    pub interface: Egress,
    /// The UDP ports of the listener. Clients' traffic must not get one of them as its source port
    /// (CVE-2021-3773).
    pub listen_ports: Vec<u16>,
    /// The UDP and TCP ports of this host's other services ([`crate::facts::service_ports`]). Like the listener's
    /// ports, they are not used for clients' traffic, unless fewer than 4,096 ports would be left for clients. In
    /// that case only the system users' ports are kept free, under the same condition.
    pub service_ports: Vec<ServicePort>,
    /// Networks that clients may reach although they are not part of the internet.
    pub allow: Vec<IpNet>,
    /// Networks behind clients, each without host bits. Those of an IP version without a pool are left out.
    pub prefixes: Vec<IpNet>,
    /// Ports of this host's addresses that are forwarded to clients.
    pub forwards: Vec<ForwardedPorts>,
    /// Whether clients cannot reach each other.
    pub isolation: bool,
    /// The resolvers that clients are told of. Clients may query them in any network.
    pub resolvers: Vec<IpAddr>,
    /// The networks and devices around the host.
    pub surroundings: Surroundings,
    /// Devices that take router advertisements, from [`crate::facts::devices_taking_router_advertisements`]. The
    /// kernel would drop their default routes as soon as it forwards. The TUN may be among them.
    pub router_advertisements: Vec<DeviceName>,
}

/// Where clients' traffic leaves the exit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Egress {
    /// Any device but the TUN.
    Auto,
    /// Only this device. Any other device leads to allowed networks alone.
    Device(DeviceName),
}

impl ExitHost {
    /// Whether the exit has a pool of the network's IP version.
    pub(crate) fn has_pool(&self, network: &IpNet) -> bool {
        match Family::of(network) {
            Family::Ipv4 => self.ipv4.is_some(),
            Family::Ipv6 => self.ipv6.is_some(),
        }
    }

    /// The ports that neither the listener nor a forward shares with clients' traffic.
    pub(crate) fn taken_ports(&self) -> Vec<u16> {
        let forwarded = self.forwards.iter().flat_map(|forward| forward.ports.first..=forward.ports.last);
        self.listen_ports.iter().copied().chain(forwarded).collect()
    }

    /// The devices through which clients' IPv4 packets leave and answers come in.
    pub(crate) fn ways_out(&self) -> Vec<DeviceName> {
        let resolvers = self.resolvers.iter().map(|resolver| IpNet::from(*resolver));
        let allowed: Vec<IpNet> = self.allow.iter().copied().chain(resolvers).collect();
        self.surroundings.ways_out(&allowed)
    }
}
