//! The `[transport]` section, which clients and exits share.

use warren_quic::settings::{Congestion, Driver, WorkerPlace};

use super::ConfigError;
use super::document::Document;
use super::value::{auto_or, auto_or_false, boolean, number, word};
use crate::tuning::{DATAGRAMS, RECEIVE_BATCHES, SEGMENTS, TUN_BATCHES};

/// The most connections a session has.
pub(crate) const MAX_CONNECTIONS: u32 = 32;

/// How QUIC connections are driven.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Transport {
    /// Of a client: how many it wants (4 unless said). Of an exit: the most it grants a client (32 unless said).
    pub(crate) connections: u32,
    /// The most UDP payloads in one GSO send.
    pub(crate) max_transmit_segments: u32,
    /// The most datagrams in one drive.
    pub(crate) max_transmit_datagrams: u32,
    /// The most receives that are dealt with at once.
    pub(crate) receive_batches: u32,
    /// The most reads of the TUN in one turn.
    pub(crate) tun_batches: u32,
    pub(crate) congestion: Congestion,
    pub(crate) driver: Driver,
    /// Whether the TUN device's segmentation offloads are used where the host has them.
    pub(crate) tun_offload: bool,
    /// Whether UDP segmentation offload is used where the host has it.
    pub(crate) udp_gso: bool,
    /// Whether UDP receive offload is used where the host has it.
    pub(crate) udp_gro: bool,
    /// How many workers carry the traffic; the number of cores decides unless said.
    pub(crate) workers: Option<u8>,
    /// Whether each worker is tied to a core.
    pub(crate) pin: bool,
}

impl Transport {
    /// Warren's own: more goodput for a CPU second on both sides than noq's (`bench/LOG.md`).
    const DRIVER: Driver = Driver::Warren;
    pub(super) const CLIENT_CONNECTIONS: u32 = 4;
    pub(super) const EXIT_CONNECTIONS: u32 = MAX_CONNECTIONS;

    /// Reads the section; `connections` is the role's default.
    pub(super) fn read(document: &mut Document<'_>, connections: u32) -> Result<Self, ConfigError> {
        const CONGESTION: &[(&str, Congestion)] = &[
            ("cubic", Congestion::Cubic),
            ("bbr3", Congestion::Bbr3),
            ("newreno", Congestion::NewReno),
            ("off", Congestion::Off),
        ];
        let mut section = document.section("transport")?;
        let transport = Self {
            connections: section.or("connections", connections, number(1..=MAX_CONNECTIONS))?,
            max_transmit_segments: section.or("max_transmit_segments", 40, number(SEGMENTS))?,
            max_transmit_datagrams: section.or("max_transmit_datagrams", 80, number(DATAGRAMS))?,
            receive_batches: section.or("receive_batches", 8, number(RECEIVE_BATCHES))?,
            tun_batches: section.or("tun_batches", 128, number(TUN_BATCHES))?,
            congestion: section.or("congestion", Congestion::Cubic, word(CONGESTION))?,
            driver: section.or(
                "driver",
                Self::DRIVER,
                word(&[("warren", Driver::Warren), ("noq", Driver::Noq)]),
            )?,
            tun_offload: section.or("tun_offload", true, auto_or_false)?,
            udp_gso: section.or("udp_gso", true, auto_or_false)?,
            udp_gro: section.or("udp_gro", true, auto_or_false)?,
            workers: section.or("workers", None, auto_or(number(1..=WorkerPlace::MAX)))?,
            pin: section.or("pin", false, boolean)?,
        };
        section.finish()?;
        Ok(transport)
    }
}
