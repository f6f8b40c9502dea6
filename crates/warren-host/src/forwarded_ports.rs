//! Ports at which services are reached through a tunnel.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::kill_switch::InboundProtocol;

/// A port, or consecutive ports, of a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ports {
    /// TCP or UDP.
    pub protocol: InboundProtocol,
    /// The lowest port.
    pub first: u16,
    /// The highest port.
    pub last: u16,
}

/// Ports of an exit's addresses that are forwarded to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardedPorts {
    /// The exit's ports.
    pub ports: Ports,
    /// The client's lowest port.
    pub to: u16,
    /// The client's inner address.
    pub ipv4: Option<Ipv4Addr>,
    /// The client's inner address.
    pub ipv6: Option<Ipv6Addr>,
}

impl ForwardedPorts {
    /// The client's ports.
    pub fn target(&self) -> Ports {
        let Ports { protocol, first, last } = self.ports;
        Ports { protocol, first: self.to, last: self.to.saturating_add(last - first) }
    }
}

/// Formats the ports without the protocol, as a number or a range `FIRST-LAST`.
impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first, last, .. } = self;
        if first == last { write!(f, "{first}") } else { write!(f, "{first}-{last}") }
    }
}

/// Merges overlapping ports, which nft refuses in a set. The result is sorted by protocol.
pub(crate) fn merged(mut ports: Vec<Ports>) -> Vec<Ports> {
    ports.sort_unstable();
    let mut merged: Vec<Ports> = Vec::new();
    for next in ports {
        match merged.last_mut() {
            Some(last) if last.protocol == next.protocol && next.first <= last.last.saturating_add(1) => {
                last.last = last.last.max(next.last);
            }
            Some(_) | None => merged.push(next),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_and_adjacent_ports_of_a_protocol_become_one_range() {
        let ports = |protocol, first, last| Ports { protocol, first, last };
        let (tcp, udp) = (InboundProtocol::Tcp, InboundProtocol::Udp);

        let together = merged(vec![
            ports(udp, 5, 9),
            ports(tcp, 80, 80),
            ports(tcp, 7, 9),
            ports(tcp, 81, 90),
            ports(tcp, 85, 86),
            ports(tcp, 92, 65_535),
            ports(tcp, 65_535, 65_535),
        ]);

        let expected = [ports(tcp, 7, 9), ports(tcp, 80, 90), ports(tcp, 92, 65_535), ports(udp, 5, 9)];
        assert_eq!(together, expected);
        assert_eq!((expected[0].to_string(), ports(tcp, 3, 3).to_string()), ("7-9".into(), "3".into()));
    }
}
