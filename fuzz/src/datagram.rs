//! QUIC datagrams from a peer: parsing them, and reassembling packets from fragments.

use std::time::{Duration, Instant};

use warren_packet::datagram::{Datagram, Flags, Fragmenter, write_fragment, write_packet};
use warren_packet::reassembly::{Assembler, Limits, MAX_AGE};

use crate::input::Input;

/// Packets with more fragments than this are skipped, to limit the time that an input takes.
const MOST_FRAGMENTS: usize = 64;

/// The input starts with the length of a packet (two bytes), the maximum length of a datagram (two bytes) and the order of the
/// fragments (one byte). Then come datagrams from a peer that may be malicious, each after a byte with the time since the
/// previous one.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let (length, room, order) = (input.word(), input.word(), input.byte());
    whole_again(length.into(), room.into(), order.into());
    take_in(&mut input);
}

/// Parses arbitrary datagrams and reassembles their fragments. Checks that memory stays bounded and that incomplete packets
/// expire.
fn take_in(input: &mut Input<'_>) {
    let limits = Limits { max_assemblies: 8, ..Limits::default() };
    let mut assembler = Assembler::new(limits);
    let mut now = Instant::now();
    while !input.is_empty() {
        now += Duration::from_millis(u64::from(input.byte()) * 8);
        let datagram = input.piece();
        match Datagram::parse(datagram) {
            Ok(Datagram::Packet { flags, packet }) => {
                let mut written = Vec::new();
                write_packet(flags, &[packet], &mut written);
                assert_eq!(written, datagram);
            }
            Ok(Datagram::Fragment(fragment)) => {
                if let Ok(Some(whole)) = assembler.insert(now, fragment) {
                    assert_eq!((whole.flags, whole.packet.len()), (fragment.flags, fragment.total.into()));
                    let at = usize::from(fragment.offset);
                    assert_eq!(whole.packet.get(at..at + fragment.payload.len()), Some(fragment.payload));
                }
            }
            Err(_) => {}
        }
        assert!(assembler.pending() <= 8);
        assert_eq!(assembler.timeout().is_some(), assembler.pending() > 0);
    }
    assembler.expire(now);
    let pending = assembler.pending() as u64;
    assert_eq!(assembler.expire(now + MAX_AGE), pending, "all that is left is dropped for its age, and told");
    assert_eq!((assembler.pending(), assembler.finish()), (0, 0));
}

/// Checks that a packet that an honest peer has fragmented is reassembled, whatever the order of its fragments.
fn whole_again(length: usize, room: usize, order: usize) {
    let headers = Fragmenter::new().fragments(Flags::PARTIAL_CHECKSUM, length, room);
    if headers.len() > MOST_FRAGMENTS {
        return;
    }
    let packet: Vec<u8> = (0..=250).cycle().take(length).collect();
    let mut fragments: Vec<Vec<u8>> = headers
        .map(|(header, range)| {
            let mut datagram = Vec::new();
            // The packet is passed in two parts, so that a fragment may have bytes of both.
            let (one, other) = packet.split_at(length / 3);
            write_fragment(&header, range, &[one, other], &mut datagram);
            assert!(datagram.len() <= room);
            datagram
        })
        .collect();
    let Some(last) = fragments.len().checked_sub(1) else { return };
    fragments.rotate_left(order % (last + 1));
    if order & 1 != 0 {
        fragments.reverse();
    }
    let (mut assembler, now) = (Assembler::new(Limits::default()), Instant::now());
    for (index, datagram) in fragments.iter().enumerate() {
        let Ok(Datagram::Fragment(fragment)) = Datagram::parse(datagram) else { panic!("it is a fragment") };
        let whole = assembler.insert(now, fragment).expect("it fits the others");
        assert_eq!(whole.is_some(), index == last);
        assert!(whole.is_none_or(|whole| whole.packet == packet));
    }
}
