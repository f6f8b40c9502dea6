//! Packets survive fragmentation, whatever happens to the fragments on the way. Each packet is counted once.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::sample::Index;
use warren_packet::DropReason;
use warren_packet::datagram::{
    Datagram, FRAGMENT_OVERHEAD, Flags, Fragment, Fragmenter, MAX_FRAGMENTS, write_fragment,
};
use warren_packet::reassembly::{Assembler, Limits};

/// The datagrams of one packet, which is passed in two parts as a segment is.
fn datagrams(fragmenter: &mut Fragmenter, flags: Flags, packet: &[u8], max_datagram: usize) -> Vec<Vec<u8>> {
    let (head, tail) = packet.split_at(packet.len() / 3);
    fragmenter
        .fragments(flags, packet.len(), max_datagram)
        .map(|(header, range)| {
            let mut datagram = Vec::new();
            write_fragment(&header, range, &[head, tail], &mut datagram);
            datagram
        })
        .collect()
}

fn fragment(datagram: &[u8]) -> Fragment<'_> {
    match Datagram::parse(datagram) {
        Ok(Datagram::Fragment(fragment)) => fragment,
        other => panic!("not a fragment: {other:?}"),
    }
}

fn packet() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        8 => prop::collection::vec(any::<u8>(), 2..3_000),
        1 => prop::collection::vec(any::<u8>(), 60_000..=65_535),
    ]
}

/// A packet and a datagram size that splits it into at most 64 fragments.
fn packet_and_room() -> impl Strategy<Value = (Vec<u8>, usize)> {
    packet().prop_flat_map(|packet| {
        let least = FRAGMENT_OVERHEAD + packet.len().div_ceil(MAX_FRAGMENTS);
        (Just(packet), prop_oneof![Just(least), least..least + 2_000])
    })
}

/// `items` in an order that depends on `seed`.
fn shuffled<T>(mut items: Vec<T>, seed: u64) -> Vec<T> {
    let mut state = seed | 1;
    for last in (1..items.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        items.swap(last, usize::try_from((state >> 33) % (last as u64 + 1)).unwrap());
    }
    items
}

proptest! {
    #[test]
    fn fragments_fit_are_balanced_and_cover_the_packet((packet, max_datagram) in packet_and_room()) {
        let datagrams = datagrams(&mut Fragmenter::new(), Flags::NONE, &packet, max_datagram);

        prop_assert!((2..=MAX_FRAGMENTS).contains(&datagrams.len()));
        let sizes: Vec<usize> = datagrams.iter().map(Vec::len).collect();
        let (smallest, largest) = (*sizes.iter().min().unwrap(), *sizes.iter().max().unwrap());
        prop_assert!(largest <= max_datagram);
        prop_assert!(smallest > FRAGMENT_OVERHEAD && largest - smallest <= 1);
        let joined: Vec<u8> = datagrams.iter().flat_map(|d| d[FRAGMENT_OVERHEAD..].to_vec()).collect();
        prop_assert_eq!(joined, packet);
    }

    #[test]
    fn fragments_in_any_order_make_the_packet(
        packets in prop::collection::vec((packet_and_room(), any::<bool>()), 1..4),
        seed: u64,
    ) {
        let mut fragmenter = Fragmenter::new();
        let mut sent = Vec::new();
        for ((packet, max_datagram), partial) in &packets {
            sent.extend(datagrams(&mut fragmenter, Flags::new(*partial), packet, *max_datagram));
        }
        let mut assembler = Assembler::new(Limits::default());
        let now = Instant::now();

        let mut completed = 0;
        for datagram in shuffled(sent, seed) {
            let fragment = fragment(&datagram);
            if let Some(whole) = assembler.insert(now, fragment).unwrap() {
                let ((packet, _), partial) = &packets[usize::try_from(fragment.id).unwrap()];
                prop_assert_eq!(&whole.packet, packet);
                prop_assert_eq!(whole.flags, Flags::new(*partial));
                completed += 1;
            }
        }

        prop_assert_eq!((completed, assembler.pending()), (packets.len(), 0));
        prop_assert_eq!(assembler.expire(now + Duration::from_secs(9)), 0);
    }

    #[test]
    fn fragments_that_overlap_or_disagree_never_make_a_wrong_packet(
        packet in prop::collection::vec(any::<u8>(), 40..400),
        forged in prop::collection::vec((any::<Index>(), 1..50usize, 0..5u8, any::<u8>()), 1..6),
        seed: u64,
    ) {
        let sent = datagrams(&mut Fragmenter::new(), Flags::NONE, &packet, 25);
        let edges: HashSet<usize> = sent.iter().map(|d| usize::from(fragment(d).offset)).collect();
        let total = u16::try_from(packet.len()).unwrap();
        let mut all = sent.clone();
        for (at, length, kind, byte) in forged {
            let start = at.index(packet.len() - 1);
            let end = (start + length).min(packet.len());
            let (mut flags, mut said) = (0x10, total);
            match kind {
                0 => flags = 0x11,
                1 => said += 1,
                2 => said = u16::try_from(end).unwrap().max(2),
                3 => { all.push(sent[at.index(sent.len())].clone()); continue; }
                _ => {}
            }
            if (flags, said) == (0x10, total) && edges.contains(&start) {
                continue; // it could replace a genuine fragment, and nothing would show it
            }
            let mut datagram = vec![flags, 0, 0, 0, 0];
            datagram.extend_from_slice(&said.to_be_bytes());
            datagram.extend_from_slice(&u16::try_from(start).unwrap().to_be_bytes());
            datagram.resize(FRAGMENT_OVERHEAD + end - start, byte);
            all.push(datagram);
        }
        let mut assembler = Assembler::new(Limits::default());
        let now = Instant::now();

        let (mut completed, mut dropped) = (0, 0);
        for datagram in shuffled(all, seed) {
            let Ok(Datagram::Fragment(fragment)) = Datagram::parse(&datagram) else { continue };
            match assembler.insert(now, fragment) {
                Ok(None) => {}
                Ok(Some(whole)) => {
                    // A first fragment with a forged total or flag starts another packet, which holds only forged bytes.
                    let is_forged = fragment.total != total || fragment.flags != Flags::NONE;
                    prop_assert!(is_forged || whole.packet == packet);
                    completed += 1;
                }
                Err(reason) => {
                    prop_assert_eq!(reason, DropReason::BadFragment);
                    dropped += 1;
                }
            }
        }
        prop_assert_eq!(completed + dropped + assembler.pending(), 1);
    }

    #[test]
    fn every_packet_is_completed_dropped_or_pending(
        events in prop::collection::vec((0..2_600u32, 0..5u8, 0..300u64, any::<bool>()), 1..400),
        first_id in prop_oneof![Just(0u32), Just(u32::MAX - 1_000), any::<u32>()],
        max_assemblies in 1..40usize,
    ) {
        let mut assembler = Assembler::new(Limits { max_assemblies, max_bytes: 0 });
        let mut now = Instant::now();
        let mut inserted = HashSet::new();
        let (mut completed, mut refused, mut expired) = (0, 0, 0);
        let mut newest = 0;
        for (step, part, milliseconds, tell) in events {
            // Mostly near the newest ID, sometimes far ahead or far behind.
            let id = if step < 2_000 { newest + step % 8 } else { (newest + 1_400).saturating_sub(step) };
            let id = id.min(4_000);
            newest = newest.max(id);
            inserted.insert(id);
            // Part 4 repeats the second of three parts, but claims another total.
            let total = if part == 4 { 6_001 } else { 6_000 };
            let payload = vec![part; 2_000];
            let offset = 2_000 * u16::from(part % 3);
            let id = first_id.wrapping_add(id);
            let fragment = Fragment { flags: Flags::NONE, id, total, offset, payload: &payload };
            match assembler.insert(now, fragment) {
                Ok(Some(whole)) => {
                    prop_assert_eq!(whole.packet.len(), usize::from(total));
                    completed += 1;
                }
                Ok(None) => {}
                Err(_) => refused += 1,
            }
            prop_assert!(assembler.pending() <= max_assemblies.min(10), "65,535 bytes are 10 packets");
            now += Duration::from_millis(milliseconds);
            if tell {
                expired += assembler.expire(now);
                prop_assert!(assembler.timeout().is_none_or(|at| at > now));
            }
        }
        expired += assembler.expire(now);
        let counted = completed + refused + usize::try_from(expired).unwrap() + assembler.pending();
        prop_assert_eq!(counted, inserted.len());
        let pending = assembler.pending();
        prop_assert_eq!(usize::try_from(assembler.finish()).unwrap(), pending);
    }
}
