//! The facts about an exit and its host. The exit's plan and firewall are computed from them.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::{DeviceName, Family, ForwardedPorts, Surroundings, facts::ServicePort};

/// The facts that an exit's plan depends on. There are 16 fields because the plan needs each of these facts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExitHost {
    /// The TUN device.
    pub device: DeviceName,
    /// Maximum size of an inner packet in bytes.
    pub mtu: u16,
    /// The gateway's address with the pool's prefix length.
    pub ipv4: Option<Ipv4Net>,
    /// The IPv6 counterpart of `ipv4`.
    pub ipv6: Option<Ipv6Net>,
    /// Whether the source address of IPv4 packets to the internet is translated to this host's address.
    pub nat_ipv4: bool,
    /// The IPv6 counterpart of `nat_ipv4`. Not needed if the prefix is routed to this host.
    pub nat_ipv6: bool,
    /// The device towards the internet.
    pub interface: Egress,
    /// The UDP ports of the listener. NAT must not use them as source ports of clients' traffic (CVE-2021-3773).
    pub listen_ports: Vec<u16>,
    /// The UDP and TCP ports of this host's other services ([`crate::facts::service_ports`]). NAT does not use them for clients'
    /// traffic either, unless fewer than 4,096 ports would be left. In that case it avoids only system users' ports, under the
    /// same condition.
    pub service_ports: Vec<ServicePort>,
    /// Networks that clients may reach although they are not part of the internet.
    pub allow: Vec<IpNet>,
    /// Networks behind clients, each without host bits. Networks of an IP version without a pool are left out.
    pub prefixes: Vec<IpNet>,
    /// Ports of this host's addresses that are forwarded to clients.
    pub forwards: Vec<ForwardedPorts>,
    /// Whether clients cannot reach each other.
    pub isolation: bool,
    /// The resolvers that clients are told of. Clients may query them in any network.
    pub resolvers: Vec<IpAddr>,
    /// The networks and devices around the host.
    pub surroundings: Surroundings,
    /// Devices that take router advertisements, from [`crate::facts::devices_taking_router_advertisements`]. Without a change of
    /// their settings, the kernel would remove their default routes when forwarding is turned on. The TUN may be among them.
    pub router_advertisements: Vec<DeviceName>,
}

/// Where clients' traffic leaves the exit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Egress {
    /// Any device but the TUN.
    Auto,
    /// Only this device. By other devices, clients reach only the networks in `allow`.
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

    /// The ports of the listener and of forwards, which NAT must not use for clients' traffic.
    pub(crate) fn taken_ports(&self) -> Vec<u16> {
        let forwarded = self.forwards.iter().flat_map(|forward| forward.ports.first..=forward.ports.last);
        self.listen_ports.iter().copied().chain(forwarded).collect()
    }

    /// The devices through which clients' IPv4 packets leave the exit and the answers arrive.
    pub(crate) fn ways_out(&self) -> Vec<DeviceName> {
        let resolvers = self.resolvers.iter().map(|resolver| IpNet::from(*resolver));
        let allowed: Vec<IpNet> = self.allow.iter().copied().chain(resolvers).collect();
        self.surroundings.ways_out(&allowed)
    }
}
