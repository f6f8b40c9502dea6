//! Parses and validates a packet from a peer, and changes it as the packet path does.

use warren_packet::datagram::Flags;
use warren_packet::ip::IpPacket;
use warren_packet::mss::{clamp_mss, is_syn};
use warren_packet::receive::accept;
use warren_packet::too_big::too_big;
use warren_packet::tuple::FiveTuple;

use crate::input::Input;

/// The input is an MTU (two bytes), flags (one byte) and a packet.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let (mtu, flags) = (input.word(), Flags::new(input.byte() & 1 != 0));
    let bytes = input.0;
    let parsed = IpPacket::parse(bytes);
    if let Ok(packet) = &parsed {
        look_at(packet, mtu.into());
    }

    let mut accepted = bytes.to_vec();
    if let Ok(header) = accept(flags, &mut accepted) {
        assert!(parsed.is_ok(), "only packets are accepted");
        assert_eq!(header.needs_checksum(), flags.partial_checksum());
        let field = usize::from(header.checksum_start) + usize::from(header.checksum_offset);
        // The shortest IP header has 20 bytes.
        assert!(!header.needs_checksum() || (header.checksum_start >= 20 && field + 2 <= bytes.len()));
        // `accept` may change only the checksum.
        let same = |index: &usize| !header.needs_checksum() || !(field..field + 2).contains(index);
        assert!((0..bytes.len()).filter(same).all(|index| bytes.get(index) == accepted.get(index)));

        let mut clamped = accepted.clone();
        clamp_mss(&mut clamped, flags.partial_checksum(), mtu.into());
        assert!(IpPacket::parse(&clamped).is_ok());
        let again = clamped.clone();
        assert!(!clamp_mss(&mut clamped, flags.partial_checksum(), mtu.into()), "once is enough");
        assert_eq!(clamped, again);
    }
}

fn look_at(packet: &IpPacket<'_>, mtu: usize) {
    assert!(packet.transport().is_none_or(|start| start <= packet.bytes().len()));
    assert!(!is_syn(packet) || !packet.is_fragment());
    let tuple = FiveTuple::of(packet);
    assert_eq!(tuple.symmetric_hash(), tuple.reversed().symmetric_hash());
    // Both directions of a flow must use the same connection.
    for connections in [1, 4, 32] {
        assert!(tuple.connection_index(connections) < connections);
        assert_eq!(tuple.connection_index(connections), tuple.reversed().connection_index(connections));
    }
    if let Some(answer) = too_big(packet, mtu) {
        let answer = IpPacket::parse(&answer).expect("an answer is a packet");
        assert_eq!(answer.destination(), packet.source());
    }
}
