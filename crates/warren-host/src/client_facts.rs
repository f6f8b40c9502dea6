//! The facts about a client and its host. The client's plan and firewall are computed from them.

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::{DeviceName, GuestNetwork, Ports, band::Band, foreign_rules::Tunnel};

/// The facts that a client's plan depends on. There are 17 fields because the plan needs each of these facts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientPlanFacts {
    /// The TUN device.
    pub device: DeviceName,
    /// A TUN device whose packets are discarded. Its routes have a lower priority than those of `device`: if another program
    /// deletes `device`, the tunnel's traffic is discarded instead of leaving outside. The kernel deletes both devices when the
    /// process that holds them ends. After that, traffic is routed as without the tunnel.
    pub void: Option<DeviceName>,
    /// Maximum size of an inner packet in bytes.
    pub mtu: u16,
    /// The leased inner address, if the exit gave one.
    pub ipv4: Option<Ipv4Addr>,
    /// The leased inner address, if the exit gave one and the device takes it ([`crate::facts::takes_ipv6`]).
    pub ipv6: Option<Ipv6Addr>,
    /// Whether the kernel has IPv6, as [`crate::facts::has_ipv6`] returns it. Without it, the plan has no
    /// IPv6 routes.
    pub kernel_has_ipv6: bool,
    /// Networks that go through the tunnel. Without a lease for its IP version, a network is made unreachable, so that no packet
    /// to it leaves outside.
    pub include: Vec<IpNet>,
    /// Networks that stay outside although `include` contains them: exclusions, and the LAN if it is to be reachable.
    pub exclude: Vec<IpNet>,
    /// Networks of containers and virtual machines on this host, from [`crate::facts::guest_networks`]. Packets to them are
    /// routed to their device, unless `include` lists exactly the same network.
    pub guests: Vec<GuestNetwork>,
    /// Networks behind this host that the exit routes to it. This host forwards packets from and to them. Packets to them never
    /// go into the tunnel.
    pub prefixes: Vec<IpNet>,
    /// Ports of this host that may be reached through the tunnel.
    pub allowed_forwards: Vec<Ports>,
    /// Devices that take router advertisements, from [`crate::facts::devices_taking_router_advertisements`]. Without a change of
    /// their settings, the kernel would remove their default routes when forwarding is turned on.
    pub router_advertisements: Vec<DeviceName>,
    /// The settings of the client's own nftables tables, of family `inet` and `arp`. `None` on a host without nft.
    pub firewall: Option<ClientFirewall>,
    /// The mark of the carrier's sockets, normally [`crate::CARRIER_MARK`]; all tunnels of a host use the same.
    pub mark: u32,
    /// A number that no other tunnel on the host has; see [`crate::Host::free_slot`].
    pub slot: u8,
    /// The band of priorities of the tunnel's rules; see [`crate::Host::place`].
    pub band: Band,
    /// Devices with strict reverse path filtering, from [`crate::facts::devices_with_strict_reverse_path`]. They would drop the
    /// carrier's packets, so they are set to loose filtering while the tunnel is up.
    pub strict_reverse_path: Vec<DeviceName>,
}

/// The facts on which a client's nftables table depends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientFirewall {
    /// The table's name, from [`crate::client_plan::firewall_table`].
    pub table: String,
    /// The ports on which TCP listens, from [`crate::facts::listening_ports`]. Connections to them that are older than the tunnel
    /// continue.
    pub listening: Vec<u16>,
}

impl ClientPlanFacts {
    /// The traffic that belongs into the tunnel.
    pub fn tunnel(&self) -> Tunnel {
        let guests = self.guests.iter().map(|guest| guest.network);
        Tunnel {
            include: self.include.clone(),
            exclude: [self.exclude.as_slice(), &self.prefixes].concat().into_iter().chain(guests).collect(),
            inner: self.addresses().map(|address| address.addr()).collect(),
        }
    }

    /// The tunnel's inner addresses as networks of one address each.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = IpNet> {
        let ipv4 = self.ipv4.map(|address| IpNet::V4(Ipv4Net::from(address)));
        let ipv6 = self.ipv6.map(|address| IpNet::V6(Ipv6Net::from(address)));
        ipv4.into_iter().chain(ipv6)
    }
}
