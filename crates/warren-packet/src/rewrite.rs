//! Rewrites the header fields that differ between the segments of a super-packet.

use crate::checksum::Sum;
use crate::ip::{IpPacket, IpVersion};
use crate::planted::{Bug, is_planted};
use crate::transport::{TransportHeader, TransportKind};
use crate::virtio::VirtioNetHeader;
use crate::wire::{put_u16, put_u32, u16_at, u32_at};

const IPV6_HEADER_LENGTH: u16 = 40;

/// Rewrites a copy of a super-packet's headers for each segment in order.
pub(crate) struct Rewrite {
    ip: IpFields,
    transport: TransportFields,
    checksum: Checksum,
    start: usize,
    end: usize,
    field: usize,
}

enum IpFields {
    V4 {
        /// The sum of the header without length, identification and checksum.
        sum: Sum,
        identification: u16,
    },
    V6,
}

enum TransportFields {
    Tcp { sequence_number: u32, flags: u8 },
    Udp,
}

/// The kind of the segments' transport checksum. Sums cover the pseudo-header without its length.
enum Checksum {
    Absent,
    Partial(Sum),
    Complete(Sum),
}

impl Rewrite {
    /// Prepares the segments of `packet`, which the kernel handed over with `header`. `None` if their checksums can be made
    /// neither partial nor complete.
    pub(crate) fn new(
        header: VirtioNetHeader,
        packet: &IpPacket<'_>,
        transport: TransportHeader,
    ) -> Option<Self> {
        Some(Self {
            ip: IpFields::of(packet),
            transport: TransportFields::of(packet, transport),
            checksum: Checksum::of(header, packet, transport)?,
            start: transport.start,
            end: transport.end,
            field: transport.checksum_field(),
        })
    }

    /// Whether the segments' transport checksums stay partial.
    pub(crate) fn leaves_checksum_partial(&self) -> bool {
        matches!(self.checksum, Checksum::Partial(_))
    }

    /// Turns `header`, a copy of the super-packet's headers, into those of the next segment.
    pub(crate) fn next(&mut self, header: &mut [u8], payload: &[u8], is_first: bool, is_last: bool) {
        let total = segment_length(self.end + payload.len());
        let transport_length = segment_length(self.end + payload.len() - self.start);
        self.ip.next(header, total);
        self.transport.next(&mut header[self.start..], payload, transport_length, is_first, is_last);
        let length = Sum::from(transport_length);
        match self.checksum {
            Checksum::Absent => {}
            Checksum::Partial(sum) => put_u16(header, self.field, (sum + length).folded()),
            Checksum::Complete(sum) => {
                // The field's old content must not count in the sum.
                put_u16(header, self.field, 0);
                // The transport header's length is even, so its sum and the payload's can be added.
                let sum = sum + length + Sum::of(&header[self.start..]) + Sum::of(payload);
                put_u16(header, self.field, sum.transport_checksum());
            }
        }
    }
}

impl Checksum {
    fn of(header: VirtioNetHeader, packet: &IpPacket<'_>, transport: TransportHeader) -> Option<Self> {
        if transport.has_no_checksum(packet) {
            return Some(Self::Absent);
        }
        if packet.has_plain_addresses() {
            // The sum follows from the packet itself, so the value that the kernel left in the field is not needed.
            return Some(Self::Partial(transport.pseudo_header(packet)));
        }
        if !header.needs_checksum() {
            return None;
        }
        // Only the kernel knows the pseudo-header's addresses. It left the pseudo-header's sum in the checksum field. This sum
        // minus the super-packet's length is common to all segments. In ones' complement, adding the length's complement
        // subtracts the length.
        let sum = u16_at(packet.bytes(), transport.checksum_field());
        let length = segment_length(packet.bytes().len() - transport.start);
        Some(Self::Complete(Sum::from(sum) + Sum::from(!length)))
    }
}

impl IpFields {
    fn of(packet: &IpPacket<'_>) -> Self {
        let bytes = packet.bytes();
        match packet.version() {
            IpVersion::V4 => {
                let header_length = packet.header_length();
                let sum = Sum::of(&bytes[..2]) + Sum::of(&bytes[6..10]) + Sum::of(&bytes[12..header_length]);
                Self::V4 { sum, identification: u16_at(bytes, 4) }
            }
            IpVersion::V6 => Self::V6,
        }
    }

    fn next(&mut self, header: &mut [u8], total: u16) {
        match self {
            Self::V4 { sum, identification } => {
                put_u16(header, 2, total);
                put_u16(header, 4, *identification);
                if !is_planted(Bug::SegmentIpChecksumKept) {
                    put_u16(header, 10, (*sum + Sum::from(total) + Sum::from(*identification)).checksum());
                }
                // The kernel numbers the segments of a super-packet in the same way (`inet_gso_segment`).
                let step = if is_planted(Bug::IdentificationRepeated) { 0 } else { 1 };
                *identification = identification.wrapping_add(step);
            }
            Self::V6 => put_u16(header, 4, total - IPV6_HEADER_LENGTH),
        }
    }
}

impl TransportFields {
    const FIN: u8 = 0x01;
    const PSH: u8 = 0x08;
    const CWR: u8 = 0x80;

    fn of(packet: &IpPacket<'_>, transport: TransportHeader) -> Self {
        let header = &packet.bytes()[transport.start..];
        match transport.kind {
            TransportKind::Tcp => Self::Tcp { sequence_number: u32_at(header, 4), flags: header[13] },
            TransportKind::Udp => Self::Udp,
        }
    }

    fn next(&mut self, header: &mut [u8], payload: &[u8], length: u16, is_first: bool, is_last: bool) {
        match self {
            Self::Tcp { sequence_number, flags } => {
                // PSH and FIN belong to the last segment, CWR to the first one (`tcp_gso_segment` in `net/ipv4/tcp_offload.c`).
                let not_here =
                    if is_last || is_planted(Bug::PushEverywhere) { 0 } else { Self::FIN | Self::PSH }
                        | if is_first { 0 } else { Self::CWR };
                put_u32(header, 4, *sequence_number);
                header[13] = *flags & !not_here;
                if !is_planted(Bug::SequenceRepeated) {
                    *sequence_number = sequence_number.wrapping_add(u32::from(segment_length(payload.len())));
                }
            }
            Self::Udp if is_planted(Bug::UdpLengthKept) => {}
            Self::Udp => put_u16(header, 4, length),
        }
    }
}

fn segment_length(length: usize) -> u16 {
    u16::try_from(length).expect("a segment is no longer than the packet it is cut from")
}
