//! A model of the receiving kernel behind a TUN device. It refuses wrong IP checksums, completes partial checksums, and segments
//! super-packets (`inet_gso_segment`, `tcp_gso_segment`, `__udp_gso_segment`).

use crate::virtio::{GSO_NONE, GSO_UDP_L4, VirtioNetHeader};

/// The packets that a write represents.
pub(super) fn cut(header: VirtioNetHeader, bytes: &[u8]) -> Vec<Vec<u8>> {
    let is_v6 = bytes[0] >> 4 == 6;
    let transport = if is_v6 { 40 } else { 20 };
    assert!(is_v6 || sum(&[&bytes[..20]]) == 0xffff, "ip_rcv drops it: the IP checksum is wrong");
    if header.gso_type == GSO_NONE {
        let mut packet = bytes.to_vec();
        if header.needs_checksum() {
            complete(&mut packet, header);
        }
        return vec![packet];
    }
    let is_udp = header.gso_type == GSO_UDP_L4;
    assert!(header.needs_checksum() && usize::from(header.checksum_start) == transport);
    let start = transport + if is_udp { 8 } else { usize::from(bytes[transport + 12] >> 4) * 4 };
    let step = usize::from(header.gso_size);
    let payload = &bytes[start..];
    assert!(payload.len() > step, "a super-packet of one");
    let field = transport + usize::from(header.checksum_offset);
    assert_eq!(
        word(bytes, field),
        pseudo(bytes, transport, is_udp),
        "the partial checksum is of another packet"
    );

    let last = payload.len().div_ceil(step) - 1;
    let one = |(number, part): (usize, &[u8])| {
        let mut packet = [&bytes[..start], part].concat();
        let length = u16::try_from(packet.len()).unwrap();
        if is_v6 {
            put(&mut packet, 4, length - 40);
        } else {
            put(&mut packet, 2, length);
            let identification = word(bytes, 4).wrapping_add(u16::try_from(number).unwrap());
            put(&mut packet, 4, identification);
            put(&mut packet, 10, 0);
            let checksum = !sum(&[&packet[..20]]);
            put(&mut packet, 10, checksum);
        }
        if is_udp {
            put(&mut packet, transport + 4, length - u16::try_from(transport).unwrap());
        } else {
            let sequence = [word(bytes, transport + 4), word(bytes, transport + 6)];
            let sequence = u32::from(sequence[0]) << 16 | u32::from(sequence[1]);
            let sequence = sequence.wrapping_add(u32::try_from(number * step).unwrap());
            packet[transport + 4..transport + 8].copy_from_slice(&sequence.to_be_bytes());
            if number < last {
                packet[transport + 13] &= !0x09;
            }
        }
        let partial = pseudo(&packet, transport, is_udp);
        put(&mut packet, field, partial);
        complete(&mut packet, header);
        packet
    };
    payload.chunks(step).enumerate().map(one).collect()
}

/// Completes a partial checksum: sums everything from the checksum's start and stores the result in its field.
fn complete(packet: &mut [u8], header: VirtioNetHeader) {
    let start = usize::from(header.checksum_start);
    let checksum = match !sum(&[&packet[start..]]) {
        0 => 0xffff,
        checksum => checksum,
    };
    put(packet, start + usize::from(header.checksum_offset), checksum);
}

fn pseudo(packet: &[u8], transport: usize, is_udp: bool) -> u16 {
    let addresses = if transport == 40 { &packet[8..40] } else { &packet[12..20] };
    let length = u16::try_from(packet.len() - transport).unwrap();
    sum(&[addresses, &[0, if is_udp { 17 } else { 6 }], &length.to_be_bytes()])
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

pub(super) fn put(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// The Internet checksum's sum, word by word. Each piece except the last has an even length.
pub(super) fn sum(pieces: &[&[u8]]) -> u16 {
    let mut sum = 0_u32;
    for pair in pieces.iter().flat_map(|piece| piece.chunks(2)) {
        sum += u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).unwrap()
}
