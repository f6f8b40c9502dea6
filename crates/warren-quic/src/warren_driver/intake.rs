//! What comes in faster than it can be dealt with, kept apart by connection and not yet decrypted.
//!
//! All connections of an exit share its sockets, and what a full socket has no room for the kernel drops, whoever sent it. An
//! exit that is behind, by its TUN device or by its processor, reads ahead instead. Here each connection has room of its own:
//! who brings too much pushes out its own oldest datagrams and nobody else's, and each has its turn. Since QUIC never saw what is
//! dropped, its congestion control takes it for the loss that it is, and the sender slows down.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use bytes::BytesMut;
use noq_udp::RecvMeta;

/// An exit is behind whose sockets were not once found empty for so long.
const PATIENCE: Duration = Duration::from_millis(20);
/// Bytes that one connection may keep here, about what a socket has room for.
const LIMIT: usize = 4 * 1024 * 1024;
/// Bytes that all may keep together, each the same part of it where they are many.
const TOTAL: usize = 8 * 1024 * 1024;
/// What a batch costs beside its bytes: its place and the allocator's.
const OVERHEAD: usize = 192;
/// Datagrams of one connection that are taken before it is another's turn.
const TURN: usize = 32;
/// How long a turn of the worker is to take.
const AIM: Duration = Duration::from_millis(2);
/// Datagrams that all connections bring to one turn of the worker: at least, and at most.
const LEAST: usize = TURN;
const MOST: usize = 256;

/// Batches that wait, in the order in which each connection brought them.
#[derive(Debug)]
pub(super) struct Intake {
    /// When a receive left something behind, with none since that did not.
    full_since: Option<Instant>,
    is_behind: bool,
    /// By the place of the connection.
    lines: Vec<Line>,
    /// The connections that have a line, the next first.
    turns: VecDeque<usize>,
    /// Datagrams of the line that is served at present which may be taken before it is another's turn.
    left: usize,
    /// Datagrams for one turn of the worker, and when it had the last.
    share: usize,
    served: Option<Instant>,
}

#[derive(Debug, Default)]
struct Line {
    batches: VecDeque<Batch>,
    bytes: usize,
}

/// Datagrams of one sender, all of one size but the last.
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
            lines: Vec::new(),
            turns: VecDeque::new(),
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

    /// Keeps a copy of a batch, which lies in a receive buffer that it would keep whole. Returns how many datagrams of its
    /// connection, older ones, were dropped for it.
    pub(super) fn push(&mut self, slot: usize, batch: Batch) -> u64 {
        if self.lines.len() <= slot {
            self.lines.resize_with(slot + 1, Line::default);
        }
        let limit = LIMIT.min(TOTAL / self.turns.len().max(1));
        let Some(line) = self.lines.get_mut(slot) else { return 0 };
        if line.batches.is_empty() {
            self.turns.push_back(slot);
        }
        let mut dropped = 0;
        while line.bytes + batch.cost() > limit
            && let Some(oldest) = line.pop()
        {
            dropped += oldest.datagrams() as u64;
        }
        line.bytes += batch.cost();
        line.batches.push_back(Batch { bytes: BytesMut::from(&*batch.bytes), ..batch });
        dropped
    }

    /// How many datagrams this turn of the worker may take, so that it lasts about [`AIM`].
    pub(super) fn share(&mut self, now: Instant) -> usize {
        let last = self.served.replace(now).map_or(AIM, |served| now.duration_since(served));
        if last > AIM * 2 {
            self.share = (self.share / 2).max(LEAST);
        } else if last < AIM {
            self.share = (self.share * 2).min(MOST);
        }
        self.share
    }

    /// Takes the next batch: some of one connection, then some of the next.
    pub(super) fn pop(&mut self) -> Option<Batch> {
        let slot = *self.turns.front()?;
        let line = self.lines.get_mut(slot)?;
        let batch = line.pop()?;
        self.left = self.left.saturating_sub(batch.datagrams());
        let is_over = line.batches.is_empty();
        if is_over || self.left == 0 {
            self.turns.pop_front();
            self.left = TURN;
            if is_over {
                *line = Line::default();
            } else {
                self.turns.push_back(slot);
            }
        }
        Some(batch)
    }
}

impl Line {
    fn pop(&mut self) -> Option<Batch> {
        let batch = self.batches.pop_front()?;
        self.bytes -= batch.cost();
        Some(batch)
    }
}

impl Batch {
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

    const LOUD: usize = 3;
    const QUIET: usize = 1;

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
        std::iter::from_fn(|| intake.pop()).take(count).map(|batch| number(&batch)).collect()
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
        assert!(intake.is_empty() && intake.lines.iter().all(|line| line.bytes == 0));
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
    fn many_connections_together_keep_no_more_than_all_may() {
        let mut intake = Intake::new();
        let connections = 20;
        for number in 0..1_000 {
            for slot in 0..connections {
                intake.push(slot, batch(number, 1));
            }
        }
        let kept: usize = intake.lines.iter().map(|line| line.bytes).sum();
        assert!(kept > TOTAL / 2 && kept <= TOTAL, "{kept}");
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
        intake.pop();
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
            now += passed;
            intake.share(now)
        };
        let fast: Vec<usize> = (0..6).map(|_| share_after(AIM / 4)).collect();
        assert_eq!(fast, [32, 64, 128, 256, 256, 256]);
        let slow: Vec<usize> = (0..4).map(|_| share_after(AIM * 20)).collect();
        assert_eq!(slow, [128, 64, 32, 32]);
    }

    proptest! {
        /// Whatever comes in whatever order: each datagram is handed out once, in its connection's order, or is counted.
        #[test]
        fn property_every_datagram_is_handed_out_in_order_or_counted(
            steps in prop::collection::vec((0_usize..3, 0_usize..64, 0_u8..8), 0..200),
        ) {
            let mut intake = Intake::new();
            let (mut pushed, mut counted) = (0, 0);
            let mut last = [None; 3];
            let mut check = |batch: Batch| {
                let last = &mut last[batch.port];
                assert!(*last < Some(number(&batch)));
                *last = Some(number(&batch));
                batch.datagrams() as u64
            };
            for ((slot, datagrams, what), number) in steps.into_iter().zip(0..) {
                if what == 0 {
                    counted += intake.pop().map_or(0, &mut check);
                } else {
                    // The port stands for the connection here.
                    let batch = Batch { port: slot, ..batch(number, datagrams + 1) };
                    pushed += batch.datagrams() as u64;
                    counted += intake.push(slot, batch);
                }
                assert!(intake.lines.iter().all(|line| line.bytes <= LIMIT));
                assert_eq!(intake.is_empty(), intake.lines.iter().all(|line| line.batches.is_empty()));
            }
            while let Some(batch) = intake.pop() {
                counted += check(batch);
            }
            assert_eq!(pushed, counted);
        }
    }
}
