//! The rules for merging packets into one super-packet. They are those of Linux's GRO (`net/ipv4/tcp_offload.c`, `udp_offload.c`,
//! `include/net/gro.h`, `net/ipv6/ip6_offload.c`), because a kernel segments the super-packet again.
//!
//! A super-packet has one header. Every field that the kernel does not rewrite while segmenting must be equal in all packets,
//! including acknowledgement number and window. Merging different acknowledgements would hide duplicate ones and their timing
//! from TCP. Bulk data, where merging pays, repeats both fields.

use crate::checksum::Sum;
use crate::ip::{IPV4_HEADER, IPV6_HEADER, IpPacket, IpVersion};
use crate::planted::{Bug, is_planted};
use crate::transport::{TransportHeader, TransportKind};
use crate::virtio::{GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, VirtioNetHeader};
use crate::wire::{put_u16, u16_at, u32_at};

use super::merge::{MAX_PARTS, Merge};

/// Longest headers of a merged packet: IPv6 without extension headers, and TCP with the most options that fit.
pub(super) const MAX_HEADERS: usize = IPV6_HEADER + 60;

/// Longest super-packet in bytes. With a link header (22 bytes for Ethernet with two VLAN tags) it stays below 65,536, the size
/// at which a kernel stops using the device's segmentation (`gso_features_check`).
const MAX_SUPER_PACKET: usize = 65_535 - 24;

/// Maximum number of packets of a run. A write has one part for the headers and one for each packet. The kernel's limit for UDP is
/// higher (`UDP_MAX_SEGMENTS` in `include/linux/udp.h`: 64, and 128 since Linux 6.9).
const MAX_PACKETS: usize = MAX_PARTS - 1;

/// The DF bit in the IPv4 fragment field (RFC 791 section 3.1).
const DONT_FRAGMENT: u16 = 0x4000;

const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const ACK: u8 = 0x10;
const ECE: u8 = 0x40;

/// The header layout of a packet that may merge. All packets of a run have the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    version: IpVersion,
    transport: TransportHeader,
    /// Whether the transport checksum is partial and thus cannot be verified.
    partial: bool,
}

impl Shape {
    /// The shape of a packet, if it may merge at all. It must carry data and have no IP options or extension headers. TCP must
    /// have ACK set and no other flags than ECE, PSH and FIN. UDP must have a checksum and a length that matches the packet.
    pub(super) fn of(
        packet: &IpPacket<'_>,
        transport: TransportHeader,
        partial: bool,
        merge: Merge,
    ) -> Option<Self> {
        let (bytes, version) = (packet.bytes(), packet.version());
        let plain = match version {
            IpVersion::V4 => transport.start == IPV4_HEADER && u16_at(bytes, 6) & !DONT_FRAGMENT == 0,
            IpVersion::V6 => transport.start == IPV6_HEADER,
        };
        let allowed = match transport.kind {
            // CWR, URG, SYN and RST act on one packet alone. GRO does not merge them either (`tcp_gro_receive`).
            TransportKind::Tcp => merge.tcp && bytes[transport.start + 13] & !(ECE | PSH | FIN) == ACK,
            // The kernel gives every segment a checksum. A packet that was sent without one must arrive without one.
            TransportKind::Udp => merge.udp && !transport.has_no_checksum(packet),
        };
        let carries_data = bytes.len() > transport.end;
        (plain && allowed && carries_data && transport.may_be_partial(packet)).then_some(Self {
            version,
            transport,
            partial,
        })
    }

    /// Whether the IP header checksum is valid, and the transport checksum too unless it is partial. Merging replaces checksums,
    /// so merging a packet with a wrong one would hide the corruption.
    fn checksums_hold(&self, packet: &[u8]) -> bool {
        if self.version == IpVersion::V4 && Sum::of(&packet[..IPV4_HEADER]).folded() != 0xffff {
            return false;
        }
        if self.partial || is_planted(Bug::MergedUnverified) {
            return true;
        }
        let pseudo_header = self.transport.partial_checksum(packet, packet.len());
        (Sum::from(pseudo_header) + Sum::of(&packet[self.transport.start..])).folded() == 0xffff
    }
}

/// Consecutive packets of one flow, of equal size except the last.
#[derive(Debug)]
pub(super) struct Run {
    shape: Shape,
    /// Payload bytes of each packet except the last.
    segment: usize,
    /// Payload bytes of all packets.
    payload: usize,
    packets: usize,
    identification: Identification,
    /// PSH and FIN of the last packet.
    closing_flags: u8,
    /// Whether the first packet's checksums were verified.
    verified: bool,
    open: bool,
}

/// The sequence of IPv4 identifications in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Identification {
    Increments,
    /// The identification is the same in all packets. All packets have DF set, so the identification has no meaning (RFC 6864
    /// section 4.1).
    Fixed,
}

impl Run {
    /// Makes a run of one packet. `None` if no packet can follow it.
    pub(super) fn starting_with(packet: &[u8], shape: Shape) -> Option<Self> {
        let payload = packet.len() - shape.transport.end;
        let mut run = Self {
            shape,
            segment: payload,
            payload,
            packets: 1,
            identification: Identification::Increments,
            closing_flags: 0,
            verified: false,
            open: true,
        };
        run.close_after(packet, payload);
        run.open.then_some(run)
    }

    /// Whether another packet may follow.
    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    /// Adds a packet if it continues the run. `first` is the run's first packet. Returns whether it was added.
    pub(super) fn append(&mut self, first: &[u8], next: &[u8], shape: &Shape) -> bool {
        let payload = next.len() - shape.transport.end;
        let follows = self.open
            && *shape == self.shape
            && (payload <= self.segment || is_planted(Bug::LongerMerged))
            && next.len() + self.payload <= MAX_SUPER_PACKET
            && self.same_ip_header(first, next)
            && self.same_transport_header(first, next);
        if !follows {
            return false;
        }
        let Some(identification) = self.next_identification(first, next) else { return false };
        // The first packet is verified only when a second one follows: a single packet keeps its checksums as they are.
        self.verified = self.verified || shape.checksums_hold(first);
        if !self.verified || !shape.checksums_hold(next) {
            return false;
        }
        self.identification = identification;
        self.payload += payload;
        self.packets += 1;
        self.close_after(next, payload);
        true
    }

    /// Makes the super-packet's headers from those of its first packet. The transport checksum is partial: the kernel completes
    /// it in each segment.
    pub(super) fn super_packet<'a>(
        &self,
        first: &[u8],
        scratch: &'a mut [u8; MAX_HEADERS],
    ) -> (VirtioNetHeader, &'a [u8]) {
        let transport = self.shape.transport;
        let header = &mut scratch[..transport.end];
        header.copy_from_slice(&first[..transport.end]);
        let total = transport.end + self.payload;
        match self.shape.version {
            IpVersion::V4 => {
                put_u16(header, 2, length(total));
                put_u16(header, 10, 0);
                let summed = if is_planted(Bug::ChecksumNotRecomputed) { first } else { &*header };
                let checksum = Sum::of(&summed[..IPV4_HEADER]).checksum();
                put_u16(header, 10, checksum);
            }
            IpVersion::V6 => put_u16(header, 4, length(total - IPV6_HEADER)),
        }
        match transport.kind {
            // PSH and FIN come from the run's last packet. The kernel sets them in the last segment only.
            TransportKind::Tcp => header[transport.start + 13] |= self.closing_flags,
            TransportKind::Udp => put_u16(header, transport.start + 4, length(total - transport.start)),
        }
        let sum = transport.partial_checksum(header, total);
        put_u16(header, transport.checksum_field(), sum);
        let offload = VirtioNetHeader {
            // `GSO_ECN` is never set, because a packet with CWR does not merge.
            gso_type: match (transport.kind, self.shape.version) {
                (TransportKind::Tcp, IpVersion::V4) => GSO_TCPV4,
                (TransportKind::Tcp, IpVersion::V6) => GSO_TCPV6,
                (TransportKind::Udp, _) => GSO_UDP_L4,
            },
            gso_size: length(self.segment),
            ..transport.completion()
        };
        (offload, header)
    }

    /// Closes the run if no packet can follow the latest one.
    fn close_after(&mut self, packet: &[u8], payload: usize) {
        if self.shape.transport.kind == TransportKind::Tcp {
            self.closing_flags = packet[self.shape.transport.start + 13] & (PSH | FIN);
        }
        // PSH and FIN apply to the last segment only, so the kernel would move them if a packet followed (`tcp_gso_segment`).
        let may_follow = self.closing_flags == 0 || is_planted(Bug::MergedAcrossPush);
        let has_room =
            self.shape.transport.end + self.payload < MAX_SUPER_PACKET && self.packets < MAX_PACKETS;
        // A shorter packet must be the last: `gso_size` is the size of all others.
        self.open = payload == self.segment && may_follow && has_room;
    }

    /// Compares the IP header without length, identification and checksum, and the ports.
    fn same_ip_header(&self, first: &[u8], next: &[u8]) -> bool {
        if is_planted(Bug::MergedAcrossHeaders) {
            return true;
        }
        let ports = if is_planted(Bug::MergedAcrossFlows) { 0 } else { 4 };
        let ports_end = self.shape.transport.start + ports;
        match self.shape.version {
            // Compares the type of service, then fragment field, TTL and protocol, then addresses and ports. The first byte is
            // 0x45 in both, because the shapes are equal and allow no options.
            IpVersion::V4 => {
                first[1] == next[1]
                    && first[6..10] == next[6..10]
                    && first[12..ports_end] == next[12..ports_end]
            }
            // Traffic class and flow label, then protocol, hop limit, addresses and ports.
            IpVersion::V6 => first[..4] == next[..4] && first[6..ports_end] == next[6..ports_end],
        }
    }

    /// Compares the TCP header without checksum, PSH and FIN. The sequence number must be the next one.
    fn same_transport_header(&self, first: &[u8], next: &[u8]) -> bool {
        let TransportHeader { kind, start, end } = self.shape.transport;
        // The ports were compared with the IP header. UDP's length and checksum differ from packet to packet, and the kernel
        // rewrites both.
        if kind == TransportKind::Udp {
            return true;
        }
        let (first, next) = (&first[start..end], &next[start..end]);
        let due = u64::from(u32_at(first, 4)) + self.payload as u64;
        // Sequence numbers wrap.
        let is_due = u64::from(u32_at(next, 4)) == due & u64::from(u32::MAX);
        // After the sequence number: acknowledgement and data offset, flags, window, urgent pointer and options.
        (is_due || is_planted(Bug::MergedAcrossGap))
            && first[8..13] == next[8..13]
            && (first[13] ^ next[13]) & !(PSH | FIN) == 0
            && first[14..16] == next[14..16]
            && first[18..] == next[18..]
    }

    /// Checks that the IPv4 identification of `next` continues the run: incremented per packet, or constant if DF is set.
    fn next_identification(&self, first: &[u8], next: &[u8]) -> Option<Identification> {
        if self.shape.version == IpVersion::V6 {
            // IPv6 has an identification only in fragments, and no fragment has a shape.
            return Some(self.identification);
        }
        let step = usize::from(u16_at(next, 4).wrapping_sub(u16_at(first, 4)));
        // The second packet decides which of the two sequences the run has.
        let may_be_fixed = self.identification == Identification::Fixed
            || (self.packets == 1 && u16_at(first, 6) & DONT_FRAGMENT != 0);
        match step {
            0 if may_be_fixed => Some(Identification::Fixed),
            _ if self.identification == Identification::Increments && step == self.packets => {
                Some(Identification::Increments)
            }
            _ => None,
        }
    }
}

fn length(bytes: usize) -> u16 {
    u16::try_from(bytes).expect("a super-packet is shorter than 64 KiB")
}
