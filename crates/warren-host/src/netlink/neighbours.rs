//! The host's connection to the internet: the default route, its device and its router.

use std::{io, net::IpAddr};

use futures_util::TryStreamExt;
use ipnet::IpNet;
use rtnetlink::packet_route::{
    address::AddressMessage,
    link::{LinkAttribute, LinkFlags},
    neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState},
    route::{RouteAttribute, RouteMessage, RouteProtocol, RouteType},
};

use super::{Netlink, address_family, destination, errno, first, gateways, network_of, table_of};
use crate::{DeviceName, Family, PROTOCOL, current_network::HardwareAddress, routing_tables};

/// A default route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DefaultWay {
    /// The index of its device.
    pub(crate) device: u32,
    /// The route's gateway. `None` if the route has no gateway, or several.
    pub(crate) router: Option<IpAddr>,
}

impl Netlink {
    /// The default route in the main table with the lowest metric, other than Warren's.
    pub(crate) async fn default_way(&self, family: Family) -> io::Result<Option<DefaultWay>> {
        let routes = self.routes(family).await?;
        let is_candidate = |route: &&RouteMessage| {
            table_of(route) == routing_tables::MAIN
                && route.header.kind == RouteType::Unicast
                && route.header.protocol != RouteProtocol::from(PROTOCOL)
                && destination(route, family).is_some_and(|network| network.prefix_len() == 0)
        };
        let best = routes.iter().filter(is_candidate).min_by_key(|route| metric(route));
        Ok(best.map(|route| DefaultWay {
            // A route with several next hops has no device of its own, so its device is unknown.
            device: device(route).unwrap_or(0),
            router: match gateways(&route.attributes).as_slice() {
                [one] => Some(*one),
                _ => None,
            },
        }))
    }

    /// The name and the networks of a device that has a carrier, without link-local ones.
    pub(crate) async fn connected(&self, index: u32) -> io::Result<Option<(DeviceName, Vec<IpNet>)>> {
        if index == 0 {
            return Ok(None);
        }
        let link = match first(self.handle.link().get().match_index(index).execute()).await {
            // The device has just disappeared.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error()) => None,
            found => found?,
        };
        let has_carrier = LinkFlags::Up | LinkFlags::LowerUp;
        let Some(link) = link.filter(|link| link.header.flags.contains(has_carrier)) else {
            return Ok(None);
        };
        let name = link.attributes.iter().find_map(|attribute| {
            if let LinkAttribute::IfName(name) = attribute { DeviceName::new(name).ok() } else { None }
        });
        let addresses = self.handle.address().get().set_link_index_filter(index).execute();
        let addresses: Vec<AddressMessage> = addresses.try_collect().await.map_err(errno)?;
        let is_link_local = |network: &IpNet| match network {
            IpNet::V4(network) => network.addr().is_link_local(),
            IpNet::V6(network) => network.addr().is_unicast_link_local(),
        };
        let networks =
            addresses.iter().filter_map(network_of).filter(|network| !is_link_local(network)).collect();
        Ok(name.map(|name| (name, networks)))
    }

    /// The hardware address of a neighbour, if it is known, and whether the neighbour has answered lately.
    pub(crate) async fn neighbour(
        &self,
        device: u32,
        address: IpAddr,
    ) -> io::Result<Option<(Option<HardwareAddress>, bool)>> {
        let family = if address.is_ipv4() { Family::Ipv4 } else { Family::Ipv6 };
        let all = self.handle.neighbours().get().set_address_family(address_family(family)).execute();
        let all: Vec<NeighbourMessage> = all.try_collect().await.map_err(errno)?;
        let is_it = |message: &&NeighbourMessage| {
            message.header.ifindex == device && its_address(message) == Some(address)
        };
        Ok(all.iter().find(is_it).map(|message| {
            let state = message.header.state;
            let has_failed = matches!(state, NeighbourState::Failed | NeighbourState::Incomplete);
            let hardware = message.attributes.iter().find_map(|attribute| {
                if let NeighbourAttribute::LinkLayerAddress(bytes) = attribute {
                    HardwareAddress::of(bytes)
                } else {
                    None
                }
            });
            let is_confirmed = matches!(state, NeighbourState::Reachable | NeighbourState::Permanent);
            (hardware.filter(|_| !has_failed), is_confirmed)
        }))
    }

    /// Makes the kernel find out or confirm a neighbour's hardware address, as it does before it sends a packet to
    /// the neighbour.
    pub(crate) async fn ask_neighbour(&self, device: u32, address: IpAddr) -> io::Result<()> {
        let request = self.handle.neighbours().add(device, address).replace();
        let request = request.state(NeighbourState::None).flags(NeighbourFlags::Use);
        request.execute().await.map_err(errno)
    }
}

fn metric(route: &RouteMessage) -> u32 {
    let priority = route.attributes.iter().find_map(|attribute| {
        if let RouteAttribute::Priority(priority) = attribute { Some(*priority) } else { None }
    });
    priority.unwrap_or(0)
}

fn device(route: &RouteMessage) -> Option<u32> {
    route
        .attributes
        .iter()
        .find_map(|attribute| if let RouteAttribute::Oif(index) = attribute { Some(*index) } else { None })
}

fn its_address(message: &NeighbourMessage) -> Option<IpAddr> {
    message.attributes.iter().find_map(|attribute| {
        if let NeighbourAttribute::Destination(NeighbourAddress::Inet(address)) = attribute {
            Some(IpAddr::V4(*address))
        } else if let NeighbourAttribute::Destination(NeighbourAddress::Inet6(address)) = attribute {
            Some(IpAddr::V6(*address))
        } else {
            None
        }
    })
}
