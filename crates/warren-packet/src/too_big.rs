//! Makes the ICMP errors for path MTU discovery: "fragmentation needed" (RFC 1191 section 4) and ICMPv6's "packet too big" (RFC
//! 4443 section 3.2).

use std::net::IpAddr;

use crate::checksum::{self, Sum};
use crate::ip::{IPV4_HEADER, IPV6_HEADER, IpPacket, IpVersion, protocol};
use crate::wire::{put_u16, u16_at};

/// The minimum link MTU of IPv6 (RFC 8200 section 5). No sender goes below it.
const IPV6_MINIMUM_MTU: usize = 1_280;

const ICMP_HEADER: usize = 8;
/// Bytes of the transport header that are quoted: ports and sequence number, which identify the flow to the sender. TCP's
/// checksum, which may be partial, comes after them.
const QUOTED: usize = 8;
const HOP_LIMIT: u8 = 64;

/// Makes an ICMP error that tells the sender of `packet` to send at most `mtu` bytes. Its source is the packet's destination, so
/// that it takes the same path as the flow's other packets.
///
/// Returns `None` if the packet must not be answered: it fits, may be fragmented (IPv4 without DF), is itself an ICMP error or
/// a later fragment (over IPv6: any fragment), or has a multicast, broadcast, loopback or unspecified address.
pub fn too_big(packet: &IpPacket<'_>, mtu: usize) -> Option<Vec<u8>> {
    let mtu = match packet.version() {
        IpVersion::V4 => mtu,
        IpVersion::V6 => mtu.max(IPV6_MINIMUM_MTU),
    };
    if packet.bytes().len() <= mtu || !may_be_answered(packet) {
        return None;
    }
    // Cannot fail: the packet is longer than `mtu`, and has at most 65,535 bytes.
    let mtu = u16::try_from(mtu).ok()?;
    match packet.version() {
        IpVersion::V4 => Some(fragmentation_needed(packet, mtu)),
        IpVersion::V6 => Some(packet_too_big(packet, mtu)),
    }
}

fn may_be_answered(packet: &IpPacket<'_>) -> bool {
    let bytes = packet.bytes();
    let is_host = |address: IpAddr| match address {
        IpAddr::V4(address) => {
            !(address.is_multicast()
                || address.is_broadcast()
                || address.is_unspecified()
                || address.is_loopback())
        }
        IpAddr::V6(address) => !(address.is_multicast() || address.is_unspecified() || address.is_loopback()),
    };
    if !is_host(packet.source()) || !is_host(packet.destination()) {
        return false;
    }
    let icmp_type = packet.transport().and_then(|start| bytes.get(start)).copied();
    match packet.version() {
        IpVersion::V4 => {
            const DONT_FRAGMENT: u16 = 0x4000;
            const OFFSET: u16 = 0x1fff;
            let fragment = u16_at(bytes, 6);
            // Echo, timestamp and their replies. All other types count as errors (RFC 1122 section 3.2.2).
            let is_query = matches!(icmp_type, Some(0 | 8 | 13 | 14));
            let is_error = packet.protocol() == protocol::ICMP && !is_query;
            fragment & DONT_FRAGMENT != 0 && fragment & OFFSET == 0 && !is_error
        }
        IpVersion::V6 => {
            // Errors are the types below 128 (RFC 4443 section 2.1). A truncated one counts as an error, which must not be
            // answered (section 2.4 (e)).
            let is_error = packet.protocol() == protocol::ICMPV6 && icmp_type.is_none_or(|kind| kind < 128);
            !is_error && !packet.is_fragment()
        }
    }
}

fn quoted<'a>(packet: &IpPacket<'a>) -> &'a [u8] {
    let length = packet.transport().unwrap_or_else(|| packet.header_length()) + QUOTED;
    &packet.bytes()[..length.min(packet.bytes().len())]
}

fn fragmentation_needed(packet: &IpPacket<'_>, mtu: u16) -> Vec<u8> {
    const UNREACHABLE: u8 = 3;
    const FRAGMENTATION_NEEDED: u8 = 4;
    let quoted = quoted(packet);
    let bytes = packet.bytes();
    let total = IPV4_HEADER + ICMP_HEADER + quoted.len();
    let mut answer = vec![0; IPV4_HEADER];
    answer[0] = 0x45;
    put_u16(&mut answer, 2, length(total));
    answer[8] = HOP_LIMIT;
    answer[9] = protocol::ICMP;
    answer[12..16].copy_from_slice(&bytes[16..20]);
    answer[16..20].copy_from_slice(&bytes[12..16]);
    let sum = Sum::of(&answer);
    put_u16(&mut answer, 10, sum.checksum());

    // The MTU is in the last two bytes of the header (RFC 1191 section 4).
    answer.extend_from_slice(&[UNREACHABLE, FRAGMENTATION_NEEDED, 0, 0, 0, 0]);
    answer.extend_from_slice(&mtu.to_be_bytes());
    answer.extend_from_slice(quoted);
    let sum = Sum::of(&answer[IPV4_HEADER..]);
    put_u16(&mut answer, IPV4_HEADER + 2, sum.checksum());
    answer
}

fn packet_too_big(packet: &IpPacket<'_>, mtu: u16) -> Vec<u8> {
    const PACKET_TOO_BIG: u8 = 2;
    let quoted = quoted(packet);
    let bytes = packet.bytes();
    let mut answer = vec![0; IPV6_HEADER];
    answer[0] = 0x60;
    put_u16(&mut answer, 4, length(ICMP_HEADER + quoted.len()));
    answer[6] = protocol::ICMPV6;
    answer[7] = HOP_LIMIT;
    answer[8..24].copy_from_slice(&bytes[24..40]);
    answer[24..40].copy_from_slice(&bytes[8..24]);

    // The MTU has 32 bits here, of which the upper 16 are zero (RFC 4443 section 3.2).
    answer.extend_from_slice(&[PACKET_TOO_BIG, 0, 0, 0, 0, 0]);
    answer.extend_from_slice(&mtu.to_be_bytes());
    answer.extend_from_slice(quoted);
    let pseudo_header = checksum::pseudo_header(packet.destination(), packet.source(), protocol::ICMPV6);
    let sum = pseudo_header + Sum::from(length(ICMP_HEADER + quoted.len())) + Sum::of(&answer[IPV6_HEADER..]);
    put_u16(&mut answer, IPV6_HEADER + 2, sum.checksum());
    answer
}

fn length(bytes: usize) -> u16 {
    u16::try_from(bytes).expect("headers and a few bytes are far below 65,535")
}
