//! Functions on Ethernet frames: ECN marking, corruption, and the length of the packet.

use warren_packet::{checksum, ip::protocol};

use crate::random::Random;

/// A frame as a TAP device returns it, without preamble and frame check sequence.
pub(crate) type Frame = Vec<u8>;

/// Bytes of the Ethernet header: two addresses and the type (IEEE 802.3).
pub(super) const ETHERNET: usize = 14;
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];

/// The IP version of a frame's packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Version {
    Four,
    Six,
}

/// Returns the IP version according to the frame's EtherType. None for ARP and other protocols.
pub(super) fn version(frame: &[u8]) -> Option<Version> {
    match frame.get(12..ETHERNET)?.try_into().ok()? {
        IPV4 => Some(Version::Four),
        IPV6 => Some(Version::Six),
        _ => None,
    }
}

/// Returns the length of the IP packet according to its header. None if the frame has no IP packet.
pub(super) fn packet_bytes(frame: &[u8]) -> Option<usize> {
    let word = |at| Some(usize::from(u16::from_be_bytes(frame.get(at..at + 2)?.try_into().ok()?)));
    match version(frame)? {
        Version::Four => word(ETHERNET + 2),
        // The length in an IPv6 header does not include the header (RFC 8200 section 3).
        Version::Six => Some(word(ETHERNET + 4)? + 40),
    }
}

/// Marks a packet as "congestion experienced". Returns false if its sender does not use ECN.
pub(super) fn mark(frame: &mut [u8]) -> bool {
    const BITS: u8 = 0b11;
    match version(frame) {
        Some(Version::Four) => {
            let Some(&[first, class]) = frame.get(ETHERNET..ETHERNET + 2) else { return false };
            // The ECN field 00 means that the sender does not use ECN (RFC 3168). A frame that is shorter than an IPv4 header is
            // not marked either.
            if class & BITS == 0 || frame.len() < ETHERNET + 20 {
                return false;
            }
            let marked = class | BITS;
            set(frame, ETHERNET + 1, &[marked]);
            let (old, new) = (u16::from_be_bytes([first, class]), u16::from_be_bytes([first, marked]));
            amend(frame, ETHERNET + 10, old, new);
            true
        }
        // The IPv6 traffic class is split over two bytes. Its two lowest bits are bits 4 and 5 of the second byte.
        Some(Version::Six) => match frame.get_mut(ETHERNET + 1) {
            Some(byte) if *byte >> 4 & BITS != 0 => {
                *byte |= BITS << 4;
                true
            }
            _ => false,
        },
        None => false,
    }
}

/// Flips one random bit after the Ethernet header.
pub(super) fn corrupt(frame: &mut [u8], random: &mut Random) {
    if let Some(packet) = frame.get_mut(ETHERNET..) {
        let at = random.below(packet.len());
        if let Some(byte) = packet.get_mut(at) {
            *byte ^= 1 << random.below(8);
        }
    }
}

/// Flips one random bit of a UDP payload and corrects the checksum, so that the receiver's kernel does not detect the change.
/// Returns false if the frame has no UDP payload.
pub(super) fn corrupt_udp(frame: &mut [u8], random: &mut Random) -> bool {
    const HEADER: usize = 8;
    let Some(udp) = udp(frame) else { return false };
    let payload = udp + HEADER;
    if frame.len() <= payload {
        return false;
    }
    let at = payload + random.below(frame.len() - payload);
    let bit = 1_u8 << random.below(8);
    let Some(byte) = frame.get_mut(at) else { return false };
    let (old, new) = (*byte, *byte ^ bit);
    *byte = new;
    // The checksum is over 16-bit words. The payload starts on a word boundary, because the UDP header has eight bytes.
    let word =
        |byte: u8| if (at - payload).is_multiple_of(2) { u16::from(byte) << 8 } else { u16::from(byte) };
    // A UDP checksum of 0 means that the sender did not compute one (RFC 768). In that case, the field is not changed.
    let has_checksum = frame.get(udp + 6..udp + 8).is_some_and(|checksum| checksum != [0, 0]);
    if has_checksum {
        amend(frame, udp + 6, word(old), word(new));
    }
    true
}

/// Returns the offset of the UDP header. None for fragments and IPv6 extension headers.
fn udp(frame: &[u8]) -> Option<usize> {
    match version(frame)? {
        Version::Four => {
            let header = usize::from(frame.get(ETHERNET)? & 0x0f) * 4;
            let fragment = u16::from_be_bytes(frame.get(ETHERNET + 6..ETHERNET + 8)?.try_into().ok()?);
            // A packet is a fragment if "more fragments" is set or the fragment offset is not 0.
            let whole = fragment & 0x3fff == 0;
            (whole && *frame.get(ETHERNET + 9)? == protocol::UDP).then_some(ETHERNET + header)
        }
        Version::Six => (*frame.get(ETHERNET + 6)? == protocol::UDP).then_some(ETHERNET + 40),
    }
}

/// Updates the checksum at offset `at` after a word has changed from `old` to its new value. In UDP, a checksum of 0 is written
/// as 0xffff, because 0 means "no checksum".
fn amend(frame: &mut [u8], at: usize, old: u16, new: u16) {
    if let Some(&[high, low]) = frame.get(at..at + 2) {
        let sum = match checksum::update(u16::from_be_bytes([high, low]), old, new) {
            // Offset 10 is the checksum of the IPv4 header, where 0 is a normal value.
            0 if at != ETHERNET + 10 => 0xffff,
            sum => sum,
        };
        set(frame, at, &sum.to_be_bytes());
    }
}

pub(super) fn set(frame: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(there) = frame.get_mut(at..at + bytes.len()) {
        there.copy_from_slice(bytes);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use etherparse::{PacketBuilder, SlicedPacket, TransportSlice};

    use super::*;

    /// Makes a frame with an IPv4 UDP packet that has these ECN bits.
    pub(in crate::wire) fn udp4(payload: usize, class: u8) -> Frame {
        let mut header =
            etherparse::Ipv4Header::new(0, 64, etherparse::IpNumber::UDP, [192, 0, 2, 2], [192, 0, 2, 1])
                .unwrap();
        header.ecn = etherparse::IpEcn::try_new(class).unwrap();
        header.dont_fragment = true;
        let builder = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1]);
        let builder = builder.ip(etherparse::IpHeaders::Ipv4(header, Default::default())).udp(4_433, 443);
        let mut frame = Vec::new();
        builder.write(&mut frame, &vec![0x5a; payload]).unwrap();
        frame
    }

    pub(in crate::wire) fn udp6(payload: usize, class: u8) -> Frame {
        let header = etherparse::Ipv6Header {
            traffic_class: class,
            hop_limit: 64,
            source: [0xfd; 16],
            destination: [0xfe; 16],
            ..Default::default()
        };
        let builder = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1]);
        let builder = builder.ip(etherparse::IpHeaders::Ipv6(header, Default::default())).udp(4_433, 443);
        let mut frame = Vec::new();
        builder.write(&mut frame, &vec![0x5a; payload]).unwrap();
        frame
    }

    /// Returns whether all checksums of a frame are correct, according to an independent library.
    fn checksums_hold(frame: &[u8]) -> bool {
        let packet = SlicedPacket::from_ethernet(frame).unwrap();
        let Some(TransportSlice::Udp(udp)) = &packet.transport else { panic!("{packet:?}") };
        let (header, payload) = (udp.to_header(), udp.payload());
        match packet.net.unwrap() {
            etherparse::NetSlice::Ipv4(ip) => {
                let ip = ip.header().to_header();
                ip.calc_header_checksum() == ip.header_checksum
                    && header.calc_checksum_ipv4(&ip, payload).unwrap() == header.checksum
            }
            etherparse::NetSlice::Ipv6(ip) => {
                header.calc_checksum_ipv6(&ip.header().to_header(), payload).unwrap() == header.checksum
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn packet_is_measured_without_its_frame() {
        assert_eq!(packet_bytes(&udp4(100, 0)), Some(128));
        assert_eq!(packet_bytes(&udp6(100, 0)), Some(148));
        let arp = [[0; 12].as_slice(), &[0x08, 0x06], &[0; 28]].concat();
        assert_eq!((packet_bytes(&arp), packet_bytes(&[])), (None, None));
    }

    #[test]
    fn only_packets_of_ecn_senders_are_marked_and_checksums_stay_right() {
        for class in [1, 2, 3] {
            for mut frame in [udp4(100, class), udp6(100, class)] {
                assert!(mark(&mut frame) && checksums_hold(&frame));
                let of = SlicedPacket::from_ethernet(&frame).unwrap();
                let marked = match of.net.unwrap() {
                    etherparse::NetSlice::Ipv4(ip) => ip.header().ecn().value(),
                    etherparse::NetSlice::Ipv6(ip) => ip.header().traffic_class(),
                    other => panic!("{other:?}"),
                };
                assert_eq!(marked, 3);
            }
        }
        for frame in [udp4(100, 0), udp6(100, 0), vec![0; 10], Vec::new()] {
            let mut same = frame.clone();
            assert!(!mark(&mut same));
            assert_eq!(same, frame);
        }
    }

    #[test]
    fn corruption_is_one_bit_and_checksums_find_it() {
        let mut random = Random::new(1);
        let flipped = |one: &[u8], other: &[u8]| {
            one.iter().zip(other).map(|(one, other)| (one ^ other).count_ones()).sum::<u32>()
        };
        for _ in 0..200 {
            let (frame, mut changed) = (udp4(101, 0), udp4(101, 0));
            corrupt(&mut changed, &mut random);
            assert_eq!(flipped(&frame, &changed), 1);
            assert_eq!(frame[..ETHERNET], changed[..ETHERNET]);
        }
        corrupt(&mut [], &mut random);
    }

    #[test]
    fn corruption_of_a_payload_passes_the_checksum() {
        let mut random = Random::new(1);
        for _ in 0..200 {
            for frame in [udp4(101, 0), udp6(100, 0)] {
                let mut changed = frame.clone();
                assert!(corrupt_udp(&mut changed, &mut random));
                assert!(checksums_hold(&changed));
                let header = frame.len() - 101 - usize::from(frame.len() % 2 == 0);
                assert!(frame[header..] != changed[header..]);
            }
        }
        let mut empty = udp4(0, 0);
        assert!(!corrupt_udp(&mut empty, &mut random) && !corrupt_udp(&mut [], &mut random));
    }
}
