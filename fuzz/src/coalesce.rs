//! Merges a batch of packets from a peer into writes to a TUN device. If each write is segmented as the kernel does it, the
//! result must have as many packets and bytes as the batch.

use warren_packet::coalesce::{Coalescer, MAX_PARTS, Merge, Outcome};
use warren_packet::datagram::Flags;
use warren_packet::ip::IpPacket;
use warren_packet::receive::accept;
use warren_packet::segment::segment;

use crate::input::Input;

/// Maximum number of packets in a batch.
const MAX_BATCH: usize = 80;

/// The first byte of the input selects the protocols to merge, and whether the device refuses a write. Packets follow. The first
/// byte of each selects how the packet is made: from the bytes that follow, as the next TCP segment after an earlier packet, or
/// as a copy of an earlier packet.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let may = input.byte();
    let merge = Merge { tcp: may & 1 != 0, udp: may & 2 != 0 };
    let batch = batch(&mut input);
    let mut coalescer = Coalescer::new(merge);
    let (mut packets, mut bytes) = (0, 0);
    for (flags, packet) in &batch {
        // The coalescer must refuse exactly what `accept` refuses.
        let pushed = coalescer.push(*flags, packet.as_slice());
        assert_eq!(pushed.err(), accept(*flags, &mut packet.clone()).err());
        if pushed.is_ok() {
            packets += 1;
            bytes += packet.len() as u64;
        }
    }

    let (mut written, mut written_bytes, mut refused) = (0, 0, may & 4 != 0);
    coalescer.flush(|write| {
        assert!((1..=MAX_PARTS).contains(&write.parts.len()));
        // If this bit is set, the device refuses the first write if it is merged. The coalescer must then write its packets one
        // by one.
        if std::mem::take(&mut refused) && write.packets > 1 {
            return Outcome::Refused;
        }
        // The kernel segments super-packets in the same way as `segment`.
        let mut cut = 0;
        segment(write.header, &write.parts.concat(), &mut |segment| {
            cut += 1;
            let mut packet = segment.parts().concat();
            assert!(accept(segment.flags(), &mut packet).is_ok());
        })
        .expect("the kernel takes it");
        assert_eq!(cut, write.packets);
        written += write.packets;
        written_bytes += write.bytes;
        Outcome::Written
    });
    assert_eq!((written, written_bytes), (packets, bytes), "nothing is lost");
    assert!(coalescer.is_empty());
}

fn batch(input: &mut Input<'_>) -> Vec<(Flags, Vec<u8>)> {
    let mut batch: Vec<(Flags, Vec<u8>)> = Vec::new();
    while !input.is_empty() && batch.len() < MAX_BATCH {
        let what = input.byte();
        let flags = Flags::new(what & 1 != 0);
        let next = match (what >> 1 & 3, batch.len().checked_sub(1 + usize::from(what >> 3 & 3))) {
            (0, _) | (_, None) => (flags, input.piece().to_vec()),
            (1, Some(earlier)) => {
                batch.get(earlier).map(|(flags, packet)| (*flags, successor(packet))).unwrap_or_default()
            }
            (_, Some(earlier)) => batch.get(earlier).cloned().unwrap_or_default(),
        };
        batch.push(next);
    }
    batch
}

/// Returns the packet that a TCP sender would send after `packet`: a copy, with the sequence number increased by the length of
/// the payload.
fn successor(packet: &[u8]) -> Vec<u8> {
    let mut next = packet.to_vec();
    let Ok(view) = IpPacket::parse(packet) else { return next };
    let Some(start) = view.transport().filter(|_| view.protocol() == 6) else { return next };
    // In a TCP header, the upper half of byte 12 is the header's length in words, and the sequence number starts at byte 4 (RFC
    // 9293 section 3.1).
    let header = packet.get(start + 12).map_or(0, |byte| usize::from(byte >> 4) * 4);
    let payload = u32::try_from(packet.len().saturating_sub(start + header)).unwrap_or(0);
    if let Some(field) = next.get_mut(start + 4..).and_then(<[u8]>::first_chunk_mut) {
        *field = u32::from_be_bytes(*field).wrapping_add(payload).to_be_bytes();
    }
    next
}
