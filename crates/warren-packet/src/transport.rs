//! The outermost TCP or UDP header of a packet, and the position of its checksum.

use crate::checksum::{self, Sum};
use crate::ip::{IpPacket, protocol};
use crate::virtio::{NEEDS_CSUM, VirtioNetHeader};
use crate::wire::u16_at;

pub(crate) const UDP_HEADER: usize = 8;
const TCP_HEADER: usize = 20;

/// A whole TCP or UDP header after the IP headers of an unfragmented packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TransportHeader {
    pub(crate) kind: TransportKind,
    /// Offset of the header's first byte from the packet's start.
    pub(crate) start: usize,
    /// Offset of the payload from the packet's start.
    pub(crate) end: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransportKind {
    Tcp,
    Udp,
}

impl TransportHeader {
    /// Finds the header. `None` for a fragment, another protocol, or a header that is truncated or has an invalid length.
    pub(crate) fn of(packet: &IpPacket<'_>) -> Option<Self> {
        let start = packet.transport()?;
        let rest = packet.bytes().get(start..)?;
        let (kind, length) = match packet.protocol() {
            // The upper four bits are the header's length in words of four bytes (RFC 9293 section 3.1).
            protocol::TCP if rest.len() >= TCP_HEADER => (TransportKind::Tcp, usize::from(rest[12] >> 4) * 4),
            protocol::UDP => (TransportKind::Udp, UDP_HEADER),
            _ => return None,
        };
        let long_enough = kind == TransportKind::Udp || length >= TCP_HEADER;
        (long_enough && length <= rest.len()).then_some(Self { kind, start, end: start + length })
    }

    /// Offset of the checksum field from the header's start.
    pub(crate) fn checksum_offset(&self) -> usize {
        match self.kind {
            TransportKind::Tcp => 16,
            TransportKind::Udp => 6,
        }
    }

    /// Offset of the checksum field from the packet's start.
    pub(crate) fn checksum_field(&self) -> usize {
        self.start + self.checksum_offset()
    }

    /// Whether this is UDP without a checksum.
    pub(crate) fn has_no_checksum(&self, packet: &IpPacket<'_>) -> bool {
        self.kind == TransportKind::Udp && u16_at(packet.bytes(), self.checksum_field()) == 0
    }

    /// Whether a receiver can complete the checksum from this packet alone. The pseudo-header must use the IP header's
    /// addresses. UDP's length field must equal the length of the rest of the packet, because a kernel sums all of that rest.
    pub(crate) fn may_be_partial(&self, packet: &IpPacket<'_>) -> bool {
        let length = packet.bytes().len() - self.start;
        let fills_packet = match self.kind {
            // TCP has no length field: the IP header's counts.
            TransportKind::Tcp => true,
            TransportKind::Udp => usize::from(u16_at(packet.bytes(), self.start + 4)) == length,
        };
        fills_packet && packet.has_plain_addresses()
    }

    /// The sum of the pseudo-header without its length.
    pub(crate) fn pseudo_header(&self, packet: &IpPacket<'_>) -> Sum {
        checksum::pseudo_header(packet.source(), packet.destination(), self.protocol())
    }

    /// The value of the checksum field while the checksum of a packet of `total` bytes is partial. `packet` must be valid and
    /// have plain addresses. It may consist of the headers alone.
    pub(crate) fn partial_checksum(&self, packet: &[u8], total: usize) -> u16 {
        let addresses = if packet[0] >> 4 == 4 { &packet[12..20] } else { &packet[8..40] };
        let length = Sum::from(length(total - self.start));
        (Sum::of(addresses) + Sum::from(u16::from(self.protocol())) + length).folded()
    }

    /// The virtio header that asks the kernel to complete the checksum.
    pub(crate) fn completion(&self) -> VirtioNetHeader {
        VirtioNetHeader {
            flags: NEEDS_CSUM,
            header_length: length(self.end),
            checksum_start: length(self.start),
            checksum_offset: length(self.checksum_offset()),
            ..VirtioNetHeader::default()
        }
    }

    fn protocol(&self) -> u8 {
        match self.kind {
            TransportKind::Tcp => protocol::TCP,
            TransportKind::Udp => protocol::UDP,
        }
    }
}

fn length(bytes: usize) -> u16 {
    u16::try_from(bytes).expect("a packet has at most 65,535 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(protocol: u8, transport: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; 20];
        bytes[0] = 0x45;
        bytes[3] = u8::try_from(20 + transport.len()).unwrap();
        bytes[9] = protocol;
        bytes.extend_from_slice(transport);
        bytes
    }

    fn found(protocol: u8, transport: &[u8]) -> Option<usize> {
        let bytes = packet(protocol, transport);
        TransportHeader::of(&IpPacket::parse(&bytes).unwrap()).map(|header| header.end)
    }

    #[test]
    fn the_tcp_data_offset_must_lie_between_20_and_the_packets_end() {
        let tcp = |words: u8, length: usize| {
            let mut bytes = vec![0; length];
            bytes[12] = words << 4;
            found(protocol::TCP, &bytes)
        };
        assert_eq!(tcp(5, 20), Some(40));
        assert_eq!(tcp(15, 60), Some(80));
        assert_eq!(tcp(0, 20), None);
        assert_eq!(tcp(4, 20), None);
        assert_eq!(tcp(6, 20), None);
        assert_eq!(tcp(15, 59), None);
        assert_eq!(tcp(5, 19), None);
    }

    #[test]
    fn a_udp_header_needs_8_bytes() {
        assert_eq!(found(protocol::UDP, &[0; 8]), Some(28));
        assert_eq!(found(protocol::UDP, &[0; 7]), None);
        assert_eq!(found(protocol::UDP, &[]), None);
    }

    #[test]
    fn other_protocols_have_none() {
        assert_eq!(found(protocol::ICMP, &[0x50; 40]), None);
        assert_eq!(found(132, &[0x50; 40]), None);
    }
}
