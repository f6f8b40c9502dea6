//! How senders learn the path MTU: by the MSS of a SYN, and by the answer to a packet that is too big.

use etherparse::{Icmpv4Type, Icmpv6Type, SlicedPacket, TcpHeader, TcpOptionElement, TransportSlice};
use etherparse::{IpNumber, Ipv4Header, Ipv6Header};
use proptest::prelude::*;
use warren_packet::ip::IpPacket;
use warren_packet::mss::clamp_mss;
use warren_packet::too_big::too_big;

use crate::any_input::nearly_a_packet;

/// A TCP packet with valid checksums, or with a partial TCP checksum.
fn tcp(is_v6: bool, syn: bool, options: &[TcpOptionElement], payload: &[u8], partial: bool) -> Vec<u8> {
    let mut tcp = TcpHeader::new(443, 40_000, 7, 1_000);
    tcp.syn = syn;
    tcp.ack = true;
    tcp.set_options(options).unwrap();
    let length = u16::try_from(tcp.header_len() + payload.len()).unwrap();
    let mut packet = Vec::new();
    if is_v6 {
        let (source, destination) = ([0xfd; 16], [0x20; 16]);
        let ip = Ipv6Header {
            payload_length: length,
            next_header: IpNumber::TCP,
            hop_limit: 64,
            source,
            destination,
            ..Ipv6Header::default()
        };
        tcp.checksum = tcp.calc_checksum_ipv6(&ip, payload).unwrap();
        ip.write(&mut packet).unwrap();
    } else {
        let mut ip = Ipv4Header::new(length, 64, IpNumber::TCP, [10, 66, 0, 2], [203, 0, 113, 2]).unwrap();
        ip.dont_fragment = true;
        tcp.checksum = tcp.calc_checksum_ipv4(&ip, payload).unwrap();
        ip.write(&mut packet).unwrap();
    }
    if partial {
        tcp.checksum = 0x1234;
    }
    tcp.write(&mut packet).unwrap();
    packet.extend_from_slice(payload);
    packet
}

fn mss_of(packet: &[u8]) -> Option<u16> {
    let sliced = SlicedPacket::from_ip(packet).unwrap();
    let Some(TransportSlice::Tcp(tcp)) = sliced.transport else { return None };
    tcp.options_iterator().find_map(|option| match option {
        Ok(TcpOptionElement::MaximumSegmentSize(mss)) => Some(mss),
        _ => None,
    })
}

/// The TCP checksum in the packet, and the correct one.
fn checksums(packet: &[u8]) -> (u16, u16) {
    let sliced = SlicedPacket::from_ip(packet).unwrap();
    let Some(TransportSlice::Tcp(tcp)) = &sliced.transport else { panic!("no TCP") };
    let right = match sliced.net.as_ref().unwrap() {
        etherparse::NetSlice::Ipv4(ip) => {
            tcp.to_header().calc_checksum_ipv4(&ip.header().to_header(), tcp.payload()).unwrap()
        }
        etherparse::NetSlice::Ipv6(ip) => {
            tcp.to_header().calc_checksum_ipv6(&ip.header().to_header(), tcp.payload()).unwrap()
        }
        etherparse::NetSlice::Arp(_) => panic!("no IP"),
    };
    (tcp.checksum(), right)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn a_syn_announces_no_more_than_the_path_carries(
        is_v6: bool,
        mss: u16,
        limit in 60..2_000usize,
        padding in 0..3usize,
        payload in prop::collection::vec(any::<u8>(), 0..20),
        partial: bool,
    ) {
        let mut options = vec![TcpOptionElement::Noop; padding];
        options.extend([TcpOptionElement::MaximumSegmentSize(mss), TcpOptionElement::WindowScale(7)]);
        let before = tcp(is_v6, true, &options, &payload, partial);
        let mut after = before.clone();

        let changed = clamp_mss(&mut after, partial, limit);

        let headers = if is_v6 { 60 } else { 40 };
        let wanted = mss.min(u16::try_from(limit.saturating_sub(headers)).unwrap());
        prop_assert_eq!(mss_of(&after), Some(wanted));
        prop_assert_eq!(changed, wanted != mss);
        if partial {
            prop_assert_eq!(checksums(&after).0, 0x1234);
        } else {
            let (there, right) = checksums(&after);
            prop_assert_eq!(there, right);
        }
        let differing = before.iter().zip(&after).filter(|(before, after)| before != after).count();
        prop_assert!(differing <= 4, "only the option and the checksum change");
    }

    #[test]
    fn only_a_syn_is_changed(is_v6: bool, mss: u16, limit in 0..2_000usize) {
        let before = tcp(is_v6, false, &[TcpOptionElement::MaximumSegmentSize(mss)], b"", false);
        let mut after = before.clone();
        prop_assert!(!clamp_mss(&mut after, false, limit));
        prop_assert_eq!(before, after);
    }

    #[test]
    fn no_bytes_make_either_panic(mut bytes in nearly_a_packet(), limit in 0..70_000usize, partial: bool) {
        if let Ok(packet) = IpPacket::parse(&bytes)
            && let Some(answer) = too_big(&packet, limit)
        {
            prop_assert!(answer.len() < bytes.len().max(600));
            prop_assert!(SlicedPacket::from_ip(&answer).is_ok());
        }
        let before = bytes.len();
        clamp_mss(&mut bytes, partial, limit);
        prop_assert_eq!(bytes.len(), before);
    }

    #[test]
    fn the_sender_of_a_packet_that_is_too_big_learns_the_mtu(is_v6: bool, length in 0..1_400usize, mtu in 600..1_400u16) {
        let packet = tcp(is_v6, false, &[], &vec![7; length], true);
        let view = IpPacket::parse(&packet).unwrap();
        let mtu_there = if is_v6 { mtu.max(1_280) } else { mtu };

        let answer = too_big(&view, mtu.into());

        prop_assert_eq!(answer.is_some(), packet.len() > usize::from(mtu_there));
        let Some(answer) = answer else { return Ok(()) };
        let reply = IpPacket::parse(&answer).unwrap();
        prop_assert_eq!((reply.source(), reply.destination()), (view.destination(), view.source()));
        let sliced = SlicedPacket::from_ip(&answer).unwrap();
        match (sliced.transport.unwrap(), sliced.net.unwrap()) {
            (TransportSlice::Icmpv4(icmp), etherparse::NetSlice::Ipv4(ip)) => {
                let Icmpv4Type::DestinationUnreachable(kind) = icmp.icmp_type() else { panic!("{icmp:?}") };
                let needed = etherparse::icmpv4::DestUnreachableHeader::FragmentationNeeded { next_hop_mtu: mtu };
                prop_assert_eq!(kind, needed);
                prop_assert!(packet.starts_with(icmp.payload()));
                prop_assert!(icmp.payload().len() >= 28);
                let right = icmp.icmp_type().calc_checksum(icmp.payload());
                prop_assert_eq!(icmp.checksum(), right);
                prop_assert_eq!(ip.header().to_header().calc_header_checksum(), ip.header().header_checksum());
            }
            (TransportSlice::Icmpv6(icmp), etherparse::NetSlice::Ipv6(ip)) => {
                prop_assert_eq!(icmp.icmp_type(), Icmpv6Type::PacketTooBig { mtu: mtu_there.into() });
                prop_assert!(packet.starts_with(icmp.payload()));
                prop_assert!(icmp.payload().len() >= 48);
                let header = ip.header();
                prop_assert!(icmp.is_checksum_valid(header.source(), header.destination()));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn who_must_not_be_answered_is_not() {
    let large = tcp(false, false, &[], &[7; 1_300], false);
    let answered = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut packet = large.clone();
        change(&mut packet);
        too_big(&IpPacket::parse(&packet).unwrap(), 1_200).is_some()
    };
    assert!(answered(&|_| {}));
    assert!(!answered(&|packet| packet[6] = 0), "it may be fragmented");
    assert!(!answered(&|packet| packet[7] = 8), "a later fragment");
    assert!(!answered(&|packet| packet[16..20].copy_from_slice(&[224, 0, 0, 5])), "to a multicast group");
    assert!(!answered(&|packet| packet[12..16].fill(0)), "from the unspecified address");
    assert!(
        !answered(&|packet| packet[9..].first_mut().into_iter().for_each(|protocol| *protocol = 1)),
        "an error"
    );
}
