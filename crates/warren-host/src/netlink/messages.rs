//! Reading addresses, routes and rules from netlink messages, and building Warren's own.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use rtnetlink::{
    RouteMessageBuilder,
    packet_route::{
        AddressFamily,
        address::{AddressAttribute, AddressMessage},
        link::{AfSpecInet6, AfSpecUnspec},
        route::{RouteAddress, RouteAttribute, RouteMessage, RouteProtocol, RouteScope, RouteType, RouteVia},
        rule::{RuleAction, RuleAttribute, RuleFlags, RuleMessage},
    },
};

use crate::{Family, PROTOCOL, Route, RouteKind, Rule};

pub(super) fn address_generation(family: &AfSpecUnspec) -> Option<u8> {
    let AfSpecUnspec::Inet6(attributes) = family else { return None };
    attributes.iter().find_map(|attribute| {
        if let AfSpecInet6::AddrGenMode(mode) = attribute { Some(u8::from(mode)) } else { None }
    })
}

pub(super) fn local_address(attribute: &AddressAttribute) -> Option<IpAddr> {
    if let AddressAttribute::Local(address) = attribute { Some(*address) } else { None }
}

pub(super) fn peer_address(attribute: &AddressAttribute) -> Option<IpAddr> {
    if let AddressAttribute::Address(address) = attribute { Some(*address) } else { None }
}

/// Returns the network of an address. For a point-to-point address, this is the peer's address.
pub(crate) fn network_of(message: &AddressMessage) -> Option<IpNet> {
    let own = |wanted: fn(&AddressAttribute) -> Option<IpAddr>| message.attributes.iter().find_map(wanted);
    // If the peer's address differs from the interface's own address, it determines the network.
    let address = own(peer_address).or_else(|| own(local_address))?;
    IpNet::new(address, message.header.prefix_len).ok()
}

/// Makes the message that adds an address, without a broadcast address, because a tunnel needs none.
pub(super) fn address_message(index: u32, address: IpNet) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.family = address_family(Family::of(&address));
    message.header.prefix_len = address.prefix_len();
    message.header.index = index;
    message.attributes =
        vec![AddressAttribute::Local(address.addr()), AddressAttribute::Address(address.addr())];
    message
}

pub(super) fn route_message(route: &Route, index: Option<u32>) -> RouteMessage {
    let length = route.destination.prefix_len();
    let mut message = match route.destination.network() {
        IpAddr::V4(network) => RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(network, length)
            // The scope is not `link`, because the kernel would then accept this route for reaching other routes' gateways.
            .scope(RouteScope::Universe)
            .build(),
        IpAddr::V6(network) => {
            RouteMessageBuilder::<Ipv6Addr>::new().destination_prefix(network, length).build()
        }
    };
    message.header.kind = route_type(route.kind);
    message.header.protocol = RouteProtocol::from(PROTOCOL);
    // The table number is in an attribute, because the header's field is too small for it.
    message.header.table = 0;
    message.attributes.push(RouteAttribute::Table(route.table));
    message.attributes.extend(index.map(RouteAttribute::Oif));
    if route.metric != 0 {
        message.attributes.push(RouteAttribute::Priority(route.metric));
    }
    message
}

pub(super) fn is_route(found: &RouteMessage, route: &Route, index: Option<u32>) -> bool {
    let has = |wanted: &RouteAttribute| found.attributes.contains(wanted);
    let network = match route.destination.network() {
        IpAddr::V4(network) => RouteAddress::Inet(network),
        IpAddr::V6(network) => RouteAddress::Inet6(network),
    };
    found.header.kind == route_type(route.kind)
        && found.header.protocol == RouteProtocol::from(PROTOCOL)
        && table_of(found) == route.table
        && found.header.destination_prefix_length == route.destination.prefix_len()
        // The kernel reports no destination for a default route.
        && (route.destination.prefix_len() == 0 || has(&RouteAttribute::Destination(network)))
        && index.is_none_or(|index| has(&RouteAttribute::Oif(index)))
        // The kernel's own metric differs between IPv4 and IPv6.
        && (route.metric == 0 || has(&RouteAttribute::Priority(route.metric)))
}

fn route_type(kind: RouteKind) -> RouteType {
    match kind {
        RouteKind::Unicast | RouteKind::Guests => RouteType::Unicast,
        RouteKind::Unreachable => RouteType::Unreachable,
        RouteKind::Throw => RouteType::Throw,
    }
}

/// The next hops of a route.
pub(super) fn gateways(attributes: &[RouteAttribute]) -> Vec<IpAddr> {
    let mut gateways = Vec::new();
    for attribute in attributes {
        if let RouteAttribute::Gateway(RouteAddress::Inet(address))
        | RouteAttribute::Via(RouteVia::Inet(address)) = attribute
        {
            gateways.push(IpAddr::V4(*address));
        } else if let RouteAttribute::Gateway(RouteAddress::Inet6(address))
        | RouteAttribute::Via(RouteVia::Inet6(address)) = attribute
        {
            gateways.push(IpAddr::V6(*address));
        } else if let RouteAttribute::MultiPath(hops) = attribute {
            gateways.extend(hops.iter().flat_map(|hop| self::gateways(&hop.attributes)));
        }
    }
    gateways
}

/// The destination of a route.
pub(crate) fn destination(route: &RouteMessage, family: Family) -> Option<IpNet> {
    let address = route.attributes.iter().find_map(|attribute| {
        if let RouteAttribute::Destination(RouteAddress::Inet(address)) = attribute {
            Some(IpAddr::V4(*address))
        } else if let RouteAttribute::Destination(RouteAddress::Inet6(address)) = attribute {
            Some(IpAddr::V6(*address))
        } else {
            None
        }
    });
    IpNet::new(address.unwrap_or(family.unspecified()), route.header.destination_prefix_length).ok()
}

pub(crate) fn table_of(route: &RouteMessage) -> u32 {
    let attribute = route
        .attributes
        .iter()
        .find_map(|attribute| if let RouteAttribute::Table(table) = attribute { Some(*table) } else { None });
    attribute.unwrap_or_else(|| u32::from(route.header.table))
}

/// Returns the table that a rule looks up.
pub(crate) fn rule_table(rule: &RuleMessage) -> u32 {
    let attribute = rule
        .attributes
        .iter()
        .find_map(|attribute| if let RuleAttribute::Table(table) = attribute { Some(*table) } else { None });
    attribute.unwrap_or_else(|| u32::from(rule.header.table))
}

pub(super) fn rule_message(rule: &Rule) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header.family = address_family(rule.family);
    message.header.action = RuleAction::ToTable;
    if rule.invert {
        message.header.flags |= RuleFlags::Invert;
    }
    message.header.src_len = source_length(rule);
    message.attributes = rule_attributes(rule);
    message
}

fn rule_attributes(rule: &Rule) -> Vec<RuleAttribute> {
    let mut attributes = vec![
        RuleAttribute::Priority(rule.priority),
        RuleAttribute::Table(rule.table),
        RuleAttribute::Protocol(RouteProtocol::from(PROTOCOL)),
    ];
    if let Some(fwmark) = rule.fwmark {
        attributes.extend([RuleAttribute::FwMark(fwmark.mark), RuleAttribute::FwMask(fwmark.mask)]);
    }
    attributes.extend(rule.suppress_prefix_length.map(RuleAttribute::SuppressPrefixLen));
    attributes.extend(rule.from.map(RuleAttribute::Source));
    attributes.extend(rule.iif.as_ref().map(|device| RuleAttribute::Iifname(device.to_string())));
    attributes
}

/// The number of bits of the source address that a rule compares.
fn source_length(rule: &Rule) -> u8 {
    rule.from.map_or(0, |address| IpNet::from(address).prefix_len())
}

pub(super) fn is_rule(found: &RuleMessage, rule: &Rule) -> bool {
    found.header.action == RuleAction::ToTable
        && found.header.src_len == source_length(rule)
        && found.header.flags.contains(RuleFlags::Invert) == rule.invert
        // The comparison ignores further attributes that the kernel reports, such as the value for a rule that suppresses
        // nothing.
        && rule_attributes(rule).iter().all(|attribute| found.attributes.contains(attribute))
}

pub(super) fn address_family(family: Family) -> AddressFamily {
    match family {
        Family::Ipv4 => AddressFamily::Inet,
        Family::Ipv6 => AddressFamily::Inet6,
    }
}
