//! Per-client queues of undecrypted datagrams that arrive faster than they can be processed.
//!
//! All clients of an exit share its sockets, and the kernel drops datagrams for a full socket regardless of sender. An exit
//! whose TUN device or CPU is too slow is *behind*. It then reads ahead. Each client has its own queue for all of its
//! connections. A client that sends too much loses its own oldest datagrams, and each client gets its turn. QUIC never sees
//! the dropped datagrams, so congestion control treats them as lost and the sender slows down.
//!
//! A single client has the sockets' buffers to itself. So nothing is queued for it, which saves a copy and memory. A client is
//! single if no other is connected and no stranger sent anything recently.
//!
//! Fairness counts QUIC datagrams. One UDP datagram may hold hundreds of them, and their number is known only after decryption.
//! So clients are charged afterwards: a client that used more than its turn waits until the others have used as much.

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

/// An exit is behind if its receives have left datagrams in its sockets for this long.
const PATIENCE: Duration = Duration::from_millis(20);
/// How long a stranger counts as another sender after its latest datagram.
const STRANGER: Duration = Duration::from_secs(10);
/// Maximum number of queued bytes of one client, about the size of a socket's buffer.
const LIMIT: usize = 4 * 1024 * 1024;
/// Maximum number of queued bytes in total.
const TOTAL: usize = 8 * 1024 * 1024;
/// Overhead of a batch in bytes: its entry and the allocator's.
const OVERHEAD: usize = 192;
/// Approximate number of datagrams in one client's turn.
const TURN: usize = 32;
/// Target time for processing the datagrams of one poll.
const AIM: Duration = Duration::from_millis(2);
/// Bounds of the number of datagrams taken per poll from all clients.
const LEAST: usize = TURN;
const MOST: usize = 256;

/// The sender of a datagram. It decides whose queue space and turn the datagram takes.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Hash)]
pub(super) enum Sender {
    /// An enrolled client, with all of its connections.
    Client(PublicKey),
    /// Everybody who completed a handshake, but with a key that is not known to be enrolled. Together they have the queue
    /// space and the turn of one client.
    Unenrolled,
    /// Everybody who has not completed a handshake. Together they have the queue space and the turn of one client.
    Stranger,
}

/// The queued batches, in order per client.
#[derive(Debug)]
pub(super) struct Intake {
    /// Since when every receive has left datagrams in the sockets.
    full_since: Option<Instant>,
    is_behind: bool,
    /// When a stranger's datagram was last seen.
    heard_stranger: Option<Instant>,
    lines: HashMap<Sender, Line>,
    /// The senders with queued batches, the next one first.
    turns: VecDeque<Sender>,
    /// The bytes in all queues together.
    bytes: usize,
    /// The sender of the batch taken last.
    taken: Sender,
    /// Number of datagrams per poll, and when processing of the latest share began.
    share: usize,
    served: Option<Instant>,
}

#[derive(Debug)]
struct Line {
    batches: VecDeque<Batch>,
    bytes: usize,
    /// Datagrams left in the sender's turn. A negative number is the excess over its turns, for which the sender must wait.
    credit: isize,
}

/// Datagrams from one socket, all of one size except the last.
#[derive(Debug)]
pub(super) struct Batch {
    /// The index of the port that received them, and the slot of their apparent connection.
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

    /// Whether batches must first be queued here.
    pub(super) fn is_behind(&self) -> bool {
        self.is_behind
    }

    pub(super) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// Whether datagrams were left in the sockets, so that it matters who sends them ([`Self::hear_stranger`]).
    pub(super) fn is_full(&self) -> bool {
        self.full_since.is_some()
    }

    /// Records that a stranger sent a datagram.
    pub(super) fn hear_stranger(&mut self, now: Instant) {
        self.heard_stranger = Some(now);
    }

    /// Whether a stranger sent a datagram recently.
    pub(super) fn has_strangers(&self, now: Instant) -> bool {
        self.heard_stranger.is_some_and(|heard| now.duration_since(heard) <= STRANGER)
    }

    /// Records whether the sockets were emptied at `now`, and whether there is more than one sender.
    pub(super) fn note(&mut self, emptied: bool, has_company: bool, now: Instant) {
        if emptied {
            self.full_since = None;
            self.is_behind = !self.is_empty();
        } else {
            // With a single sender, the exit is behind only until the sender's queue here is empty. From then on, the kernel's
            // buffer is the sender's queue.
            let since = *self.full_since.get_or_insert(now);
            let is_late = now.duration_since(since) >= PATIENCE;
            self.is_behind = if has_company { self.is_behind || is_late } else { !self.is_empty() };
        }
    }

    /// Queues a batch. Returns the number of older datagrams dropped to make room: the same sender's, or, if the total is
    /// exceeded, those of the sender with the most bytes.
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
        // The sender with the most bytes loses, not the one that sent last.
        while self.bytes > TOTAL {
            dropped += self.shorten_longest();
        }
        dropped
    }

    /// Drops the oldest batch of the sender with the most bytes. Returns the number of its datagrams.
    fn shorten_longest(&mut self) -> u64 {
        let longest = self.lines.iter_mut().max_by_key(|(_, line)| line.bytes);
        let Some((&sender, line)) = longest else { return 0 };
        let dropped = line.pop(&mut self.bytes).map_or(0, |oldest| oldest.datagrams() as u64);
        if line.batches.is_empty() {
            self.lines.remove(&sender);
            // A sender has a turn only while it has a queue.
            self.turns.retain(|of| *of != sender);
        }
        dropped
    }

    /// Returns how many datagrams this poll may take to spend about [`AIM`] on them. Call it only in polls that take some: asking
    /// for the next share ends the measurement of the last one.
    pub(super) fn share(&mut self, now: Instant) -> usize {
        // If there is no measurement, the share stays as it is.
        let last = self.served.take().map_or(AIM, |served| now.saturating_duration_since(served));
        // The share doubles and halves. Between AIM and twice AIM it stays, so that it does not oscillate.
        if last > AIM * 2 {
            self.share = (self.share / 2).max(LEAST);
        } else if last < AIM {
            self.share = (self.share * 2).min(MOST);
        }
        self.share
    }

    /// Records that processing of this poll's share begins.
    pub(super) fn serve(&mut self, now: Instant) {
        self.served = Some(now);
    }

    /// Removes and returns the next batch, in turns among clients. Strangers have turns only if `of_strangers` is set.
    pub(super) fn pop(&mut self, of_strangers: bool) -> Option<Batch> {
        loop {
            if !of_strangers && self.turns.front() == Some(&Sender::Stranger) {
                self.turns.rotate_left(1);
            }
            let sender = *self.turns.front().filter(|sender| of_strangers || **sender != Sender::Stranger)?;
            let line = self.lines.get_mut(&sender)?;
            // Each round adds a turn to every sender's credit, so the loop ends.
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

    /// Charges the sender of the last batch for `more` QUIC datagrams, in addition to one per UDP datagram, which `pop` has
    /// charged.
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
    /// Copies a batch out of its receive buffer, which it would otherwise pin.
    pub(super) fn copy(port: usize, slot: Option<usize>, meta: &RecvMeta, bytes: &[u8]) -> Self {
        Self { port, slot, meta: *meta, bytes: BytesMut::from(bytes) }
    }

    /// Copies the datagrams of a batch that `is_kept` selects, if any.
    fn sift(
        port: usize,
        slot: Option<usize>,
        meta: &RecvMeta,
        bytes: &[u8],
        is_kept: impl Fn(&[u8]) -> bool,
    ) -> Option<Self> {
        let datagrams = bytes.chunks(meta.stride.max(1)).filter(|datagram| is_kept(datagram));
        // All except the last still have the same size.
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
