//! From configuration to transport settings, one place for both roles.

use warren_quic::settings::{ReceiveBatches, TransmitCaps, TransportSettings};

use crate::config::Transport;
use crate::tuning::{TunBatches, TunOffload, Tuning};

impl Transport {
    /// The settings of every connection of a daemon, and what of them can change while it runs.
    pub(crate) fn tuning(&self) -> Tuning {
        let settings = TransportSettings {
            caps: TransmitCaps::new(
                self.max_transmit_segments as usize,
                self.max_transmit_datagrams as usize,
            ),
            receive_batches: ReceiveBatches::new(self.receive_batches as usize),
            congestion: self.congestion.into(),
            driver: self.driver,
            udp_gso: self.udp_gso,
            udp_gro: self.udp_gro,
            ..TransportSettings::default()
        };
        Tuning {
            settings,
            tun_batches: TunBatches::new(self.tun_batches as usize),
            tun_offload: TunOffload::default(),
        }
    }
}
