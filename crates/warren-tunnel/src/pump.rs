//! A pump: one connection's queue towards the carrier, and the reassembly of the packets that arrive on the
//! connection.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{BufMut as _, Bytes, BytesMut};
use warren_packet::datagram::{
    Datagram, FRAGMENT_OVERHEAD, Fragmenter, Lane, PACKET_OVERHEAD, TRAILER, write_fragment,
};
use warren_packet::queue::{FlowQueue, Signals};
use warren_packet::reason::DropReason;
use warren_packet::reassembly::{Assembler, Limits};
use warren_packet::resequence::{Limits as HeldLimits, Resequencer};
use warren_quic::driver::{ConnectionId, Endpoint, SendError};
use warren_session::exit::SessionId;

use super::arena::Arena;
use super::client_limit::ClientLimit;
use super::counters::{Drops, RepairSnapshot, Totals};
use super::repair::{Outgoing, Repair, RepairCounts, lane_of};
use super::traffic::Traffic;

/// Bytes in a queue beyond which the longest flow loses packets, counted as `queue_full`. The limit is three times the congestion
/// window, within these bounds. An inner flow's slow start has two windows in flight when it learns that the path is full. If both
/// were lost in one burst, the flow would be slow for seconds.
// With a fixed limit of 512 KiB, an inner flow lost 162 packets in one burst when it shared a queue of 100 ms with a native flow.
// The flow reached 44 to 65 Mbit/s, and 93 Mbit/s with a limit of two windows (bench/LOG.md, "A queue as long as two windows").
const WINDOWS_IN_QUEUE: u64 = 3;
const LEAST_QUEUE_LIMIT: usize = 1536 * 1024;
const MOST_QUEUE_LIMIT: usize = 6 * 1024 * 1024;
/// A client stops reading its TUN from this many bytes on, so that the kernel holds back the senders.
const QUEUE_HIGH_WATER: usize = 256 * 1024;
/// Senders learn a connection's datagram size only after it has been the same for this long, because MTU discovery
/// takes a moment to find the path's size.
const SETTLED: Duration = Duration::from_secs(5);
/// Largest burst of ICMP answers to packets that are too big.
const ANSWERS: u32 = 20;
/// After a burst, one more answer is allowed in each such interval.
const ANSWER_EVERY: Duration = Duration::from_millis(50);
/// A connection whose packets wait longer is slower than the host. Its packets should wait in this queue instead of the TUN's
/// single FIFO, because this queue separates flows and keeps each one's backlog short.
const SLOW: Duration = Duration::from_millis(10);
/// A queue without progress for this long no longer holds back the TUN, because its connection may be dead.
const STALL: Duration = Duration::from_millis(20);
/// A queue that has been empty for this long gives up its memory. By then, CoDel's state of its flows is out of date.
const SPARED_AFTER: Duration = Duration::from_secs(10);
/// How long a missing datagram holds back its lane while the path's round-trip time is unknown. Once the round-trip time is known,
/// the lane waits for the time in which the peer can send the datagram again twice, plus this much, because round-trip times
/// change.
const HOLD: Duration = Duration::from_millis(100);
/// Time beyond 9/8 of a round trip until a datagram that was sent again arrives: the delay of the peer's acknowledgement and the
/// delay of a copy.
const REPAIR_DELAY: Duration = Duration::from_millis(6);

/// One connection's state on the packet path. It has 20 fields because each step of a packet's way uses one or two of them.
pub(crate) struct Pump {
    pub connection: ConnectionId,
    /// The session and the connection's index in it, once attached.
    pub attached: Option<(SessionId, u32)>,
    /// At an exit: where drops of the session's client are counted.
    pub client: Option<Arc<ClientLimit>>,
    pub assembler: Assembler,
    /// Restores the order of the peer's numbered datagrams.
    pub resequencer: Resequencer,
    /// Memory of the datagrams that are held for order, as last added to the worker's sum.
    held_noted: usize,
    /// How long a missing datagram holds back its lane.
    pub hold: Duration,
    /// Sends lost datagrams again.
    pub repair: Repair,
    /// Whether this pump is on the worker's list of pumps with postponed repairs.
    pub has_repairs: bool,
    fragmenter: Fragmenter,
    queue: FlowQueue,
    /// The framed packet that left the queue and found the transport full.
    held: Option<Outgoing>,
    /// The remaining fragments of a packet that did not fit into the transport as a whole.
    fragments: VecDeque<Outgoing>,
    last_progress: Instant,
    /// A smoothed measure of how long packets wait in the queue.
    wait: Duration,
    /// The largest datagram at the last check, and since when it has had that size.
    datagram_size: (Option<usize>, Instant),
    /// ICMP answers that may be sent now, and when that number was last raised.
    answers: (u32, Instant),
    /// Whether the transport is full. Its `Writable` event clears this.
    pub blocked: bool,
    /// Whether the worker has this pump on its list of pumps to drain.
    pub listed: bool,
    /// The traffic that the connection carried for the session to which it is attached.
    pub traffic: Traffic,
}

impl Pump {
    pub(crate) fn new(connection: ConnectionId, now: Instant) -> Self {
        Self {
            connection,
            attached: None,
            client: None,
            assembler: Assembler::new(Limits::default()),
            resequencer: Resequencer::new(HeldLimits::default()),
            held_noted: 0,
            hold: HOLD,
            repair: Repair::default(),
            has_repairs: false,
            fragmenter: Fragmenter::default(),
            queue: FlowQueue::new(LEAST_QUEUE_LIMIT),
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

    /// Appends a framed packet to its flow's queue.
    pub(crate) fn enqueue(&mut self, flow_hash: u32, framed: BytesMut, now: Instant, drops: &mut Drops) {
        if self.is_idle() {
            // An empty queue makes no progress, so a stall is counted from its first packet.
            self.last_progress = now;
        }
        let dropped = self.queue.push(flow_hash, framed, now);
        if dropped > 0 {
            self.count_drops(DropReason::QueueFull, dropped, drops);
        }
    }

    /// Counts packets that will not be sent. If they belong to a client, also counts them at the client.
    fn count_drops(&self, reason: DropReason, packets: u64, drops: &mut Drops) {
        drops.to_carrier.add_many(reason, packets);
        if let Some(client) = &self.client {
            client.count_drops(reason, packets);
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.held.is_none() && self.fragments.is_empty()
    }

    /// Whether there is anything to send now.
    pub(crate) fn has_work(&self, now: Instant) -> bool {
        !self.is_idle() || self.repair.is_urgent(now)
    }

    pub(crate) fn queue_bytes(&self) -> usize {
        self.queue.bytes() + self.held.as_ref().map_or(0, |held| held.datagram.len())
    }

    /// Packets that wait here, including one whose fragments are partly sent.
    pub(crate) fn queued_packets(&self) -> usize {
        self.queue.packets() + usize::from(self.held.is_some()) + usize::from(!self.fragments.is_empty())
    }

    /// Whether the TUN's reader should wait for this queue.
    pub(crate) fn holds_back(&self, now: Instant) -> bool {
        self.queue.bytes() >= QUEUE_HIGH_WATER
            && self.wait < SLOW
            && now.duration_since(self.last_progress) < STALL
    }

    /// Records the connection's current datagram size, and since when it has been the same.
    pub(crate) fn note_datagram_size(&mut self, endpoint: &Endpoint, now: Instant) {
        let size = endpoint.max_datagram_size(self.connection);
        if self.datagram_size.0 != size {
            self.datagram_size = (size, now);
        }
    }

    /// Records the path's losses, its round-trip time and its congestion window.
    pub(crate) fn note_losses(&mut self, endpoint: &Endpoint, now: Instant) {
        let Some(counts) = endpoint.loss_counts(self.connection) else { return };
        self.repair.observe(&counts, now);
        self.hold = hold(counts.rtt);
        // CoDel's usual target of 5 ms is too short for a long path. On a path of 30 ms, an inner flow reached 176 Mbit/s with 5
        // ms, and 179 to 182 Mbit/s with two thirds of the round trip (bench/LOG.md).
        let mut round_trip = counts.rtt;
        if self.repair.is_on() {
            // Packets behind a lost one wait for its repair, so an inner flow needs a window that covers the round trip plus
            // the repair.
            round_trip += time_of_repair(counts.rtt);
        }
        self.queue.set_round_trip(round_trip, counts.is_searching);
        let limit = usize::try_from(WINDOWS_IN_QUEUE * counts.window).unwrap_or(usize::MAX);
        self.queue.set_limit(limit.clamp(LEAST_QUEUE_LIMIT, MOST_QUEUE_LIMIT));
    }

    /// Releases the memory of the queue if the connection has sent nothing for a while, because an exit may have thousands of
    /// idle ones.
    pub(crate) fn spare_memory(&mut self, now: Instant) {
        if self.is_idle() && now.duration_since(self.last_progress) >= SPARED_AFTER {
            self.queue.release();
        }
    }

    /// Updates this pump's share of the memory that all pumps hold for order.
    pub(crate) fn note_held(&mut self, of_all: &mut usize) {
        let size = self.resequencer.size();
        // Adds first, so that the sum never goes below zero.
        *of_all = (*of_all + size).saturating_sub(self.held_noted);
        self.held_noted = size;
    }

    /// The largest packet that the connection carries in one datagram; `None` until that size has been the same for
    /// [`SETTLED`].
    pub(crate) fn largest_whole_packet(&mut self, endpoint: &Endpoint, now: Instant) -> Option<usize> {
        self.note_datagram_size(endpoint, now);
        let (size, since) = self.datagram_size;
        let size = size.filter(|_| now.duration_since(since) >= SETTLED);
        size.map(|size| size.saturating_sub(PACKET_OVERHEAD + self.trailer()))
    }

    /// Returns how many bytes of each datagram are reserved for its number.
    fn trailer(&self) -> usize {
        // Reserved even while repair is off: repair may begin at any moment, and the size that senders have learnt should stay
        // the same.
        if self.repair.is_agreed { TRAILER } else { 0 }
    }

    /// Whether one more sender may be told that its packet is too big. At most 20 are told each second.
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

    /// Passes as many datagrams to the transport as it accepts.
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
            // A repair is already a round trip late, and the receiver may hold back other datagrams for it.
            if self.send_urgent(endpoint, now, totals) {
                continue;
            }
            if let Some(fragment) = self.fragments.pop_front() {
                self.send_fragment(endpoint, fragment, totals, drops);
                self.last_progress = now;
                continue;
            }
            // Numbered as late as possible: a packet that CoDel drops must not leave a gap that the receiver would wait for.
            let queued = || Some(self.repair.prepare(self.queue.pop(now, &mut signals)?, lane_of));
            let Some(outgoing) = self.held.take().or_else(queued) else { break };
            self.last_progress = now;
            let bytes = packet_bytes(&outgoing);
            match send(endpoint, self.connection, outgoing) {
                Ok(()) => {
                    totals.carrier_sent_datagrams += 1;
                    self.count_packet(bytes, totals);
                }
                Err((SendError::Blocked(datagram), context)) => {
                    self.blocked = true;
                    self.held = Some(Outgoing { datagram, context });
                }
                Err((SendError::TooLarge(mut framed), _)) => {
                    // Takes the packet's own number back, because each fragment gets a number. The receiver would wait in vain
                    // for the packet's number.
                    self.repair.take_back(&mut framed);
                    self.cut(endpoint.max_datagram_size(self.connection), &framed, arena, drops);
                }
                Err((SendError::Closed(_), _)) => self.count_drops(DropReason::ConnectionLost, 1, drops),
            }
        }
        // The first packets may belong to a flow that never waits, so the longest wait counts.
        self.wait = self.queue.take_longest_wait().max(self.wait / 2);
        if signals.dropped > 0 {
            self.count_drops(DropReason::QueueDelay, signals.dropped, drops);
        }
        totals.marked_packets += signals.marked;
        totals.waits.add(&signals.waits);
    }

    /// Sends the next urgent datagram. Returns false if there is none. If the transport has no room, sets `blocked`, which ends
    /// the caller's loop.
    fn send_urgent(&mut self, endpoint: &mut Endpoint, now: Instant, totals: &mut Totals) -> bool {
        let Some(outgoing) = self.repair.next_urgent(now) else { return false };
        match send(endpoint, self.connection, outgoing) {
            Ok(()) => totals.repairs_sent += 1,
            Err((SendError::Blocked(datagram), context)) => {
                self.blocked = true;
                self.repair.put_back(Outgoing { datagram, context });
            }
            // The packet of this datagram was counted when it was first sent.
            Err((SendError::TooLarge(datagram), _)) => self.repair.refused(datagram),
            Err((SendError::Closed(_), _)) => {}
        }
        true
    }

    /// When the next copy is due. `None` while the transport is full: the copy then waits for room, not for a time.
    pub(crate) fn copy_due(&self) -> Option<Instant> {
        self.repair.next_due().filter(|_| !self.blocked)
    }

    pub(crate) fn repair_snapshot(&self) -> RepairSnapshot {
        let RepairCounts { repaired, given_up } = self.repair.counts;
        RepairSnapshot {
            is_on: self.repair.is_on(),
            loss: self.repair.loss(),
            repaired,
            given_up,
            order: self.resequencer.counters(),
        }
    }

    /// Drops and counts everything that the connection can no longer send.
    pub(crate) fn abandon(&mut self, drops: &mut Drops) {
        let packets = self.queued_packets() as u64;
        if packets > 0 {
            self.count_drops(DropReason::ConnectionLost, packets, drops);
        }
        self.queue.clear();
        self.held = None;
        self.fragments.clear();
        // Counts nothing, because these packets were counted when they were first sent.
        self.repair.abandon();
    }

    fn send_fragment(
        &mut self,
        endpoint: &mut Endpoint,
        fragment: Outgoing,
        totals: &mut Totals,
        drops: &mut Drops,
    ) {
        match send(endpoint, self.connection, fragment) {
            Ok(()) => {
                totals.carrier_sent_datagrams += 1;
                totals.fragments_sent += 1;
                if self.fragments.is_empty() {
                    // A packet counts once, with its last fragment. `cut` has counted its bytes.
                    self.count_packet(0, totals);
                }
            }
            Err((SendError::Blocked(datagram), context)) => {
                self.blocked = true;
                self.fragments.push_front(Outgoing { datagram, context });
            }
            // The path's MTU shrank between two fragments of a packet, so the remaining fragments cannot follow.
            Err((SendError::TooLarge(first), _)) => {
                self.repair.refused(first);
                for rest in self.fragments.drain(..) {
                    self.repair.refused(rest.datagram);
                }
                self.count_drops(DropReason::TooLarge, 1, drops);
            }
            Err((SendError::Closed(_), _)) => {
                self.fragments.clear();
                self.count_drops(DropReason::ConnectionLost, 1, drops);
            }
        }
    }

    /// Cuts a packet that is too large for one datagram into fragments.
    fn cut(&mut self, max_datagram: Option<usize>, framed: &Bytes, arena: &mut Arena, drops: &mut Drops) {
        // There is no trailer: `take_back` has cut it off.
        let (Ok(Datagram::Packet { flags, packet }), Some(max_datagram)) =
            (Datagram::parse_without_trailer(framed), max_datagram)
        else {
            self.count_drops(DropReason::TooLarge, 1, drops);
            return;
        };
        // The lane is chosen from the whole packet, because only the packet's first fragment has ports.
        let lane = Lane::of_packet(packet);
        let room = max_datagram.saturating_sub(self.trailer());
        for (header, range) in self.fragmenter.fragments(flags, packet.len(), room) {
            let buffer = arena.room(FRAGMENT_OVERHEAD + range.len() + TRAILER);
            write_fragment(&header, range, &[packet], buffer);
            self.fragments.push_back(self.repair.prepare(with_room(buffer), |_| lane));
        }
        if self.fragments.is_empty() {
            self.count_drops(DropReason::TooLarge, 1, drops);
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

/// How long a missing datagram holds back its lane on a path with this round-trip time.
pub(crate) fn hold(round_trip: Duration) -> Duration {
    2 * time_of_repair(round_trip) + HOLD
}

fn time_of_repair(round_trip: Duration) -> Duration {
    // 9/8 of a round trip is QUIC's time threshold, after which it declares a packet lost (RFC 9002 section 6.1.2).
    round_trip / 8 * 9 + REPAIR_DELAY
}

/// Takes a datagram out of an arena's buffer, with room for a trailer after it.
pub(crate) fn with_room(buffer: &mut BytesMut) -> BytesMut {
    let length = buffer.len();
    // A buffer from `split` has no spare capacity, so the trailer is reserved before it. Otherwise, `append_trailer`
    // would copy the packet.
    buffer.put_bytes(0, TRAILER);
    let mut framed = buffer.split();
    framed.truncate(length);
    framed
}

/// Returns the size of the packet in a datagram, without framing and trailer.
fn packet_bytes(outgoing: &Outgoing) -> u64 {
    let framing = PACKET_OVERHEAD + if outgoing.context.is_some() { TRAILER } else { 0 };
    outgoing.datagram.len().saturating_sub(framing) as u64
}

fn send(
    endpoint: &mut Endpoint,
    connection: ConnectionId,
    Outgoing { datagram, context }: Outgoing,
) -> Result<(), (SendError, Option<u64>)> {
    let sent = match context {
        Some(context) => endpoint.send_datagram_kept(connection, datagram, context),
        None => endpoint.send_datagram(connection, datagram),
    };
    sent.map_err(|error| (error, context))
}
