//! The device, and the transport settings in force.

use serde::{Deserialize, Serialize};

use crate::tuning::Tuning;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct DeviceStatus {
    pub(crate) name: String,
    pub(crate) mtu: u16,
    pub(crate) offload: bool,
}

/// The transport settings in force; `warren set` changes them.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct TransportStatus {
    pub(crate) driver: String,
    pub(crate) congestion: String,
    pub(crate) max_transmit_segments: usize,
    pub(crate) max_transmit_datagrams: usize,
    pub(crate) receive_batches: usize,
    pub(crate) tun_batches: usize,
    /// Whether each worker is tied to a core.
    pub(crate) pin: bool,
    /// "tcp and udp", "tcp", "udp" or "off"; nothing before there is a device.
    pub(crate) tun_offload: Option<String>,
    /// "on", "off" or "unavailable".
    pub(crate) udp_gso: String,
    pub(crate) udp_gro: String,
}

impl TransportStatus {
    pub(super) fn of(Tuning { settings, tun_batches, tun_offload, pin, .. }: &Tuning) -> Self {
        let in_force = |wanted: bool, lacking: bool| match (wanted, lacking) {
            (false, _) => "off".to_owned(),
            (true, false) => "on".to_owned(),
            (true, true) => "unavailable".to_owned(),
        };
        Self {
            driver: settings.driver.to_string(),
            congestion: settings.congestion.get().to_string(),
            max_transmit_segments: settings.caps.segments(),
            max_transmit_datagrams: settings.caps.datagrams(),
            receive_batches: settings.receive_batches.get(),
            tun_batches: tun_batches.get(),
            pin: *pin,
            tun_offload: tun_offload.in_force().map(str::to_owned),
            udp_gso: in_force(settings.udp_gso, settings.lacking.gso()),
            udp_gro: in_force(settings.udp_gro, settings.lacking.gro()),
        }
    }
}
