//! Rules and routes as the kernel reports them, and which of them bypass a tunnel.

use std::{fmt, net::IpAddr};

use ipnet::IpNet;
use rtnetlink::packet_route::{
    route::{RouteMessage, RouteProtocol, RouteType},
    rule::{RuleAction, RuleAttribute, RuleFlags, RuleMessage},
};

use super::tunnel::Tunnel;
use crate::{
    Family, FirewallMark, PROTOCOL,
    band::Band,
    netlink::{destination, rule_table, table_of},
};

/// The parts of a kernel rule that matter here.
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
    /// Whether the rule selects packets by a property that few packets have, such as a port or a user.
    pub(super) picks: bool,
    /// The rule ignores routes with a prefix of this length or a shorter one.
    pub(super) suppressed: Option<u32>,
    pub(super) is_warrens: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Lookup,
    Goto(u32),
    /// The rule looks up no table, for example with the action `unreachable` or `blackhole`.
    Other,
}

impl SeenRule {
    pub(super) fn of(message: &RuleMessage, family: Family) -> Self {
        let header = &message.header;
        let unset = family.unspecified();
        let network = |length: u8, address: Option<IpAddr>| {
            // The kernel omits the attribute if the address is zero.
            (length > 0).then(|| IpNet::new(address.unwrap_or(unset), length).ok()).flatten()
        };
        let (mut source, mut destination, mut mark, mut mask) = (None, None, None, u32::MAX);
        let mut target = None;
        let mut rule = Self {
            // The kernel omits the attribute if the priority is 0.
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

    /// Whether the rule is one of the rules of the tunnel in `slot`, in any band.
    pub(super) fn is_of(&self, slot: u8) -> bool {
        let is_at = |band: Band| band.priorities(slot).contains(&self.priority);
        self.is_warrens && Band::of(self.priority).is_some_and(is_at)
    }

    /// Whether the rule matches all or many of this host's ordinary packets, which have no mark and are not bound to a device.
    pub(super) fn takes_ordinary(&self, tunnel: &Tunnel) -> bool {
        // Warren's own rules are skipped, because their priorities keep the tunnels apart. The local table
        // leads only to this host.
        if self.is_warrens || self.table == LOCAL_TABLE {
            return false;
        }
        // An unmarked packet has the mark 0.
        let has_its_mark = self.mark.is_none_or(|mark| mark.mark & mark.mask == 0);
        let has_its_source =
            self.source.is_none_or(|source| tunnel.inner.iter().any(|inner| source.contains(inner)));
        // Packets that begin on this host have the loopback device as their input device.
        let has_its_devices =
            self.from_device.as_ref().is_none_or(|device| device == "lo") && self.to_device.is_none();
        // An inverted rule takes every packet that fails at least one of its matches. So it takes some ordinary packets if one of
        // its matches can fail for an ordinary packet.
        if self.inverted {
            return !(has_its_mark && has_its_devices)
                || self.picks
                || self.source.is_some()
                || self.destination.is_some();
        }
        has_its_mark && has_its_source && has_its_devices && !self.picks
    }

    /// Returns the network whose packets `route` takes around the tunnel. `None` if this rule does not use the route, or the
    /// route does not bypass the tunnel.
    ///
    /// In the main table, every route into the tunnel's networks counts, because its routes may come from the local network.
    /// Another table may have routes to its own networks, but must not capture all of the tunnel's traffic.
    pub(super) fn leads_around(&self, route: &SeenRoute, tunnel: &Tunnel) -> Option<IpNet> {
        if route.table != self.table
            || self.suppressed.is_some_and(|length| u32::from(route.destination.prefix_len()) <= length)
        {
            return None;
        }
        // An inverted rule takes all packets except those to its destination.
        let picked = self.destination.filter(|_| !self.inverted);
        let reach = match picked {
            Some(picked) => narrower(picked, route.destination)?,
            None => route.destination,
        };
        // A rule for one destination is treated like one for another table, because somebody chose that destination.
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

/// Whether an attribute makes a rule select packets by user, protocol, port, class or VRF.
fn picks(attribute: &RuleAttribute) -> bool {
    if let RuleAttribute::UidRange(users) = attribute {
        // A range that contains all users does not limit the rule.
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

/// A route through which packets leave this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SeenRoute {
    pub(super) table: u32,
    pub(super) destination: IpNet,
}

impl SeenRoute {
    pub(super) fn of(message: &RouteMessage, family: Family) -> Option<Self> {
        // Routes of other types do not make packets leave this host.
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

/// Returns the intersection of two networks, which is the narrower one. `None` if they do not overlap.
fn narrower(one: IpNet, other: IpNet) -> Option<IpNet> {
    if one.contains(&other) {
        Some(other)
    } else if other.contains(&one) {
        Some(one)
    } else {
        None
    }
}

/// Whether a network is wider than any private one (10.0.0.0/8, fc00::/7). One such network is 128.0.0.0/1, half of
/// all addresses.
fn is_wide(network: &IpNet) -> bool {
    let narrowest = match network {
        IpNet::V4(_) => 7,
        IpNet::V6(_) => 6,
    };
    network.prefix_len() <= narrowest
}

/// RT_TABLE_* from `linux/rtnetlink.h`. The local table has only routes to this host itself.
pub(super) const LOCAL_TABLE: u32 = 255;
pub(super) const MAIN_TABLE: u32 = 254;
pub(super) const DEFAULT_TABLE: u32 = 253;
/// The kernel's value for a rule that suppresses nothing: -1 as an unsigned number.
const NONE_SUPPRESSED: u32 = u32::MAX;
/// FRA_* from `linux/fib_rules.h` for traffic classes, flow labels and masks of ports. The netlink library has no names
/// for them.
const PICKING: std::ops::RangeInclusive<u16> = 25..=31;
