//! Segments the super-packets of a TUN device with vnet_hdr into packets ready for framing.
//!
//! The positions of headers are derived from the packet, never from the virtio header's hints. Transport checksums stay partial
//! if the receiver can find and complete them (DESIGN.md section 6). Otherwise they are completed here.

use crate::checksum::Sum;
use crate::datagram::Flags;
use crate::ip::{IpPacket, IpVersion, Malformed};
use crate::rewrite::Rewrite;
use crate::transport::{TransportHeader, TransportKind};
use crate::virtio::{GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, VirtioNetHeader};
use crate::wire::put_u16;

/// Maximum bytes of headers that can be rewritten. IPv4 and TCP have at most 60 each, which leaves ample room for IPv6 extension
/// headers and inner tunnels.
pub const MAX_HEADERS: usize = 512;

/// One packet in two parts: the rewritten headers and the unchanged bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment<'a> {
    /// The rewritten start of the packet. Empty if nothing was rewritten.
    pub header: &'a [u8],
    /// The rest of the packet, borrowed from the super-packet.
    pub payload: &'a [u8],
    /// Whether the transport checksum field holds only the pseudo-header's sum.
    pub partial_checksum: bool,
}

impl<'a> Segment<'a> {
    /// Length of the packet in bytes.
    pub fn len(&self) -> usize {
        self.header.len() + self.payload.len()
    }

    /// Whether the packet is empty. [`segment`] never emits an empty one.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Both parts, as [`crate::datagram::write_packet`] takes them.
    pub fn parts(&self) -> [&'a [u8]; 2] {
        [self.header, self.payload]
    }

    /// The flags for framing the packet.
    pub fn flags(&self) -> Flags {
        Flags::new(self.partial_checksum)
    }
}

/// Segments one read from the TUN device and passes each packet to `emit`, in order.
///
/// # Errors
/// [`Malformed`] if the read is not one whole IP packet, or the virtio header does not match the packet. In that case nothing is
/// emitted.
pub fn segment(
    header: VirtioNetHeader,
    super_packet: &[u8],
    emit: &mut dyn FnMut(Segment<'_>),
) -> Result<(), Malformed> {
    let packet = IpPacket::parse(super_packet)?;
    // The ECN bit says only that CWR is set, which the packet's own header shows as well.
    let kind = match (header.gso_type & !GSO_ECN, packet.version()) {
        (GSO_NONE, _) if header.needs_checksum() => return finish_checksum(header, &packet, emit),
        (GSO_NONE, _) => {
            emit(Segment { header: &[], payload: super_packet, partial_checksum: false });
            return Ok(());
        }
        (GSO_TCPV4, IpVersion::V4) | (GSO_TCPV6, IpVersion::V6) => TransportKind::Tcp,
        (GSO_UDP_L4, _) => TransportKind::Udp,
        _ => return Err(Malformed::Offload { gso_type: header.gso_type }),
    };
    let transport = TransportHeader::of(&packet)
        .filter(|transport| transport.kind == kind)
        .ok_or(Malformed::Offload { gso_type: header.gso_type })?;
    cut(header, &packet, transport, emit)
}

/// Emits one packet whose checksum is partial. If the receiver can complete the checksum, the packet is unchanged. Otherwise
/// the checksum is completed here.
fn finish_checksum(
    header: VirtioNetHeader,
    packet: &IpPacket<'_>,
    emit: &mut dyn FnMut(Segment<'_>),
) -> Result<(), Malformed> {
    let bytes = packet.bytes();
    let start = usize::from(header.checksum_start);
    let field = start + usize::from(header.checksum_offset);
    if let Some(transport) = TransportHeader::of(packet)
        && (transport.start, transport.checksum_field()) == (start, field)
    {
        let no_checksum = transport.has_no_checksum(packet);
        if no_checksum || transport.may_be_partial(packet) {
            emit(Segment { header: &[], payload: bytes, partial_checksum: !no_checksum });
            return Ok(());
        }
    }

    // The checksum is that of an inner packet (VXLAN, IP in IP), or it cannot stay partial, because the receiver would not
    // complete it.
    let end = field + 2;
    if start < packet.header_length() || end > bytes.len() {
        return Err(Malformed::ChecksumPosition { start, field });
    }
    let mut scratch = [0; MAX_HEADERS];
    let header = scratch.get_mut(..end).ok_or(Malformed::HeaderTooLong { header_length: end })?;
    header.copy_from_slice(&bytes[..end]);
    // The field holds the pseudo-header's sum, so the sum over all bytes is complete.
    put_u16(header, field, Sum::of(&bytes[start..]).transport_checksum());
    emit(Segment { header, payload: &bytes[end..], partial_checksum: false });
    Ok(())
}

/// Splits a TCP or UDP super-packet into segments of `gso_size` payload bytes. The last one may be shorter.
fn cut(
    header: VirtioNetHeader,
    packet: &IpPacket<'_>,
    transport: TransportHeader,
    emit: &mut dyn FnMut(Segment<'_>),
) -> Result<(), Malformed> {
    let step = usize::from(header.gso_size);
    if step == 0 {
        return Err(Malformed::SegmentSize);
    }
    let mut rewrite =
        Rewrite::new(header, packet, transport).ok_or(Malformed::Offload { gso_type: header.gso_type })?;
    let partial_checksum = rewrite.leaves_checksum_partial();
    let (original, payload) = packet.bytes().split_at(transport.end);
    // Each segment reuses these bytes, because `emit` only borrows them.
    let mut scratch = [0; MAX_HEADERS];
    let header =
        scratch.get_mut(..transport.end).ok_or(Malformed::HeaderTooLong { header_length: transport.end })?;
    // Copied once for all segments, because each rewrite sets every field that differs.
    header.copy_from_slice(original);

    let count = payload.len().div_ceil(step).max(1); // a super-packet without payload is one segment
    for index in 0..count {
        let start = index * step;
        let payload = &payload[start..payload.len().min(start + step)];
        rewrite.next(header, payload, index == 0, index + 1 == count);
        emit(Segment { header, payload, partial_checksum });
    }
    Ok(())
}
