//! A pump: one connection's queue towards the carrier and its reassembly from it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use warren_packet::datagram::{Datagram, Fragmenter, PACKET_OVERHEAD, write_fragment};
use warren_packet::reason::DropReason;
use warren_packet::reassembly::{Assembler, Limits};
use warren_quic::driver::{ConnectionId, Endpoint, SendError};
use warren_session::exit::SessionId;

use super::counters::{Drops, Totals};

/// Bytes that a queue holds at most; a packet that would exceed it is dropped as `queue_full`.
const QUEUE_LIMIT: usize = 512 * 1024;
/// Bytes from which a client stops reading its TUN, so that the kernel holds its senders back instead.
const QUEUE_HIGH_WATER: usize = 256 * 1024;
/// A queue that made no progress for this long no longer holds the TUN back: its connection may be dead.
const STALL: Duration = Duration::from_millis(20);

/// One connection's state on the packet path.
pub(crate) struct Pump {
    pub(crate) connection: ConnectionId,
    /// The session and the connection's index in it, once attached.
    pub(crate) attached: Option<(SessionId, u32)>,
    pub(crate) assembler: Assembler,
    fragmenter: Fragmenter,
    /// Framed packets in order: header byte, then the packet.
    queue: VecDeque<Bytes>,
    queue_bytes: usize,
    /// What is left of a packet whose fragments did not all fit into the transport.
    fragments: VecDeque<Bytes>,
    last_progress: Instant,
    /// Whether the transport said that it is full; cleared by its word that it is not.
    pub(crate) blocked: bool,
    /// Whether the worker has this pump on its list of pumps to drain.
    pub(crate) listed: bool,
    pub(crate) packets_out: u64,
    pub(crate) bytes_out: u64,
    pub(crate) packets_in: u64,
    pub(crate) bytes_in: u64,
}

impl Pump {
    pub(crate) fn new(connection: ConnectionId, now: Instant) -> Self {
        Self {
            connection,
            attached: None,
            assembler: Assembler::new(Limits::default()),
            fragmenter: Fragmenter::default(),
            queue: VecDeque::new(),
            queue_bytes: 0,
            fragments: VecDeque::new(),
            last_progress: now,
            blocked: false,
            listed: false,
            packets_out: 0,
            bytes_out: 0,
            packets_in: 0,
            bytes_in: 0,
        }
    }

    /// Puts a framed packet at the end of the queue.
    ///
    /// # Errors
    /// [`DropReason::QueueFull`] when the queue is at its limit.
    pub(crate) fn enqueue(&mut self, framed: Bytes, now: Instant) -> Result<(), DropReason> {
        if self.queue_bytes + framed.len() > QUEUE_LIMIT {
            return Err(DropReason::QueueFull);
        }
        if self.queue.is_empty() && self.fragments.is_empty() {
            self.last_progress = now;
        }
        self.queue_bytes += framed.len();
        self.queue.push_back(framed);
        Ok(())
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.fragments.is_empty()
    }

    pub(crate) fn queue_bytes(&self) -> usize {
        self.queue_bytes
    }

    /// Packets that wait here, one whose fragments are half sent included.
    pub(crate) fn queued_packets(&self) -> usize {
        self.queue.len() + usize::from(!self.fragments.is_empty())
    }

    /// Whether this queue asks the TUN's reader to wait.
    pub(crate) fn holds_back(&self, now: Instant) -> bool {
        self.queue_bytes >= QUEUE_HIGH_WATER && now.duration_since(self.last_progress) < STALL
    }

    /// Hands the transport as much as it takes.
    pub(crate) fn drain(
        &mut self,
        endpoint: &mut Endpoint,
        arena: &mut BytesMut,
        now: Instant,
        totals: &mut Totals,
        drops: &mut Drops,
    ) {
        while !self.blocked {
            if let Some(fragment) = self.fragments.pop_front() {
                self.hand_over_fragment(endpoint, fragment, totals, drops);
                self.last_progress = now;
                continue;
            }
            let Some(framed) = self.queue.pop_front() else { return };
            self.queue_bytes -= framed.len();
            self.last_progress = now;
            let bytes = (framed.len() - PACKET_OVERHEAD) as u64;
            match endpoint.send_datagram(self.connection, framed) {
                Ok(()) => {
                    totals.carrier_sent_datagrams += 1;
                    self.count_packet(bytes, totals);
                }
                Err(SendError::Blocked(framed)) => {
                    self.blocked = true;
                    self.queue_bytes += framed.len();
                    self.queue.push_front(framed);
                }
                Err(SendError::TooLarge(framed)) => {
                    self.cut(endpoint.max_datagram_size(self.connection), &framed, arena, drops);
                }
                Err(SendError::Closed(_)) => drops.count_to_carrier(DropReason::ConnectionLost),
            }
        }
    }

    /// Gives up what the connection will not send any more and counts it.
    pub(crate) fn abandon(&mut self, drops: &mut Drops) {
        let packets = self.queued_packets() as u64;
        drops.to_carrier.add_many(DropReason::ConnectionLost, packets);
        self.queue.clear();
        self.fragments.clear();
        self.queue_bytes = 0;
    }

    fn hand_over_fragment(
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
    fn cut(&mut self, max_datagram: Option<usize>, framed: &Bytes, arena: &mut BytesMut, drops: &mut Drops) {
        let (Ok(Datagram::Packet { flags, packet }), Some(max_datagram)) =
            (Datagram::parse(framed), max_datagram)
        else {
            drops.count_to_carrier(DropReason::TooLarge);
            return;
        };
        for (header, range) in self.fragmenter.fragments(flags, packet.len(), max_datagram) {
            write_fragment(&header, range, &[packet], arena);
            self.fragments.push_back(arena.split().freeze());
        }
        if self.fragments.is_empty() {
            drops.count_to_carrier(DropReason::TooLarge);
        } else {
            self.bytes_out += packet.len() as u64;
        }
    }

    fn count_packet(&mut self, bytes: u64, totals: &mut Totals) {
        self.packets_out += 1;
        self.bytes_out += bytes;
        totals.carrier_sent_packets += 1;
    }
}
