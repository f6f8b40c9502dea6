//! Networks of containers and virtual machines on this host. Each is reached through a virtual device on this host that is not
//! connected to a LAN.
//!
//! Addresses are no criterion, because a LAN may use any address, so the kind of device decides. Most guests' devices are
//! bridges, as Docker, Podman, LXD and libvirt make them. All ports of such a bridge are `veth`, `netkit` or TAP devices. A
//! single `veth` or `netkit` device also counts if the default route uses another device. (Inside a container, such a device is
//! the connection to the network instead.) No route to the internet may lead through the device, and the network must be private.

use ipnet::IpNet;
use rtnetlink::packet_route::{
    link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage},
    route::{RouteAttribute, RouteMessage, RouteProtocol},
};
use serde::{Deserialize, Serialize};

use crate::{DEVICE_GROUP, DeviceName, PROTOCOL, private_networks::is_private};

/// A network of containers or virtual machines.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GuestNetwork {
    /// The device that leads to the network. It has an address in the network.
    pub device: DeviceName,
    /// The network.
    pub network: IpNet,
}

/// The parts of a kernel device that matter here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SeenLink {
    index: u32,
    name: String,
    kind: Kind,
    /// The index of the bridge of which the device is a port.
    bridge: Option<u32>,
    is_up: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Bridge,
    /// One end of a pair of virtual devices, whose other end is usually in a container.
    Pair,
    /// A TUN or TAP device; only a TAP device can be a bridge's port.
    Tun,
    Other,
}

/// A route by which packets leave this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SeenWay {
    device: u32,
    is_default: bool,
}

/// Finds the guests' networks among the addresses of devices. Each address comes with the index of its device. Each
/// network is listed once.
pub(crate) fn among(links: &[SeenLink], addresses: &[(u32, IpNet)], ways: &[SeenWay]) -> Vec<GuestNetwork> {
    let has_default = ways.iter().any(|way| way.is_default);
    let holds_guests = |link: &&SeenLink| {
        let mut ports = links.iter().filter(|port| port.bridge == Some(link.index));
        let is_made_here = match link.kind {
            // A physical port would make the bridge a part of a LAN. A bridge without ports counts too, because its containers
            // may be stopped.
            Kind::Bridge => ports.all(|port| matches!(port.kind, Kind::Pair | Kind::Tun)),
            // Without a default route through another device, this host may itself be a container, and the device its connection
            // to the network.
            Kind::Pair => has_default && link.bridge.is_none(),
            Kind::Tun | Kind::Other => false,
        };
        is_made_here && link.is_up && ways.iter().all(|way| way.device != link.index)
    };
    let mut networks: Vec<GuestNetwork> = Vec::new();
    for link in links.iter().filter(holds_guests) {
        // A device whose name is not safe in a firewall rule is skipped.
        let Ok(device) = DeviceName::new(link.name.clone()) else { continue };
        for (_, address) in addresses.iter().filter(|(index, _)| *index == link.index) {
            let network = address.trunc();
            let is_known = networks.iter().any(|known| known.network == network);
            if is_guests(&network) && !is_known {
                networks.push(GuestNetwork { device: device.clone(), network });
            }
        }
    }
    networks.sort_unstable();
    networks
}

/// The names of bridges whose ports all belong to containers or virtual machines.
pub(crate) fn bridges(links: &[SeenLink]) -> Vec<String> {
    let is_made_here = |bridge: &&SeenLink| {
        let mut ports = links.iter().filter(|port| port.bridge == Some(bridge.index));
        bridge.kind == Kind::Bridge && ports.all(|port| matches!(port.kind, Kind::Pair | Kind::Tun))
    };
    links.iter().filter(is_made_here).map(|bridge| bridge.name.clone()).collect()
}

/// Whether a network may belong to guests. Link-local networks do not count, because every device has one.
fn is_guests(network: &IpNet) -> bool {
    let is_link_local = match network {
        IpNet::V4(network) => network.addr().is_link_local(),
        IpNet::V6(network) => network.addr().is_unicast_link_local(),
    };
    is_private(network) && !is_link_local
}

impl SeenLink {
    pub(crate) fn of(message: &LinkMessage) -> Self {
        let mut link = Self {
            index: message.header.index,
            name: String::new(),
            kind: Kind::Other,
            bridge: None,
            is_up: message.header.flags.contains(LinkFlags::Up),
        };
        let mut is_warrens = false;
        for attribute in &message.attributes {
            if let LinkAttribute::IfName(name) = attribute {
                link.name.clone_from(name);
            } else if let LinkAttribute::Controller(bridge) = attribute {
                link.bridge = Some(*bridge);
            } else if let LinkAttribute::Group(group) = attribute {
                is_warrens = *group == DEVICE_GROUP;
            } else if let LinkAttribute::LinkInfo(info) = attribute {
                link.kind = Kind::of(info);
            }
        }
        // Warren's TUN devices do not count as guests' devices, even as ports of a bridge.
        if is_warrens {
            link.kind = Kind::Other;
        }
        link
    }

    /// Whether guests may be behind the device, judging only by the kind of device.
    pub(crate) fn may_hold_guests(&self) -> bool {
        matches!(self.kind, Kind::Bridge | Kind::Pair) && self.bridge.is_none()
    }
}

impl Kind {
    fn of(info: &[LinkInfo]) -> Self {
        let has = |wanted: &InfoKind| {
            info.iter().any(|info| if let LinkInfo::Kind(kind) = info { kind == wanted } else { false })
        };
        if has(&InfoKind::Bridge) {
            Self::Bridge
        } else if has(&InfoKind::Veth) || has(&InfoKind::Netkit) {
            Self::Pair
        } else if has(&InfoKind::Tun) {
            Self::Tun
        } else {
            Self::Other
        }
    }
}

impl SeenWay {
    /// The devices of a route that leads further than to a private network. None for Warren's own routes.
    pub(crate) fn of(route: &RouteMessage, destination: IpNet) -> Vec<Self> {
        let is_default = destination.prefix_len() == 0;
        let has_gateway = |attributes: &[RouteAttribute]| {
            attributes
                .iter()
                .any(|attribute| matches!(attribute, RouteAttribute::Gateway(_) | RouteAttribute::Via(_)))
        };
        let mut ways = Vec::new();
        if is_private(&destination) || route.header.protocol == RouteProtocol::from(PROTOCOL) {
            return ways;
        }
        for attribute in &route.attributes {
            if let RouteAttribute::Oif(device) = attribute
                // A default route may need no gateway, for example over PPP. Any other route without a gateway reaches only its
                // own link.
                && (is_default || has_gateway(&route.attributes))
            {
                ways.push(Self { device: *device, is_default });
            } else if let RouteAttribute::MultiPath(hops) = attribute {
                let leads = |hop: &&rtnetlink::packet_route::route::RouteNextHop| {
                    is_default || has_gateway(&hop.attributes)
                };
                ways.extend(
                    hops.iter().filter(leads).map(|hop| Self { device: hop.interface_index, is_default }),
                );
            }
        }
        ways
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bridges_and_pairs_of_containers_have_guests_and_the_lan_has_none() {
        let links = [
            link(1, "eth0", Kind::Other, None),
            link(2, "docker0", Kind::Bridge, None),
            link(3, "veth1", Kind::Pair, Some(2)),
            link(4, "virbr0", Kind::Bridge, None),
            link(5, "vnet0", Kind::Tun, Some(4)),
            link(6, "ve-box", Kind::Pair, None),
            // A bridge with a physical port is part of the LAN.
            link(7, "br0", Kind::Bridge, None),
            link(8, "eth1", Kind::Other, Some(7)),
            // Another program's VPN.
            link(9, "tap0", Kind::Tun, None),
            SeenLink { is_up: false, ..link(10, "br-old", Kind::Bridge, None) },
        ];
        let addresses = addresses(&[
            (1, "192.168.1.5/24"),
            (2, "172.17.0.1/16"),
            (2, "fd17::1/64"),
            (2, "fe80::1/64"),
            (4, "192.168.122.1/24"),
            (4, "203.0.113.1/24"),
            (6, "10.0.0.1/28"),
            (7, "192.168.7.1/24"),
            (9, "10.8.0.2/24"),
            (10, "172.18.0.1/16"),
        ]);
        let ways = [SeenWay { device: 1, is_default: true }];

        assert_eq!(
            told(&among(&links, &addresses, &ways)),
            ["docker0 172.17.0.0/16", "docker0 fd17::/64", "ve-box 10.0.0.0/28", "virbr0 192.168.122.0/24"]
        );
    }

    #[test]
    fn device_that_the_internet_is_behind_has_no_guests_whatever_it_is() {
        // A container with one network of its own, and one with two.
        let links = [link(1, "eth0", Kind::Pair, None), link(2, "br0", Kind::Bridge, None)];
        let addresses = addresses(&[(1, "172.17.0.2/16"), (2, "10.0.0.1/24")]);

        for way in [SeenWay { device: 1, is_default: true }, SeenWay { device: 1, is_default: false }] {
            assert_eq!(told(&among(&links, &addresses, &[way])), ["br0 10.0.0.0/24"]);
        }
        let ways = [1, 2].map(|device| SeenWay { device, is_default: true });
        assert!(among(&links, &addresses, &ways).is_empty());
        // While the default route is missing, the device does not count as a guests' device.
        assert_eq!(told(&among(&links, &addresses, &[])), ["br0 10.0.0.0/24"]);
    }

    fn link(index: u32, name: &str, kind: Kind, bridge: Option<u32>) -> SeenLink {
        SeenLink { index, name: name.into(), kind, bridge, is_up: true }
    }

    fn addresses(list: &[(u32, &str)]) -> Vec<(u32, IpNet)> {
        list.iter().map(|(index, address)| (*index, address.parse().unwrap())).collect()
    }

    fn told(guests: &[GuestNetwork]) -> Vec<String> {
        guests.iter().map(|guest| format!("{} {}", guest.device, guest.network)).collect()
    }
}
