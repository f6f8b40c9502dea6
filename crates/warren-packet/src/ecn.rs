//! Explicit Congestion Notification in the IP header (RFC 3168 section 5).

use crate::checksum;
use crate::wire::{put_u16, u16_at};

const MASK: u8 = 0b11;
const CONGESTION_EXPERIENCED: u8 = 0b11;
const NOT_CAPABLE: u8 = 0b00;

/// Sets Congestion Experienced in a whole, valid packet. Returns false, and changes nothing, if its sender does not support ECN.
pub fn mark_congestion(packet: &mut [u8]) -> bool {
    let is_v4 = packet[0] >> 4 == 4;
    // IPv6's traffic class begins in the low nibble of the first byte, so its ECN bits are bits 4 and 5 of the second byte.
    let shift = if is_v4 { 0 } else { 4 };
    if packet[1] >> shift & MASK == NOT_CAPABLE {
        return false;
    }
    let old = u16_at(packet, 0);
    packet[1] |= CONGESTION_EXPERIENCED << shift;
    if is_v4 {
        // Only the IPv4 header has a checksum, and the transport's pseudo-header does not cover this byte.
        let checksum = checksum::update(u16_at(packet, 10), old, u16_at(packet, 0));
        put_u16(packet, 10, checksum);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::Sum;

    fn v4(type_of_service: u8) -> [u8; 20] {
        let mut packet =
            [0x45, type_of_service, 0, 20, 1, 2, 0x40, 0, 64, 59, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        let checksum = Sum::of(&packet).checksum();
        put_u16(&mut packet, 10, checksum);
        packet
    }

    #[test]
    fn only_a_capable_sender_is_marked_and_the_rest_of_the_byte_stays() {
        for (before, after) in
            [(0xb8, None), (0xb9, Some(0xbb)), (0xba, Some(0xbb)), (0xbb, Some(0xbb)), (0x01, Some(0x03))]
        {
            let mut packet = v4(before);
            assert_eq!(mark_congestion(&mut packet), after.is_some(), "{before:#x}");
            assert_eq!(packet[1], after.unwrap_or(before));
            assert_eq!(Sum::of(&packet).folded(), 0xffff, "the header checksum holds");
        }
    }

    #[test]
    fn ipv6_is_marked_in_its_traffic_class() {
        for (before, after) in [([0x6b, 0x8f], None), ([0x6b, 0xaf], Some([0x6b, 0xbf]))] {
            let mut packet = [0; 40];
            packet[..2].copy_from_slice(&before);
            assert_eq!(mark_congestion(&mut packet), after.is_some());
            assert_eq!(packet[..2], after.unwrap_or(before));
            assert_eq!(packet[2..], [0; 38]);
        }
    }
}
