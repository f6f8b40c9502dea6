//! Forwards: ports of the exit's own addresses at which a client's services are reached from outside.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Maximum number of forwards of one client.
pub const MAX_FORWARDS: usize = 64;

/// Maximum number of an exit's ports that are forwarded to a different port number of their client. The firewall's rules name
/// each of these ports.
pub const MAX_MOVED_PORTS: usize = 4_096;

/// A protocol with ports that can be forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ForwardProtocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl fmt::Display for ForwardProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        })
    }
}

/// A port, or consecutive ports, of a protocol. Written as `tcp/8443` or `udp/6881-6889`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PortRange {
    protocol: ForwardProtocol,
    first: u16,
    last: u16,
}

/// The error for a text that is not a port or a range of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("write a port such as tcp/8443, or a range such as udp/6881-6889")]
pub struct InvalidPortRange;

impl PortRange {
    /// The ports from `first` to `last`. `None` if these are not ports, or not in this order.
    pub const fn new(protocol: ForwardProtocol, first: u16, last: u16) -> Option<Self> {
        if first > 0 && first <= last { Some(Self { protocol, first, last }) } else { None }
    }

    /// The protocol.
    pub const fn protocol(self) -> ForwardProtocol {
        self.protocol
    }

    /// The lowest port.
    pub const fn first(self) -> u16 {
        self.first
    }

    /// The highest port.
    pub const fn last(self) -> u16 {
        self.last
    }

    /// Number of ports.
    pub fn count(self) -> usize {
        usize::from(self.last - self.first) + 1
    }

    /// Whether the two ranges have a port in common.
    pub fn overlaps(self, other: Self) -> bool {
        self.protocol == other.protocol && self.first <= other.last && other.first <= self.last
    }
}

impl FromStr for PortRange {
    type Err = InvalidPortRange;

    fn from_str(text: &str) -> Result<Self, InvalidPortRange> {
        let (protocol, ports) = text.split_once('/').ok_or(InvalidPortRange)?;
        let protocol = match protocol {
            "tcp" => ForwardProtocol::Tcp,
            "udp" => ForwardProtocol::Udp,
            _ => return Err(InvalidPortRange),
        };
        let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
        Self::new(protocol, port(first)?, port(last)?).ok_or(InvalidPortRange)
    }
}

/// Parses a port number as people write it.
fn port(text: &str) -> Result<u16, InvalidPortRange> {
    // `parse` alone would also take `+80`.
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|port| is_plain && *port > 0).ok_or(InvalidPortRange)
}

stored_as_text!(PortRange);

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { protocol, first, last } = self;
        if first == last { write!(f, "{protocol}/{first}") } else { write!(f, "{protocol}/{first}-{last}") }
    }
}

/// Ports of the exit's addresses that are forwarded to as many ports of a client. Written as `tcp/8443 to 443`, or as the ports
/// alone if the client's are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Forward {
    ports: PortRange,
    to: u16,
}

/// The error for a text that is not a forward, or whose target ends above the highest port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("write a forward such as \"tcp/8443\" or \"tcp/8443 to 443\"; the client's ports end at 65535")]
pub struct InvalidForward;

impl Forward {
    /// Forwards `ports` to the client's ports from `to` on. `None` if these are not port numbers.
    pub fn new(ports: PortRange, to: u16) -> Option<Self> {
        let last = to.checked_add(ports.last() - ports.first());
        (to > 0 && last.is_some()).then_some(Self { ports, to })
    }

    /// The exit's ports.
    pub const fn ports(self) -> PortRange {
        self.ports
    }

    /// The client's lowest port.
    pub const fn to(self) -> u16 {
        self.to
    }

    /// The client's ports.
    pub const fn target(self) -> PortRange {
        let PortRange { protocol, first, last } = self.ports;
        PortRange { protocol, first: self.to, last: self.to + (last - first) }
    }

    /// Whether the client's ports differ from the exit's.
    pub const fn is_moved(self) -> bool {
        self.to != self.ports.first
    }

    /// Number of ports for which the firewall's rules need an entry each.
    pub(crate) fn moved_ports(self) -> usize {
        if self.is_moved() { self.ports.count() } else { 0 }
    }
}

impl From<PortRange> for Forward {
    /// Forwards the ports to the same ports of the client.
    fn from(ports: PortRange) -> Self {
        Self { ports, to: ports.first }
    }
}

impl FromStr for Forward {
    type Err = InvalidForward;

    fn from_str(text: &str) -> Result<Self, InvalidForward> {
        let (ports, to) = match text.split_once(" to ") {
            Some((ports, to)) => (ports, Some(port(to).map_err(|_| InvalidForward)?)),
            None => (text, None),
        };
        let ports: PortRange = ports.parse().map_err(|_| InvalidForward)?;
        Self::new(ports, to.unwrap_or(ports.first())).ok_or(InvalidForward)
    }
}

stored_as_text!(Forward);

impl fmt::Display for Forward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.ports)?;
        if self.is_moved() { write!(f, " to {}", self.to) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ports_and_forwards_are_read_as_they_are_written() {
        for text in ["tcp/8443", "udp/6881-6889", "tcp/1-65535"] {
            assert_eq!(text.parse::<PortRange>().unwrap().to_string(), text);
            assert_eq!(text.parse::<Forward>().unwrap().to_string(), text);
        }
        for text in ["tcp/8443 to 443", "udp/6881-6889 to 65527"] {
            assert_eq!(text.parse::<Forward>().unwrap().to_string(), text);
        }
        let forward: Forward = "tcp/8443-8450 to 443".parse().unwrap();
        assert_eq!(forward.target().to_string(), "tcp/443-450");
        assert_eq!("tcp/443 to 443".parse::<Forward>().unwrap().to_string(), "tcp/443");
    }

    #[test]
    fn what_are_no_ports_is_refused() {
        for text in [
            "",
            "443",
            "tcp",
            "tcp/",
            "tcp/0",
            "tcp/65536",
            "tcp/+1",
            "tcp/ 1",
            "tcp/2-1",
            "tcp/1-",
            "tcp/-1",
            "sctp/1",
            "TCP/1",
            "tcp/1-2-3",
            "tcp/0-5",
            "tcp/1,2",
        ] {
            assert_eq!(text.parse::<PortRange>(), Err(InvalidPortRange), "{text:?}");
            assert_eq!(text.parse::<Forward>(), Err(InvalidForward), "{text:?}");
        }
        for text in ["tcp/1 to 0", "tcp/1 to", "tcp/1 to x", "tcp/1-2 to 65535", "tcp/1 to 2-3"] {
            assert_eq!(text.parse::<Forward>(), Err(InvalidForward), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn ranges_overlap_if_a_port_is_in_both(one in any_range(), other in any_range()) {
            let is_others = |port| (other.first()..=other.last()).contains(&port);
            let both = one.protocol() == other.protocol() && (one.first()..=one.last()).any(is_others);
            prop_assert_eq!(one.overlaps(other), both);
            prop_assert_eq!(other.overlaps(one), both);
            prop_assert_eq!(one.to_string().parse(), Ok(one));
        }
    }

    fn any_range() -> impl Strategy<Value = PortRange> {
        (any::<bool>(), 1..60_u16, 0..9_u16).prop_map(|(tcp, first, more)| {
            let protocol = if tcp { ForwardProtocol::Tcp } else { ForwardProtocol::Udp };
            PortRange::new(protocol, first, first + more).unwrap()
        })
    }
}
