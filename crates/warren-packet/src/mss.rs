//! MSS clamping: lowers TCP's MSS option (RFC 9293 section 3.7.1) to what a path carries (RFC 4459 section 3.2).

use crate::checksum;
use crate::ip::{IPV4_HEADER, IPV6_HEADER, IpPacket, IpVersion};
use crate::transport::{TransportHeader, TransportKind};
use crate::wire::{put_u16, u16_at};

const TCP_HEADER: usize = 20;
const FLAGS: usize = 13;
const SYN: u8 = 0x02;

/// Whether this packet is a SYN or SYN-ACK.
pub fn is_syn(packet: &IpPacket<'_>) -> bool {
    tcp(packet).is_some_and(|tcp| packet.bytes()[tcp.start + FLAGS] & SYN != 0)
}

/// Lowers the MSS in a SYN, so that the flow's packets have at most `max_packet` bytes. Never raises an MSS, and leaves other
/// packets alone. `partial_checksum` says that the checksum field holds only the pseudo-header's sum, which does not cover
/// options. Returns whether the packet was changed.
pub fn clamp_mss(packet: &mut [u8], partial_checksum: bool, max_packet: usize) -> bool {
    let Ok(view) = IpPacket::parse(packet) else { return false };
    let headers = TCP_HEADER
        + match view.version() {
            IpVersion::V4 => IPV4_HEADER,
            IpVersion::V6 => IPV6_HEADER,
        };
    let Some(TransportHeader { start, end, .. }) = tcp(&view).filter(|_| is_syn(&view)) else { return false };
    // Without the option, the peer assumes 536 bytes over IPv4 and 1,220 over IPv6 (RFC 9293 section 3.7.1).
    let Some(at) = find_mss(&packet[start + TCP_HEADER..end]) else { return false };
    let field = start + TCP_HEADER + at;
    let old = u16_at(packet, field);
    // The MSS leaves out the fixed headers, but includes options (RFC 9293 section 3.7.1).
    let new = u16::try_from(max_packet.saturating_sub(headers)).unwrap_or(u16::MAX);
    if old <= new {
        return false;
    }
    put_u16(packet, field, new);
    if !partial_checksum {
        // Padding may put the option at an odd offset. Its bytes are then swapped in the sum (RFC 1071 section 2 (B)).
        let is_odd = (field - start) % 2 == 1;
        let word = |value: u16| if is_odd { value.swap_bytes() } else { value };
        let checksum = checksum::update(u16_at(packet, start + 16), word(old), word(new));
        put_u16(packet, start + 16, checksum);
    }
    true
}

fn tcp(packet: &IpPacket<'_>) -> Option<TransportHeader> {
    TransportHeader::of(packet).filter(|header| header.kind == TransportKind::Tcp)
}

/// Offset of the MSS value within the options. `None` if the option is missing or an earlier one is invalid.
fn find_mss(options: &[u8]) -> Option<usize> {
    const END: u8 = 0;
    const NO_OPERATION: u8 = 1;
    const MSS: u8 = 2;
    let mut at = 0;
    loop {
        match options.get(at..)? {
            [] | [END, ..] => return None,
            [NO_OPERATION, ..] => at += 1,
            [MSS, 4, _, _, ..] => return Some(at + 2),
            [_, length, ..] if *length >= 2 => at += usize::from(*length),
            [..] => return None,
        }
    }
}
