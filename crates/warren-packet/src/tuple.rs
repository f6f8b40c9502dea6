//! A flow's 5-tuple, and the hash that keeps both directions of a flow on one connection.

use std::net::IpAddr;

use crate::ip::{IpPacket, IpVersion, protocol};
use crate::wire::{array_at, u16_at};

/// The fields that packets of one flow have in common.
///
/// Ports are those of TCP and UDP. An ICMP echo has its identifier in both. All other packets, including fragments, have ports of
/// 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FiveTuple {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Protocol number, after IPv6 extension headers.
    pub protocol: u8,
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
}

impl FiveTuple {
    /// Reads the 5-tuple of a packet or of a super-packet.
    pub fn of(packet: &IpPacket<'_>) -> Self {
        let (source_port, destination_port) = ports(packet).unwrap_or((0, 0));
        Self {
            source: packet.source(),
            destination: packet.destination(),
            protocol: packet.protocol(),
            source_port,
            destination_port,
        }
    }

    /// The 5-tuple of the flow's other direction.
    pub fn reversed(&self) -> Self {
        Self {
            source: self.destination,
            destination: self.source,
            protocol: self.protocol,
            source_port: self.destination_port,
            destination_port: self.source_port,
        }
    }

    /// A well-mixed hash that is equal for both directions of a flow.
    ///
    /// It depends only on the 5-tuple and must not change between versions: both ends of a session use it to put a flow on the
    /// same connection.
    pub fn symmetric_hash(&self) -> u32 {
        let source = (self.source, self.source_port);
        let destination = (self.destination, self.destination_port);
        // Sorted, so that both directions give the same hash.
        let (low, high) = if source <= destination { (source, destination) } else { (destination, source) };
        let ports = u64::from(low.1) << 32 | u64::from(high.1) << 16 | u64::from(self.protocol);
        let mixed = match (low.0, high.0) {
            (IpAddr::V4(low), IpAddr::V4(high)) => {
                let addresses = u64::from(low.to_bits()) << 32 | u64::from(high.to_bits());
                mix(mix(SEED_V4 ^ addresses) ^ ports)
            }
            // The two addresses of a packet have the same version, so this is IPv6.
            (low, high) => {
                let [low_high, low_low] = halves(low);
                let [high_high, high_low] = halves(high);
                [low_high, low_low, high_high, high_low, ports]
                    .iter()
                    .fold(SEED_V6, |hash, word| mix(hash ^ word))
            }
        };
        (mixed >> 32) as u32
    }

    /// The index of the connection that carries this flow, below `connections`. 0 if there are none.
    pub fn connection_index(&self, connections: u32) -> u32 {
        // Multiply-shift: the hash is well mixed in its high bits, and no division is needed.
        ((u64::from(self.symmetric_hash()) * u64::from(connections)) >> 32) as u32
    }
}

/// The fractional parts of the golden ratio and of the square root of 2.
const SEED_V4: u64 = 0x9e37_79b9_7f4a_7c15;
const SEED_V6: u64 = 0x6a09_e667_f3bc_c908;

/// The finalizer of splitmix64 (Stafford's variant 13): a bijection in which each input bit flips each output bit
/// with a probability of nearly one half.
fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

fn halves(address: IpAddr) -> [u64; 2] {
    let octets = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    };
    [u64::from_be_bytes(array_at(&octets, 0)), u64::from_be_bytes(array_at(&octets, 8))]
}

fn ports(packet: &IpPacket<'_>) -> Option<(u16, u16)> {
    let header = packet.bytes().get(packet.transport()?..)?;
    match (packet.version(), packet.protocol()) {
        (_, protocol::TCP | protocol::UDP) if header.len() >= 4 => {
            Some((u16_at(header, 0), u16_at(header, 2)))
        }
        (IpVersion::V4, protocol::ICMP) => echo_identifier(header, [0, 8]),
        (IpVersion::V6, protocol::ICMPV6) => echo_identifier(header, [128, 129]),
        _ => None,
    }
}

/// The identifier of an echo request or reply (RFC 792, RFC 4443 section 4), which stands for both ports.
fn echo_identifier(header: &[u8], types: [u8; 2]) -> Option<(u16, u16)> {
    let identifier = (header.len() >= 6 && types.contains(&header[0])).then(|| u16_at(header, 4))?;
    Some((identifier, identifier))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ipv4(protocol: u8, flags: u16, transport: &[u8]) -> Vec<u8> {
        let total = u8::try_from(20 + transport.len()).unwrap();
        let [f0, f1] = flags.to_be_bytes();
        let header = [0x45, 0, 0, total, 0, 0, f0, f1, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        [&header, transport].concat()
    }

    fn ipv6(next_header: u8, rest: &[u8]) -> Vec<u8> {
        let mut header = vec![0; 40];
        (header[0], header[5], header[6]) = (0x60, u8::try_from(rest.len()).unwrap(), next_header);
        (header[8], header[23], header[24], header[39]) = (0xfd, 1, 0xfd, 2);
        [&header, rest].concat()
    }

    fn tuple(bytes: &[u8]) -> (u8, u16, u16) {
        let tuple = FiveTuple::of(&IpPacket::parse(bytes).unwrap());
        (tuple.protocol, tuple.source_port, tuple.destination_port)
    }

    #[test]
    fn tcp_and_udp_have_ports() {
        let transport = [0x12, 0x34, 0x00, 0x50];
        for protocol in [protocol::TCP, protocol::UDP] {
            assert_eq!(tuple(&ipv4(protocol, 0, &transport)), (protocol, 0x1234, 80));
            assert_eq!(tuple(&ipv6(protocol, &transport)), (protocol, 0x1234, 80));
            assert_eq!(tuple(&ipv4(protocol, 0, &transport[..3])), (protocol, 0, 0));
        }
        let behind_hop_by_hop = [&[protocol::UDP, 0, 0, 0, 0, 0, 0, 0][..], &transport].concat();
        assert_eq!(tuple(&ipv6(0, &behind_hop_by_hop)), (protocol::UDP, 0x1234, 80));
    }

    #[test]
    fn an_icmp_echo_has_its_identifier_twice_in_both_directions() {
        for (request_or_reply, version_6) in [(8, false), (0, false), (128, true), (129, true)] {
            let echo = [request_or_reply, 0, 0, 0, 0x12, 0x34, 0, 1];
            let found = if version_6 { tuple(&ipv6(58, &echo)) } else { tuple(&ipv4(1, 0, &echo)) };
            assert_eq!((found.1, found.2), (0x1234, 0x1234));
        }
        assert_eq!(tuple(&ipv4(1, 0, &[8, 0, 0, 0, 0x12])), (1, 0, 0));
    }

    #[test]
    fn other_icmp_goes_by_addresses() {
        assert_eq!(tuple(&ipv4(1, 0, &[3, 4, 0, 0, 0x12, 0x34, 0, 1])), (1, 0, 0));
        assert_eq!(tuple(&ipv4(1, 0, &[128, 0, 0, 0, 0x12, 0x34, 0, 1])), (1, 0, 0));
        assert_eq!(tuple(&ipv6(58, &[2, 0, 0, 0, 0x12, 0x34, 0, 1])), (58, 0, 0));
        assert_eq!(tuple(&ipv6(58, &[8, 0, 0, 0, 0x12, 0x34, 0, 1])), (58, 0, 0));
        assert_eq!(tuple(&ipv6(1, &[8, 0, 0, 0, 0x12, 0x34, 0, 1])), (1, 0, 0));
    }

    #[test]
    fn fragments_and_other_protocols_go_by_addresses() {
        let transport = [0x12, 0x34, 0x00, 0x50];
        assert_eq!(tuple(&ipv4(17, 0x2000, &transport)), (17, 0, 0));
        assert_eq!(tuple(&ipv4(17, 0x0001, &transport)), (17, 0, 0));
        assert_eq!(tuple(&ipv4(132, 0, &transport)), (132, 0, 0));
        let first_fragment = [&[17, 0, 0, 1, 0, 0, 0, 9][..], &transport].concat();
        assert_eq!(tuple(&ipv6(44, &first_fragment)), (17, 0, 0));
    }

    /// Computed independently of this code. Both ends of a session rely on these values.
    #[test]
    fn the_hash_never_changes() {
        for (source, destination, protocol, source_port, destination_port, hash) in [
            ("10.66.0.2", "192.0.2.1", 6, 40000, 443, 0x1f82_1a1e),
            ("10.66.0.2", "192.0.2.1", 17, 40000, 443, 0x6ccf_1f44),
            ("10.66.0.2", "10.66.0.2", 17, 53, 53, 0x0ab6_f79a),
            ("10.66.0.2", "9.9.9.9", 1, 4660, 4660, 0x719e_07b2),
            ("198.51.100.7", "203.0.113.9", 50, 0, 0, 0x5418_a2bf),
            ("fd66:6666::2", "2001:db8::1", 6, 40000, 443, 0x5978_cd84),
            ("fd66:6666::2", "2001:db8::1", 58, 7, 7, 0x5742_28e6),
            ("::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", 44, 0, 0, 0xfbc8_5b96),
            ("0.0.0.0", "0.0.0.0", 0, 0, 0, 0x4821_8226),
        ] {
            let tuple = FiveTuple {
                source: source.parse().unwrap(),
                destination: destination.parse().unwrap(),
                protocol,
                source_port,
                destination_port,
            };
            assert_eq!(tuple.symmetric_hash(), hash, "{tuple:?} {:#010x}", tuple.symmetric_hash());
            assert_eq!(tuple.reversed().symmetric_hash(), hash);
        }
    }

    #[test]
    fn the_connection_index_never_changes() {
        let tuple = FiveTuple {
            source: "10.66.0.2".parse().unwrap(),
            destination: "192.0.2.1".parse().unwrap(),
            protocol: protocol::TCP,
            source_port: 40_000,
            destination_port: 443,
        };
        assert_eq!([0, 1, 4, 32].map(|connections| tuple.connection_index(connections)), [0, 0, 0, 3]);
    }
}
