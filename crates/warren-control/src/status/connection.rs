//! The status of one QUIC connection.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use warren_quic::driver::{ConnectionStats, ControllerState};

use super::Rates;
use warren_tunnel::{ConnectionSnapshot, RepairSnapshot};

/// One QUIC connection. Sizes are in bytes. Counters start with the connection.
///
/// There are 27 fields because each is a documented key of an object in the JSON of `warren status --json` (docs/status.md).
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ConnectionStatus {
    /// The connection's number, unique in this daemon.
    pub id: u64,
    /// The number of the connection's worker.
    pub worker: usize,
    /// Whether the connection belongs to a WireGuard client. In that case, it has no round-trip time and no QUIC counters.
    #[serde(default)]
    pub wireguard: bool,
    /// The session of the connection.
    pub session: Option<u64>,
    /// The connection's number in the session.
    pub index: Option<u32>,
    /// The peer's address.
    pub remote: Option<SocketAddr>,
    /// Smoothed round-trip time.
    pub rtt_ms: f64,
    /// The rates of inner packets.
    pub rates: Rates,
    /// Congestion window in bytes.
    pub cwnd: u64,
    /// The congestion controller's state. `None` unless the controller is `adaptive`.
    #[serde(default)]
    pub controller: Option<ControllerStatus>,
    /// The largest UDP payload in bytes that the path is known to carry.
    pub mtu: u16,
    /// QUIC packets sent.
    pub sent_packets: u64,
    /// QUIC packets that were declared lost.
    pub lost_packets: u64,
    /// QUIC packets that were declared lost and acknowledged after all.
    #[serde(default)]
    pub spurious_losses: u64,
    /// The lost packets that were probes of the path's MTU. A probe that is too large for the path is always lost.
    #[serde(default)]
    pub lost_mtu_probes: u64,
    /// UDP datagrams received.
    #[serde(default)]
    pub received_packets: u64,
    /// The largest packet number received. The peer numbers its packets consecutively.
    #[serde(default)]
    pub largest_received: u64,
    /// How many times the path stopped carrying packets of a size that it had carried before.
    pub black_holes: u64,
    /// DATAGRAM frames sent.
    pub datagrams_sent: u64,
    /// DATAGRAM frames received.
    pub datagrams_received: u64,
    /// Inner packets that wait to be sent.
    pub queue_packets: usize,
    /// Bytes of the waiting packets.
    pub queue_bytes: usize,
    /// Inner packets sent.
    pub packets_out: u64,
    /// Bytes of the packets sent.
    pub bytes_out: u64,
    /// Inner packets received.
    pub packets_in: u64,
    /// Bytes of the packets received.
    pub bytes_in: u64,
    /// The path's losses, and the repairs.
    #[serde(default)]
    pub repair: RepairStatus,
}

/// The state of the congestion controller `adaptive`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControllerStatus {
    /// The rate doubles each round trip until there is a queue.
    Starting,
    /// The rate follows what the path carries, and the queue stays short.
    ShortQueue,
    /// The rate is a little lower for a moment, to find out whether this connection causes the queue or the loss.
    Probing,
    /// Another flow keeps the path's queue full, and the connection competes for a fair share.
    Sharing,
    /// The path's bottleneck marks packets (ECN), and the rate follows the marks.
    Marked,
}

impl From<ControllerState> for ControllerStatus {
    fn from(state: ControllerState) -> Self {
        match state {
            ControllerState::Starting => Self::Starting,
            ControllerState::ShortQueue => Self::ShortQueue,
            ControllerState::Probing => Self::Probing,
            ControllerState::Growing | ControllerState::Competing => Self::Sharing,
            ControllerState::Marked => Self::Marked,
        }
    }
}

/// The losses of a connection's path, and the repairs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RepairStatus {
    /// Whether lost datagrams are currently sent again.
    pub is_on: bool,
    /// Of the packets sent in the last seconds, the percentage that the path lost.
    pub loss_percent: f64,
    /// Of the datagrams sent in the last seconds, the percentage that was lost and given up.
    #[serde(default)]
    pub given_up_percent: f64,
    /// Datagrams that were sent again.
    pub repaired: u64,
    /// Lost datagrams that were not sent again.
    pub given_up: u64,
    /// Datagrams received that wait for an earlier one.
    pub waiting: usize,
    /// Missing datagrams that arrived while others waited for them.
    pub filled: u64,
    /// Missing datagrams that never arrived. Later datagrams have waited for them in vain.
    pub missing: u64,
    /// Datagrams that arrived after others had stopped waiting for them.
    pub late: u64,
    /// Datagrams that arrived twice.
    pub repeated: u64,
}

impl RepairStatus {
    fn of(snapshot: RepairSnapshot, given_up_percent: f64) -> Self {
        let RepairSnapshot { is_on, loss, repaired, given_up, order } = snapshot;
        Self {
            is_on,
            loss_percent: loss * 100.0,
            given_up_percent,
            repaired,
            given_up,
            waiting: order.held_datagrams,
            filled: order.filled,
            missing: snapshot.missing(),
            late: order.late,
            repeated: order.repeated,
        }
    }
}

impl ConnectionStatus {
    pub(super) fn of(snapshot: &ConnectionSnapshot, rates: Rates, given_up_percent: f64) -> Self {
        let quic = snapshot.quic.as_ref();
        let count = |of: fn(&ConnectionStats) -> u64| quic.map(of).unwrap_or_default();
        Self {
            id: snapshot.connection.0,
            worker: snapshot.connection.worker(),
            wireguard: snapshot.connection.is_of_other_protocol(),
            session: snapshot.session.map(|session| session.0),
            index: snapshot.index,
            remote: quic.map(|quic| quic.remote),
            rtt_ms: quic.map(|quic| quic.rtt.as_secs_f64() * 1e3).unwrap_or_default(),
            rates,
            cwnd: count(|quic| quic.cwnd),
            controller: quic.and_then(|quic| quic.controller).map(Into::into),
            mtu: quic.map(|quic| quic.mtu).unwrap_or_default(),
            sent_packets: count(|quic| quic.sent_packets),
            lost_packets: count(|quic| quic.lost_packets),
            spurious_losses: count(|quic| quic.spurious_losses),
            lost_mtu_probes: count(|quic| quic.lost_mtu_probes),
            received_packets: count(|quic| quic.udp_datagrams_received),
            largest_received: count(|quic| quic.largest_received),
            black_holes: count(|quic| quic.black_holes),
            datagrams_sent: count(|quic| quic.datagrams_sent),
            datagrams_received: count(|quic| quic.datagrams_received),
            queue_packets: snapshot.queue_packets,
            queue_bytes: snapshot.queue_bytes,
            packets_out: snapshot.packets_out,
            bytes_out: snapshot.bytes_out,
            packets_in: snapshot.packets_in,
            bytes_in: snapshot.bytes_in,
            repair: RepairStatus::of(snapshot.repair, given_up_percent),
        }
    }
}
