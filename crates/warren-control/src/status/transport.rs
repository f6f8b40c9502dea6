//! The device, and the transport settings in force.

use serde::{Deserialize, Serialize};

use warren_tunnel::tuning::Tuning;

/// The TUN device.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// The device's name.
    pub name: String,
    /// The device's MTU in bytes.
    pub mtu: u16,
    /// Whether the device has segmentation offloads.
    pub offload: bool,
}

/// The transport settings in force. `warren set` can change some of them.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct TransportStatus {
    /// The driver of the connections.
    pub driver: String,
    /// The congestion controller.
    pub congestion: String,
    /// The most UDP payloads in one GSO send.
    pub max_transmit_segments: usize,
    /// The most datagrams in one drive.
    pub max_transmit_datagrams: usize,
    /// The most receive calls in one turn.
    pub receive_batches: usize,
    /// The most reads of the TUN in one turn.
    pub tun_batches: usize,
    /// Whether each worker is pinned to a core.
    pub pin: bool,
    /// "tcp and udp", "tcp", "udp" or "off". None before there is a device.
    pub tun_offload: Option<String>,
    /// How packets go to the TUN: "io_uring" for a batch in one system call, or "writev".
    #[serde(default)]
    pub tun_writes: String,
    /// UDP segmentation offload: "on", "off" or "unavailable".
    pub udp_gso: String,
    /// UDP receive offload: "on", "off" or "unavailable".
    pub udp_gro: String,
}

impl TransportStatus {
    pub(super) fn of(Tuning { settings, tun_batches, tun_offload, tun_writes, pin, .. }: &Tuning) -> Self {
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
            tun_writes: tun_writes.in_force().to_owned(),
            udp_gso: in_force(settings.udp_gso, settings.lacking.gso()),
            udp_gro: in_force(settings.udp_gro, settings.lacking.gro()),
        }
    }
}
