//! Transport settings, with tighter bounds than the QUIC library's.

use std::time::Duration;

use crate::strangers::Strangers;

mod choice;
mod lacking;
mod live;
mod worker_place;

pub use self::{
    choice::{Cipher, Congestion, Driver, UnknownCipher, UnknownCongestion, UnknownDriver},
    lacking::Lacking,
    live::{CongestionChoice, ReceiveBatches, TransmitCaps},
    worker_place::WorkerPlace,
};

/// The smallest UDP payload that every QUIC path must carry (RFC 9000 section 14).
pub const MINIMUM_MTU: u16 = 1_200;

/// The largest UDP payload of an Ethernet path (1,500 bytes) under IPv4.
pub const ETHERNET_MTU: u16 = 1_472;

/// Silence after which a client sends a keep-alive. It is below the 30 s after which the strictest NATs drop a mapping. A
/// keep-alive and its answer are less than one packet per ten seconds. Keep-alives are not needed to detect a dead path,
/// because unanswered traffic shows it within a second.
pub const KEEP_ALIVE: Duration = Duration::from_secs(25);

/// Silence after which a connection is given up. A path may be down for 20 s just when a keep-alive is due. The loss probes,
/// which are sent at least every second, then still reach the peer in time.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(50);

/// Settings of every connection of an endpoint. It is one flat struct, because most users change only one or two of
/// the defaults.
///
/// ```
/// use std::time::Duration;
/// use warren_quic::settings::{Congestion, TransportSettings};
///
/// let settings = TransportSettings {
///     congestion: Congestion::Bbr3.into(),
///     idle_timeout: Duration::from_secs(60),
///     ..TransportSettings::default()
/// };
/// assert!(settings.keep_alive.is_some_and(|interval| interval < settings.idle_timeout));
/// ```
///
/// It has 22 fields because each is a setting of its own.
#[derive(Clone, Debug)]
pub struct TransportSettings {
    /// The driver of the connections. Both drivers are the same on the wire.
    pub driver: Driver,
    /// Caps of one send and one drive. Clones of the settings share them, and changes apply to running connections.
    pub caps: TransmitCaps,
    /// Bound of one receive. Clones of the settings share it, and changes apply to running connections. Only Warren's driver uses
    /// it.
    pub receive_batches: ReceiveBatches,
    /// The congestion controller. Clones of the settings share the choice, and changes apply to running connections.
    pub congestion: CongestionChoice,
    /// The controller's initial window in bytes (cubic, bbr3 and newreno).
    pub initial_window: u64,
    /// Silence after which a client sends a keep-alive. `None` turns keep-alives off. An exit sends no keep-alives.
    pub keep_alive: Option<Duration>,
    /// Silence after which a connection is given up.
    pub idle_timeout: Duration,
    /// Initial UDP payload in bytes, at least [`MINIMUM_MTU`].
    pub initial_mtu: u16,
    /// UDP payload in bytes that the path is assumed to always carry, at least [`MINIMUM_MTU`].
    pub min_mtu: u16,
    /// Largest UDP payload in bytes that MTU discovery probes on an IPv4 path. On IPv6 it is 20 less, because the header is
    /// longer.
    pub max_mtu: u16,
    /// Whether one send may carry several datagrams (UDP_SEGMENT), where host and device support it.
    pub udp_gso: bool,
    /// Whether one receive may return several datagrams (UDP_GRO), where the host supports it.
    pub udp_gro: bool,
    /// Offloads that turned out to be unsupported by the host. Clones of the settings share them.
    pub lacking: Lacking,
    /// Maximum number of bytes of outgoing datagrams that a connection holds. `None` means one drive's worth, at least 64 KiB.
    pub datagram_send_buffer: Option<usize>,
    /// Maximum number of bytes of received datagrams that a connection holds until they are read.
    pub datagram_receive_buffer: usize,
    /// Packets that may arrive before the peer must acknowledge.
    pub ack_threshold: u32,
    /// Longest time the peer may hold back an acknowledgement.
    pub max_ack_delay: Duration,
    /// How many later packets may arrive before a packet counts as lost, at least 3.
    pub reordering_threshold: u32,
    /// The cipher that a client prefers. `None` selects the fastest on this CPU. An exit follows its client's preference.
    pub cipher: Option<Cipher>,
    /// Flow control window of a control stream in bytes.
    pub stream_window: u32,
    /// Whether an exit answers strangers, and which connection IDs belong to this process. Clones of the settings share it, and
    /// changes apply at once.
    pub strangers: Strangers,
    /// The worker that the endpoint belongs to. The first byte of every connection ID that the endpoint issues encodes the worker.
    /// A packet with another worker's byte is dropped and never answered with a reset.
    pub worker: WorkerPlace,
}

impl Default for TransportSettings {
    fn default() -> Self {
        Self {
            driver: Driver::default(),
            caps: TransmitCaps::default(),
            receive_batches: ReceiveBatches::default(),
            congestion: CongestionChoice::default(),
            initial_window: 256 * 1024,
            keep_alive: Some(KEEP_ALIVE),
            idle_timeout: IDLE_TIMEOUT,
            // Every QUIC path must carry this much. MTU discovery finds out how much more the path carries.
            initial_mtu: MINIMUM_MTU,
            min_mtu: MINIMUM_MTU,
            max_mtu: ETHERNET_MTU,
            udp_gso: true,
            udp_gro: true,
            lacking: Lacking::default(),
            datagram_send_buffer: None,
            datagram_receive_buffer: 8 * 1024 * 1024,
            // 60 brought no measurable gain (bench/LOG.md).
            ack_threshold: 32,
            // The controller `adaptive` relies on this value: it treats a delay of more than 7 ms as a queue.
            max_ack_delay: Duration::from_millis(5),
            reordering_threshold: 16,
            cipher: None,
            stream_window: 64 * 1024,
            strangers: Strangers::default(),
            worker: WorkerPlace::ONLY,
        }
    }
}

impl TransportSettings {
    /// Returns how many bytes of outgoing datagrams a connection may buffer. By default this is one drive, but at least 64 KiB:
    /// the packet path cannot drop or reorder datagrams once they are in this buffer.
    pub fn datagram_send_buffer(&self) -> usize {
        let drive = || self.caps.datagrams() * usize::from(self.max_mtu.max(self.initial_mtu));
        self.datagram_send_buffer.unwrap_or_else(|| drive().max(64 * 1024))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn send_buffer_holds_one_drive_and_at_least_64_kib() {
        let mut settings = TransportSettings { caps: TransmitCaps::new(10, 20), ..Default::default() };
        assert_eq!(settings.datagram_send_buffer(), 64 * 1024);
        settings.caps.set(64, 128);
        assert_eq!(settings.datagram_send_buffer(), 128 * 1_472);
        settings.datagram_send_buffer = Some(100_000);
        assert_eq!(settings.datagram_send_buffer(), 100_000);
    }
}
