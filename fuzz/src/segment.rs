//! Segments a super-packet from a TUN device. The other end must accept the resulting packets.

use warren_packet::ip::IpPacket;
use warren_packet::receive::accept;
use warren_packet::segment::segment;
use warren_packet::virtio::{self, VirtioNetHeader};

/// The input is a virtio-net header, then the super-packet.
pub fn run(data: &[u8]) {
    let Ok(header) = VirtioNetHeader::parse(data) else { return };
    let super_packet = data.get(virtio::LEN..).unwrap_or_default();
    let mut packets = Vec::new();
    let cut = segment(header, super_packet, &mut |segment| {
        assert_eq!(segment.len(), segment.parts().concat().len());
        packets.push((segment.flags(), segment.parts().concat(), segment.header.len()));
    });

    assert_eq!(cut.is_ok(), !packets.is_empty());
    for (flags, packet, _) in &mut packets {
        assert!(IpPacket::parse(packet).is_ok(), "each is a packet");
        accept(*flags, packet).expect("what is sent is accepted");
    }
    if let [(_, _, headers), _, ..] = packets.as_slice() {
        let (headers, count) = (*headers, packets.len());
        let payload: usize = packets.iter().map(|(_, packet, _)| packet.len() - headers).sum();
        assert_eq!(payload, super_packet.len() - headers, "no byte of {count} is lost or made up");
        // All packets except the last must have full size.
        assert!(
            packets
                .iter()
                .rev()
                .skip(1)
                .all(|(_, packet, _)| packet.len() == headers + usize::from(header.gso_size))
        );
    } else if let [(_, packet, _)] = packets.as_slice() {
        assert_eq!(packet.len(), super_packet.len());
    }
}
