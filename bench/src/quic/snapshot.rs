//! One side's counters at one moment. The exit's process sends them to the client's process as JSON.

use serde::{Deserialize, Serialize};
use warren_quic::driver::{ConnectionStats, SocketStats};

use crate::usage::Mark;

/// All counters of a side.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Snapshot {
    pub(crate) mark: Mark,
    pub(crate) peak_rss_kib: Option<u64>,
    /// Payload that this side's application received. Goodput is computed from this count.
    pub(crate) delivered: Count,
    /// Payload that this side's connections accepted for sending.
    pub(crate) accepted: Count,
    pub(crate) totals: Totals,
    pub(crate) sockets: Sockets,
    /// Smoothed round-trip times in microseconds since the last snapshot, sampled every 10 ms.
    pub(crate) rtt_samples: Vec<u32>,
    pub(crate) connections: usize,
}

/// A number of datagrams, or of chunks of a stream, and their bytes.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(crate) struct Count {
    pub(crate) datagrams: u64,
    pub(crate) bytes: u64,
}

impl Count {
    pub(crate) fn add(&mut self, length: usize) {
        self.datagrams += 1;
        self.bytes += length as u64;
    }

    pub(crate) fn since(&self, earlier: &Self) -> Self {
        // Counts never decrease, so the subtraction does not overflow.
        Self { datagrams: self.datagrams - earlier.datagrams, bytes: self.bytes - earlier.bytes }
    }
}

/// Sums over all connections of a side.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(crate) struct Totals {
    pub(crate) packets_lost: u64,
    pub(crate) congestion_events: u64,
    pub(crate) udp_datagrams_sent: u64,
    pub(crate) udp_datagrams_received: u64,
    pub(crate) udp_bytes_sent: u64,
    pub(crate) acks_sent: u64,
    pub(crate) datagram_frames_sent: u64,
    pub(crate) datagram_frames_received: u64,
    pub(crate) send_drops: u64,
    pub(crate) receive_drops: u64,
}

impl Totals {
    pub(crate) fn add(&mut self, stats: &ConnectionStats) {
        self.packets_lost += stats.lost_packets;
        self.congestion_events += stats.congestion_events;
        self.udp_datagrams_sent += stats.udp_datagrams_sent;
        self.udp_datagrams_received += stats.udp_datagrams_received;
        self.udp_bytes_sent += stats.udp_bytes_sent;
        self.acks_sent += stats.acks_sent;
        self.datagram_frames_sent += stats.datagrams_sent;
        self.datagram_frames_received += stats.datagrams_received;
        self.send_drops += stats.send_drops_full
            + stats.send_drops_too_large
            + stats.send_drops_stale
            + stats.send_drops_closed;
        self.receive_drops += stats.receive_drops;
    }

    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let less = u64::saturating_sub;
        Self {
            packets_lost: less(self.packets_lost, earlier.packets_lost),
            congestion_events: less(self.congestion_events, earlier.congestion_events),
            udp_datagrams_sent: less(self.udp_datagrams_sent, earlier.udp_datagrams_sent),
            udp_datagrams_received: less(self.udp_datagrams_received, earlier.udp_datagrams_received),
            udp_bytes_sent: less(self.udp_bytes_sent, earlier.udp_bytes_sent),
            acks_sent: less(self.acks_sent, earlier.acks_sent),
            datagram_frames_sent: less(self.datagram_frames_sent, earlier.datagram_frames_sent),
            datagram_frames_received: less(self.datagram_frames_received, earlier.datagram_frames_received),
            send_drops: less(self.send_drops, earlier.send_drops),
            receive_drops: less(self.receive_drops, earlier.receive_drops),
        }
    }
}

/// Sums over all sockets of a side.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(crate) struct Sockets {
    /// The value at index i is the number of send calls with i datagrams.
    pub(crate) segments_per_send: Vec<u64>,
    /// The value at index i is the number of receive calls with 2^i to 2^(i+1) - 1 datagrams.
    pub(crate) datagrams_per_receive: Vec<u64>,
    pub(crate) would_block: u64,
    pub(crate) unsegmented: u64,
    pub(crate) send_errors: u64,
}

impl Sockets {
    pub(crate) fn of(stats: &SocketStats) -> Self {
        Self {
            segments_per_send: stats.segments_per_send.clone(),
            datagrams_per_receive: stats.datagrams_per_receive.clone(),
            would_block: stats.would_block,
            unsegmented: stats.unsegmented,
            send_errors: stats.send_errors.total(),
        }
    }

    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let less = u64::saturating_sub;
        Self {
            segments_per_send: difference(&self.segments_per_send, &earlier.segments_per_send),
            datagrams_per_receive: difference(&self.datagrams_per_receive, &earlier.datagrams_per_receive),
            would_block: less(self.would_block, earlier.would_block),
            unsegmented: less(self.unsegmented, earlier.unsegmented),
            send_errors: less(self.send_errors, earlier.send_errors),
        }
    }

    pub(crate) fn sends(&self) -> u64 {
        self.segments_per_send.iter().sum()
    }

    pub(crate) fn receives(&self) -> u64 {
        self.datagrams_per_receive.iter().sum()
    }

    pub(crate) fn datagrams_sent(&self) -> u64 {
        self.segments_per_send.iter().zip(0_u64..).map(|(sends, segments)| sends * segments).sum()
    }
}

/// Subtracts `earlier` from `later` index by index, and removes trailing zeros.
fn difference(later: &[u64], earlier: &[u64]) -> Vec<u64> {
    // `earlier` may be shorter, because a list grows when a larger batch occurs.
    let earlier = earlier.iter().copied().chain(std::iter::repeat(0));
    let mut counts: Vec<u64> =
        later.iter().zip(earlier).map(|(now, before)| now.saturating_sub(before)).collect();
    let used = counts.iter().rposition(|&count| count > 0).map_or(0, |last| last + 1);
    counts.truncate(used);
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histograms_are_subtracted_place_by_place_and_lose_their_empty_end() {
        assert_eq!(difference(&[5, 7, 9, 2], &[5, 3, 0, 2]), [0, 4, 9]);
        assert_eq!(difference(&[1, 2], &[]), [1, 2]);
        assert!(difference(&[4, 4], &[4, 4]).is_empty());
    }

    #[test]
    fn sends_are_counted_by_their_segments() {
        let sockets = Sockets { segments_per_send: vec![0, 3, 0, 2], ..Sockets::default() };
        assert_eq!((sockets.sends(), sockets.datagrams_sent()), (5, 9));
    }
}
