//! Repair as a pump uses it.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use super::*;

mod simulation;

/// A `Repair` that is switched on, because the path has lost one packet in a hundred.
fn repair(now: Instant) -> Repair {
    let mut repair = Repair { is_agreed: true, ..Repair::default() };
    repair.observe(&LossCounts { sent_packets: 1_000, lost_packets: 10, ..LossCounts::default() }, now);
    assert!(repair.is_on());
    repair
}

fn framed() -> BytesMut {
    BytesMut::from(&[0, 0x45, 1, 2, 3][..])
}

fn ordered(_: &[u8]) -> Lane {
    Lane::of_flow(7)
}

/// What QUIC returns when it has lost a datagram.
fn lost(outgoing: &Outgoing, now: Instant) -> LostDatagram {
    LostDatagram { data: outgoing.datagram.clone(), context: outgoing.context.unwrap(), sent: now }
}

#[test]
fn nothing_is_numbered_on_a_clean_path_or_for_a_peer_that_does_not_know_numbers() {
    let now = Instant::now();
    let mut clean = Repair { is_agreed: true, ..Repair::default() };
    clean.observe(&LossCounts { sent_packets: 10_000, ..LossCounts::default() }, now);
    assert_eq!(clean.prepare(framed(), ordered).context, None);
    let mut old_peer = repair(now);
    old_peer.is_agreed = false;
    let outgoing = old_peer.prepare(framed(), ordered);
    assert_eq!((&outgoing.datagram[..], outgoing.context), (&framed()[..], None));
}

#[test]
fn an_ordered_datagram_is_sent_again_byte_for_byte_twice_and_then_given_up() {
    let now = Instant::now();
    let mut repair = repair(now);
    let first = repair.prepare(framed(), ordered);
    repair.take_lost(lost(&first, now), now);
    let again = repair.next_urgent(now).unwrap();
    assert_eq!(again.datagram, first.datagram);
    assert!(repair.next_urgent(now).is_none());

    repair.take_lost(lost(&again, now), now);
    let last = repair.next_urgent(now).unwrap();
    assert!(repair.next_urgent(now).is_none(), "the copy follows later");
    assert_eq!(repair.next_due(), Some(now + COPY_AFTER));
    let copy = repair.next_urgent(now + COPY_AFTER).unwrap();
    assert_eq!((&last.datagram, &copy.datagram), (&first.datagram, &first.datagram));

    repair.take_lost(lost(&last, now), now);
    assert!(!repair.is_urgent(now), "the copy may have arrived");
    repair.take_lost(lost(&copy, now), now);
    let mut word = repair.next_urgent(now).unwrap().datagram;
    let next = Place { lane: ordered(&[]), number: Number::new(1) };
    assert_eq!(Numbering::cut(&mut word), Ok(Numbering::NothingBelow(next)));
    assert_eq!(repair.counts, RepairCounts { repaired: 2, given_up: 1 });
}

#[test]
fn an_unordered_datagram_is_sent_again_once_and_only_while_it_is_fresh() {
    let now = Instant::now();
    let mut repair = repair(now);
    let first = repair.prepare(framed(), |_| Lane::UNORDERED);
    repair.take_lost(lost(&first, now), now + FRESH / 2);
    let again = repair.next_urgent(now).unwrap();
    repair.take_lost(lost(&again, now), now);
    let old = repair.prepare(framed(), |_| Lane::UNORDERED);
    repair.take_lost(lost(&old, now), now + FRESH);
    assert!(!repair.is_urgent(now + FRESH));
    assert_eq!(repair.counts, RepairCounts { repaired: 1, given_up: 2 });
}

#[test]
fn a_number_that_was_taken_back_is_given_again() {
    let mut repair = repair(Instant::now());
    let first = repair.prepare(framed(), ordered);
    let mut datagram = first.datagram.clone();
    repair.take_back(&mut datagram);
    assert_eq!(datagram[1..], framed()[1..]);
    assert_eq!(repair.prepare(framed(), ordered).datagram, first.datagram);
}

#[test]
fn context_says_what_was_put_into_it() {
    for kept in [
        Kept {
            place: Place { lane: Lane::new(63).unwrap(), number: Number::new(u32::MAX) },
            rounds: 2,
            has_copy: true,
        },
        Kept { place: Place { lane: Lane::UNORDERED, number: Number::ZERO }, rounds: 0, has_copy: false },
    ] {
        assert_eq!(Kept::of(kept.to_context()), Some(kept));
    }
}
