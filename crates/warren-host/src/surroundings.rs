//! The surroundings of an exit: the networks to which its host is directly connected, the devices that lead to routers, and the
//! devices that already forward.
//!
//! The exit's neighbours (hosts on its own links) are behind the router's firewall and often trust each other. So clients must
//! not reach them, even if they have public addresses.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::IpAddr,
};

use ipnet::IpNet;
use rtnetlink::packet_route::{
    address::{AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage},
    link::{LinkAttribute, LinkFlags, LinkMessage},
    route::{RouteAddress, RouteAttribute, RouteMessage, RouteProtocol, RouteType, RouteVia},
};

use crate::{
    DeviceName, Family, Forwarding, PROTOCOL,
    guests::{self, SeenLink},
    netlink::{destination, network_of},
};

/// The inputs of an exit's plan besides its configuration. They change while the exit runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// Networks on a device's own link, and next hops, each with its device, in order.
    pub links: Vec<OnLink>,
    /// The networks of this host's permanent addresses, each with its device, in order. No router advertisement or DHCP
    /// server assigned these addresses.
    pub permanent: Vec<OnLink>,
    /// Devices with IPv4 routes to other networks, in order.
    pub routers: Vec<DeviceName>,
    /// For whom the host forwards.
    pub forwarding: Forwarding,
}

/// A network that is reached without a router.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OnLink {
    /// The device.
    pub device: DeviceName,
    /// The network, or one address.
    pub network: IpNet,
}

/// Collects the kernel's links, addresses and routes, in this order.
#[derive(Debug)]
pub(crate) struct Observer {
    devices: Vec<Device>,
    bridges: Vec<String>,
    links: BTreeSet<OnLink>,
    permanent: BTreeSet<OnLink>,
    routers: BTreeSet<DeviceName>,
}

#[derive(Debug)]
struct Device {
    index: u32,
    name: DeviceName,
    /// Whether the device uses no neighbour discovery, such as PPP or a tunnel.
    has_no_neighbours: bool,
}

impl Observer {
    /// Starts with all devices except for the loopback device and the exit's own `tun`.
    pub(crate) fn new(links: &[LinkMessage], tun: &DeviceName) -> Self {
        let seen: Vec<SeenLink> = links.iter().map(SeenLink::of).collect();
        let device = |link: &LinkMessage| {
            let name = link.attributes.iter().find_map(|attribute| {
                if let LinkAttribute::IfName(name) = attribute { Some(name.clone()) } else { None }
            });
            let name = DeviceName::new(name?).ok().filter(|name| name != tun)?;
            let flags = link.header.flags;
            let has_no_neighbours =
                flags.contains(LinkFlags::Pointopoint) || flags.contains(LinkFlags::Noarp);
            (!flags.contains(LinkFlags::Loopback)).then_some(Device {
                index: link.header.index,
                name,
                has_no_neighbours,
            })
        };
        Self {
            devices: links.iter().filter_map(device).collect(),
            bridges: guests::bridges(&seen),
            links: BTreeSet::new(),
            permanent: BTreeSet::new(),
            routers: BTreeSet::new(),
        }
    }

    /// Adds the network of an address or, for a point-to-point address, the peer's address.
    pub(crate) fn address(&mut self, message: &AddressMessage) {
        let Some(network) = network_of(message) else { return };
        if let Some(device) = self.device(message.header.index) {
            let device = device.name.clone();
            if is_permanent(message) && !is_wide(&network, false) {
                self.permanent.insert(OnLink { device: device.clone(), network: network.trunc() });
            }
            self.on_link(device, network);
        }
    }

    /// Adds a route of any table.
    pub(crate) fn route(&mut self, route: &RouteMessage, family: Family) {
        // Routes that Warren made are skipped, because they lead to the exit's clients.
        let is_ours = route.header.protocol == RouteProtocol::from(PROTOCOL);
        if route.header.kind != RouteType::Unicast || is_ours {
            return;
        }
        let Some(destination) = destination(route, family) else { return };
        // Networks of the kernel's own routes and of router advertisements are on-link on any kind of device.
        let is_kernels = matches!(route.header.protocol, RouteProtocol::Kernel | RouteProtocol::Ra);
        for (index, gateway) in hops(route) {
            let Some(Device { name, has_no_neighbours, .. }) = self.device(index) else { continue };
            let (name, is_tunnel) = (name.clone(), *has_no_neighbours && !is_kernels);
            let leads_on = gateway.is_some() || is_wide(&destination, is_tunnel);
            // Only IPv4 needs the list of these devices. For IPv6, one setting makes all devices forward.
            if leads_on && family == Family::Ipv4 {
                self.routers.insert(name.clone());
            }
            match gateway {
                // A next hop is on-link, even if none of this host's networks contains it.
                Some(gateway) => self.on_link(name, gateway.into()),
                // A wide network without a gateway is a route to the internet and not a link.
                None if leads_on => {}
                None => self.on_link(name, destination),
            }
        }
    }

    /// Returns the result. `forwarding` is called with the names of the bridges of containers and virtual machines and with the
    /// devices' indexes, and finds the devices that forward.
    pub(crate) fn surroundings(
        self,
        forwarding: impl FnOnce(&[String], &BTreeMap<DeviceName, u32>) -> io::Result<Forwarding>,
    ) -> io::Result<Surroundings> {
        let indexes = self.devices.iter().map(|device| (device.name.clone(), device.index)).collect();
        Ok(Surroundings {
            links: self.links.into_iter().collect(),
            permanent: self.permanent.into_iter().collect(),
            routers: self.routers.into_iter().collect(),
            forwarding: forwarding(&self.bridges, &indexes)?,
        })
    }

    fn on_link(&mut self, device: DeviceName, network: IpNet) {
        if !is_wide(&network, false) {
            self.links.insert(OnLink { device, network: network.trunc() });
        }
    }

    fn device(&self, index: u32) -> Option<&Device> {
        self.devices.iter().find(|device| device.index == index)
    }
}

impl Surroundings {
    /// The devices through which clients' IPv4 packets may leave for the internet or for a network in `allowed`. Answers arrive
    /// through the same devices.
    pub fn ways_out(&self, allowed: &[IpNet]) -> Vec<DeviceName> {
        let is_allowed = |link: &&OnLink| {
            allowed.iter().any(|network| network.contains(&link.network) || link.network.contains(network))
        };
        let ipv4 = self.links.iter().filter(|link| Family::of(&link.network) == Family::Ipv4);
        let to_allowed = ipv4.filter(is_allowed).map(|link| &link.device);
        let devices: BTreeSet<&DeviceName> = self.routers.iter().chain(to_allowed).collect();
        devices.into_iter().cloned().collect()
    }
}

/// Whether an address was configured permanently, and not assigned by an advertisement or a DHCP lease: it has no lifetime and is
/// not `noprefixroute`. A network manager may add an advertised address without a lifetime, but sets `noprefixroute`.
fn is_permanent(message: &AddressMessage) -> bool {
    let is_managed = |attribute: &AddressAttribute| matches!(attribute, AddressAttribute::Flags(flags) if flags.contains(AddressFlags::Noprefixroute));
    message.header.flags.contains(AddressHeaderFlags::Permanent) && !message.attributes.iter().any(is_managed)
}

/// The devices of a route with their next hops, if there are any.
fn hops(route: &RouteMessage) -> Vec<(u32, Option<IpAddr>)> {
    let mut hops = Vec::new();
    let mut own = None;
    for attribute in &route.attributes {
        if let RouteAttribute::Oif(device) = attribute {
            own = Some(*device);
        } else if let RouteAttribute::MultiPath(several) = attribute {
            hops.extend(several.iter().map(|hop| (hop.interface_index, gateway(&hop.attributes))));
        }
    }
    hops.extend(own.map(|device| (device, gateway(&route.attributes))));
    hops
}

fn gateway(attributes: &[RouteAttribute]) -> Option<IpAddr> {
    attributes.iter().find_map(|attribute| {
        if let RouteAttribute::Gateway(RouteAddress::Inet(address)) = attribute {
            Some(IpAddr::V4(*address))
        } else if let RouteAttribute::Gateway(RouteAddress::Inet6(address)) = attribute {
            Some(IpAddr::V6(*address))
        } else if let RouteAttribute::Via(RouteVia::Inet(address)) = attribute {
            Some(IpAddr::V4(*address))
        } else if let RouteAttribute::Via(RouteVia::Inet6(address)) = attribute {
            Some(IpAddr::V6(*address))
        } else {
            None
        }
    })
}

/// Whether a network is so wide that it must be the internet or a part of it, and not a link. OpenVZ and PPP have a route to such
/// a network without a gateway.
///
/// Another VPN's tunnel may have routes to the internet in many pieces. All of them are wider than /24 or /48, the narrowest
/// prefixes that are announced on the internet.
fn is_wide(network: &IpNet, is_tunnel: bool) -> bool {
    let narrowest = match (network, is_tunnel) {
        (IpNet::V4(_), false) => 8,
        (IpNet::V6(_), false) => 16,
        (IpNet::V4(_), true) => 24,
        (IpNet::V6(_), true) => 48,
    };
    network.prefix_len() < narrowest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_of_the_internet_is_no_link() {
        for (network, of_ethernet, of_tunnel) in [
            ("0.0.0.0/0", true, true),
            ("128.0.0.0/1", true, true),
            ("11.0.0.0/8", false, true),
            ("192.170.0.0/15", false, true),
            ("198.41.0.0/24", false, false),
            ("2000::/3", true, true),
            ("2a01:4f8::/32", false, true),
            ("2a01:4f8:1:2::/64", false, false),
        ] {
            let network = network.parse().unwrap();
            assert_eq!(
                (is_wide(&network, false), is_wide(&network, true)),
                (of_ethernet, of_tunnel),
                "{network}"
            );
        }
    }

    #[test]
    fn packets_leave_by_devices_that_lead_on_or_to_what_is_allowed() {
        let device = |name: &str| DeviceName::new(name).unwrap();
        let link = |name, network: &str| OnLink { device: device(name), network: network.parse().unwrap() };
        let surroundings = Surroundings {
            links: vec![
                link("eth0", "198.41.0.0/24"),
                link("eth1", "192.168.9.0/24"),
                link("eth2", "192.168.8.0/24"),
                link("eth3", "fd00::/64"),
            ],
            routers: vec![device("eth0")],
            ..Surroundings::default()
        };
        let ways = |allowed: &[&str]| {
            let allowed: Vec<IpNet> = allowed.iter().map(|network| network.parse().unwrap()).collect();
            surroundings.ways_out(&allowed).iter().map(ToString::to_string).collect::<Vec<_>>()
        };

        assert_eq!(ways(&[]), ["eth0"]);
        assert_eq!(ways(&["192.168.9.7/32", "fd00::/64"]), ["eth0", "eth1"]);
        assert_eq!(ways(&["192.168.0.0/16"]), ["eth0", "eth1", "eth2"]);
    }
}
