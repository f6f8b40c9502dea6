//! One QUIC connection.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use warren_quic::driver::ConnectionStats;

use super::Rates;
use crate::worker::ConnectionSnapshot;

/// One QUIC connection. Sizes in bytes, counters since the connection began.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ConnectionStatus {
    pub(crate) id: u64,
    /// The number of its worker.
    pub(crate) worker: usize,
    pub(crate) session: Option<u64>,
    pub(crate) index: Option<u32>,
    pub(crate) remote: Option<SocketAddr>,
    pub(crate) rtt_ms: f64,
    pub(crate) rates: Rates,
    pub(crate) cwnd: u64,
    pub(crate) mtu: u16,
    pub(crate) sent_packets: u64,
    pub(crate) lost_packets: u64,
    pub(crate) black_holes: u64,
    pub(crate) datagrams_sent: u64,
    pub(crate) datagrams_received: u64,
    pub(crate) queue_packets: usize,
    pub(crate) queue_bytes: usize,
    pub(crate) packets_out: u64,
    pub(crate) bytes_out: u64,
    pub(crate) packets_in: u64,
    pub(crate) bytes_in: u64,
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
