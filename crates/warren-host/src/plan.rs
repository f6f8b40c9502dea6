//! The changes to make on the host, as data.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::{DeviceName, PROTOCOL, TableFamily, sysctl::IPV6_FORWARDING};

/// Steps in the order in which they are made. They are undone in reverse.
///
/// `Display` prints each step as the command that a person would type for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The steps in order.
    pub steps: Vec<Step>,
}

/// A change to the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Adds an address to a device.
    Address {
        /// The device that gets the address.
        device: DeviceName,
        /// The address with its prefix length.
        address: IpNet,
    },
    /// Sets a device's MTU and brings it up without a link-local address, so that the kernel sends no router
    /// solicitations or multicast reports of its own through it.
    LinkUp {
        /// The device to bring up.
        device: DeviceName,
        /// Maximum size of a packet in bytes.
        mtu: u16,
        /// The device group that it joins, if any.
        group: Option<u32>,
    },
    /// Adds a route.
    Route(Route),
    /// Adds a policy rule.
    Rule(Rule),
    /// Writes a kernel setting. A setting of a device that has vanished is skipped.
    Sysctl {
        /// The name in the syntax of sysctl(8). A dot inside a device's name is written as a slash.
        key: String,
        /// The value to write.
        value: String,
    },
    /// Turns on IPv6 forwarding for every device, and leaves each device's own setting as it is. So a device that
    /// takes router advertisements keeps taking them.
    ForwardIpv6,
    /// Makes an nftables table of Warren's own, which must not exist yet. A table of family `arp` is skipped if the kernel does
    /// not support this family.
    Nftables {
        /// The packets that the table filters.
        family: TableFamily,
        /// The table's name.
        table: String,
        /// The table's chains in the syntax of nft(8), without the surrounding `table { }`.
        ruleset: String,
        /// Whether the table is deleted when this process ends, and cannot be flushed by others.
        owned: bool,
    },
}

/// A route in one of Warren's own tables.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// The route's destination.
    pub destination: IpNet,
    /// The device by which packets leave. Only [`RouteKind::Unicast`] and [`RouteKind::Guests`] have one.
    pub device: Option<DeviceName>,
    /// The number of the routing table.
    pub table: u32,
    /// The route's effect.
    pub kind: RouteKind,
    /// The route's metric. 0 means the kernel's default.
    pub metric: u32,
}

/// The effect of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RouteKind {
    /// Packets leave by the route's device.
    Unicast,
    /// Packets are rejected at once with an ICMP error, so that applications fail fast.
    Unreachable,
    /// The lookup in this table ends, and the next rule decides.
    Throw,
    /// Packets leave by the route's device, which belongs to containers or virtual machines. The device, and with it the route,
    /// may disappear and return at any time.
    Guests,
}

/// A policy rule that sends packets to a routing table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// The IP version that it applies to.
    pub family: Family,
    /// The rule's priority. The kernel evaluates rules with lower values first. The rule for `main` has 32766.
    pub priority: u32,
    /// The firewall mark that it matches.
    pub fwmark: Option<FirewallMark>,
    /// Whether the rule applies to the packets that do not match instead of those that do.
    pub invert: bool,
    /// The table to look up.
    pub table: u32,
    /// A route in the table is ignored if its prefix length is at most this.
    pub suppress_prefix_length: Option<u32>,
    /// The source address that packets must have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<IpAddr>,
    /// The device that packets must have arrived on.
    pub iif: Option<DeviceName>,
}

/// An IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// IP version 4.
    Ipv4,
    /// IP version 6.
    Ipv6,
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ipv4 => "IPv4",
            Self::Ipv6 => "IPv6",
        })
    }
}

/// A firewall mark and a mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirewallMark {
    /// The mark's value.
    pub mark: u32,
    /// The bits that are compared.
    pub mask: u32,
}

impl Step {
    /// The step as one line of text.
    pub(crate) fn summary(&self) -> String {
        match self {
            Self::Nftables { family, table, .. } => format!("nft add table {family} {table}"),
            Self::Address { .. }
            | Self::LinkUp { .. }
            | Self::Route(_)
            | Self::Rule(_)
            | Self::Sysctl { .. }
            | Self::ForwardIpv6 => self.to_string(),
        }
    }
}

impl Step {
    /// Whether the kernel holds only one of the two, so that `other` replaces this step.
    pub(crate) fn is_replaced_by(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Route(one), Self::Route(other)) => {
                (one.destination, one.table, one.metric) == (other.destination, other.table, other.metric)
            }
            (Self::LinkUp { device: one, .. }, Self::LinkUp { device: other, .. }) => one == other,
            (Self::Sysctl { key: one, .. }, Self::Sysctl { key: other, .. }) => one == other,
            (
                Self::Nftables { family, table, .. },
                Self::Nftables { family: other_family, table: other, .. },
            ) => (family, table) == (other_family, other),
            _ => self == other,
        }
    }

    /// The name and rules of a table that a process owns.
    pub(crate) fn owned_rules(&self) -> Option<(&str, &str)> {
        match self {
            Self::Nftables { family: TableFamily::Inet, table, ruleset, owned: true } => {
                Some((table, ruleset))
            }
            Self::Nftables { .. }
            | Self::Address { .. }
            | Self::LinkUp { .. }
            | Self::Route(_)
            | Self::Rule(_)
            | Self::Sysctl { .. }
            | Self::ForwardIpv6 => None,
        }
    }

    /// Whether the step can be undone while the rest of its plan stays.
    pub(crate) fn stands_alone(&self) -> bool {
        match self {
            Self::Address { .. } | Self::Route(_) | Self::Rule(_) | Self::Nftables { .. } => true,
            Self::LinkUp { .. } | Self::Sysctl { .. } | Self::ForwardIpv6 => false,
        }
    }
}

impl Family {
    /// The family of `network`.
    pub fn of(network: &IpNet) -> Self {
        match network {
            IpNet::V4(_) => Self::Ipv4,
            IpNet::V6(_) => Self::Ipv6,
        }
    }

    /// nft's keyword for this family's headers.
    pub(crate) fn keyword(self) -> &'static str {
        match self {
            Self::Ipv4 => "ip",
            Self::Ipv6 => "ip6",
        }
    }

    /// The address whose bits are all 0.
    pub(crate) fn unspecified(self) -> IpAddr {
        match self {
            Self::Ipv4 => Ipv4Addr::UNSPECIFIED.into(),
            Self::Ipv6 => Ipv6Addr::UNSPECIFIED.into(),
        }
    }

    /// The option of ip(8) that selects this family.
    pub(crate) fn option(self) -> &'static str {
        match self {
            Self::Ipv4 => "-4",
            Self::Ipv6 => "-6",
        }
    }
}

impl FirewallMark {
    /// A mark with all bits significant.
    pub fn exactly(mark: u32) -> Self {
        Self { mark, mask: u32::MAX }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.steps.iter().try_for_each(|step| writeln!(f, "{step}"))
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address { device, address } => write!(f, "ip address add {address} dev {device}"),
            Self::LinkUp { device, mtu, group } => {
                write!(f, "ip link set {device} mtu {mtu} addrgenmode none")?;
                if let Some(group) = group {
                    write!(f, " group {group}")?;
                }
                f.write_str(" up")
            }
            Self::Route(route) => {
                write!(f, "ip {} route add {route}", Family::of(&route.destination).option())
            }
            Self::Rule(rule) => write!(f, "ip {} rule add {rule}", rule.family.option()),
            Self::Sysctl { key, value } => write!(f, "sysctl -w {key}={value}"),
            Self::ForwardIpv6 => write!(f, "sysctl -w {IPV6_FORWARDING}=1"),
            Self::Nftables { family, table, ruleset, owned } => {
                write!(f, "nft -f - <<'END'\n{}END", table_text(*family, table, ruleset, *owned))
            }
        }
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            RouteKind::Unicast | RouteKind::Guests => {}
            RouteKind::Unreachable => f.write_str("unreachable ")?,
            RouteKind::Throw => f.write_str("throw ")?,
        }
        write!(f, "{}", self.destination)?;
        if let Some(device) = &self.device {
            write!(f, " dev {device}")?;
        }
        write!(f, " table {} proto {PROTOCOL}", self.table)?;
        if self.metric != 0 {
            write!(f, " metric {}", self.metric)?;
        }
        Ok(())
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "priority {}", self.priority)?;
        if self.invert {
            f.write_str(" not")?;
        }
        match self.fwmark {
            Some(FirewallMark { mark, mask: u32::MAX }) => write!(f, " fwmark {mark:#x}")?,
            Some(FirewallMark { mark, mask }) => write!(f, " fwmark {mark:#x}/{mask:#x}")?,
            None => {}
        }
        if let Some(address) = &self.from {
            write!(f, " from {address}")?;
        }
        if let Some(device) = &self.iif {
            write!(f, " iif {device}")?;
        }
        write!(f, " lookup {}", self.table)?;
        if let Some(length) = self.suppress_prefix_length {
            write!(f, " suppress_prefixlength {length}")?;
        }
        write!(f, " protocol {PROTOCOL}")
    }
}

/// The whole table as `nft -f` reads it, with one statement per line.
pub(crate) fn table_text(family: TableFamily, table: &str, ruleset: &str, owned: bool) -> String {
    let flags = if owned { "\tflags owner;\n" } else { "" };
    let body: String = ruleset.lines().map(|line| format!("\t{line}\n")).collect();
    format!("table {family} {table} {{\n{flags}{body}}}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_step_prints_as_the_command_for_it() {
        let device = DeviceName::new("warren0").unwrap();
        let rule = Rule {
            family: Family::Ipv6,
            priority: 10,
            fwmark: Some(FirewallMark { mark: 1, mask: 0xff }),
            invert: false,
            table: 7,
            suppress_prefix_length: None,
            from: None,
            iif: Some(device.clone()),
        };
        let table = |family| Step::Nftables {
            family,
            table: "warren_x".into(),
            ruleset: "chain a {\n}\n".into(),
            owned: false,
        };
        let plan = Plan {
            steps: vec![
                Step::Rule(rule),
                Step::Route(Route {
                    destination: "10.0.0.0/8".parse().unwrap(),
                    device: Some(device),
                    table: 7,
                    kind: RouteKind::Unicast,
                    metric: 5,
                }),
                Step::Sysctl { key: "net.ipv4.ip_forward".into(), value: "1".into() },
                table(TableFamily::Inet),
                table(TableFamily::Arp),
            ],
        };

        assert_eq!(
            plan.to_string(),
            "ip -6 rule add priority 10 fwmark 0x1/0xff iif warren0 lookup 7 protocol 87\n\
             ip -4 route add 10.0.0.0/8 dev warren0 table 7 proto 87 metric 5\n\
             sysctl -w net.ipv4.ip_forward=1\n\
             nft -f - <<'END'\ntable inet warren_x {\n\tchain a {\n\t}\n}\nEND\n\
             nft -f - <<'END'\ntable arp warren_x {\n\tchain a {\n\t}\n}\nEND\n"
        );
    }
}
