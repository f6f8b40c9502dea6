//! A pump: one connection's queue towards the carrier and its reassembly from it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use warren_packet::datagram::{Datagram, FRAGMENT_OVERHEAD, Fragmenter, PACKET_OVERHEAD, write_fragment};
use warren_packet::queue::{FlowQueue, Signals};
use warren_packet::reason::DropReason;
use warren_packet::reassembly::{Assembler, Limits};
use warren_quic::driver::{ConnectionId, Endpoint, SendError};
use warren_session::exit::SessionId;

use super::arena::Arena;
use super::counters::{Drops, Totals};
use super::traffic::Traffic;

/// Bytes that a queue holds at most; a packet that would exceed it costs the longest flow others, counted as `queue_full`.
const QUEUE_LIMIT: usize = 512 * 1024;
/// Bytes from which a client stops reading its TUN, so that the kernel holds its senders back instead.
const QUEUE_HIGH_WATER: usize = 256 * 1024;
/// How long a connection's datagram size must have stayed the same before senders are told of it: discovery takes a moment
/// to find the path's.
const SETTLED: Duration = Duration::from_secs(5);
/// Answers to packets that are too big that may be made in a row, and time for each after that.
const ANSWERS: u32 = 20;
const ANSWER_EVERY: Duration = Duration::from_millis(50);
/// A connection whose packets wait longer is slower than the host: there the queue, which keeps flows apart and short, does
/// better than the TUN, where everything waits in one line.
const SLOW: Duration = Duration::from_millis(10);
/// A queue that made no progress for this long no longer holds the TUN back: its connection may be dead.
const STALL: Duration = Duration::from_millis(20);

/// One connection's state on the packet path.
pub(crate) struct Pump {
    pub connection: ConnectionId,
    /// The session and the connection's index in it, once attached.
    pub attached: Option<(SessionId, u32)>,
    pub assembler: Assembler,
    fragmenter: Fragmenter,
    queue: FlowQueue,
    /// The framed packet that left the queue and found the transport full.
    held: Option<Bytes>,
    /// What is left of a packet whose fragments did not all fit into the transport.
    fragments: VecDeque<Bytes>,
    last_progress: Instant,
    /// How long packets wait in the queue, about.
    wait: Duration,
    /// The largest datagram when it was last looked at, and since when it has been that.
    datagram_size: (Option<usize>, Instant),
    /// Answers to packets that are too big that may be made now, and when that was counted.
    answers: (u32, Instant),
    /// Whether the transport said that it is full; cleared by its word that it is not.
    pub blocked: bool,
    /// Whether the worker has this pump on its list of pumps to drain.
    pub listed: bool,
    /// What it carried for the session that it is attached to.
    pub traffic: Traffic,
}

impl Pump {
    pub(crate) fn new(connection: ConnectionId, now: Instant) -> Self {
        Self {
            connection,
            attached: None,
            assembler: Assembler::new(Limits::default()),
            fragmenter: Fragmenter::default(),
            queue: FlowQueue::new(QUEUE_LIMIT),
            held: None,
            fragments: VecDeque::new(),
            last_progress: now,
            wait: Duration::ZERO,
            datagram_size: (None, now),
            answers: (ANSWERS, now),
            blocked: false,
            listed: false,
            traffic: Traffic::default(),
        }
    }

    /// Puts a framed packet at the end of its flow.
    pub(crate) fn enqueue(&mut self, flow_hash: u32, framed: BytesMut, now: Instant, drops: &mut Drops) {
        if self.is_idle() {
            self.last_progress = now;
        }
        let dropped = self.queue.push(flow_hash, framed, now);
        drops.to_carrier.add_many(DropReason::QueueFull, dropped);
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.held.is_none() && self.fragments.is_empty()
    }

    pub(crate) fn queue_bytes(&self) -> usize {
        self.queue.bytes() + self.held.as_ref().map_or(0, Bytes::len)
    }

    /// Packets that wait here, one whose fragments are half sent included.
    pub(crate) fn queued_packets(&self) -> usize {
        self.queue.packets() + usize::from(self.held.is_some()) + usize::from(!self.fragments.is_empty())
    }

    /// Whether this queue asks the TUN's reader to wait.
    pub(crate) fn holds_back(&self, now: Instant) -> bool {
        self.queue.bytes() >= QUEUE_HIGH_WATER
            && self.wait < SLOW
            && now.duration_since(self.last_progress) < STALL
    }

    /// Looks at what the connection carries in one datagram, so that it is known since when that is so.
    pub(crate) fn note_datagram_size(&mut self, endpoint: &Endpoint, now: Instant) {
        let size = endpoint.max_datagram_size(self.connection);
        if self.datagram_size.0 != size {
            self.datagram_size = (size, now);
        }
    }

    /// The largest packet that the connection carries in one datagram; `None` until that has been the same for a while.
    pub(crate) fn largest_whole_packet(&mut self, endpoint: &Endpoint, now: Instant) -> Option<usize> {
        self.note_datagram_size(endpoint, now);
        let (size, since) = self.datagram_size;
        size.filter(|_| now.duration_since(since) >= SETTLED).map(|size| size.saturating_sub(PACKET_OVERHEAD))
    }

    /// Whether one more sender may be told that its packet is too big; 20 a second.
    pub(crate) fn may_answer(&mut self, now: Instant) -> bool {
        let (left, since) = &mut self.answers;
        let earned = now.duration_since(*since).as_millis() / ANSWER_EVERY.as_millis();
        if earned > 0 {
            *left = left.saturating_add(u32::try_from(earned).unwrap_or(ANSWERS)).min(ANSWERS);
            *since = now;
        }
        let may = *left > 0;
        *left = left.saturating_sub(1);
        may
    }

    /// Hands the transport as much as it takes.
    pub(crate) fn drain(
        &mut self,
        endpoint: &mut Endpoint,
        arena: &mut Arena,
        now: Instant,
        totals: &mut Totals,
        drops: &mut Drops,
    ) {
        let mut signals = Signals::default();
        while !self.blocked {
            if let Some(fragment) = self.fragments.pop_front() {
                self.send_fragment(endpoint, fragment, totals, drops);
                self.last_progress = now;
                continue;
            }
            let Some(framed) = self.held.take().or_else(|| self.queue.pop(now, &mut signals)) else { break };
            self.last_progress = now;
            let bytes = (framed.len() - PACKET_OVERHEAD) as u64;
            match endpoint.send_datagram(self.connection, framed) {
                Ok(()) => {
                    totals.carrier_sent_datagrams += 1;
                    self.count_packet(bytes, totals);
                }
                Err(SendError::Blocked(framed)) => {
                    self.blocked = true;
                    self.held = Some(framed);
                }
                Err(SendError::TooLarge(framed)) => {
                    self.cut(endpoint.max_datagram_size(self.connection), &framed, arena, drops);
                }
                Err(SendError::Closed(_)) => drops.count_to_carrier(DropReason::ConnectionLost),
            }
        }
        // What leaves first may be of a flow that never waits.
        self.wait = self.queue.take_longest_wait().max(self.wait / 2);
        drops.to_carrier.add_many(DropReason::QueueDelay, signals.dropped);
        totals.marked_packets += signals.marked;
        totals.waits.add(&signals.waits);
    }

    /// Gives up what the connection will not send any more and counts it.
    pub(crate) fn abandon(&mut self, drops: &mut Drops) {
        let packets = self.queued_packets() as u64;
        drops.to_carrier.add_many(DropReason::ConnectionLost, packets);
        self.queue.clear();
        self.held = None;
        self.fragments.clear();
    }

    fn send_fragment(
        &mut self,
        endpoint: &mut Endpoint,
        fragment: Bytes,
        totals: &mut Totals,
        drops: &mut Drops,
    ) {
        match endpoint.send_datagram(self.connection, fragment) {
            Ok(()) => {
                totals.carrier_sent_datagrams += 1;
                totals.fragments_sent += 1;
                if self.fragments.is_empty() {
                    self.count_packet(0, totals);
                }
            }
            Err(SendError::Blocked(fragment)) => {
                self.blocked = true;
                self.fragments.push_front(fragment);
            }
            // The path shrank between two fragments of a packet: the rest of it cannot follow.
            Err(SendError::TooLarge(_)) => {
                self.fragments.clear();
                drops.count_to_carrier(DropReason::TooLarge);
            }
            Err(SendError::Closed(_)) => {
                self.fragments.clear();
                drops.count_to_carrier(DropReason::ConnectionLost);
            }
        }
    }

    /// Cuts a packet that is too large for one datagram into fragments.
    fn cut(&mut self, max_datagram: Option<usize>, framed: &Bytes, arena: &mut Arena, drops: &mut Drops) {
        let (Ok(Datagram::Packet { flags, packet }), Some(max_datagram)) =
            (Datagram::parse(framed), max_datagram)
        else {
            drops.count_to_carrier(DropReason::TooLarge);
            return;
        };
        for (header, range) in self.fragmenter.fragments(flags, packet.len(), max_datagram) {
            let buffer = arena.room(FRAGMENT_OVERHEAD + range.len());
            write_fragment(&header, range, &[packet], buffer);
            self.fragments.push_back(buffer.split().freeze());
        }
        if self.fragments.is_empty() {
            drops.count_to_carrier(DropReason::TooLarge);
        } else {
            self.traffic.bytes_out += packet.len() as u64;
        }
    }

    fn count_packet(&mut self, bytes: u64, totals: &mut Totals) {
        self.traffic.packets_out += 1;
        self.traffic.bytes_out += bytes;
        totals.carrier_sent_packets += 1;
    }
}
