//! One worker's share of the totals.

use serde::{Deserialize, Serialize};

use crate::worker::WorkerShare;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct WorkerStatus {
    pub(crate) connections: usize,
    pub(crate) tun_reads: u64,
    pub(crate) handed_over: u64,
    pub(crate) tun_writes: u64,
    pub(crate) carrier_sent_packets: u64,
    pub(crate) carrier_received_packets: u64,
}

impl WorkerStatus {
    pub(super) fn of(share: &WorkerShare) -> Self {
        Self {
            connections: share.connections,
            tun_reads: share.tun_reads,
            handed_over: share.handed_over,
            tun_writes: share.tun_writes,
            carrier_sent_packets: share.carrier_sent_packets,
            carrier_received_packets: share.carrier_received_packets,
        }
    }
}
