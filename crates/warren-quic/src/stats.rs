//! Counters of connections and sockets for the packet path and the metrics.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use crate::socket::Overflow;

/// Maximum number of datagrams that one send can hold (`UDP_MAX_SEGMENTS`, `linux/udp.h`).
pub const MAX_SEGMENTS: usize = 64;

/// State and counters of one connection.
///
/// Once a connection is closed, `datagrams_accepted` equals `datagrams_sent` plus all `send_drops`, and `datagrams_received`
/// equals `datagrams_delivered` plus `receive_drops`. Each field is one counter of the metrics.
///
/// It has 31 fields because each is a counter or a state that `warren status` shows.
#[derive(Clone, Debug)]
pub struct ConnectionStats {
    /// The peer's current UDP address.
    pub remote: SocketAddr,
    /// Smoothed round-trip time.
    pub rtt: Duration,
    /// Congestion window in bytes.
    pub cwnd: u64,
    /// The current state of the controller `adaptive`. `None` with other controllers.
    pub controller: Option<ControllerState>,
    /// Largest UDP payload in bytes that the path is known to carry.
    pub mtu: u16,
    /// QUIC packets sent that are tracked for acknowledgement.
    pub sent_packets: u64,
    /// QUIC packets declared lost.
    pub lost_packets: u64,
    /// Packets declared lost that were acknowledged after all.
    pub spurious_losses: u64,
    /// MTU probes among the lost packets. They are expected to be lost.
    pub lost_mtu_probes: u64,
    /// Times that the path stopped carrying large packets.
    pub black_holes: u64,
    /// Times that the congestion controller was informed of a loss or an ECN mark.
    pub congestion_events: u64,
    /// Datagrams that `send_datagram` accepted.
    pub datagrams_accepted: u64,
    /// DATAGRAM frames sent.
    pub datagrams_sent: u64,
    /// Kept datagrams that were returned because their packets were lost.
    pub datagrams_returned: u64,
    /// Kept datagrams that were given up because too many bytes were kept.
    pub datagrams_forgotten: u64,
    /// Bytes of memory for the datagrams that are kept now.
    pub kept_bytes: u64,
    /// DATAGRAM frames received.
    pub datagrams_received: u64,
    /// Datagrams delivered to the inbox.
    pub datagrams_delivered: u64,
    /// Datagrams accepted, then dropped to make room for newer ones. 0 with both drivers, which block instead.
    pub send_drops_full: u64,
    /// Datagrams accepted, then dropped because the path's MTU shrank.
    pub send_drops_too_large: u64,
    /// Datagrams accepted, then dropped because they had waited while the peer was silent. 0 with noq's driver, which sends them.
    pub send_drops_stale: u64,
    /// Datagrams accepted but unsent when the connection closed. 0 before.
    pub send_drops_closed: u64,
    /// Datagrams received but dropped before delivery, because the receive buffer was full or the connection closed.
    pub receive_drops: u64,
    /// UDP datagrams sent.
    pub udp_datagrams_sent: u64,
    /// UDP payload bytes sent.
    pub udp_bytes_sent: u64,
    /// UDP datagrams received.
    pub udp_datagrams_received: u64,
    /// UDP payload bytes received.
    pub udp_bytes_received: u64,
    /// Highest packet number received from the peer. 0 before the first packet.
    pub largest_received: u64,
    /// ACK frames sent.
    pub acks_sent: u64,
    /// ACK frames received.
    pub acks_received: u64,
    /// The largest number of UDP datagrams of one drive.
    pub largest_drive: u64,
}

impl ConnectionStats {
    /// Returns the counters of a connection that uses another protocol than QUIC. Only its datagrams are counted.
    pub fn of_other_protocol(remote: SocketAddr, sent: Datagrams, received: Datagrams) -> Self {
        Self {
            remote,
            rtt: Duration::ZERO,
            cwnd: 0,
            controller: None,
            mtu: 0,
            sent_packets: 0,
            lost_packets: 0,
            spurious_losses: 0,
            lost_mtu_probes: 0,
            black_holes: 0,
            congestion_events: 0,
            datagrams_accepted: 0,
            datagrams_sent: 0,
            datagrams_returned: 0,
            datagrams_forgotten: 0,
            kept_bytes: 0,
            datagrams_received: 0,
            datagrams_delivered: 0,
            send_drops_full: 0,
            send_drops_too_large: 0,
            send_drops_stale: 0,
            send_drops_closed: 0,
            receive_drops: 0,
            udp_datagrams_sent: sent.count,
            udp_bytes_sent: sent.bytes,
            udp_datagrams_received: received.count,
            udp_bytes_received: received.bytes,
            largest_received: 0,
            acks_sent: 0,
            acks_received: 0,
            largest_drive: 0,
        }
    }
}

/// A number of UDP datagrams and their bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Datagrams {
    /// The number of datagrams.
    pub count: u64,
    /// Bytes of the packets' payload.
    pub bytes: u64,
}

/// The state of the congestion controller `adaptive` on a path.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ControllerState {
    /// The window doubles each round until there is a queue.
    Starting,
    /// The window follows the path's capacity and keeps the queue short.
    ShortQueue,
    /// The window is a little smaller for a few rounds, to find out who causes the queue or the loss.
    Probing,
    /// Another flow fills the queue. The window grows about as fast as that flow's window, until the queue overflows.
    Growing,
    /// Another flow keeps the queue full, and CUBIC competes for a fair share.
    Competing,
    /// The bottleneck marks packets (ECN), and CUBIC answers the marks.
    Marked,
}

impl ControllerState {
    /// Whether the window will soon change by much.
    pub(crate) fn is_searching(self) -> bool {
        match self {
            Self::Starting | Self::Probing | Self::Growing => true,
            Self::ShortQueue | Self::Competing | Self::Marked => false,
        }
    }
}

/// The losses of a connection's path, and how much is kept to be sent again. The counts of packets and datagrams only grow.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct LossCounts {
    /// QUIC packets sent that are tracked for acknowledgement, without probes of the MTU.
    pub sent_packets: u64,
    /// QUIC packets declared lost, without probes of the MTU.
    pub lost_packets: u64,
    /// Packets declared lost that were acknowledged after all.
    pub spurious_losses: u64,
    /// Times that the congestion controller was informed of a loss or an ECN mark.
    pub congestion_events: u64,
    /// Bytes of memory for the datagrams that are kept now.
    pub kept_bytes: u64,
    /// Kept datagrams that were given up because too many bytes were kept.
    pub forgotten: u64,
    /// Kept datagrams that were returned as lost.
    pub returned: u64,
    /// Congestion window in bytes.
    pub window: u64,
    /// Smoothed round-trip time.
    pub rtt: Duration,
    /// How much longer than the round-trip time a packet may take before it counts as lost. Zero if the path keeps the order.
    pub reordering: Duration,
    /// Whether the controller `adaptive` still searches for its window. Once it has found the window, the queue in front of the
    /// connection empties by itself.
    pub is_searching: bool,
}

/// The sums of the counters of an endpoint's sockets.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct SocketStats {
    /// Sends that succeeded.
    pub sends: u64,
    /// UDP payload bytes in these sends.
    pub bytes_sent: u64,
    /// Sends by number of datagrams: index 1 to [`MAX_SEGMENTS`]. Index 0 is unused.
    pub segments_per_send: Vec<u64>,
    /// Receives that returned datagrams.
    pub receives: u64,
    /// UDP datagrams in these receives.
    pub datagrams_received: u64,
    /// UDP payload bytes in these receives.
    pub bytes_received: u64,
    /// Receives by number of datagrams: index i counts those with 2^i to 2^(i+1) - 1.
    pub datagrams_per_receive: Vec<u64>,
    /// Sends that found the socket's buffer full and were repeated.
    pub would_block: u64,
    /// Transmits split into single sends because the kernel or device refused segmentation.
    pub unsegmented: u64,
    /// Failed sends by kind.
    pub send_errors: SendErrors,
    /// Receives that failed. Each is retried.
    pub receive_errors: u64,
    /// Datagrams that the kernel dropped, nearly always because the socket's buffer was full, rarely for a wrong checksum.
    /// Includes closed sockets. A batch (GRO) counts once.
    pub dropped: u64,
    /// UDP datagrams dropped unread because they arrived faster than their client's share allowed. 0 with noq's driver, which
    /// leaves them in the socket.
    pub intake_drops: u64,
}

impl SocketStats {
    /// Returns the number of UDP datagrams sent.
    pub fn datagrams_sent(&self) -> u64 {
        self.segments_per_send.iter().zip(0_u64..).map(|(sends, segments)| sends * segments).sum()
    }

    /// Adds the counters of another endpoint's sockets.
    pub fn merge(&mut self, other: &Self) {
        // Destructured, so that the compiler refuses a counter that is not merged.
        let Self {
            sends,
            bytes_sent,
            segments_per_send,
            receives,
            datagrams_received,
            bytes_received,
            datagrams_per_receive,
            would_block,
            unsegmented,
            send_errors,
            receive_errors,
            dropped,
            intake_drops,
        } = self;
        *sends += other.sends;
        *bytes_sent += other.bytes_sent;
        add_each(segments_per_send, &other.segments_per_send);
        *receives += other.receives;
        *datagrams_received += other.datagrams_received;
        *bytes_received += other.bytes_received;
        add_each(datagrams_per_receive, &other.datagrams_per_receive);
        *would_block += other.would_block;
        *unsegmented += other.unsegmented;
        send_errors.merge(&other.send_errors);
        *receive_errors += other.receive_errors;
        *dropped += other.dropped;
        *intake_drops += other.intake_drops;
    }

    /// Returns the largest number of datagrams in one send.
    pub fn largest_send(&self) -> usize {
        self.segments_per_send.iter().rposition(|&sends| sends > 0).unwrap_or(0)
    }
}

/// Failed sends by kind. The transmit was lost, unless its kind says otherwise.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct SendErrors {
    /// EMSGSIZE for a single datagram, which exceeds the interface's MTU. MTU discovery provokes it.
    pub datagram_too_long: u64,
    /// EMSGSIZE for a batch, which exceeds the limit of a GSO send. Should never happen. The batch is lost.
    pub batch_too_long: u64,
    /// EIO: the device cannot segment. The transmit was repeated unsegmented.
    pub io: u64,
    /// EINVAL: the kernel refused segmentation or an option. The transmit was repeated unsegmented.
    pub invalid: u64,
    /// ENOBUFS: the device's queue was full.
    pub no_buffers: u64,
    /// EPERM or EACCES: a firewall refused.
    pub refused: u64,
    /// No route to the host.
    pub unreachable: u64,
    /// Any other error.
    pub other: u64,
}

fn add_each(counts: &mut Vec<u64>, more: &[u64]) {
    counts.resize(counts.len().max(more.len()), 0);
    for (count, more) in counts.iter_mut().zip(more) {
        *count += more;
    }
}

impl SendErrors {
    fn merge(&mut self, other: &Self) {
        // Destructured, so that the compiler refuses a kind that is not merged.
        let Self {
            datagram_too_long,
            batch_too_long,
            io,
            invalid,
            no_buffers,
            refused,
            unreachable,
            other: rest,
        } = self;
        *datagram_too_long += other.datagram_too_long;
        *batch_too_long += other.batch_too_long;
        *io += other.io;
        *invalid += other.invalid;
        *no_buffers += other.no_buffers;
        *refused += other.refused;
        *unreachable += other.unreachable;
        *rest += other.other;
    }

    /// Returns the name and the count of each kind.
    pub const fn named(&self) -> [(&'static str, u64); 8] {
        // Destructured, so that the compiler refuses a kind without a name.
        let &Self { datagram_too_long, batch_too_long, io, invalid, no_buffers, refused, unreachable, other } =
            self;
        [
            ("datagram_too_long", datagram_too_long),
            ("batch_too_long", batch_too_long),
            ("io", io),
            ("invalid", invalid),
            ("no_buffers", no_buffers),
            ("refused", refused),
            ("unreachable", unreachable),
            ("other", other),
        ]
    }

    /// Returns the sum of all kinds.
    pub fn total(&self) -> u64 {
        self.named().iter().map(|(_, count)| count).sum()
    }
}

/// The counters that [`SocketStats`] reports. The sockets of an endpoint share them with their readers.
///
/// It has 18 fields because each is a counter of its own.
#[derive(Debug)]
pub(crate) struct SocketCounters {
    pub(crate) bytes_sent: AtomicU64,
    pub(crate) segments_per_send: [AtomicU64; MAX_SEGMENTS + 1],
    pub(crate) bytes_received: AtomicU64,
    pub(crate) datagrams_received: AtomicU64,
    /// recvmmsg returns at most 32 batches of 64 datagrams, which are 2^11.
    pub(crate) datagrams_per_receive: [AtomicU64; 12],
    pub(crate) would_block: AtomicU64,
    pub(crate) unsegmented: AtomicU64,
    pub(crate) receive_errors: AtomicU64,
    pub(crate) datagram_too_long: AtomicU64,
    pub(crate) batch_too_long: AtomicU64,
    pub(crate) io: AtomicU64,
    pub(crate) invalid: AtomicU64,
    pub(crate) no_buffers: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) unreachable: AtomicU64,
    pub(crate) other: AtomicU64,
    pub(crate) intake_drops: AtomicU64,
    /// The drops that the kernel counts.
    pub(crate) overflow: Overflow,
}

impl SocketCounters {
    pub(crate) fn new() -> Self {
        let zero = AtomicU64::default;
        Self {
            bytes_sent: zero(),
            segments_per_send: [const { AtomicU64::new(0) }; MAX_SEGMENTS + 1],
            bytes_received: zero(),
            datagrams_received: zero(),
            datagrams_per_receive: [const { AtomicU64::new(0) }; 12],
            would_block: zero(),
            unsegmented: zero(),
            receive_errors: zero(),
            datagram_too_long: zero(),
            batch_too_long: zero(),
            io: zero(),
            invalid: zero(),
            no_buffers: zero(),
            refused: zero(),
            unreachable: zero(),
            other: zero(),
            intake_drops: zero(),
            overflow: Overflow::default(),
        }
    }

    pub(crate) fn sent(&self, segments: usize, bytes: usize) {
        self.bytes_sent.fetch_add(bytes as u64, Relaxed);
        if let Some(count) = self.segments_per_send.get(segments.min(MAX_SEGMENTS)) {
            count.fetch_add(1, Relaxed);
        }
    }

    pub(crate) fn received(&self, datagrams: usize, bytes: usize) {
        self.bytes_received.fetch_add(bytes as u64, Relaxed);
        self.datagrams_received.fetch_add(datagrams as u64, Relaxed);
        // `ilog2` panics on 0.
        let bucket = datagrams.max(1).ilog2().min(11) as usize;
        if let Some(count) = self.datagrams_per_receive.get(bucket) {
            count.fetch_add(1, Relaxed);
        }
    }

    pub(crate) fn snapshot(&self) -> SocketStats {
        // The counters are read one by one, so they need not be from the same moment.
        let read = |counts: &[AtomicU64]| counts.iter().map(|count| count.load(Relaxed)).collect::<Vec<_>>();
        let segments_per_send = read(&self.segments_per_send);
        let datagrams_per_receive = read(&self.datagrams_per_receive);
        SocketStats {
            sends: segments_per_send.iter().sum(),
            bytes_sent: self.bytes_sent.load(Relaxed),
            segments_per_send,
            receives: datagrams_per_receive.iter().sum(),
            datagrams_received: self.datagrams_received.load(Relaxed),
            bytes_received: self.bytes_received.load(Relaxed),
            datagrams_per_receive,
            would_block: self.would_block.load(Relaxed),
            unsegmented: self.unsegmented.load(Relaxed),
            send_errors: SendErrors {
                datagram_too_long: self.datagram_too_long.load(Relaxed),
                batch_too_long: self.batch_too_long.load(Relaxed),
                io: self.io.load(Relaxed),
                invalid: self.invalid.load(Relaxed),
                no_buffers: self.no_buffers.load(Relaxed),
                refused: self.refused.load(Relaxed),
                unreachable: self.unreachable.load(Relaxed),
                other: self.other.load(Relaxed),
            },
            receive_errors: self.receive_errors.load(Relaxed),
            dropped: self.overflow.sum(),
            intake_drops: self.intake_drops.load(Relaxed),
        }
    }
}
