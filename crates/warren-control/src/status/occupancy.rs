//! How full batches were.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use warren_tunnel::{Histogram, Snapshot};

/// Histograms of batch sizes. Unless stated otherwise, index i of a list counts batches of size i. The last index also counts
/// larger batches.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Occupancy {
    pub segments_per_send: Vec<u64>,
    /// Index i counts sizes from 2^i to 2^(i+1) - 1.
    pub datagrams_per_receive: Vec<u64>,
    pub packets_per_tun_read: Vec<u64>,
    pub packets_per_tun_write: Vec<u64>,
    /// Connections driven in one turn of a worker.
    pub drives_per_wakeup: Vec<u64>,
    /// The number of sends that the kernel refused, by the name of the error.
    pub send_errors: BTreeMap<String, u64>,
}

impl Occupancy {
    pub(super) fn of(Snapshot { sockets, occupancy, .. }: &Snapshot) -> Self {
        let counts = |histogram: &Histogram| histogram.counts().to_vec();
        Self {
            segments_per_send: sockets.segments_per_send.clone(),
            datagrams_per_receive: sockets.datagrams_per_receive.clone(),
            packets_per_tun_read: counts(&occupancy.packets_per_tun_read),
            packets_per_tun_write: counts(&occupancy.packets_per_tun_write),
            drives_per_wakeup: counts(&occupancy.drives_per_wakeup),
            send_errors: sockets.send_errors.named().map(|(name, count)| (name.to_owned(), count)).into(),
        }
    }
}
