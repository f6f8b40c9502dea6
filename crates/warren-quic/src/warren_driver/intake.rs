//! What comes in faster than it can be dealt with, kept apart by client and not yet decrypted.
//!
//! All clients of an exit share its sockets, and what a full socket has no room for the kernel drops, whoever sent it. An exit
//! that is behind, by its TUN device or by its processor, reads ahead instead. Here each client has room of its own, for all of
//! its connections: who brings too much pushes out its own oldest datagrams and nobody else's, and each has its turn. Since QUIC
//! never saw what is dropped, its congestion control takes it for the loss that it is, and the sender slows down.

use std::{
    collections::{HashMap, VecDeque},
    time::{Duration, Instant},
};

use bytes::BytesMut;
use noq_udp::RecvMeta;

use crate::key::PublicKey;

/// An exit is behind that left something in its sockets with each receive for so long.
const PATIENCE: Duration = Duration::from_millis(20);
/// Bytes that one client may keep here, about what a socket has room for.
const LIMIT: usize = 4 * 1024 * 1024;
/// Bytes that all may keep together.
const TOTAL: usize = 8 * 1024 * 1024;
/// What a batch costs beside its bytes: its place and the allocator's.
const OVERHEAD: usize = 192;
/// Datagrams of one client that are taken before it is another's turn.
const TURN: usize = 32;
/// How long it is to take to deal with what one poll brings.
const AIM: Duration = Duration::from_millis(2);
/// Datagrams that all clients bring to one poll: at least, and at most.
const LEAST: usize = TURN;
const MOST: usize = 256;

/// Who sent something: a client, or one of those who have not proven yet that they are, and who share what one client has.
pub(super) type Sender = Option<PublicKey>;

/// Batches that wait, in the order in which each client brought them.
#[derive(Debug)]
pub(super) struct Intake {
    /// When a receive left something behind, with none since that did not.
    full_since: Option<Instant>,
    is_behind: bool,
    lines: HashMap<Sender, Line>,
    /// Who has a line, the next first.
    turns: VecDeque<Sender>,
    /// Bytes in all lines.
    bytes: usize,
    /// Datagrams of the line that is served at present which may be taken before it is another's turn.
    left: usize,
    /// Datagrams for one poll, and when it began to deal with the last.
    share: usize,
    served: Option<Instant>,
}

#[derive(Debug, Default)]
struct Line {
    batches: VecDeque<Batch>,
    bytes: usize,
}

/// Datagrams of one socket, all of one size but the last.
#[derive(Debug)]
pub(super) struct Batch {
    /// The place of the port that received them.
    pub(super) port: usize,
    pub(super) meta: RecvMeta,
    pub(super) bytes: BytesMut,
}

impl Intake {
    pub(super) fn new() -> Self {
        Self {
            full_since: None,
            is_behind: false,
            lines: HashMap::new(),
            turns: VecDeque::new(),
            bytes: 0,
            left: TURN,
            share: LEAST,
            served: None,
        }
    }

    /// Whether batches are to be kept here first.
    pub(super) fn is_behind(&self) -> bool {
        self.is_behind
    }

    pub(super) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// Takes whether the sockets were found empty at `now`.
    pub(super) fn note(&mut self, emptied: bool, now: Instant) {
        if emptied {
            self.full_since = None;
            self.is_behind = !self.is_empty();
        } else {
            let since = *self.full_since.get_or_insert(now);
            self.is_behind |= now.duration_since(since) >= PATIENCE;
        }
    }

    /// Keeps a batch. Returns how many older datagrams were dropped for it: of the same sender, or where all together have too
    /// much, of who has most.
    pub(super) fn push(&mut self, sender: Sender, batch: Batch) -> u64 {
        let line = self.lines.entry(sender).or_insert_with(|| {
            self.turns.push_back(sender);
            Line::default()
        });
        let cost = batch.cost();
        line.bytes += cost;
        self.bytes += cost;
        line.batches.push_back(batch);
        let mut dropped = 0;
        while line.bytes > LIMIT
            && let Some(oldest) = line.pop(&mut self.bytes)
        {
            dropped += oldest.datagrams() as u64;
        }
        while self.bytes > TOTAL {
            dropped += self.shorten_longest();
        }
        dropped
    }

    /// Drops the oldest batch of who has most, and returns how many datagrams it held.
    fn shorten_longest(&mut self) -> u64 {
        let longest = self.lines.iter_mut().max_by_key(|(_, line)| line.bytes);
        let Some((&sender, line)) = longest else { return 0 };
        let dropped = line.pop(&mut self.bytes).map_or(0, |oldest| oldest.datagrams() as u64);
        if line.batches.is_empty() {
            self.lines.remove(&sender);
            if self.turns.front() == Some(&sender) {
                self.left = TURN;
            }
            self.turns.retain(|of| *of != sender);
        }
        dropped
    }

    /// How many datagrams this poll may take, so that it takes about [`AIM`] to deal with them.
    pub(super) fn share(&mut self, now: Instant) -> usize {
        let last = self.served.take().map_or(AIM, |served| now.saturating_duration_since(served));
        if last > AIM * 2 {
            self.share = (self.share / 2).max(LEAST);
        } else if last < AIM {
            self.share = (self.share * 2).min(MOST);
        }
        self.share
    }

    /// Notes that from now on this poll's share is dealt with.
    pub(super) fn serve(&mut self, now: Instant) {
        self.served = Some(now);
    }

    /// Takes the next batch: some of one client, then some of the next; of strangers only if it is said so.
    pub(super) fn pop(&mut self, of_strangers: bool) -> Option<Batch> {
        if !of_strangers && self.turns.front() == Some(&None) {
            self.turns.rotate_left(1);
            self.left = TURN;
        }
        let sender = *self.turns.front().filter(|sender| of_strangers || sender.is_some())?;
        let line = self.lines.get_mut(&sender)?;
        let batch = line.pop(&mut self.bytes)?;
        self.left = self.left.saturating_sub(batch.datagrams());
        let is_over = line.batches.is_empty();
        if is_over || self.left == 0 {
            self.turns.pop_front();
            self.left = TURN;
            if is_over {
                self.lines.remove(&sender);
            } else {
                self.turns.push_back(sender);
            }
        }
        Some(batch)
    }
}

impl Line {
    fn pop(&mut self, total: &mut usize) -> Option<Batch> {
        let batch = self.batches.pop_front()?;
        self.bytes -= batch.cost();
        *total -= batch.cost();
        Some(batch)
    }
}

impl Batch {
    /// Copies it out of a receive buffer, which it would keep whole.
    pub(super) fn copy(port: usize, meta: &RecvMeta, bytes: &[u8]) -> Self {
        Self { port, meta: *meta, bytes: BytesMut::from(bytes) }
    }

    pub(super) fn datagrams(&self) -> usize {
        self.bytes.len().div_ceil(self.meta.stride.max(1))
    }

    fn cost(&self) -> usize {
        self.bytes.len() + OVERHEAD
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LOUD: Sender = client(3);
    const QUIET: Sender = client(1);

    const fn client(number: u8) -> Sender {
        Some(PublicKey([number; 32]))
    }

    /// A batch of so many datagrams of 1,000 bytes, its number in the first four bytes.
    fn batch(number: u32, datagrams: usize) -> Batch {
        let mut bytes = BytesMut::zeroed(datagrams * 1_000);
        bytes[..4].copy_from_slice(&number.to_be_bytes());
        let mut meta = RecvMeta::default();
        (meta.len, meta.stride) = (bytes.len(), 1_000);
        Batch { port: 0, meta, bytes }
    }

    fn number(batch: &Batch) -> u32 {
        u32::from_be_bytes(batch.bytes[..4].try_into().unwrap())
    }

    /// The numbers of the next so many batches.
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

    #[test]
    fn strangers_have_one_line_for_all_and_wait_where_enough_of_them_are_dealt_with() {
        let mut intake = Intake::new();
        for number in 0..3 {
            intake.push(None, batch(number, 1));
        }
        assert!(intake.pop(false).is_none() && !intake.is_empty());
        intake.push(QUIET, batch(100, 1));
        intake.push(QUIET, batch(101, 1));
        assert_eq!(intake.pop(false).map(|batch| number(&batch)), Some(100));
        assert_eq!(intake.pop(true).map(|batch| number(&batch)), Some(101));
        assert_eq!(popped(&mut intake, 9), [0, 1, 2]);
        assert!(intake.is_empty());
    }

    /// One after the other, so that those whose turn has come long have most.
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
            "none lost all of its own"
        );
        let popped: u64 = std::iter::from_fn(|| intake.pop(true)).map(|batch| batch.datagrams() as u64).sum();
        assert_eq!(popped, pushed - dropped);
    }

    #[test]
    fn one_batch_each_of_very_many_clients_is_more_than_all_may_keep_and_pushes_some_out_whole() {
        let mut intake = Intake::new();
        let clients: u8 = 200;
        let dropped: u64 =
            (0..clients).map(|number| intake.push(client(number), batch(number.into(), 60))).sum();
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
        intake.note(false, start);
        intake.note(false, later(19));
        intake.note(true, later(20));
        intake.note(false, later(21));
        assert!(!intake.is_behind(), "they were empty in between");
        intake.note(false, later(41));
        assert!(intake.is_behind());
        intake.push(QUIET, batch(0, 1));
        intake.note(true, later(42));
        assert!(intake.is_behind(), "something waits");
        intake.pop(true);
        intake.note(false, later(43));
        assert!(intake.is_behind(), "the sockets are not empty");
        intake.note(true, later(44));
        assert!(!intake.is_behind());
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
        /// Whatever comes in whatever order: each datagram is handed out once, in its sender's order, or is counted.
        #[test]
        fn property_every_datagram_is_handed_out_in_order_or_counted(
            steps in prop::collection::vec((0_usize..3, 0_usize..64, 0_u8..8), 0..200),
        ) {
            let mut intake = Intake::new();
            let (mut pushed, mut counted) = (0, 0);
            let mut last = [None; 3];
            let senders = [None, LOUD, QUIET];
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
}
