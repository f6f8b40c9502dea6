//! Validates a peer's packets before they reach the kernel.

use crate::checksum::Sum;
use crate::datagram::Flags;
use crate::ip::IpPacket;
use crate::reason::DropReason;
use crate::transport::TransportHeader;
use crate::virtio::VirtioNetHeader;
use crate::wire::put_u16;

/// Checks one packet from a peer and makes the virtio header for writing it to the TUN device.
///
/// If the packet is flagged as having a partial checksum, its checksum field is set to the pseudo-header's sum, computed here.
/// The position of the field is derived from the packet alone.
///
/// # Errors
/// [`DropReason::BadPacket`] if it is not exactly one IP packet. [`DropReason::BadChecksumFlag`] if it is flagged but cannot
/// have a partial checksum. A flagged packet must be unfragmented TCP or UDP, and its checksum must cover the rest of the
/// packet. UDP must not have checksums turned off.
pub fn accept(flags: Flags, packet: &mut [u8]) -> Result<VirtioNetHeader, DropReason> {
    let view = IpPacket::parse(packet).map_err(|_| DropReason::BadPacket)?;
    if !flags.partial_checksum() {
        return Ok(VirtioNetHeader::default());
    }
    let transport = flagged(&view)?;
    let sum = transport.partial_checksum(packet, packet.len());
    put_u16(packet, transport.checksum_field(), sum);
    Ok(transport.completion())
}

/// Completes the checksum of a packet that is flagged as having a partial one, for a receiver that accepts only complete checksums.
///
/// # Errors
/// As [`accept`].
pub fn complete(packet: &mut [u8]) -> Result<(), DropReason> {
    let header = accept(Flags::PARTIAL_CHECKSUM, packet)?;
    let start = usize::from(header.checksum_start);
    // The field holds the pseudo-header's sum, so this is the sum of everything that the checksum covers.
    let checksum = Sum::of(&packet[start..]).transport_checksum();
    put_u16(packet, start + usize::from(header.checksum_offset), checksum);
    Ok(())
}

/// Finds the transport header of a packet that is flagged as having a partial checksum.
///
/// # Errors
/// [`DropReason::BadChecksumFlag`] as [`accept`].
pub(crate) fn flagged(packet: &IpPacket<'_>) -> Result<TransportHeader, DropReason> {
    TransportHeader::of(packet)
        .filter(|transport| transport.may_be_partial(packet) && !transport.has_no_checksum(packet))
        .ok_or(DropReason::BadChecksumFlag)
}
