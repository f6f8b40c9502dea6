//! The status of one QUIC connection.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use warren_quic::driver::ConnectionStats;

use super::Rates;
use warren_tunnel::ConnectionSnapshot;

/// One QUIC connection. Sizes are in bytes; counters start with the connection.
///
/// Has 20 fields because each is a key of an object in the JSON of `warren status --json` (docs/status.md).
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ConnectionStatus {
    /// Its number, unique in this daemon.
    pub id: u64,
    /// The number of its worker.
    pub worker: usize,
    /// The session that it belongs to.
    pub session: Option<u64>,
    /// Its number in the session.
    pub index: Option<u32>,
    /// The peer's address.
    pub remote: Option<SocketAddr>,
    /// Smoothed round-trip time.
    pub rtt_ms: f64,
    /// The rates of inner packets.
    pub rates: Rates,
    /// Congestion window in bytes.
    pub cwnd: u64,
    /// The largest UDP payload in bytes that the path is known to carry.
    pub mtu: u16,
    /// QUIC packets sent.
    pub sent_packets: u64,
    /// QUIC packets that were declared lost.
    pub lost_packets: u64,
    /// How often the path stopped carrying packets of a size that it had carried.
    pub black_holes: u64,
    /// DATAGRAM frames sent.
    pub datagrams_sent: u64,
    /// DATAGRAM frames received.
    pub datagrams_received: u64,
    /// Inner packets that wait to be sent.
    pub queue_packets: usize,
    /// Bytes of these.
    pub queue_bytes: usize,
    /// Inner packets sent.
    pub packets_out: u64,
    /// Bytes of these.
    pub bytes_out: u64,
    /// Inner packets received.
    pub packets_in: u64,
    /// Bytes of these.
    pub bytes_in: u64,
}

impl ConnectionStatus {
    pub(super) fn of(snapshot: &ConnectionSnapshot, rates: Rates) -> Self {
        let quic = snapshot.quic.as_ref();
        let count = |of: fn(&ConnectionStats) -> u64| quic.map(of).unwrap_or_default();
        Self {
            id: snapshot.connection.0,
            worker: snapshot.connection.worker(),
            session: snapshot.session.map(|session| session.0),
            index: snapshot.index,
            remote: quic.map(|quic| quic.remote),
            rtt_ms: quic.map(|quic| quic.rtt.as_secs_f64() * 1e3).unwrap_or_default(),
            rates,
            cwnd: count(|quic| quic.cwnd),
            mtu: quic.map(|quic| quic.mtu).unwrap_or_default(),
            sent_packets: count(|quic| quic.sent_packets),
            lost_packets: count(|quic| quic.lost_packets),
            black_holes: count(|quic| quic.black_holes),
            datagrams_sent: count(|quic| quic.datagrams_sent),
            datagrams_received: count(|quic| quic.datagrams_received),
            queue_packets: snapshot.queue_packets,
            queue_bytes: snapshot.queue_bytes,
            packets_out: snapshot.packets_out,
            bytes_out: snapshot.bytes_out,
            packets_in: snapshot.packets_in,
            bytes_in: snapshot.bytes_in,
        }
    }
}
