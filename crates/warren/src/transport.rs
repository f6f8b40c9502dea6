//! From configuration to transport settings, one place for both roles.

use warren_quic::settings::{TransmitCaps, TransportSettings};

use crate::config::Transport;

impl Transport {
    /// The settings of every connection of a daemon.
    pub(crate) fn settings(&self) -> TransportSettings {
        TransportSettings {
            caps: TransmitCaps::new(
                self.max_transmit_segments as usize,
                self.max_transmit_datagrams as usize,
            ),
            congestion: self.congestion,
            driver: self.driver,
            udp_gso: self.udp_gso,
            udp_gro: self.udp_gro,
            ..TransportSettings::default()
        }
    }
}
