//! What comes in faster than it can be dealt with, kept apart by client and not yet decrypted.
//!
//! All clients of an exit share its sockets, and what a full socket has no room for the kernel drops, whoever sent it. An exit
//! that is behind, by its TUN device or by its processor, reads ahead instead. Here each client has room of its own, for all of
//! its connections: who brings too much pushes out its own oldest datagrams and nobody else's, and each has its turn. Since QUIC
//! never saw what is dropped, its congestion control takes it for the loss that it is, and the sender slows down.
//!
//! A client that is alone has the sockets' room to itself, and nothing is kept for it: that would be a copy and memory for nobody. It
//! is alone if no other is connected and no stranger was heard of late.
//!
//! What counts are datagrams of QUIC, of which one of UDP may hold hundreds; how many is known once it is decrypted. So they
//! are charged afterwards: whose turn cost more than it was worth waits until the others have had as much.

mod catch_up;
#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, VecDeque},
    time::{Duration, Instant},
};

use bytes::BytesMut;
use noq_udp::RecvMeta;

use crate::key::PublicKey;

/// An exit is behind that left something in its sockets with each receive for so long.
const PATIENCE: Duration = Duration::from_millis(20);
/// A stranger who brought something is company for so long.
const STRANGER: Duration = Duration::from_secs(10);
/// Bytes that one client may keep here, about what a socket has room for.
const LIMIT: usize = 4 * 1024 * 1024;
/// Bytes that all may keep together.
const TOTAL: usize = 8 * 1024 * 1024;
/// What a batch costs beside its bytes: its place and the allocator's.
const OVERHEAD: usize = 192;
/// Datagrams of one client that are taken before it is another's turn, about.
const TURN: usize = 32;
/// How long it is to take to deal with what one poll brings.
const AIM: Duration = Duration::from_millis(2);
/// Datagrams that all clients bring to one poll: at least, and at most.
const LEAST: usize = TURN;
const MOST: usize = 256;

/// Who sent something, and so whose room and turn it takes.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Hash)]
pub(super) enum Sender {
    /// An enrolled client, with all of its connections.
    Client(PublicKey),
    /// Everybody who completed a handshake, but with a key that is not known to be enrolled. They share what one client has.
    Unenrolled,
    /// Everybody who has not completed a handshake. They too share what one client has.
    Stranger,
}

/// Batches that wait, in the order in which each client brought them.
#[derive(Debug)]
pub(super) struct Intake {
    /// When a receive left something behind, with none since that did not.
    full_since: Option<Instant>,
    is_behind: bool,
    /// When strangers brought something, of what was looked at.
    heard_stranger: Option<Instant>,
    lines: HashMap<Sender, Line>,
    /// Who has a line, the next first.
    turns: VecDeque<Sender>,
    /// Bytes in all lines.
    bytes: usize,
    /// Who brought what was taken last.
    taken: Sender,
    /// Datagrams for one poll, and when it began to deal with the last.
    share: usize,
    served: Option<Instant>,
}

#[derive(Debug)]
struct Line {
    batches: VecDeque<Batch>,
    bytes: usize,
    /// Datagrams that may be taken before it is another's turn; less than 0, those that it was served beyond its turns.
    credit: isize,
}

/// Datagrams of one socket, all of one size but the last.
#[derive(Debug)]
pub(super) struct Batch {
    /// The place of the port that received them, and of the connection that they seemed to be for.
    pub(super) port: usize,
    pub(super) slot: Option<usize>,
    pub(super) meta: RecvMeta,
    pub(super) bytes: BytesMut,
}

impl Intake {
    pub(super) fn new() -> Self {
        Self {
            full_since: None,
            is_behind: false,
            heard_stranger: None,
            lines: HashMap::new(),
            turns: VecDeque::new(),
            bytes: 0,
            taken: Sender::Stranger,
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

    /// Whether something was left in the sockets, so that it matters who brings it ([`Self::hear_stranger`]).
    pub(super) fn is_full(&self) -> bool {
        self.full_since.is_some()
    }

    /// Notes that a stranger brought something.
    pub(super) fn hear_stranger(&mut self, now: Instant) {
        self.heard_stranger = Some(now);
    }

    /// Whether strangers brought something of late.
    pub(super) fn has_strangers(&self, now: Instant) -> bool {
        self.heard_stranger.is_some_and(|heard| now.duration_since(heard) <= STRANGER)
    }

    /// Takes whether the sockets were emptied at `now`, and if not, whether there is more than one who brings something.
    pub(super) fn note(&mut self, emptied: bool, has_company: bool, now: Instant) {
        if emptied {
            self.full_since = None;
            self.is_behind = !self.is_empty();
        } else {
            let since = *self.full_since.get_or_insert(now);
            let is_late = now.duration_since(since) >= PATIENCE;
            self.is_behind = if has_company { self.is_behind || is_late } else { !self.is_empty() };
        }
    }

    /// Keeps a batch. Returns how many older datagrams were dropped for it: of the same sender, or where all together have too
    /// much, of who has most.
    pub(super) fn push(&mut self, sender: Sender, batch: Batch) -> u64 {
        let line = self.lines.entry(sender).or_insert_with(|| {
            self.turns.push_back(sender);
            Line::new()
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
            self.turns.retain(|of| *of != sender);
        }
        dropped
    }

    /// How many datagrams this poll may take, so that it takes about [`AIM`] to deal with them; to be asked by polls alone that
    /// take some, since the last share is dealt with when the next one is wanted.
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
        loop {
            if !of_strangers && self.turns.front() == Some(&Sender::Stranger) {
                self.turns.rotate_left(1);
            }
            let sender = *self.turns.front().filter(|sender| of_strangers || **sender != Sender::Stranger)?;
            let line = self.lines.get_mut(&sender)?;
            if line.credit <= 0 {
                line.credit = line.credit.saturating_add_unsigned(TURN);
                self.turns.rotate_left(1);
                continue;
            }
            let batch = line.pop(&mut self.bytes)?;
            line.charge(batch.datagrams());
            self.taken = sender;
            if line.batches.is_empty() {
                self.lines.remove(&sender);
                self.turns.pop_front();
            }
            return Some(batch);
        }
    }

    /// Charges who brought the last batch for what was found in it, beyond one for each datagram of UDP.
    pub(super) fn charge(&mut self, more: usize) {
        if let Some(line) = self.lines.get_mut(&self.taken) {
            line.charge(more);
        }
    }
}

impl Line {
    fn new() -> Self {
        Self { batches: VecDeque::new(), bytes: 0, credit: 0_isize.saturating_add_unsigned(TURN) }
    }

    fn charge(&mut self, datagrams: usize) {
        self.credit = self.credit.saturating_sub_unsigned(datagrams);
    }

    fn pop(&mut self, total: &mut usize) -> Option<Batch> {
        let batch = self.batches.pop_front()?;
        self.bytes -= batch.cost();
        *total -= batch.cost();
        Some(batch)
    }
}

impl Batch {
    /// Copies it out of a receive buffer, which it would keep whole.
    pub(super) fn copy(port: usize, slot: Option<usize>, meta: &RecvMeta, bytes: &[u8]) -> Self {
        Self { port, slot, meta: *meta, bytes: BytesMut::from(bytes) }
    }

    /// Copies those of a batch's datagrams that are to be kept, if any are.
    fn sift(
        port: usize,
        slot: Option<usize>,
        meta: &RecvMeta,
        bytes: &[u8],
        is_kept: impl Fn(&[u8]) -> bool,
    ) -> Option<Self> {
        let datagrams = bytes.chunks(meta.stride.max(1)).filter(|datagram| is_kept(datagram));
        // All but the last are of one size still.
        let bytes = datagrams.fold(BytesMut::new(), |mut kept, datagram| {
            kept.extend_from_slice(datagram);
            kept
        });
        let mut meta = *meta;
        meta.len = bytes.len();
        (!bytes.is_empty()).then_some(Self { port, slot, meta, bytes })
    }

    pub(super) fn datagrams(&self) -> usize {
        self.bytes.len().div_ceil(self.meta.stride.max(1))
    }

    fn cost(&self) -> usize {
        self.bytes.len() + OVERHEAD
    }
}
