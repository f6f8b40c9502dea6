//! Counters of every packet: where it passed, or why it was dropped.
//!
//! Two balances hold once the queues are empty (`docs/counters.md`):
//! `tun_read_packets = carrier_sent_packets + drops to the carrier`, and
//! `carrier_received_packets = tun_written_packets + drops to the TUN`.

mod sums;

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use warren_packet::queue::Waits;
use warren_packet::reason::{DropCounters, DropReason};
use warren_packet::resequence::Counters as OrderCounters;
use warren_quic::driver::{ConnectionId, ConnectionStats, SocketStats};
use warren_session::PublicKey;
use warren_session::exit::SessionId;

use super::traffic::Traffic;

/// Packets and bytes that passed each boundary of a worker since it started. It has 17 fields because each is a counter of
/// `docs/counters.md`.
#[derive(Debug, Clone, Default)]
pub struct Totals {
    /// Inner packets read from the TUN. A super-packet counts as the packets that it held.
    pub tun_read_packets: u64,
    /// Bytes of the inner packets read, IP headers included.
    pub tun_read_bytes: u64,
    /// Reads of the TUN that brought a packet or super-packet.
    pub tun_reads: u64,
    /// Reads that were handed over to another worker, which segments them and counts their packets.
    pub handed_over: u64,
    /// Writes that the TUN accepted, each of a packet or a super-packet.
    pub tun_writes: u64,
    /// Inner packets written to the TUN; a super-packet counts as the packets that were merged into it.
    pub tun_written_packets: u64,
    /// Bytes of the inner packets written, IP headers included.
    pub tun_written_bytes: u64,
    /// Inner packets handed to the carrier whole, as one datagram or as all of their fragments.
    pub carrier_sent_packets: u64,
    /// Packets that got an ECN mark instead of being dropped as `queue_delay`.
    pub marked_packets: u64,
    /// How long the packets that were handed to the carrier had waited.
    pub waits: Waits,
    /// ICMP answers that told a sender how large a packet fits into one datagram.
    pub too_big_answers: u64,
    /// Datagrams handed to the QUIC connections.
    pub carrier_sent_datagrams: u64,
    /// Datagrams that the QUIC connections delivered.
    pub carrier_received_datagrams: u64,
    /// Packets in the received datagrams. Whole packets, completed assemblies, dropped assemblies and malformed
    /// datagrams count as one each.
    pub carrier_received_packets: u64,
    /// Datagrams sent again because they were lost, copies included.
    pub repairs_sent: u64,
    /// Fragments among the datagrams sent.
    pub fragments_sent: u64,
    /// Fragments among the datagrams received.
    pub fragments_received: u64,
}

/// One connection's counters and QUIC state.
#[derive(Debug, Clone)]
pub struct ConnectionSnapshot {
    /// The connection's number in this process.
    pub connection: ConnectionId,
    /// The session that the connection belongs to.
    pub session: Option<SessionId>,
    /// The connection's number in the session.
    pub index: Option<u32>,
    /// Inner packets sent.
    pub packets_out: u64,
    /// Bytes of the packets sent.
    pub bytes_out: u64,
    /// Inner packets received.
    pub packets_in: u64,
    /// Bytes of the packets received.
    pub bytes_in: u64,
    /// Inner packets that wait to be sent.
    pub queue_packets: usize,
    /// Bytes of the waiting packets.
    pub queue_bytes: usize,
    /// QUIC's own counters, while the connection is open.
    pub quic: Option<ConnectionStats>,
    /// The results of repair for the connection.
    pub repair: RepairSnapshot,
}

impl ConnectionSnapshot {
    /// Returns the packets and bytes that the connection carried.
    pub(crate) fn traffic(&self) -> Traffic {
        let Self { packets_out, bytes_out, packets_in, bytes_in, .. } = *self;
        Traffic { packets_out, bytes_out, packets_in, bytes_in }
    }
}

/// The results of repair for one connection, in both directions.
#[derive(Debug, Clone, Copy, Default)]
pub struct RepairSnapshot {
    /// Whether lost datagrams are sent again now.
    pub is_on: bool,
    /// The share of the packets sent in the last five to ten seconds that the path lost, from 0 to 1.
    pub loss: f64,
    /// How often a lost datagram was sent again. The extra copy that follows the last attempt does not count.
    pub repaired: u64,
    /// Lost datagrams that were not sent again.
    pub given_up: u64,
    /// What became of the numbered datagrams that the peer sent.
    pub order: OrderCounters,
}

/// How full the worker's batches are.
#[derive(Debug, Clone, Default)]
pub struct Occupancy {
    /// Packets in one read of the TUN.
    pub packets_per_tun_read: Histogram,
    /// Packets merged into one write to the TUN.
    pub packets_per_tun_write: Histogram,
    /// Drives of connections in one turn. Empty with a driver that does not count them.
    pub drives_per_wakeup: Histogram,
}

/// How often a batch had each size. The last bucket also counts larger batches.
#[derive(Debug, Clone)]
pub struct Histogram {
    counts: [u64; Self::PLACES],
    sum: u64,
}

impl Histogram {
    /// Sizes 0 to 64.
    const PLACES: usize = 65;

    /// Counts one batch of this size.
    pub fn record(&mut self, size: u64) {
        let place = usize::try_from(size).unwrap_or(usize::MAX).min(Self::PLACES - 1);
        if let Some(count) = self.counts.get_mut(place) {
            *count += 1;
        }
        self.sum = self.sum.saturating_add(size);
    }

    /// The number of batches of each size, from 0 on.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// The elements of all batches together.
    pub fn sum(&self) -> u64 {
        self.sum
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: [0; Self::PLACES], sum: 0 }
    }
}

impl fmt::Display for Histogram {
    /// Writes `size:count` for each size that occurred.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        let words: Vec<String> = sizes.map(|(size, count)| format!("{size}:{count}")).collect();
        formatter.write_str(&words.join(" "))
    }
}

/// One worker's share of the totals.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct WorkerShare {
    /// Connections that the worker drives.
    pub connections: usize,
    /// Reads of the worker's TUN queue.
    pub tun_reads: u64,
    /// Reads that the worker handed over to another worker.
    pub handed_over: u64,
    /// Writes to the worker's TUN queue.
    pub tun_writes: u64,
    /// Inner packets handed to connections.
    pub carrier_sent_packets: u64,
    /// Inner packets that came from connections.
    pub carrier_received_packets: u64,
}

/// Every counter of a worker, or of all of them, at one moment.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// Packets and bytes of all connections.
    pub totals: Totals,
    /// Inner packets that wait to be sent.
    pub queued_packets: u64,
    /// Packets of which some fragments are missing.
    pub assemblies_pending: u64,
    /// Packets from the TUN that were dropped, by reason.
    pub drops_to_carrier: DropCounters,
    /// Packets from the carrier that were dropped, by reason.
    pub drops_to_tun: DropCounters,
    /// Every connection.
    pub connections: Vec<ConnectionSnapshot>,
    /// At an exit: the traffic carried for each client since the worker started.
    pub clients: BTreeMap<PublicKey, Traffic>,
    /// The counters of the UDP sockets.
    pub sockets: SocketStats,
    /// How full the worker's batches were.
    pub occupancy: Occupancy,
    /// Datagrams and drops of connections that have ended, so that the sums still contain them.
    pub past: PastConnections,
    /// In a snapshot of all workers: each worker's share, in the order of their numbers.
    pub workers: Vec<WorkerShare>,
}

/// The sums of connections that ended.
#[derive(Debug, Clone, Default)]
pub struct PastConnections {
    pub connections: u64,
    pub sums: QuicSums,
    pub repair: RepairSums,
}

/// The results of repair, summed over connections.
#[derive(Debug, Clone, Copy, Default)]
pub struct RepairSums {
    /// How often a lost datagram was sent again. The extra copy that follows the last attempt does not count.
    pub repaired: u64,
    /// Lost datagrams that were not sent again.
    pub given_up: u64,
    /// Missing datagrams that arrived while others waited for them.
    pub filled: u64,
    /// Datagrams that arrived after others had stopped waiting for them.
    pub late: u64,
    /// Missing datagrams that never arrived, although others waited for them.
    pub missing: u64,
}

/// QUIC's counts of the datagrams that it sent and received, summed over connections.
#[derive(Debug, Clone, Copy, Default)]
pub struct QuicSums {
    /// DATAGRAM frames sent.
    pub datagrams_sent: u64,
    /// DATAGRAM frames received.
    pub datagrams_received: u64,
    /// QUIC packets that were declared lost.
    pub lost_packets: u64,
    /// Packets that were declared lost and acknowledged after all.
    pub spurious_losses: u64,
    /// Kept datagrams that were returned because their packets were lost.
    pub datagrams_returned: u64,
    /// Kept datagrams that were given up because too many bytes were kept.
    pub datagrams_forgotten: u64,
    /// Datagrams that were dropped from a full send buffer to make room for newer datagrams.
    pub send_drops_full: u64,
    /// Datagrams that the path's MTU had become too small for.
    pub send_drops_too_large: u64,
    /// Datagrams that had waited while the peer was silent.
    pub send_drops_stale: u64,
    /// Datagrams of a connection that was closed.
    pub send_drops_closed: u64,
    /// Datagrams that arrived while the receive buffer was full.
    pub receive_drops: u64,
}

impl PastConnections {
    /// Adds a connection's final figures.
    pub fn add(&mut self, quic: &ConnectionStats, repair: &RepairSnapshot) {
        self.connections += 1;
        self.sums.add(quic);
        self.repair.add(repair);
    }
}

impl RepairSums {
    /// Adds a connection's figures.
    pub fn add(&mut self, repair: &RepairSnapshot) {
        self.repaired += repair.repaired;
        self.given_up += repair.given_up;
        self.filled += repair.order.filled;
        self.late += repair.order.late;
        self.missing += repair.missing();
    }
}

impl RepairSnapshot {
    /// Missing datagrams that never arrived, although others waited for them.
    pub fn missing(&self) -> u64 {
        self.order.given_up.saturating_sub(self.order.late)
    }
}

impl QuicSums {
    /// Adds a connection's figures.
    pub fn add(&mut self, quic: &ConnectionStats) {
        self.datagrams_sent += quic.datagrams_sent;
        self.datagrams_received += quic.datagrams_received;
        self.lost_packets += quic.lost_packets;
        self.spurious_losses += quic.spurious_losses;
        self.datagrams_returned += quic.datagrams_returned;
        self.datagrams_forgotten += quic.datagrams_forgotten;
        self.send_drops_full += quic.send_drops_full;
        self.send_drops_too_large += quic.send_drops_too_large;
        self.send_drops_stale += quic.send_drops_stale;
        self.send_drops_closed += quic.send_drops_closed;
        self.receive_drops += quic.receive_drops;
    }
}

/// A direction's counters while the worker runs.
#[derive(Debug, Default)]
pub(crate) struct Drops {
    pub to_carrier: DropCounters,
    pub to_tun: DropCounters,
}

impl Drops {
    /// Counts one packet from the TUN that will not reach the carrier.
    pub(crate) fn count_to_carrier(&mut self, reason: DropReason) {
        self.to_carrier.add(reason);
    }

    /// Counts one packet from the carrier that will not reach the TUN.
    pub(crate) fn count_to_tun(&mut self, reason: DropReason) {
        self.to_tun.add(reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histogram_counts_sizes_beyond_its_last_place_there() {
        let mut histogram = Histogram::default();
        for size in [0, 3, 3, 64, 65, u64::MAX] {
            histogram.record(size);
        }
        assert_eq!(histogram.to_string(), "0:1 3:2 64:3");
        assert_eq!(histogram.counts().iter().sum::<u64>(), 6);
    }
}
