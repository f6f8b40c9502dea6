//! Transport settings: what may be tuned, with bounds on everything that the QUIC library leaves wide.

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

/// Silence after which a client sends a keep-alive: below the 30 s after which the most forgetful NATs lose a mapping, and rare
/// enough that it and its answer are less than a packet in ten seconds. It is not how a dead path is found: whatever is sent and
/// not answered tells within a second.
pub const KEEP_ALIVE: Duration = Duration::from_secs(25);

/// Silence after which a connection is given up: a path may be away for 20 s just when a keep-alive was due, and the loss probes
/// that come every two seconds still find the connection there.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(50);

/// Settings of every connection of an endpoint. They are one flat struct, since most users change one or two of the defaults.
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
#[derive(Clone, Debug)]
pub struct TransportSettings {
    /// What drives the connections; both speak the same on the wire.
    pub driver: Driver,
    /// Caps of one send and one drive; a clone of the settings shares them, and they act on running connections.
    pub caps: TransmitCaps,
    /// Bound of one receive; a clone of the settings shares it, and it acts on running connections. Warren's driver alone
    /// looks at it.
    pub receive_batches: ReceiveBatches,
    /// The congestion controller; a clone of the settings shares the choice, and it acts on running connections.
    pub congestion: CongestionChoice,
    /// The controller's first window in bytes (cubic, bbr3 and newreno).
    pub initial_window: u64,
    /// Silence after which a client sends a keep-alive; an exit sends none. `None` is off.
    pub keep_alive: Option<Duration>,
    /// Silence after which a connection is given up.
    pub idle_timeout: Duration,
    /// UDP payload to start with, in bytes; at least [`MINIMUM_MTU`].
    pub initial_mtu: u16,
    /// UDP payload that the path is taken to carry whatever happens, in bytes; at least [`MINIMUM_MTU`].
    pub min_mtu: u16,
    /// Largest UDP payload that discovery looks for on an IPv4 path, in bytes; 20 less are looked for under IPv6, whose
    /// header is that much longer.
    pub max_mtu: u16,
    /// Whether several datagrams may leave in one send (UDP_SEGMENT), where host and device can.
    pub udp_gso: bool,
    /// Whether several datagrams may arrive in one receive (UDP_GRO), where the host can.
    pub udp_gro: bool,
    /// What the host turned out not to be able to; a clone of the settings shares it.
    pub lacking: Lacking,
    /// Bytes of outgoing datagrams that a connection holds; `None` is what one drive takes, at least 64 KiB.
    pub datagram_send_buffer: Option<usize>,
    /// Bytes of received datagrams that a connection holds until they are read.
    pub datagram_receive_buffer: usize,
    /// Packets that may arrive before the peer must acknowledge.
    pub ack_threshold: u32,
    /// Longest time the peer may hold back an acknowledgement.
    pub max_ack_delay: Duration,
    /// Packets by which another may arrive late before it counts as lost; at least 3.
    pub reordering_threshold: u32,
    /// The cipher that a client asks for; `None` is the one that this CPU is fastest at. An exit takes what it is asked for.
    pub cipher: Option<Cipher>,
    /// Bytes of a control stream that may be under way.
    pub stream_window: u32,
    /// Whether an exit answers strangers, and which connection IDs are this process's; a clone of the settings shares it, and it acts
    /// at once.
    pub strangers: Strangers,
    /// Which worker the endpoint belongs to. It is said by the first byte of every connection ID that the endpoint gives
    /// out: a packet with another worker's byte is dropped, never answered with a reset.
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
            initial_mtu: MINIMUM_MTU,
            min_mtu: MINIMUM_MTU,
            max_mtu: ETHERNET_MTU,
            udp_gso: true,
            udp_gro: true,
            lacking: Lacking::default(),
            datagram_send_buffer: None,
            datagram_receive_buffer: 8 * 1024 * 1024,
            ack_threshold: 32,
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
    /// Returns the bytes of outgoing datagrams that a connection holds: no more than its next drive takes, since what
    /// waits here can be neither dropped nor reordered by the packet path any more.
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
