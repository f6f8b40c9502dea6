//! What the receiver requires of a peer's packet before it reaches the kernel.

use proptest::prelude::*;
use warren_packet::DropReason;
use warren_packet::datagram::Flags;
use warren_packet::receive::{self, accept};
use warren_packet::virtio::{GSO_NONE, VirtioNetHeader};

use crate::build::{
    TCP, UDP, assert_checksums, complete, ipv4_packet, ipv6_packet, super_packet, tcp_header, udp_header,
};

const PARTIAL: Flags = Flags::PARTIAL_CHECKSUM;

fn tcp() -> Vec<u8> {
    [tcp_header(1), vec![7; 33]].concat()
}

fn udp() -> Vec<u8> {
    [udp_header(33), vec![7; 33]].concat()
}

fn refusal(mut packet: Vec<u8>) -> Option<DropReason> {
    let before = packet.clone();
    let reason = accept(PARTIAL, &mut packet).err();
    if reason.is_some() {
        assert_eq!(packet, before, "a refused packet is left as it was");
    }
    reason
}

proptest! {
    #[test]
    fn nothing_in_a_partial_checksum_field_is_trusted(packet in super_packet(), field in 1u16..) {
        if !packet.plain {
            return Ok(());
        }
        let mut bytes = packet.bytes;
        let at = packet.transport + usize::from(packet.header.checksum_offset);
        bytes[at..at + 2].copy_from_slice(&field.to_be_bytes());

        let header = accept(PARTIAL, &mut bytes).unwrap();

        prop_assert_eq!(usize::from(header.checksum_start), packet.transport);
        prop_assert_eq!(header.checksum_offset, packet.header.checksum_offset);
        prop_assert_eq!(usize::from(header.header_length), packet.payload);
        prop_assert_eq!((header.gso_type, header.gso_size), (GSO_NONE, 0));
        complete(header, &mut bytes);
        assert_checksums(&bytes, packet.checksum_addresses);
    }

    #[test]
    fn a_completed_checksum_covers_the_whole_packet(packet in super_packet()) {
        if !packet.plain {
            return Ok(());
        }
        let mut bytes = packet.bytes;
        receive::complete(&mut bytes).unwrap();
        assert_checksums(&bytes, packet.checksum_addresses);
    }

    #[test]
    fn an_unflagged_packet_is_written_as_it_came(packet in super_packet()) {
        let mut bytes = packet.bytes.clone();
        prop_assert_eq!(accept(Flags::NONE, &mut bytes), Ok(VirtioNetHeader::default()));
        prop_assert_eq!(bytes, packet.bytes);
    }

    #[test]
    fn addresses_that_the_header_does_not_show_cannot_be_flagged(packet in super_packet()) {
        let refused = (!packet.plain).then_some(DropReason::BadChecksumFlag);
        prop_assert_eq!(refusal(packet.bytes), refused);
    }

    #[test]
    fn a_packet_cut_or_padded_is_refused(packet in super_packet(), length in any::<prop::sample::Index>()) {
        let mut bytes = packet.bytes;
        let cut = length.index(bytes.len());
        prop_assert_eq!(accept(Flags::NONE, &mut bytes[..cut]), Err(DropReason::BadPacket));
        bytes.push(0);
        prop_assert_eq!(accept(Flags::NONE, &mut bytes), Err(DropReason::BadPacket));
    }
}

#[test]
fn the_flag_is_refused_where_no_partial_checksum_can_be() {
    let mut fragment = ipv4_packet(UDP, &udp());
    fragment[6] = 0x20;
    let mut last_fragment = ipv4_packet(UDP, &udp());
    last_fragment[7] = 1;
    let mut short_offset = tcp();
    short_offset[12] = 0x40;
    let mut long_offset = tcp();
    long_offset[12] = 0xf0;
    let mut without_checksum = udp();
    without_checksum[6..8].fill(0);
    let v6_fragment = [&[UDP, 0, 0, 1, 0, 0, 0, 9][..], &udp()].concat();
    let atomic_fragment = [&[UDP, 0, 0, 0, 0, 0, 0, 9][..], &udp()].concat();
    for packet in [
        fragment,
        last_fragment,
        ipv6_packet(44, &v6_fragment),
        ipv6_packet(44, &atomic_fragment),
        ipv4_packet(1, &[8; 60]),
        ipv6_packet(58, &[128; 60]),
        ipv4_packet(132, &[1; 60]),
        ipv4_packet(4, &ipv4_packet(TCP, &tcp())),
        ipv4_packet(TCP, &[]),
        ipv4_packet(TCP, &tcp()[..19]),
        ipv4_packet(TCP, &short_offset),
        ipv6_packet(TCP, &long_offset),
        ipv4_packet(UDP, &udp()[..7]),
        ipv4_packet(UDP, &without_checksum),
        ipv6_packet(UDP, &without_checksum),
        ipv6_packet(UDP, &[udp_header(32), vec![7; 33]].concat()),
        ipv6_packet(UDP, &[udp_header(34), vec![7; 33]].concat()),
        ipv6_packet(0, &[TCP, 200, 0, 0, 0, 0, 0, 0]),
    ] {
        assert_eq!(refusal(packet.clone()), Some(DropReason::BadChecksumFlag), "{packet:02x?}");
    }
}

#[test]
fn payloads_of_no_bytes_are_accepted() {
    for mut packet in [
        ipv4_packet(TCP, &tcp_header(1)),
        ipv6_packet(TCP, &tcp_header(1)),
        ipv4_packet(UDP, &udp_header(0)),
        ipv6_packet(UDP, &udp_header(0)),
    ] {
        assert!(accept(PARTIAL, &mut packet).is_ok());
    }
    assert!(accept(Flags::NONE, &mut ipv4_packet(59, &[])).is_ok());
    assert!(accept(Flags::NONE, &mut ipv6_packet(59, &[])).is_ok());
}
