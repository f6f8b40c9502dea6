//! Addresses, links, routes and rules through rtnetlink. Every error is the kernel's errno.

mod messages;
mod neighbours;

use std::{future::ready, io, net::IpAddr};

use futures_util::{Stream, StreamExt, TryStreamExt};
use ipnet::IpNet;
use rtnetlink::{
    Handle, IpVersion, LinkGetRequest, LinkUnspec,
    packet_route::{
        AddressFamily,
        address::{AddressAttribute, AddressFlags, AddressMessage},
        link::{AfSpecInet6, AfSpecUnspec, LinkAttribute, LinkExtentMask, LinkFlags, LinkMessage},
        route::{RouteFlags, RouteMessage},
        rule::{RuleAttribute, RuleMessage},
    },
};
use tokio::task::JoinHandle;

use self::messages::{
    address_family, address_generation, address_message, gateways, is_route, is_rule, local_address,
    peer_address, route_message, rule_message,
};
pub(crate) use self::messages::{destination, network_of, rule_table, table_of};
use crate::{
    DEVICE_GROUP, DeviceName, Family, GuestNetwork, Route, Rule,
    guests::{self, SeenLink, SeenWay},
    own_addresses::{OutsideLink, OwnAddresses},
    private_networks::is_private,
    surroundings::Observer,
};

/// A netlink socket in the network namespace of the thread that opened it.
#[derive(Debug)]
pub(crate) struct Netlink {
    handle: Handle,
    connection: JoinHandle<()>,
}

/// The state of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) index: u32,
    pub(crate) mtu: u32,
    pub(crate) is_up: bool,
    /// How the kernel generates the device's link-local address (`addr_gen_mode`). `None` without IPv6.
    pub(crate) address_generation: Option<u8>,
    pub(crate) group: u32,
}

/// Changes to a device. A property that is `None` stays as it is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LinkChange {
    pub(crate) up: Option<bool>,
    pub(crate) mtu: Option<u32>,
    pub(crate) address_generation: Option<u8>,
    pub(crate) group: Option<u32>,
}

impl Netlink {
    /// Opens the socket. The returned value owns the task that serves the socket. Call this within a tokio runtime.
    pub(crate) fn open() -> io::Result<Self> {
        // The socket is in no multicast group, so it receives no unsolicited messages.
        let (connection, handle, _unsolicited) = rtnetlink::new_connection()?;
        Ok(Self { handle, connection: tokio::spawn(connection) })
    }

    /// The device called `name`, if there is one.
    pub(crate) async fn link(&self, name: &DeviceName) -> io::Result<Option<Link>> {
        let request = self.look_at_links().match_name(name.as_str()).execute();
        let message = match first(request).await {
            // The kernel answers with this error if the device does not exist.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error()) => {
                return Ok(None);
            }
            found => found?,
        };
        let Some(message) = message else { return Ok(None) };
        let mut link = Link {
            index: message.header.index,
            mtu: 0,
            is_up: message.header.flags.contains(LinkFlags::Up),
            address_generation: None,
            group: 0,
        };
        for attribute in message.attributes {
            if let LinkAttribute::Mtu(mtu) = attribute {
                link.mtu = mtu;
            } else if let LinkAttribute::Group(group) = attribute {
                link.group = group;
            } else if let LinkAttribute::AfSpecUnspec(families) = attribute {
                link.address_generation = families.iter().find_map(address_generation);
            }
        }
        Ok(Some(link))
    }

    /// Requests devices without their counters, which would be most of the kernel's answer.
    fn look_at_links(&self) -> LinkGetRequest {
        self.handle.link().get().set_filter_mask(AddressFamily::Unspec, vec![LinkExtentMask::SkipStats])
    }

    async fn links(&self) -> io::Result<Vec<LinkMessage>> {
        self.look_at_links().execute().try_collect().await.map_err(errno)
    }

    /// The name of the device with an index, if there is one.
    pub(crate) async fn name(&self, index: u32) -> io::Result<Option<DeviceName>> {
        let message = match first(self.look_at_links().match_index(index).execute()).await {
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error()) => None,
            found => found?,
        };
        let mut names = message.into_iter().flat_map(|message| message.attributes).filter_map(|attribute| {
            if let LinkAttribute::IfName(name) = attribute { DeviceName::new(name).ok() } else { None }
        });
        Ok(names.next())
    }

    pub(crate) async fn set_link(&self, index: u32, change: LinkChange) -> io::Result<()> {
        let mut message = LinkUnspec::new_with_index(index);
        if let Some(mtu) = change.mtu {
            message = message.mtu(mtu);
        }
        if let Some(up) = change.up {
            message = if up { message.up() } else { message.down() };
        }
        if let Some(mode) = change.address_generation {
            let ipv6 = AfSpecUnspec::Inet6(vec![AfSpecInet6::AddrGenMode(mode.into())]);
            message = message.append_extra_attribute(LinkAttribute::AfSpecUnspec(vec![ipv6]));
        }
        if let Some(group) = change.group {
            message = message.append_extra_attribute(LinkAttribute::Group(group));
        }
        self.handle.link().set(message.build()).execute().await.map_err(errno)
    }

    /// Whether the device has exactly this address.
    pub(crate) async fn has_address(&self, index: u32, address: IpNet) -> io::Result<bool> {
        let addresses = self.handle.address().get().set_link_index_filter(index).execute();
        let addresses: Vec<AddressMessage> = addresses.try_collect().await.map_err(errno)?;
        Ok(addresses.iter().any(|message| {
            // If the message has both IFA_LOCAL and IFA_ADDRESS, IFA_LOCAL is this host's address.
            let own =
                |wanted: fn(&AddressAttribute) -> Option<IpAddr>| message.attributes.iter().find_map(wanted);
            let local = own(local_address).or_else(|| own(peer_address));
            message.header.prefix_len == address.prefix_len() && local == Some(address.addr())
        }))
    }

    /// The private networks that this host is directly connected to, other than by a Warren tunnel.
    pub(crate) async fn private_networks(&self) -> io::Result<Vec<IpNet>> {
        let mut networks = self.networks().await?;
        networks.retain(is_private);
        Ok(networks)
    }

    /// The networks that this host is directly connected to, other than by a Warren tunnel.
    pub(crate) async fn networks(&self) -> io::Result<Vec<IpNet>> {
        let links = self.links().await?;
        let ours = LinkAttribute::Group(DEVICE_GROUP);
        let tunnels: Vec<u32> = links
            .iter()
            .filter(|link| link.attributes.contains(&ours) || link.header.flags.contains(LinkFlags::Loopback))
            .map(|link| link.header.index)
            .collect();
        let addresses = self.handle.address().get().execute();
        let addresses: Vec<AddressMessage> = addresses.try_collect().await.map_err(errno)?;
        let mut networks: Vec<IpNet> = addresses
            .iter()
            .filter(|message| !tunnels.contains(&message.header.index))
            .filter_map(network_of)
            .map(|network| network.trunc())
            .collect();
        // A device often has several addresses in one network.
        networks.sort_unstable();
        networks.dedup();
        Ok(networks)
    }

    /// Lists the networks of containers and virtual machines on this host. Reads routes only if some device may lead to such a
    /// network.
    pub(crate) async fn guest_networks(&self) -> io::Result<Vec<GuestNetwork>> {
        let links = self.links().await?;
        let links: Vec<SeenLink> = links.iter().map(SeenLink::of).collect();
        if !links.iter().any(SeenLink::may_hold_guests) {
            return Ok(Vec::new());
        }
        let addresses = self.handle.address().get().execute();
        let addresses: Vec<AddressMessage> = addresses.try_collect().await.map_err(errno)?;
        let network = |message: &AddressMessage| {
            let address = message.attributes.iter().find_map(local_address);
            let address = address.or_else(|| message.attributes.iter().find_map(peer_address))?;
            Some((message.header.index, IpNet::new(address, message.header.prefix_len).ok()?))
        };
        let addresses: Vec<(u32, IpNet)> = addresses.iter().filter_map(network).collect();
        let mut ways = Vec::new();
        for family in [Family::Ipv4, Family::Ipv6] {
            for route in self.routes(family).await? {
                ways.extend(destination(&route, family).iter().flat_map(|to| SeenWay::of(&route, *to)));
            }
        }
        Ok(guests::among(&links, &addresses, &ways))
    }

    /// The devices other than Warren's tunnels and the loopback device, with their addresses except the link-local
    /// ones.
    pub(crate) async fn outside_links(&self) -> io::Result<Vec<OutsideLink>> {
        let links = self.links().await?;
        let addresses = self.handle.address().get().execute();
        let addresses: Vec<AddressMessage> = addresses.try_collect().await.map_err(errno)?;
        let ours = LinkAttribute::Group(DEVICE_GROUP);
        let is_outside = |link: &&LinkMessage| {
            !link.attributes.contains(&ours) && !link.header.flags.contains(LinkFlags::Loopback)
        };
        let of = |link: &LinkMessage| {
            let name = link.attributes.iter().find_map(|attribute| {
                if let LinkAttribute::IfName(name) = attribute { Some(name.clone()) } else { None }
            });
            let its = addresses.iter().filter(|message| message.header.index == link.header.index);
            let own = its.filter_map(|message| {
                let own = |wanted: fn(&AddressAttribute) -> Option<IpAddr>| {
                    message.attributes.iter().find_map(wanted)
                };
                own(local_address).or_else(|| own(peer_address))
            });
            let is_link_local = |address: &IpAddr| match address {
                IpAddr::V4(address) => address.is_link_local(),
                IpAddr::V6(address) => address.is_unicast_link_local(),
            };
            OutsideLink {
                name: name.unwrap_or_default(),
                has_carrier: link.header.flags.contains(LinkFlags::Up | LinkFlags::LowerUp),
                addresses: own.filter(|address| !is_link_local(address)).collect(),
            }
        };
        Ok(links.iter().filter(is_outside).map(of).collect())
    }

    /// The networks and devices around an exit whose own device is `tun`. Routes are processed one by one as they arrive, because
    /// a router may have a million.
    pub(crate) async fn observe(&self, tun: &DeviceName) -> io::Result<Observer> {
        let links = self.links().await?;
        let mut observer = Observer::new(&links, tun);
        let addresses = self.handle.address().get().execute();
        let addresses: Vec<AddressMessage> = addresses.try_collect().await.map_err(errno)?;
        addresses.iter().for_each(|message| observer.address(message));
        for family in [Family::Ipv4, Family::Ipv6] {
            let mut request = RouteMessage::default();
            request.header.address_family = address_family(family);
            let mut routes = std::pin::pin!(self.handle.route().get(request).execute());
            while let Some(route) = routes.try_next().await.map_err(errno)? {
                if !is_cached(&route) {
                    observer.route(&route, family);
                }
            }
        }
        Ok(observer)
    }

    /// Lists this host's addresses and the gateways of its routes.
    pub(crate) async fn own_addresses(&self) -> io::Result<OwnAddresses> {
        let links = self.links().await?;
        let ours = LinkAttribute::Group(DEVICE_GROUP);
        let tunnels = links.iter().filter(|link| link.attributes.contains(&ours));
        let tunnels: Vec<u32> = tunnels.map(|link| link.header.index).collect();
        let addresses = self.handle.address().get().execute();
        let addresses: Vec<AddressMessage> = addresses.try_collect().await.map_err(errno)?;
        let mut own = OwnAddresses::default();
        for message in &addresses {
            let address = message.attributes.iter().find_map(local_address);
            let address = address.or_else(|| message.attributes.iter().find_map(peer_address));
            let is_tunnel = tunnels.contains(&message.header.index);
            if is_tunnel { &mut own.of_tunnels } else { &mut own.outside }.extend(address);
        }
        for family in [Family::Ipv4, Family::Ipv6] {
            own.gateways
                .extend(self.routes(family).await?.iter().flat_map(|route| gateways(&route.attributes)));
        }
        own.gateways.sort_unstable();
        own.gateways.dedup();
        Ok(own)
    }

    pub(crate) async fn add_address(&self, index: u32, address: IpNet) -> io::Result<()> {
        let mut request = self.handle.address().add(index, address.addr(), address.prefix_len());
        *request.message_mut() = address_message(index, address);
        // Duplicate address detection is turned off, because no other host can have the address.
        if matches!(address, IpNet::V6(_)) {
            request.message_mut().attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
        }
        request.execute().await.map_err(errno)
    }

    pub(crate) async fn delete_address(&self, index: u32, address: IpNet) -> io::Result<()> {
        self.handle.address().del(address_message(index, address)).execute().await.map_err(errno)
    }

    /// Whether the route exists with Warren's protocol number.
    pub(crate) async fn has_route(&self, route: &Route, index: Option<u32>) -> io::Result<bool> {
        Ok(self
            .routes(Family::of(&route.destination))
            .await?
            .iter()
            .any(|found| is_route(found, route, index)))
    }

    pub(crate) async fn routes(&self, family: Family) -> io::Result<Vec<RouteMessage>> {
        let mut request = RouteMessage::default();
        request.header.address_family = address_family(family);
        let routes = self.handle.route().get(request).execute();
        routes.try_filter(|route| ready(!is_cached(route))).try_collect().await.map_err(errno)
    }

    pub(crate) async fn add_route(&self, route: &Route, index: Option<u32>) -> io::Result<()> {
        self.handle.route().add(route_message(route, index)).execute().await.map_err(errno)
    }

    /// Makes a route, replacing one with the same destination, table and metric if there is one.
    pub(crate) async fn replace_route(&self, route: &Route, index: Option<u32>) -> io::Result<()> {
        self.handle.route().add(route_message(route, index)).replace().execute().await.map_err(errno)
    }

    pub(crate) async fn delete_route(&self, route: &Route, index: Option<u32>) -> io::Result<()> {
        self.handle.route().del(route_message(route, index)).execute().await.map_err(errno)
    }

    /// Whether the rule exists with Warren's protocol number.
    pub(crate) async fn has_rule(&self, rule: &Rule) -> io::Result<bool> {
        Ok(self.rules(rule.family).await?.iter().any(|found| is_rule(found, rule)))
    }

    /// Whether any rule has one of the priorities, or any rule or route uses the table.
    pub(crate) async fn is_used(&self, family: Family, priorities: [u32; 3], table: u32) -> io::Result<bool> {
        let mut taken = priorities.map(RuleAttribute::Priority).to_vec();
        taken.push(RuleAttribute::Table(table));
        let rules = self.rules(family).await?;
        if rules.iter().any(|rule| taken.iter().any(|attribute| rule.attributes.contains(attribute))) {
            return Ok(true);
        }
        Ok(self.routes(family).await?.iter().any(|route| table_of(route) == table))
    }

    pub(crate) async fn rules(&self, family: Family) -> io::Result<Vec<RuleMessage>> {
        let version = match family {
            Family::Ipv4 => IpVersion::V4,
            Family::Ipv6 => IpVersion::V6,
        };
        self.handle.rule().get(version).execute().try_collect().await.map_err(errno)
    }

    pub(crate) async fn add_rule(&self, rule: &Rule) -> io::Result<()> {
        let mut request = self.handle.rule().add();
        *request.message_mut() = rule_message(rule);
        request.execute().await.map_err(errno)
    }

    pub(crate) async fn delete_rule(&self, rule: &Rule) -> io::Result<()> {
        self.handle.rule().del(rule_message(rule)).execute().await.map_err(errno)
    }
}

impl Drop for Netlink {
    fn drop(&mut self) {
        // The task must be aborted, because dropping a JoinHandle does not end its task.
        self.connection.abort();
    }
}

/// Whether a route is the kernel's cached exception for one destination, such as a path MTU. Such an entry is no configured
/// route: anybody can cause it with an ICMP error.
fn is_cached(route: &RouteMessage) -> bool {
    route.header.flags.contains(RouteFlags::Cloned)
}

async fn first<T>(stream: impl Stream<Item = Result<T, rtnetlink::Error>>) -> io::Result<Option<T>> {
    std::pin::pin!(stream).next().await.transpose().map_err(errno)
}

/// The kernel's error, without the request that caused it.
fn errno(error: rtnetlink::Error) -> io::Error {
    if let rtnetlink::Error::NetlinkError(message) = error {
        message.to_io()
    } else {
        io::Error::other(error)
    }
}
