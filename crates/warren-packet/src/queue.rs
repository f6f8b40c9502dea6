//! The queue of one connection towards the carrier.
//!
//! Flows are kept apart, by the hash of their 5-tuple, and take turns of about one send (deficit round robin, as RFC 8290
//! does it, with a quantum that keeps a train of packets whole); a flow that had nothing waiting goes before those that had,
//! so that a ping does not wait behind a bulk transfer. Each flow's standing queue is held short by CoDel. Bytes are bounded
//! over all, at the cost of the flow that holds most. Packets of a flow leave in the order in which they came.

mod codel;
mod waits;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};

use self::codel::Codel;
pub use self::waits::Waits;
use crate::datagram::PACKET_OVERHEAD;
use crate::ecn::mark_congestion;

/// Packets that waited longer are of no use any more: whoever sent them has sent them again.
pub const MAX_SOJOURN: Duration = Duration::from_millis(500);

/// Bytes that a flow sends before it is another's turn: a super-packet, hence a send.
const QUANTUM: i64 = 64 * 1024;
/// Flows that are told apart; more share places. A power of two.
const FLOWS: usize = 64;
/// Bytes of a flow up to which nothing stands in its queue.
const SHORT: usize = 64 * 1024;

/// Packets that wait for a connection, framed as datagrams.
#[derive(Debug)]
pub struct FlowQueue {
    limit: usize,
    flows: Box<[Flow]>,
    /// Places of the flows that have something and had nothing before, and of the others that have something.
    new: VecDeque<usize>,
    old: VecDeque<usize>,
    bytes: usize,
    packets: usize,
    longest_wait: Duration,
}

/// What was dropped, what was marked instead, and how long those waited that left.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Signals {
    /// Packets that had waited too long.
    pub dropped: u64,
    /// Packets that were marked instead.
    pub marked: u64,
    /// The waits of packets that left, marked or not.
    pub waits: Waits,
}

#[derive(Debug, Default)]
struct Flow {
    packets: VecDeque<Waiting>,
    bytes: usize,
    /// Bytes that it may still send in this round.
    deficit: i64,
    codel: Codel,
    is_listed: bool,
}

#[derive(Debug)]
struct Waiting {
    /// Header byte, then the packet.
    framed: BytesMut,
    since: Instant,
}

impl FlowQueue {
    /// Makes a queue of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            flows: Box::default(),
            new: VecDeque::new(),
            old: VecDeque::new(),
            bytes: 0,
            packets: 0,
            longest_wait: Duration::ZERO,
        }
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.packets == 0
    }

    /// Returns how many packets wait.
    pub fn packets(&self) -> usize {
        self.packets
    }

    /// Returns how many bytes wait, framing included.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the longest that one of the packets waited which left since this was asked last.
    pub fn take_longest_wait(&mut self) -> Duration {
        std::mem::take(&mut self.longest_wait)
    }

    /// Puts a framed, valid packet at the end of its flow. Returns how many packets were dropped for its bytes, at the
    /// heads of the flows that hold most: their senders learn of it soonest (counted as [`DropReason::QueueFull`](crate::DropReason::QueueFull)).
    pub fn push(&mut self, flow_hash: u32, framed: BytesMut, now: Instant) -> u64 {
        let mut dropped = 0;
        while self.bytes + framed.len() > self.limit && !self.is_empty() {
            self.drop_from_longest();
            dropped += 1;
        }
        if self.flows.is_empty() {
            self.flows = (0..FLOWS).map(|_| Flow::default()).collect();
        }
        let place = flow_hash as usize % FLOWS;
        let flow = &mut self.flows[place];
        self.bytes += framed.len();
        self.packets += 1;
        flow.bytes += framed.len();
        flow.packets.push_back(Waiting { framed, since: now });
        if !flow.is_listed {
            flow.is_listed = true;
            flow.deficit = QUANTUM;
            self.new.push_back(place);
        }
        dropped
    }

    /// Takes the packet that is to leave next. What waited too long is dropped on the way, or marked, and added to `signals`
    /// (drops are counted as [`DropReason::QueueDelay`](crate::DropReason::QueueDelay)).
    pub fn pop(&mut self, now: Instant, signals: &mut Signals) -> Option<Bytes> {
        loop {
            let (place, is_new) = match (self.new.front(), self.old.front()) {
                (Some(place), _) => (*place, true),
                (None, Some(place)) => (*place, false),
                (None, None) => return None,
            };
            let flow = &mut self.flows[place];
            let is_spent = flow.deficit <= 0;
            if is_spent {
                flow.deficit += QUANTUM;
            }
            let taken =
                if is_spent { None } else { flow.take(now, signals, &mut self.bytes, &mut self.packets) };
            if let Some((packet, wait)) = taken {
                self.longest_wait = self.longest_wait.max(wait);
                return Some(packet);
            }
            // A new flow that has no more goes round once among the old, or it could be new again at once and never let
            // the others have their turn (RFC 8290 section 4.2).
            let list = if is_new { &mut self.new } else { &mut self.old };
            list.pop_front();
            let flow = &mut self.flows[place];
            if is_spent || is_new {
                self.old.push_back(place);
            } else {
                flow.is_listed = false;
            }
        }
    }

    /// Empties it and returns how many packets there were.
    pub fn clear(&mut self) -> u64 {
        let packets = self.packets;
        *self = Self::new(self.limit);
        packets as u64
    }

    fn drop_from_longest(&mut self) {
        let Some(flow) = self.flows.iter_mut().max_by_key(|flow| flow.bytes) else { return };
        if let Some(waiting) = flow.remove() {
            self.bytes -= waiting.framed.len();
            self.packets -= 1;
        }
    }
}

impl Flow {
    /// Takes its next packet that did not wait too long, and how long it did.
    fn take(
        &mut self,
        now: Instant,
        signals: &mut Signals,
        bytes: &mut usize,
        packets: &mut usize,
    ) -> Option<(Bytes, Duration)> {
        loop {
            let Waiting { mut framed, since } = self.remove()?;
            *bytes -= framed.len();
            *packets -= 1;
            let sojourn = now.saturating_duration_since(since);
            let is_signal = self.codel.signals(now, sojourn, self.bytes <= SHORT);
            if sojourn > MAX_SOJOURN {
                signals.dropped += 1;
                continue;
            }
            if is_signal {
                if !framed.get_mut(PACKET_OVERHEAD..).is_some_and(mark_congestion) {
                    signals.dropped += 1;
                    continue;
                }
                signals.marked += 1;
            }
            signals.waits.record(sojourn);
            self.deficit -= framed.len() as i64;
            return Some((framed.freeze(), sojourn));
        }
    }

    fn remove(&mut self) -> Option<Waiting> {
        let waiting = self.packets.pop_front()?;
        self.bytes -= waiting.framed.len();
        Some(waiting)
    }
}
