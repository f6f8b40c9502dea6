//! The queue of one connection towards the carrier.
//!
//! FQ-CoDel (RFC 8290). Flows are separated by the hash of their 5-tuple and served by deficit round robin. The quantum is about
//! one send, which keeps a train of packets together. A flow that becomes active goes before those with a backlog, so that a ping
//! does not wait behind a bulk transfer. CoDel keeps each flow's standing queue short. The total of bytes is bounded: overflow
//! drops from the flow with the most bytes. A queue that is two thirds full already drops single packets. One lost packet slows a
//! flow down, but a burst of losses costs the flow seconds. Packets of a flow stay in order.

pub mod codel;
mod waits;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::BytesMut;

use self::codel::{Codel, Patience};
pub use self::waits::Waits;
use crate::datagram::PACKET_OVERHEAD;
use crate::ecn::mark_congestion;

/// Longest wait of a packet. After this time, the packet's sender has retransmitted it.
pub const MAX_SOJOURN: Duration = Duration::from_millis(500);

/// Bytes that a flow sends per turn: one super-packet, which is one send.
const QUANTUM: i64 = 64 * 1024;
/// Number of hash buckets for flows. A power of two.
const FLOWS: usize = 64;
/// Number of packets for which a flow without a backlog keeps memory. It is enough for several sends.
const KEPT_PLACES: usize = 256;
/// Backlog of a flow in bytes up to which CoDel sees no standing queue.
const SHORT: usize = 64 * 1024;

/// The backlog of a connection: packets framed as datagrams.
#[derive(Debug)]
pub struct FlowQueue {
    limit: usize,
    patience: Patience,
    flows: Box<[Flow]>,
    /// Buckets of the flows that have just become active. `old` contains the buckets of all other flows with a backlog (RFC
    /// 8290 section 4.1).
    new: VecDeque<usize>,
    old: VecDeque<usize>,
    bytes: usize,
    packets: usize,
    longest_wait: Duration,
    /// When a queue that is nearly full may next drop a packet.
    next_warning: Option<Instant>,
}

/// Counts of CoDel's drops and marks, and the waits of the packets that left.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Signals {
    /// Packets dropped because they waited too long.
    pub dropped: u64,
    /// Packets marked with Congestion Experienced instead.
    pub marked: u64,
    /// The waits of all packets that left.
    pub waits: Waits,
}

#[derive(Debug, Default)]
struct Flow {
    packets: VecDeque<Waiting>,
    bytes: usize,
    /// Bytes that the flow may still send in this round.
    deficit: i64,
    codel: Codel,
    is_listed: bool,
}

#[derive(Debug)]
struct Waiting {
    /// The framing's header byte, then the packet.
    framed: BytesMut,
    since: Instant,
}

impl FlowQueue {
    /// Makes a queue of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            patience: Patience::default(),
            flows: Box::default(),
            new: VecDeque::new(),
            old: VecDeque::new(),
            bytes: 0,
            packets: 0,
            longest_wait: Duration::ZERO,
            next_warning: None,
        }
    }

    /// Sets the round-trip time of the flows' packets. From this time, CoDel derives how long a burst may last. `is_searching` says
    /// that the congestion controller still searches for the path's window. Once it has found the window, the queue empties by
    /// itself. So CoDel drops and marks nothing until then.
    pub fn set_round_trip(&mut self, round_trip: Duration, is_searching: bool) {
        self.patience = Patience::for_path(round_trip);
        if is_searching {
            self.patience.target = Duration::MAX;
        }
    }

    /// Sets the most bytes in the queue. If the limit is lowered, packets above it stay until the next push.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.packets == 0
    }

    /// Releases the memory of the flows, 7 KiB. Does nothing unless the queue is empty. CoDel's state of the flows is lost, so
    /// they must have been silent for a while.
    pub fn release(&mut self) {
        if self.is_empty() {
            (self.flows, self.new, self.old) = Default::default();
        }
    }

    /// Number of packets in the queue.
    pub fn packets(&self) -> usize {
        self.packets
    }

    /// Number of bytes in the queue, including framing.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns and resets the longest wait of a packet that left since the last call.
    pub fn take_longest_wait(&mut self) -> Duration {
        std::mem::take(&mut self.longest_wait)
    }

    /// Appends a framed, valid packet to its flow. Returns the number of packets dropped to make room, which count as
    /// [`DropReason::QueueFull`](crate::DropReason::QueueFull). They are dropped at the head of the flows with the most bytes,
    /// because their senders notice a head drop soonest.
    pub fn push(&mut self, flow_hash: u32, framed: BytesMut, now: Instant) -> u64 {
        let mut dropped = 0;
        // A packet that is larger than the limit is accepted if the queue is empty.
        while self.bytes + framed.len() > self.limit && !self.is_empty() {
            self.drop_from_longest();
            dropped += 1;
        }
        if self.bytes > self.limit / 3 * 2 && self.warn_longest(now) {
            dropped += 1;
        }
        // Allocated with the first packet, because an exit may have thousands of connections that carry nothing.
        if self.flows.is_empty() {
            self.flows = (0..FLOWS).map(|_| Flow::default()).collect();
        }
        // The hash's low bits, because the high ones choose the connection.
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

    /// Removes and returns the next packet to send. Packets that waited too long are dropped or marked, and counted in
    /// `signals`. Drops count as [`DropReason::QueueDelay`](crate::DropReason::QueueDelay).
    pub fn pop(&mut self, now: Instant, signals: &mut Signals) -> Option<BytesMut> {
        loop {
            let (place, is_new) = match (self.new.front(), self.old.front()) {
                (Some(place), _) => (*place, true),
                (None, Some(place)) => (*place, false),
                (None, None) => return None,
            };
            let flow = &mut self.flows[place];
            let is_spent = flow.deficit <= 0;
            // A spent flow gets its next quantum and goes to the end of the old list (RFC 8290 section 4.2).
            if is_spent {
                flow.deficit += QUANTUM;
            }
            let taken = if is_spent {
                None
            } else {
                flow.take((now, self.patience), signals, &mut self.bytes, &mut self.packets)
            };
            if let Some((packet, wait)) = taken {
                self.longest_wait = self.longest_wait.max(wait);
                return Some(packet);
            }
            // A new flow that runs empty moves to the old list for one round. Otherwise it could become new again at once and
            // starve the others (RFC 8290 section 4.2).
            let list = if is_new { &mut self.new } else { &mut self.old };
            list.pop_front();
            let flow = &mut self.flows[place];
            if is_spent || is_new {
                self.old.push_back(place);
            } else {
                flow.is_listed = false;
                // Releases memory after a long backlog. Otherwise many flows could each keep the memory of a full queue.
                if flow.packets.capacity() > KEPT_PLACES {
                    flow.packets = VecDeque::new();
                }
            }
        }
    }

    /// Empties the queue and returns the number of packets that were in it.
    pub fn clear(&mut self) -> u64 {
        let packets = self.packets;
        // Frees the flows' memory too.
        *self = Self { patience: self.patience, ..Self::new(self.limit) };
        packets as u64
    }

    /// Drops a packet of the longest flow, at most once per round trip. Returns whether it dropped one.
    fn warn_longest(&mut self, now: Instant) -> bool {
        if self.next_warning.is_some_and(|next| now < next) {
            return false;
        }
        self.next_warning = Some(now + self.patience.interval / 2);
        self.drop_from_longest();
        true
    }

    fn drop_from_longest(&mut self) {
        // A scan over all flows, because it is needed only when the queue is nearly full.
        let Some(flow) = self.flows.iter_mut().max_by_key(|flow| flow.bytes) else { return };
        if let Some(waiting) = flow.remove() {
            self.bytes -= waiting.framed.len();
            self.packets -= 1;
        }
    }
}

impl Flow {
    /// Removes the flow's next packet that did not wait too long. Returns the packet and how long it waited.
    fn take(
        &mut self,
        (now, patience): (Instant, Patience),
        signals: &mut Signals,
        bytes: &mut usize,
        packets: &mut usize,
    ) -> Option<(BytesMut, Duration)> {
        loop {
            let Waiting { mut framed, since } = self.remove()?;
            *bytes -= framed.len();
            *packets -= 1;
            let sojourn = now.saturating_duration_since(since);
            // CoDel comes before the check of the limit, because it must see every packet that leaves. Otherwise its state
            // becomes wrong.
            let is_signal = self.codel.signals(now, patience, sojourn, self.bytes <= SHORT);
            if sojourn > MAX_SOJOURN {
                signals.dropped += 1;
                continue;
            }
            if is_signal {
                // CoDel's signal is a mark where the sender supports ECN, else a drop (RFC 8289 section 3).
                if !framed.get_mut(PACKET_OVERHEAD..).is_some_and(mark_congestion) {
                    signals.dropped += 1;
                    continue;
                }
                signals.marked += 1;
            }
            signals.waits.record(sojourn);
            // The deficit may become negative, so no packet is too large for its turn. The flow repays it in later rounds.
            self.deficit -= framed.len() as i64;
            return Some((framed, sojourn));
        }
    }

    fn remove(&mut self) -> Option<Waiting> {
        let waiting = self.packets.pop_front()?;
        self.bytes -= waiting.framed.len();
        Some(waiting)
    }
}
