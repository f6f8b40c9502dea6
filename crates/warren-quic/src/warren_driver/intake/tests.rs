//! Tests of the intake without an exit.

mod flood;
mod garbage;

use proptest::prelude::*;

use super::*;

const LOUD: Sender = client(3);
const QUIET: Sender = client(1);

const fn client(number: u8) -> Sender {
    Sender::Client(PublicKey([number; 32]))
}

/// A batch of datagrams of 1,000 bytes, with its number in the first four bytes.
fn batch(number: u32, datagrams: usize) -> Batch {
    let mut bytes = BytesMut::zeroed(datagrams * 1_000);
    bytes[..4].copy_from_slice(&number.to_be_bytes());
    let mut meta = RecvMeta::default();
    (meta.len, meta.stride) = (bytes.len(), 1_000);
    Batch { port: 0, slot: None, meta, bytes }
}

fn number(batch: &Batch) -> u32 {
    u32::from_be_bytes(batch.bytes[..4].try_into().unwrap())
}

/// The numbers of the next `count` batches.
fn popped(intake: &mut Intake, count: usize) -> Vec<u32> {
    std::iter::from_fn(|| intake.pop(true)).take(count).map(|batch| number(&batch)).collect()
}

#[test]
fn who_brings_too_much_loses_its_own_oldest_datagrams() {
    let mut intake = Intake::new();
    assert_eq!(intake.push(QUIET, batch(7, 1)), 0);
    let dropped: u64 = (0..5_000).map(|number| intake.push(LOUD, batch(number, 2))).sum();
    let room = LIMIT / (2_000 + OVERHEAD);
    assert_eq!(dropped, 2 * (5_000 - room as u64));
    assert_eq!(popped(&mut intake, 1), [7]);
    let first = u32::try_from(dropped / 2).unwrap();
    assert_eq!(popped(&mut intake, 5_000), (first..5_000).collect::<Vec<_>>());
    assert!(intake.is_empty() && intake.lines.is_empty() && intake.bytes == 0);
}

#[test]
fn each_has_its_turn_however_long_its_line_is() {
    let mut intake = Intake::new();
    for number in 0..4 {
        intake.push(LOUD, batch(number, TURN / 2));
    }
    intake.push(QUIET, batch(100, 1));
    intake.push(QUIET, batch(101, 1));
    assert_eq!(popped(&mut intake, 9), [0, 1, 100, 101, 2, 3]);
}

/// One UDP datagram may hold hundreds of QUIC datagrams.
#[test]
fn who_was_charged_for_more_than_its_turn_waits_until_the_others_have_had_as_much() {
    let mut intake = Intake::new();
    for number in 0..3 {
        intake.push(LOUD, batch(number, 1));
    }
    for number in 100..200 {
        intake.push(QUIET, batch(number, 1));
    }
    assert_eq!(popped(&mut intake, 1), [0]);
    intake.charge(TURN * 2);
    let two_turns: Vec<u32> = (100..).take(TURN * 2).collect();
    assert_eq!(popped(&mut intake, TURN * 2), two_turns);
    assert_eq!(popped(&mut intake, 1), [1]);

    // A single sender is served even though it used more than its turn. Once its queue is empty, the excess is forgotten.
    intake.charge(TURN * 1_000);
    while popped(&mut intake, 1) != [199] {}
    intake.charge(TURN * 1_000);
    assert_eq!(popped(&mut intake, 2), [2]);
    assert!(intake.is_empty() && intake.lines.is_empty());
}

#[test]
fn strangers_have_one_line_for_all_and_wait_where_enough_of_them_are_dealt_with() {
    let mut intake = Intake::new();
    for number in 0..3 {
        intake.push(Sender::Stranger, batch(number, 1));
    }
    assert!(intake.pop(false).is_none() && !intake.is_empty());
    intake.push(QUIET, batch(100, 1));
    intake.push(QUIET, batch(101, 1));
    assert_eq!(intake.pop(false).map(|batch| number(&batch)), Some(100));
    assert_eq!(intake.pop(true).map(|batch| number(&batch)), Some(101));
    assert_eq!(popped(&mut intake, 9), [0, 1, 2]);
    assert!(intake.is_empty());
}

/// The clients send one after the other, so that the earliest have the most.
#[test]
fn many_clients_together_keep_no_more_than_all_may() {
    let mut intake = Intake::new();
    let (mut pushed, mut dropped) = (0, 0);
    for number in 0..20 {
        for _ in 0..1_000 {
            dropped += intake.push(client(number), batch(0, 2));
            pushed += 2;
            assert!(intake.bytes <= TOTAL);
        }
    }
    let kept: usize = intake.lines.values().map(|line| line.bytes).sum();
    assert!(kept > TOTAL / 2 && kept == intake.bytes, "{kept}");
    assert!(
        (0..20).all(|number| intake.lines[&client(number)].bytes > TOTAL / 40),
        "no client lost all of its datagrams"
    );
    let popped: u64 = std::iter::from_fn(|| intake.pop(true)).map(|batch| batch.datagrams() as u64).sum();
    assert_eq!(popped, pushed - dropped);
}

#[test]
fn one_batch_each_of_very_many_clients_is_more_than_all_may_keep_and_pushes_some_out_whole() {
    let mut intake = Intake::new();
    let clients: u8 = 200;
    let dropped: u64 = (0..clients).map(|number| intake.push(client(number), batch(number.into(), 60))).sum();
    assert!(dropped > 0 && intake.bytes <= TOTAL && intake.turns.len() == intake.lines.len());
    let popped = std::iter::from_fn(|| intake.pop(true)).count();
    assert_eq!(popped as u64 + dropped / 60, clients.into());
    assert!(intake.is_empty() && intake.bytes == 0);
}

#[test]
fn an_exit_is_behind_whose_sockets_stay_full_and_no_longer_when_all_is_dealt_with() {
    let mut intake = Intake::new();
    let start = Instant::now();
    let later = |milliseconds| start + Duration::from_millis(milliseconds);
    intake.note(false, true, start);
    intake.note(false, true, later(19));
    intake.note(true, false, later(20));
    intake.note(false, true, later(21));
    assert!(!intake.is_behind(), "the sockets were empty in between");
    intake.note(false, true, later(41));
    assert!(intake.is_behind());
    intake.push(QUIET, batch(0, 1));
    intake.note(true, false, later(42));
    assert!(intake.is_behind(), "something waits");
    intake.pop(true);
    intake.note(false, true, later(43));
    assert!(intake.is_behind(), "the sockets are not empty");
    intake.note(true, false, later(44));
    assert!(!intake.is_behind());
}

#[test]
fn an_exit_with_one_client_is_never_behind_and_no_longer_once_the_others_are_gone() {
    let mut intake = Intake::new();
    let start = Instant::now();
    let later = |seconds| start + Duration::from_secs(seconds);
    intake.note(false, false, start);
    intake.note(false, false, later(1));
    assert!(intake.is_full() && !intake.is_behind());
    intake.note(false, true, later(2));
    assert!(intake.is_behind());
    intake.push(LOUD, batch(0, 1));
    intake.note(false, false, later(3));
    assert!(intake.is_behind(), "something waits");
    intake.pop(true);
    intake.note(false, false, later(4));
    assert!(!intake.is_behind());
}

#[test]
fn a_stranger_is_company_for_some_seconds() {
    let mut intake = Intake::new();
    let now = Instant::now();
    assert!(!intake.has_strangers(now));
    intake.hear_stranger(now);
    assert!(intake.has_strangers(now + STRANGER) && !intake.has_strangers(now + STRANGER * 2));
}

#[test]
fn a_turn_takes_as_much_as_can_be_dealt_with_in_its_time() {
    let mut intake = Intake::new();
    let mut now = Instant::now();
    let mut share_after = |passed: Duration| {
        intake.serve(now);
        now += passed;
        intake.share(now)
    };
    let fast: Vec<usize> = (0..6).map(|_| share_after(AIM / 4)).collect();
    assert_eq!(fast, [64, 128, 256, 256, 256, 256]);
    let slow: Vec<usize> = (0..4).map(|_| share_after(AIM * 20)).collect();
    assert_eq!(slow, [128, 64, 32, 32]);
}

proptest! {
    /// For any input order, each datagram is delivered once, in its sender's order, or counted as dropped.
    #[test]
    fn property_every_datagram_is_handed_out_in_order_or_counted(
        steps in prop::collection::vec((0_usize..4, 0_usize..64, 0_u8..8), 0..200),
    ) {
        let mut intake = Intake::new();
        let (mut pushed, mut counted) = (0, 0);
        let mut last = [None; 4];
        let senders = [Sender::Stranger, Sender::Unenrolled, LOUD, QUIET];
        let mut check = |batch: Batch| {
            let last = &mut last[batch.port];
            assert!(*last < Some(number(&batch)));
            *last = Some(number(&batch));
            batch.datagrams() as u64
        };
        for ((slot, datagrams, what), number) in steps.into_iter().zip(0..) {
            if what == 0 {
                counted += intake.pop(true).map_or(0, &mut check);
            } else {
                // The port stands for the sender here.
                let batch = Batch { port: slot, ..batch(number, datagrams + 1) };
                pushed += batch.datagrams() as u64;
                counted += intake.push(senders[slot], batch);
            }
            assert!(intake.lines.values().all(|line| line.bytes <= LIMIT && !line.batches.is_empty()));
            assert_eq!(intake.turns.len(), intake.lines.len());
        }
        while let Some(batch) = intake.pop(true) {
            counted += check(batch);
        }
        assert_eq!(pushed, counted);
    }
}
