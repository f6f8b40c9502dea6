//! Rules and routes as the kernel has them, and which of them lead around a tunnel.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::IpNet;
use rtnetlink::packet_route::{
    route::{RouteMessage, RouteProtocol, RouteType},
    rule::{RuleAction, RuleAttribute, RuleFlags, RuleMessage},
};

use super::Tunnel;
use crate::{
    Family, FirewallMark, PROTOCOL,
    band::Band,
    netlink::{destination, rule_table, table_of},
};

/// A rule as the kernel has it, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SeenRule {
    pub(super) priority: u32,
    pub(super) inverted: bool,
    pub(super) action: Action,
    pub(super) table: u32,
    pub(super) mark: Option<FirewallMark>,
    pub(super) source: Option<IpNet>,
    pub(super) destination: Option<IpNet>,
    pub(super) from_device: Option<String>,
    pub(super) to_device: Option<String>,
    /// Whether it picks packets out by something that ordinary ones do not have in common.
    pub(super) picks: bool,
    /// Routes with a prefix this long or shorter are passed over.
    pub(super) suppressed: Option<u32>,
    pub(super) is_warrens: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Lookup,
    Goto(u32),
    /// Nothing of it leads anywhere.
    Other,
}

impl SeenRule {
    pub(super) fn of(message: &RuleMessage, family: Family) -> Self {
        let header = &message.header;
        let unset = match family {
            Family::Ipv4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            Family::Ipv6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let network = |length: u8, address: Option<IpAddr>| {
            (length > 0).then(|| IpNet::new(address.unwrap_or(unset), length).ok()).flatten()
        };
        let (mut source, mut destination, mut mark, mut mask) = (None, None, None, u32::MAX);
        let mut target = None;
        let mut rule = Self {
            priority: 0,
            inverted: header.flags.contains(RuleFlags::Invert),
            action: Action::Other,
            table: rule_table(message),
            mark: None,
            source: None,
            destination: None,
            from_device: None,
            to_device: None,
            picks: header.tos != 0,
            suppressed: None,
            is_warrens: false,
        };
        for attribute in &message.attributes {
            if let RuleAttribute::Priority(priority) = attribute {
                rule.priority = *priority;
            } else if let RuleAttribute::Source(address) = attribute {
                source = Some(*address);
            } else if let RuleAttribute::Destination(address) = attribute {
                destination = Some(*address);
            } else if let RuleAttribute::FwMark(value) = attribute {
                mark = Some(*value);
            } else if let RuleAttribute::FwMask(value) = attribute {
                mask = *value;
            } else if let RuleAttribute::Iifname(device) = attribute {
                rule.from_device = Some(device.clone());
            } else if let RuleAttribute::Oifname(device) = attribute {
                rule.to_device = Some(device.clone());
            } else if let RuleAttribute::Goto(priority) = attribute {
                target = Some(*priority);
            } else if let RuleAttribute::SuppressPrefixLen(length) = attribute {
                rule.suppressed = Some(*length).filter(|length| *length != NONE_SUPPRESSED);
            } else if let RuleAttribute::Protocol(protocol) = attribute {
                rule.is_warrens = *protocol == RouteProtocol::from(PROTOCOL);
            } else {
                rule.picks |= picks(attribute);
            }
        }
        rule.source = network(header.src_len, source);
        rule.destination = network(header.dst_len, destination);
        rule.mark = mark.map(|mark| FirewallMark { mark, mask });
        rule.action = match (header.action, target) {
            (RuleAction::ToTable, _) => Action::Lookup,
            (RuleAction::Goto, Some(target)) => Action::Goto(target),
            _ => Action::Other,
        };
        rule
    }

    /// Whether it is one of the rules of the tunnel in `slot`, in whichever band.
    pub(super) fn is_of(&self, slot: u8) -> bool {
        let is_at = |band: Band| band.priorities(slot).contains(&self.priority);
        self.is_warrens && Band::of(self.priority).is_some_and(is_at)
    }

    /// Whether it applies to what this host sends with no mark and no device of its own, or to a good part of it.
    pub(super) fn takes_ordinary(&self, tunnel: &Tunnel) -> bool {
        if self.is_warrens || self.table == LOCAL_TABLE {
            return false;
        }
        // Without a mark is with the mark 0.
        let has_its_mark = self.mark.is_none_or(|mark| mark.mark & mark.mask == 0);
        let has_its_source =
            self.source.is_none_or(|source| tunnel.inner.iter().any(|inner| source.contains(inner)));
        // What begins on this host comes from its loopback device.
        let has_its_devices =
            self.from_device.as_ref().is_none_or(|device| device == "lo") && self.to_device.is_none();
        if self.inverted {
            return !(has_its_mark && has_its_devices)
                || self.picks
                || self.source.is_some()
                || self.destination.is_some();
        }
        has_its_mark && has_its_source && has_its_devices && !self.picks
    }

    /// The network that one of its table's routes leads around the tunnel, if it does.
    ///
    /// The main table is everybody's: what stands there may come from the local network. A table of somebody's own may have
    /// networks of its own, but not all of what the tunnel carries.
    pub(super) fn leads_around(&self, route: &SeenRoute, tunnel: &Tunnel) -> Option<IpNet> {
        if route.table != self.table
            || self.suppressed.is_some_and(|length| u32::from(route.destination.prefix_len()) <= length)
        {
            return None;
        }
        let picked = self.destination.filter(|_| !self.inverted);
        let reach = match picked {
            Some(picked) => narrower(picked, route.destination)?,
            None => route.destination,
        };
        let is_anybodys = self.table == MAIN_TABLE && picked.is_none();
        let is_taken = tunnel.include.iter().any(|network| {
            narrower(*network, reach).is_some() && (is_anybodys || is_wide(&reach) || reach.contains(network))
        });
        let is_excluded = tunnel.exclude.iter().any(|excluded| excluded.contains(&reach));
        (is_taken && !is_excluded).then_some(reach)
    }
}

impl fmt::Display for SeenRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.priority)?;
        if self.inverted {
            f.write_str(" not")?;
        }
        match self.source {
            Some(source) => write!(f, " from {source}")?,
            None => f.write_str(" from all")?,
        }
        if let Some(destination) = self.destination {
            write!(f, " to {destination}")?;
        }
        if let Some(FirewallMark { mark, mask }) = self.mark {
            write!(f, " fwmark {mark:#x}")?;
            if mask != u32::MAX {
                write!(f, "/{mask:#x}")?;
            }
        }
        for (word, device) in [("iif", &self.from_device), ("oif", &self.to_device)] {
            if let Some(device) = device {
                write!(f, " {word} {device}")?;
            }
        }
        match (self.action, self.table) {
            (Action::Goto(target), _) => write!(f, " goto {target}"),
            (_, MAIN_TABLE) => f.write_str(" lookup main"),
            (_, DEFAULT_TABLE) => f.write_str(" lookup default"),
            (_, table) => write!(f, " lookup {table}"),
        }?;
        match self.suppressed {
            Some(length) => write!(f, " suppress_prefixlength {length}"),
            None => Ok(()),
        }
    }
}

/// Whether an attribute makes a rule pick packets out by their user, protocol, port, class or VRF.
fn picks(attribute: &RuleAttribute) -> bool {
    if let RuleAttribute::UidRange(users) = attribute {
        return (users.start, users.end) != (0, u32::MAX);
    }
    if let RuleAttribute::Other(other) = attribute {
        return PICKING.contains(&rtnetlink::packet_core::Nla::kind(other));
    }
    matches!(
        attribute,
        RuleAttribute::TunId(_)
            | RuleAttribute::L3MDev(true)
            | RuleAttribute::IpProtocol(_)
            | RuleAttribute::SourcePortRange(_)
            | RuleAttribute::DestinationPortRange(_)
    )
}

/// A route by which packets leave this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SeenRoute {
    pub(super) table: u32,
    pub(super) destination: IpNet,
}

impl SeenRoute {
    pub(super) fn of(message: &RouteMessage, family: Family) -> Option<Self> {
        if message.header.kind != RouteType::Unicast
            || message.header.protocol == RouteProtocol::from(PROTOCOL)
        {
            return None;
        }
        let destination = destination(message, family)?;
        let stays_on_the_link = match destination.addr() {
            IpAddr::V4(address) => address.is_multicast(),
            IpAddr::V6(address) => address.is_unicast_link_local() || address.is_multicast(),
        };
        (!stays_on_the_link).then(|| Self { table: table_of(message), destination })
    }
}

/// The part that two networks have in common: one of them, if anything.
fn narrower(one: IpNet, other: IpNet) -> Option<IpNet> {
    if one.contains(&other) {
        Some(other)
    } else if other.contains(&one) {
        Some(one)
    } else {
        None
    }
}

/// Whether a network is wider than any that is somebody's own (10.0.0.0/8, fc00::/7): halves of everything, for one.
fn is_wide(network: &IpNet) -> bool {
    let narrowest = match network {
        IpNet::V4(_) => 7,
        IpNet::V6(_) => 6,
    };
    network.prefix_len() <= narrowest
}

/// RT_TABLE_* of `linux/rtnetlink.h`. Packets to this host itself, and nothing else, are in the local table.
pub(super) const LOCAL_TABLE: u32 = 255;
pub(super) const MAIN_TABLE: u32 = 254;
pub(super) const DEFAULT_TABLE: u32 = 253;
/// What the kernel says for a rule that suppresses nothing, which is -1 as an unsigned number.
const NONE_SUPPRESSED: u32 = u32::MAX;
/// FRA_* of `linux/fib_rules.h` for traffic classes, flow labels and masks of ports.
const PICKING: std::ops::RangeInclusive<u16> = 25..=31;
