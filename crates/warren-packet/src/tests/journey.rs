//! A packet's whole journey without a kernel. Super-packets are segmented, framed, fragmented, and sent over a wire that may
//! lose, repeat and reorder. They are then reassembled, checked, coalesced, and segmented again as a kernel does. Each packet
//! must arrive unchanged, at most once, and in its flow's order. A packet that a kernel would refuse must not arrive.
//!
//! Everything follows from a seed. The expected packets are built by hand, without the tested code.

mod kernel;
mod sender;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::{Duration, Instant};

use warren_simulation::{Random, find_every_bug, outcome, seeds};

use self::sender::{Sender, Sent};
use crate::coalesce::{Coalescer, Merge, Outcome};
use crate::datagram::{Datagram, Fragmenter, write_fragment, write_packet};
use crate::planted::Bug;
use crate::reassembly::{Assembler, Limits};
use crate::segment::segment;

/// Number of seeds to run. `WARREN_SIMULATION=FROM..TO` runs others, for example to repeat one that failed.
const SEEDS: Range<u64> = 0..400;

/// Most seeds that may pass before a planted bug is found.
const SEEDS_FOR_A_BUG: u64 = 100;

/// Super-packets per run, and most packets per batch.
const TURNS: usize = 60;
const BATCH: u64 = 40;

#[test]
fn packets_arrive_as_they_were_sent_over_any_wire() {
    for seed in seeds(SEEDS) {
        assert!(outcome(|| run(seed)).is_kept, "repeat it with WARREN_SIMULATION={seed}..{}", seed + 1);
    }
}

#[test]
fn every_planted_bug_is_found_and_found_again_by_its_seed() {
    find_every_bug::<Bug>(SEEDS_FOR_A_BUG, |seed| outcome(|| run(seed)));
}

/// A datagram in flight.
struct Underway {
    bytes: Vec<u8>,
    packet: usize,
}

/// The packets of one connection, from sender to receiver.
fn run(seed: u64) {
    let mut random = Random::new(seed);
    let is_kind = random.below(3) == 0;
    let largest = usize::try_from(300 + random.below(1_200)).unwrap();
    let mut sender = Sender::new(&mut random);
    let mut fragmenter = Fragmenter::new();
    let (mut sent, mut wire) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        let turn = sender.turn(&mut random);
        let first = sent.len();
        let mut number = first;
        segment(turn.header, &turn.super_packet, &mut |segment| {
            let (flags, parts) = (segment.flags(), segment.parts());
            if segment.len() < largest {
                let mut bytes = Vec::new();
                write_packet(flags, &parts, &mut bytes);
                wire.push(Underway { bytes, packet: number });
            } else {
                for (header, range) in fragmenter.fragments(flags, segment.len(), largest) {
                    let mut bytes = Vec::new();
                    write_fragment(&header, range, &parts, &mut bytes);
                    wire.push(Underway { bytes, packet: number });
                }
            }
            number += 1;
        })
        .unwrap();
        sent.extend(turn.packets);
        assert_eq!(number, sent.len(), "as many segments as there are packets");
    }
    let spoilt = if is_kind { BTreeSet::new() } else { trouble(&mut wire, &mut random) };
    let arrived = receive(&wire, &mut random);
    check(&sent, &arrived, &spoilt, is_kind);
}

/// Loses, repeats and reorders datagrams. Returns the packets that need not arrive.
fn trouble(wire: &mut Vec<Underway>, random: &mut Random) -> BTreeSet<usize> {
    let mut spoilt = BTreeSet::new();
    for at in 0..wire.len() {
        match random.below(100) {
            0..4 => {
                spoilt.insert(wire[at].packet);
                wire[at].bytes.clear();
            }
            // Only fragments: QUIC delivers no datagram twice, but a peer may send a fragment twice.
            4..8 if wire[at].bytes.first().is_some_and(|first| first >> 4 == 1) => {
                spoilt.insert(wire[at].packet);
                let (bytes, packet) = (wire[at].bytes.clone(), wire[at].packet);
                wire.push(Underway { bytes, packet });
                let last = wire.len() - 1;
                wire.swap((at + 1).min(last), last);
            }
            8..30 => {
                let other = at.saturating_sub(usize::try_from(random.below(6)).unwrap());
                wire.swap(at, other);
            }
            _ => {}
        }
    }
    wire.retain(|datagram| !datagram.bytes.is_empty());
    spoilt
}

/// The packets that the receiving host's kernel sees, in order.
fn receive(wire: &[Underway], random: &mut Random) -> Vec<Vec<u8>> {
    let start = Instant::now();
    let mut assembler = Assembler::new(Limits::default());
    let mut coalescer = Coalescer::new(Merge::ALL);
    let mut arrived = Vec::new();
    let mut room = random.below(BATCH);
    for (step, datagram) in wire.iter().enumerate() {
        let now = start + Duration::from_micros(step as u64);
        let packet = match Datagram::parse(&datagram.bytes).expect("it was framed well") {
            Datagram::Packet { flags, packet } => Some((flags, packet.to_vec())),
            Datagram::Fragment(fragment) => {
                let whole = assembler.insert(now, fragment).ok().flatten();
                whole.map(|whole| (whole.flags, whole.packet))
            }
        };
        if let Some((flags, packet)) = packet {
            coalescer.push(flags, packet).expect("it was a good packet");
        }
        if room == 0 || step + 1 == wire.len() {
            coalescer.flush(|write| {
                let before = arrived.len();
                arrived.extend(kernel::cut(write.header, &write.parts.concat()));
                assert_eq!(arrived.len() - before, usize::try_from(write.packets).unwrap());
                Outcome::Written
            });
            room = random.below(BATCH);
        } else {
            room -= 1;
        }
    }
    arrived
}

fn check(sent: &[Sent], arrived: &[Vec<u8>], spoilt: &BTreeSet<usize>, in_order: bool) {
    let numbers: BTreeMap<&[u8], usize> =
        sent.iter().enumerate().map(|(number, sent)| (&*sent.packet, number)).collect();
    assert_eq!(numbers.len(), sent.len(), "no packet is like another");
    let (mut seen, mut newest) = (BTreeSet::new(), BTreeMap::new());
    for packet in arrived {
        let number = *numbers.get(&**packet).expect("nobody has sent this");
        assert!(seen.insert(number), "it came twice");
        let before = newest.insert(sent[number].flow, number);
        assert!(!in_order || before.is_none_or(|before| before < number), "out of its flow's order");
    }
    for number in (0..sent.len()).filter(|number| !spoilt.contains(number)) {
        assert!(seen.contains(&number), "packet {number} was lost here");
    }
}
