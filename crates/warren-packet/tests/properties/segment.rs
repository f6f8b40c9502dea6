//! Cutting super-packets into segments.

use proptest::prelude::*;
use warren_packet::ip::Malformed;
use warren_packet::receive::accept;
use warren_packet::segment::{MAX_HEADERS, segment};
use warren_packet::virtio::{
    DATA_VALID, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, NEEDS_CSUM, VirtioNetHeader,
};

use crate::build::{
    SuperPacket, TCP, UDP, assert_checksums, complete, ipv4_packet, ipv6_packet, super_packet, tcp_header,
    udp_header,
};

#[derive(Debug, PartialEq)]
struct Packet {
    bytes: Vec<u8>,
    partial: bool,
}

/// Cuts the super-packet and copies the segments. On an error no segment may have been emitted.
fn cut(header: VirtioNetHeader, bytes: &[u8]) -> Result<Vec<Packet>, Malformed> {
    let mut packets = Vec::new();
    let result = segment(header, bytes, &mut |segment| {
        let bytes = segment.parts().concat();
        assert_eq!(bytes.len(), segment.len());
        assert_eq!(segment.flags().partial_checksum(), segment.partial_checksum);
        packets.push(Packet { bytes, partial: segment.partial_checksum });
    });
    if result.is_err() {
        assert!(packets.is_empty());
    }
    result.map(|()| packets)
}

fn offload(gso_type: u8, gso_size: u16) -> VirtioNetHeader {
    VirtioNetHeader { flags: NEEDS_CSUM, gso_type, gso_size, ..VirtioNetHeader::default() }
}

fn partial_at(checksum_start: u16, checksum_offset: u16) -> VirtioNetHeader {
    VirtioNetHeader { flags: NEEDS_CSUM, checksum_start, checksum_offset, ..VirtioNetHeader::default() }
}

/// Passes a segment through the receiver and its kernel.
fn received(packet: &Packet) -> Vec<u8> {
    let mut bytes = packet.bytes.clone();
    let flags = warren_packet::datagram::Flags::new(packet.partial);
    let header = accept(flags, &mut bytes).unwrap();
    assert_eq!(bytes, packet.bytes, "the receiver computes the same partial checksum");
    if header.needs_checksum() {
        complete(header, &mut bytes);
    }
    bytes
}

fn be32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes.try_into().unwrap())
}

fn be16(bytes: &[u8]) -> u16 {
    u16::from_be_bytes(bytes.try_into().unwrap())
}

/// Zeroes the bytes that may differ from segment to segment.
fn constant_part(super_packet: &SuperPacket, bytes: &[u8]) -> Vec<u8> {
    let mut header = bytes[..super_packet.payload].to_vec();
    let varying: &[_] = if header[0] >> 4 == 4 { &[2..6, 10..12] } else { std::slice::from_ref(&(4..6)) };
    for range in varying {
        header[range.clone()].fill(0);
    }
    let transport = &mut header[super_packet.transport..];
    if super_packet.header.gso_type == GSO_UDP_L4 {
        transport[4..8].fill(0);
    } else {
        transport[4..8].fill(0);
        transport[13] &= !0x89;
        transport[16..18].fill(0);
    }
    header
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn every_segment_is_a_valid_packet_and_together_they_are_the_payload(packet in super_packet()) {
        let segments = cut(packet.header, &packet.bytes).unwrap();

        let payload = &packet.bytes[packet.payload..];
        let size = usize::from(packet.header.gso_size);
        prop_assert_eq!(segments.len(), payload.len().div_ceil(size).max(1));
        let joined: Vec<u8> = segments.iter().flat_map(|s| s.bytes[packet.payload..].to_vec()).collect();
        prop_assert_eq!(&joined, payload);
        for (index, segment) in segments.iter().enumerate() {
            if index + 1 < segments.len() {
                prop_assert_eq!(segment.bytes.len(), packet.payload + size);
            }
            prop_assert_eq!(segment.partial, packet.plain);
            assert_checksums(&received(segment), packet.checksum_addresses);
        }
    }

    #[test]
    fn only_what_must_differ_between_segments_does(packet in super_packet()) {
        let segments = cut(packet.header, &packet.bytes).unwrap();

        let original = &packet.bytes;
        let last = segments.len() - 1;
        for (index, segment) in segments.iter().map(|segment| &segment.bytes).enumerate() {
            prop_assert_eq!(constant_part(&packet, segment), constant_part(&packet, original));
            let step = u32::try_from(index).unwrap();
            if segment[0] >> 4 == 4 {
                let expected = be16(&original[4..6]).wrapping_add(u16::try_from(step).unwrap());
                prop_assert_eq!(be16(&segment[4..6]), expected);
            }
            if packet.protocol() == UDP {
                continue;
            }
            let (transport, original) = (&segment[packet.transport..], &original[packet.transport..]);
            let expected = be32(&original[4..8]).wrapping_add(step * u32::from(packet.header.gso_size));
            prop_assert_eq!(be32(&transport[4..8]), expected);
            let mut flags = original[13];
            if index != 0 { flags &= !0x80 }
            if index != last { flags &= !0x09 }
            prop_assert_eq!(transport[13], flags);
        }
    }

    #[test]
    fn udp_without_a_checksum_stays_without(packet in super_packet()) {
        if packet.protocol() == TCP {
            return Ok(());
        }
        let packet = packet.without_checksum();
        for segment in cut(packet.header, &packet.bytes).unwrap() {
            prop_assert!(!segment.partial);
            prop_assert_eq!(be16(&segment.bytes[packet.transport + 6..packet.transport + 8]), 0);
        }
    }

    #[test]
    fn a_single_packet_is_left_partial_or_completed(packet in super_packet()) {
        let header = VirtioNetHeader { gso_type: GSO_NONE, gso_size: 0, ..packet.header };
        let segments = cut(header, &packet.bytes).unwrap();
        prop_assert_eq!(segments.len(), 1);
        prop_assert_eq!(segments[0].partial, packet.plain);
        assert_checksums(&received(&segments[0]), packet.checksum_addresses);
    }

    #[test]
    fn an_inner_packets_checksum_is_completed(inner in super_packet(), outer_port: u16) {
        // Any UDP tunnel: the kernel leaves the innermost checksum to be completed.
        if inner.bytes.len() > 65_535 - 28 {
            return Ok(());
        }
        let mut udp = udp_header(u16::try_from(inner.bytes.len()).unwrap());
        udp[..2].copy_from_slice(&outer_port.to_be_bytes());
        let bytes = ipv4_packet(UDP, &[&udp[..], &inner.bytes].concat());
        let start = u16::try_from(28 + inner.transport).unwrap();
        let segments = cut(partial_at(start, inner.header.checksum_offset), &bytes).unwrap();
        prop_assert_eq!(segments.len(), 1);
        prop_assert!(!segments[0].partial);
        assert_checksums(&segments[0].bytes[28..], inner.checksum_addresses);
    }
}

#[test]
fn a_packet_that_needs_nothing_passes_untouched() {
    let bytes = ipv4_packet(TCP, &[tcp_header(1), vec![7; 100]].concat());
    for flags in [0, DATA_VALID] {
        let header = VirtioNetHeader { flags, ..VirtioNetHeader::default() };
        let segments = cut(header, &bytes).unwrap();
        assert_eq!(segments, [Packet { bytes: bytes.clone(), partial: false }]);
    }
}

#[test]
fn push_and_fin_go_last_and_cwr_first() {
    let mut tcp = tcp_header(u32::MAX - 5);
    tcp[13] = 0x80 | 0x10 | 0x08 | 0x01;
    let bytes = ipv4_packet(TCP, &[tcp, vec![7; 25]].concat());

    let segments = cut(offload(GSO_TCPV4, 10), &bytes).unwrap();

    let flags: Vec<u8> = segments.iter().map(|segment| segment.bytes[33]).collect();
    assert_eq!(flags, [0x90, 0x10, 0x19]);
    let sequence_numbers: Vec<u32> = segments.iter().map(|segment| be32(&segment.bytes[24..28])).collect();
    assert_eq!(sequence_numbers, [u32::MAX - 5, 4, 14]);
    let lengths: Vec<usize> = segments.iter().map(|segment| segment.bytes.len()).collect();
    assert_eq!(lengths, [50, 50, 45]);
}

#[test]
fn a_super_packet_of_one_segment_keeps_all_flags() {
    let mut tcp = tcp_header(9);
    tcp[13] = 0xff;
    for payload in [0, 1, 10] {
        let bytes = ipv4_packet(TCP, &[tcp.clone(), vec![7; payload]].concat());
        let segments = cut(offload(GSO_TCPV4, 10), &bytes).unwrap();
        assert_eq!(segments.len(), 1);
        assert_eq!(segments[0].bytes[33], 0xff);
        assert_eq!(segments[0].bytes.len(), bytes.len());
    }
}

#[test]
fn a_segment_size_of_zero_is_refused() {
    let bytes = ipv4_packet(TCP, &[tcp_header(1), vec![7; 100]].concat());
    assert_eq!(cut(offload(GSO_TCPV4, 0), &bytes), Err(Malformed::SegmentSize));
}

#[test]
fn an_offload_that_does_not_fit_the_packet_is_refused() {
    let tcp = [tcp_header(1), vec![7; 100]].concat();
    let udp = [udp_header(100), vec![7; 100]].concat();
    let mut fragment = ipv4_packet(TCP, &tcp);
    fragment[6] = 0x20;
    let mut short_offset = tcp.clone();
    short_offset[12] = 0x40;
    for (gso_type, bytes) in [
        (GSO_TCPV6, ipv4_packet(TCP, &tcp)),
        (GSO_TCPV4, ipv6_packet(TCP, &tcp)),
        (GSO_UDP_L4, ipv4_packet(TCP, &tcp)),
        (GSO_TCPV4, ipv4_packet(UDP, &udp)),
        (GSO_TCPV4, ipv4_packet(4, &ipv4_packet(TCP, &tcp))),
        (GSO_TCPV4, fragment),
        (GSO_TCPV4, ipv4_packet(TCP, &short_offset)),
        (GSO_TCPV4, ipv4_packet(TCP, &tcp[..19])),
        (GSO_UDP_L4, ipv6_packet(UDP, &udp[..7])),
        (2, ipv4_packet(TCP, &tcp)),
        (3, ipv4_packet(UDP, &udp)),
        (0x21, ipv4_packet(TCP, &tcp)),
    ] {
        assert_eq!(cut(offload(gso_type, 10), &bytes), Err(Malformed::Offload { gso_type }));
    }
}

#[test]
fn wrong_lengths_are_refused() {
    let bytes = ipv4_packet(TCP, &[tcp_header(1), vec![7; 100]].concat());
    let mut padded = bytes.clone();
    padded.push(0);
    assert!(matches!(cut(offload(GSO_TCPV4, 10), &padded), Err(Malformed::TotalLength { .. })));
    assert!(matches!(cut(VirtioNetHeader::default(), &padded), Err(Malformed::TotalLength { .. })));
    assert!(matches!(cut(offload(GSO_TCPV4, 10), &bytes[..50]), Err(Malformed::TotalLength { .. })));
}

#[test]
fn a_checksum_outside_the_payload_is_refused() {
    let bytes = ipv4_packet(TCP, &[tcp_header(1), vec![7; 100]].concat());
    for (start, offset) in [(0, 10), (19, 16), (20, 119), (138, 2), (u16::MAX, u16::MAX)] {
        let refused = cut(partial_at(start, offset), &bytes);
        assert!(matches!(refused, Err(Malformed::ChecksumPosition { .. })), "{start} {offset}");
    }
    assert!(cut(partial_at(20, 118), &bytes).is_ok());
}

#[test]
fn headers_beyond_the_limit_are_refused_and_up_to_it_are_not() {
    let bytes = ipv4_packet(200, &[1; 1_000]);
    let limit = u16::try_from(MAX_HEADERS).unwrap();
    assert!(cut(partial_at(20, limit - 22), &bytes).is_ok());
    let refused = cut(partial_at(20, limit - 21), &bytes);
    assert_eq!(refused, Err(Malformed::HeaderTooLong { header_length: MAX_HEADERS + 1 }));
}

#[test]
fn a_udp_length_short_of_the_packet_is_not_vouched_for() {
    let bytes = ipv4_packet(UDP, &[udp_header(90), vec![7; 100]].concat());
    let segments = cut(partial_at(20, 6), &bytes).unwrap();
    assert!(!segments[0].partial);
}

#[test]
fn a_fragments_checksum_is_completed_here() {
    let mut bytes = ipv4_packet(UDP, &[udp_header(1_000), vec![7; 100]].concat());
    bytes[6] = 0x20;
    let segments = cut(partial_at(20, 6), &bytes).unwrap();
    assert!(!segments[0].partial);
    assert_ne!(segments[0].bytes[26..28], bytes[26..28]);
}

#[test]
fn a_super_packet_is_cut_even_without_the_checksum_flag() {
    let bytes = ipv6_packet(TCP, &[tcp_header(1), vec![7; 100]].concat());
    let header = VirtioNetHeader { flags: 0, ..offload(GSO_TCPV6, 60) };
    let segments = cut(header, &bytes).unwrap();
    assert_eq!(segments.len(), 2);
    assert!(segments.iter().all(|segment| segment.partial));
}
