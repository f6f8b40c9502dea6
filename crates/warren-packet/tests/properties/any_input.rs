//! No input causes a panic, and etherparse agrees with what the parser found.

use std::time::Instant;

use bytes::{Bytes, BytesMut};
use etherparse::{SlicedPacket, TransportSlice};
use proptest::prelude::*;
use warren_packet::DropReason;
use warren_packet::datagram::{
    Datagram, Flags, Numbering, append_trailer, write_nothing_below, write_packet,
};
use warren_packet::ip::IpPacket;
use warren_packet::reassembly::{Assembler, Limits};
use warren_packet::receive::accept;
use warren_packet::segment::segment;
use warren_packet::tuple::FiveTuple;
use warren_packet::virtio::{self, VirtioNetHeader};

use crate::build::super_packet;

/// Bytes that are often nearly a packet: random bytes, or a packet with a few bytes changed or cut off. The outer
/// lengths are mostly corrected, so that the parser reaches the inner headers.
pub(crate) fn nearly_a_packet() -> impl Strategy<Value = Vec<u8>> {
    let anything = prop::collection::vec(any::<u8>(), 0..200);
    let changes = prop::collection::vec((0..200usize, any::<u8>()), 0..6);
    let changed = (super_packet(), changes, any::<prop::sample::Index>(), 0..4u8).prop_map(
        |(packet, changes, length, cut)| {
            let mut bytes = packet.bytes;
            if cut == 0 {
                bytes.truncate(length.index(bytes.len().min(200)));
            }
            for (at, value) in changes {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = value;
                }
            }
            bytes
        },
    );
    (prop_oneof![1 => anything, 3 => changed], 0..4u8).prop_map(|(mut bytes, repair)| {
        if repair > 0 && bytes.len() >= 6 {
            if bytes[0] >> 4 == 4 {
                let total = u16::try_from(bytes.len()).unwrap();
                bytes[2..4].copy_from_slice(&total.to_be_bytes());
            } else {
                let length = u16::try_from(bytes.len().saturating_sub(40)).unwrap();
                bytes[4..6].copy_from_slice(&length.to_be_bytes());
            }
        }
        bytes
    })
}

fn any_virtio_header() -> impl Strategy<Value = VirtioNetHeader> {
    let types = prop_oneof![4 => prop::sample::select(vec![0u8, 1, 4, 5, 0x81, 0x84]), 1 => any::<u8>()];
    (0..4u8, types, prop_oneof![0..300u16, any::<u16>()], 0..300u16, 0..300u16).prop_map(
        |(flags, gso_type, gso_size, checksum_start, checksum_offset)| VirtioNetHeader {
            flags,
            gso_type,
            header_length: gso_size,
            gso_size,
            checksum_start,
            checksum_offset,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn no_bytes_make_a_view_or_a_tuple_panic(bytes in nearly_a_packet()) {
        let Ok(packet) = IpPacket::parse(&bytes) else { return Ok(()) };
        prop_assert_eq!(packet.bytes(), &bytes);
        prop_assert!(packet.transport().is_none_or(|offset| offset <= bytes.len()));
        prop_assert!(!packet.is_fragment() || packet.transport().is_none());
        let tuple = FiveTuple::of(&packet);
        prop_assert_eq!((tuple.source, tuple.destination), (packet.source(), packet.destination()));
        tuple.symmetric_hash();
    }

    #[test]
    fn what_etherparse_finds_is_found(bytes in nearly_a_packet()) {
        let (Ok(packet), Ok(oracle)) = (IpPacket::parse(&bytes), SlicedPacket::from_ip(&bytes)) else {
            return Ok(());
        };
        let found = match &oracle.transport {
            Some(TransportSlice::Tcp(tcp)) => (6, tcp.slice(), tcp.source_port(), tcp.destination_port()),
            Some(TransportSlice::Udp(udp)) => (17, udp.slice(), udp.source_port(), udp.destination_port()),
            _ => return Ok(()),
        };
        // etherparse also reads past IPv4's authentication header, and into first and atomic fragments.
        if packet.protocol() == 51 || packet.is_fragment() {
            return Ok(());
        }
        let (protocol, slice, source_port, destination_port) = found;
        prop_assert_eq!(packet.protocol(), protocol);
        let transport = packet.transport().map(|at| bytes[at..].as_ptr());
        prop_assert_eq!(transport, Some(slice.as_ptr()));
        let tuple = FiveTuple::of(&packet);
        prop_assert_eq!((tuple.source_port, tuple.destination_port), (source_port, destination_port));
    }

    #[test]
    fn no_read_from_the_tun_device_panics(header in any_virtio_header(), bytes in nearly_a_packet()) {
        let mut packets = 0u32;
        let mut valid = true;
        let result = segment(header, &bytes, &mut |segment| {
            packets += 1;
            valid &= IpPacket::parse(&segment.parts().concat()).is_ok();
        });
        prop_assert!(valid, "every segment is a packet");
        prop_assert_eq!(result.is_ok(), packets > 0);
    }

    #[test]
    fn what_is_sent_is_accepted(header in any_virtio_header(), bytes in nearly_a_packet()) {
        let mut refused = None;
        let _ = segment(header, &bytes, &mut |segment| {
            let mut packet = segment.parts().concat();
            refused = refused.or(accept(segment.flags(), &mut packet).err());
        });
        prop_assert_eq!(refused, None);
    }

    #[test]
    fn no_packet_from_a_peer_panics_or_points_outside_itself(mut bytes in nearly_a_packet(), partial: bool) {
        let Ok(header) = accept(Flags::new(partial), &mut bytes) else { return Ok(()) };
        prop_assert_eq!(header.needs_checksum(), partial);
        let field = usize::from(header.checksum_start) + usize::from(header.checksum_offset);
        prop_assert!(!partial || (header.checksum_start >= 20 && field + 2 <= bytes.len()));
        prop_assert!(usize::from(header.header_length) <= bytes.len());
    }

    #[test]
    fn no_numbered_datagram_panics(kind in 0..6u8, flags in 0..3u8, body in prop::collection::vec(any::<u8>(), 0..24)) {
        let datagram = [&[kind << 4 | flags][..], &body].concat();
        let mut rest = Bytes::copy_from_slice(&datagram);
        match Numbering::cut(&mut rest) {
            Ok(Numbering::Unnumbered) => prop_assert_eq!(&rest[..], &datagram[..]),
            Ok(Numbering::Numbered(place)) => {
                let mut framed = BytesMut::from(&rest[..]);
                append_trailer(&mut framed, place);
                prop_assert_eq!(&framed[..], &datagram[..]);
                let _ = Datagram::parse_without_trailer(&rest);
            }
            Ok(Numbering::NothingBelow(place)) => {
                let mut written = Vec::new();
                write_nothing_below(place, &mut written);
                prop_assert_eq!(written, datagram);
            }
            Err(reason) => prop_assert_eq!(reason, DropReason::BadDatagram),
        }
    }

    #[test]
    fn no_datagram_panics(kind in 0..3u8, flags in 0..3u8, body in prop::collection::vec(any::<u8>(), 0..64)) {
        let datagram = [&[kind << 4 | flags][..], &body].concat();
        match Datagram::parse(&datagram) {
            Ok(Datagram::Packet { flags, packet }) => {
                let mut written = Vec::new();
                write_packet(flags, &[packet], &mut written);
                prop_assert_eq!(written, datagram);
            }
            Ok(Datagram::Fragment(fragment)) => {
                let mut assembler = Assembler::new(Limits::default());
                prop_assert_eq!(assembler.insert(Instant::now(), fragment), Ok(None));
            }
            Err(_) => {}
        }
        let _ = Datagram::parse(&body);
        let _ = VirtioNetHeader::parse(&body).map(|header| {
            assert_eq!(header.to_bytes(), body[..virtio::LEN]);
        });
    }
}
