//! Merges a batch of packets from a peer into writes. A kernel that cuts the writes must get the same number of packets
//! and bytes.

use warren_packet::coalesce::{Coalescer, MAX_PARTS, Merge, Outcome};
use warren_packet::datagram::Flags;
use warren_packet::ip::IpPacket;
use warren_packet::receive::accept;
use warren_packet::segment::segment;

use crate::input::Input;

/// Maximum number of packets in a batch.
const MAX_BATCH: usize = 80;

/// The input is a byte that says what may be merged, then packets. Each packet starts with a byte that says how to make
/// it: from the bytes that follow, as the TCP successor of an earlier packet, or as a copy of one.
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
        // With this bit, the device refuses the first write if it is merged. Its packets must then come one by one.
        if std::mem::take(&mut refused) && write.packets > 1 {
            return Outcome::Refused;
        }
        // `segment` stands for the kernel, which cuts super-packets in the same way.
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

/// Returns the packet that a TCP sender sends next. Its sequence number is the one after this packet's payload.
fn successor(packet: &[u8]) -> Vec<u8> {
    let mut next = packet.to_vec();
    let Ok(view) = IpPacket::parse(packet) else { return next };
    let Some(start) = view.transport().filter(|_| view.protocol() == 6) else { return next };
    // Byte 12 of a TCP header has the header's length in words, byte 4 the sequence number (RFC 9293 section 3.1).
    let header = packet.get(start + 12).map_or(0, |byte| usize::from(byte >> 4) * 4);
    let payload = u32::try_from(packet.len().saturating_sub(start + header)).unwrap_or(0);
    if let Some(field) = next.get_mut(start + 4..).and_then(<[u8]>::first_chunk_mut) {
        *field = u32::from_be_bytes(*field).wrapping_add(payload).to_be_bytes();
    }
    next
}
