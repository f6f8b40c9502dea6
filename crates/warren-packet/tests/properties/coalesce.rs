//! Coalescing undoes segmentation. The worst that a peer can do is to prevent merging.

use std::collections::HashMap;

use proptest::prelude::*;
use warren_packet::coalesce::Merge;
use warren_packet::ip::IpPacket;
use warren_packet::segment::segment;
use warren_packet::tuple::FiveTuple;

use crate::any_input::nearly_a_packet;
use crate::build::{SuperPacket, TCP, super_packet};
use crate::written::{Packet, Written, coalesce};

fn cut(super_packet: &SuperPacket) -> Vec<Packet> {
    let mut packets = Vec::new();
    segment(super_packet.header, &super_packet.bytes, &mut |segment| {
        packets.push(Packet { bytes: segment.parts().concat(), partial: segment.partial_checksum });
    })
    .unwrap();
    packets
}

/// Whether Linux's GRO would also merge the segments of this super-packet.
fn is_mergeable(packet: &SuperPacket) -> bool {
    let no_options = packet.transport == if packet.bytes[0] >> 4 == 4 { 20 } else { 40 };
    let allowed = |flags: u8| flags & !0x49 == 0x10;
    no_options && packet.plain && (packet.protocol() != TCP || allowed(packet.bytes[packet.transport + 13]))
}

/// Super-packets with common TCP flags.
fn usual_super_packet() -> impl Strategy<Value = SuperPacket> {
    let flags =
        prop_oneof![4 => Just(Some(0x10)), 2 => Just(Some(0x18)), 1 => Just(Some(0x50)), 1 => Just(None)];
    (super_packet(), flags).prop_map(|(mut packet, flags)| {
        if let (TCP, Some(flags)) = (packet.protocol(), flags) {
            packet.bytes[packet.transport + 13] = flags;
        }
        packet
    })
}

/// Packets of several flows as peers and networks produce them: reordered, lost, duplicated or changed. Checksums are
/// partial or complete, and sometimes wrong.
fn traffic() -> impl Strategy<Value = Vec<Packet>> {
    let flow = (usual_super_packet(), any::<bool>()).prop_map(|(packet, whole)| {
        let packets = cut(&packet).into_iter().take(40);
        let whole = whole || !packet.plain;
        packets
            .map(|packet| if whole { Packet::whole(packet.delivered().unwrap()) } else { packet })
            .collect::<Vec<_>>()
    });
    let accident =
        (any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0..8u8, 0..120usize, any::<u8>());
    let order = prop::collection::vec(any::<prop::sample::Index>(), 200);
    (prop::collection::vec(flow, 1..5), order, prop::collection::vec(accident, 0..6)).prop_map(
        |(flows, order, accidents)| {
            let mut waiting: Vec<_> = flows.into_iter().map(Vec::into_iter).collect();
            let mut batch: Vec<Packet> =
                order.iter().filter_map(|index| index.get_mut(&mut waiting).next()).collect();
            for (at, other, what, offset, value) in accidents {
                if batch.is_empty() {
                    break;
                }
                let (at, other) = (at.index(batch.len()), other.index(batch.len()));
                match what {
                    0 => drop(batch.remove(at)),
                    1 => batch.swap(at, other),
                    2 => batch.push(batch[at].clone()),
                    3 => batch[at].partial ^= true,
                    _ => {
                        if let Some(byte) = batch[at].bytes.get_mut(offset) {
                            *byte = value;
                        }
                    }
                }
            }
            batch
        },
    )
}

/// Each flow's packets in order, as the receiving host gets them. Fields that RFC 6864 allows to change are zeroed: the
/// identification of a packet that must not be fragmented, and with it the header checksum.
fn by_flow(packets: impl Iterator<Item = Vec<u8>>) -> HashMap<FiveTuple, Vec<Vec<u8>>> {
    let mut flows: HashMap<_, Vec<_>> = HashMap::new();
    for mut bytes in packets {
        let view = IpPacket::parse(&bytes).unwrap();
        let flow = FiveTuple::of(&view);
        let tcp_checksum = view.transport().filter(|_| view.protocol() == TCP).map(|start| start + 16);
        if bytes[0] >> 4 == 4 && bytes[6] & 0x40 != 0 {
            bytes[4..6].fill(0);
            bytes[10..12].fill(0);
        }
        // TCP may write a zero checksum as 0x0000 or 0xffff.
        if let Some(field) = tcp_checksum
            && bytes.get(field..field + 2) == Some(&[0, 0])
        {
            bytes[field..field + 2].fill(0xff);
        }
        flows.entry(flow).or_default().push(bytes);
    }
    flows
}

fn delivered(batch: &[Packet]) -> impl Iterator<Item = Vec<u8>> {
    batch.iter().filter_map(Packet::delivered)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn coalescing_undoes_segmenting(packet in usual_super_packet(), whole: bool) {
        let segments = cut(&packet);
        let batch: Vec<Packet> = if whole {
            delivered(&segments).map(Packet::whole).collect()
        } else {
            segments.clone()
        };

        let written = coalesce(Merge::ALL, &batch);

        written.iter().for_each(Written::assert_valid);
        let cut_again: Vec<_> = written.iter().flat_map(Written::cut).collect();
        let expected: Vec<_> = delivered(&segments).collect();
        prop_assert_eq!(cut_again, expected, "the same packets, byte for byte");
        if is_mergeable(&packet) && segments.len() > 1 {
            prop_assert_eq!(written.len(), segments.len().div_ceil(63));
            let fits_one_write = written.len() == 1;
            prop_assert!(!fits_one_write || written[0].bytes == packet.bytes, "the same super-packet");
            prop_assert_eq!(written[0].header.gso_size, packet.header.gso_size);
        }
    }

    #[test]
    fn every_packet_of_a_flow_arrives_in_order_and_unchanged(batch in traffic(), tcp: bool, udp: bool) {
        let written = coalesce(Merge { tcp, udp }, &batch);

        written.iter().for_each(Written::assert_valid);
        prop_assert_eq!(by_flow(written.iter().flat_map(Written::cut)), by_flow(delivered(&batch)));
    }

    #[test]
    fn nothing_that_a_peer_sends_panics_or_makes_an_invalid_header(
        packets in prop::collection::vec((nearly_a_packet(), any::<bool>()), 1..20),
        repeat: bool,
    ) {
        let mut batch: Vec<Packet> =
            packets.into_iter().map(|(bytes, partial)| Packet { bytes, partial }).collect();
        if repeat {
            batch = batch.iter().flat_map(|packet| [packet.clone(), packet.clone(), packet.clone()]).collect();
        }

        let written = coalesce(Merge::ALL, &batch);

        written.iter().for_each(Written::assert_valid);
        prop_assert_eq!(by_flow(written.iter().flat_map(Written::cut)), by_flow(delivered(&batch)));
    }

    #[test]
    fn without_offload_every_packet_is_one_write(batch in traffic()) {
        let written = coalesce(Merge::NOTHING, &batch);

        prop_assert!(written.iter().all(|write| write.packets == 1 && !write.is_merged()));
        let bytes: Vec<_> = written.iter().flat_map(Written::cut).collect();
        prop_assert_eq!(bytes, delivered(&batch).collect::<Vec<_>>());
    }
}
