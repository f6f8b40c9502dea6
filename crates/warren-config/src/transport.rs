//! The `[transport]` section, which clients and exits share.

use std::sync::OnceLock;

use warren_quic::settings::{
    Congestion, Driver, ReceiveBatches, TransmitCaps, TransportSettings, WorkerPlace,
};

use warren_session::NUMBERED;

use super::ConfigError;
use super::document::{Document, Section};
use super::value::{auto_or, auto_or_false, boolean, number, word};
use warren_tunnel::tuning::{
    DATAGRAMS, RECEIVE_BATCHES, SEGMENTS, TUN_BATCHES, TunBatches, TunOffload, TunWrites, Tuning,
};

/// The most connections that a session can have.
pub(crate) const MAX_CONNECTIONS: u32 = 32;

/// How QUIC connections are driven.
#[derive(Clone, Debug, PartialEq)]
pub struct Transport {
    /// For a client, the number of connections that it asks for. By default this depends on the workers. For an exit,
    /// the most that it grants a client.
    pub connections: Option<u32>,
    /// The most UDP payloads in one GSO send.
    pub max_transmit_segments: u32,
    /// The most datagrams in one drive.
    pub max_transmit_datagrams: u32,
    /// The most receive calls in one turn, before their datagrams are processed.
    pub receive_batches: u32,
    /// The most reads of the TUN in one turn.
    pub tun_batches: u32,
    /// The congestion controller. A change also affects open connections.
    pub congestion: Congestion,
    /// Whether lost datagrams are sent again, if the other side supports numbered datagrams.
    pub repair: bool,
    /// The driver of the connections.
    pub driver: Driver,
    /// Whether to use the TUN device's segmentation offloads if the host has them.
    pub tun_offload: bool,
    /// Whether to use UDP segmentation offload if the host has it.
    pub udp_gso: bool,
    /// Whether to use UDP receive offload if the host has it.
    pub udp_gro: bool,
    /// How many workers carry the traffic. By default this depends on the number of cores.
    pub workers: Option<u8>,
    /// Whether each worker is pinned to a core.
    pub pin: bool,
}

impl Transport {
    /// Warren's own driver. With Warren's driver on both sides, goodput per CPU second was higher than with noq's driver
    /// (`bench/LOG.md`).
    const DRIVER: Driver = Driver::Warren;
    /// The number of connections of a client whose losses are not repaired. Several connections help, because a loss slows down
    /// only the connection on which it happens.
    const UNREPAIRED_CONNECTIONS: u32 = 4;

    /// Reads the section of a client's profile.
    pub(super) fn read_client(document: &mut Document<'_>) -> Result<Self, ConfigError> {
        let mut section = document.section("transport")?;
        let connections = section.or("connections", None, auto_or(number(1..=MAX_CONNECTIONS)))?;
        Self::read(section, connections)
    }

    /// Reads the section of an exit's file.
    pub(super) fn read_exit(document: &mut Document<'_>) -> Result<Self, ConfigError> {
        let mut section = document.section("transport")?;
        let connections = section.or("connections", MAX_CONNECTIONS, number(1..=MAX_CONNECTIONS))?;
        Self::read(section, Some(connections))
    }

    fn read(mut section: Section<'_>, connections: Option<u32>) -> Result<Self, ConfigError> {
        const CONGESTION: &[(&str, Congestion)] = &[
            ("adaptive", Congestion::Adaptive),
            ("cubic", Congestion::Cubic),
            ("bbr3", Congestion::Bbr3),
            ("newreno", Congestion::NewReno),
            ("off", Congestion::Off),
        ];
        let transport = Self {
            connections,
            // If only the CPU limits a path, these caps need 0.65 to 0.73 of the CPU time that caps of 10 and 20 need
            // (bench/LOG.md).
            max_transmit_segments: section.or("max_transmit_segments", 40, number(SEGMENTS))?,
            max_transmit_datagrams: section.or("max_transmit_datagrams", 80, number(DATAGRAMS))?,
            receive_batches: section.or("receive_batches", 8, number(RECEIVE_BATCHES))?,
            // Each read returns one small packet. With 32 reads, the exit's worker went to sleep after each short send
            // (bench/LOG.md).
            tun_batches: section.or("tun_batches", 128, number(TUN_BATCHES))?,
            congestion: section.or("congestion", Congestion::Adaptive, word(CONGESTION))?,
            repair: section.or("repair", true, auto_or_false)?,
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

impl Transport {
    /// Returns the settings of all connections of a daemon, and those that can change while it runs.
    pub fn tuning(&self) -> Tuning {
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
            // The offload in use is known only once there is a TUN device.
            tun_offload: TunOffload::default(),
            tun_writes: TunWrites::default(),
            workers: self.workers(),
            pin: self.pin,
        }
    }

    /// The optional features of the protocol that this side offers, as a bit set. Repair is left out with noq's
    /// driver, which keeps no datagrams and so cannot send them again.
    pub fn features(&self) -> u64 {
        if self.repair && self.driver == Driver::Warren { NUMBERED } else { 0 }
    }

    /// How many connections a client asks for, or the most that an exit grants one. By default, a client that losses do not slow
    /// down asks for one connection per worker, because a second one would gain nothing.
    pub fn connections(&self) -> u32 {
        self.connections.unwrap_or_else(|| {
            let is_slowed = self.congestion != Congestion::Adaptive || self.features() & NUMBERED == 0;
            u32::from(self.workers()).max(if is_slowed { Self::UNREPAIRED_CONNECTIONS } else { 1 })
        })
    }

    /// How many workers carry a daemon's traffic.
    pub fn workers(&self) -> u8 {
        // Counted once, because the standard library reads the cgroup's files each time.
        static CORES: OnceLock<usize> = OnceLock::new();
        let cores = || CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from));
        self.workers.unwrap_or_else(|| automatic_workers(*cores()))
    }

    /// Applies the settings that differ from `before` to a running daemon. A value that was set by `warren set` stays unless the
    /// file's value has changed.
    pub fn retune(&self, before: &Self, tuning: &Tuning) {
        // All other settings need a restart, because they apply when a connection is created.
        let Tuning { settings, tun_batches, .. } = tuning;
        let caps = &settings.caps;
        // Only settings that were changed in the file are applied, because the others may have been set with `warren set` since.
        if self.max_transmit_segments != before.max_transmit_segments {
            caps.set(self.max_transmit_segments as usize, caps.datagrams());
        }
        if self.max_transmit_datagrams != before.max_transmit_datagrams {
            caps.set(caps.segments(), self.max_transmit_datagrams as usize);
        }
        if self.receive_batches != before.receive_batches {
            settings.receive_batches.set(self.receive_batches as usize);
        }
        if self.tun_batches != before.tun_batches {
            tun_batches.set(self.tun_batches as usize);
        }
        if self.congestion != before.congestion {
            settings.congestion.set(self.congestion);
        }
    }
}

/// The number of workers for a host with this many cores. It is half the number of cores, because the kernel and
/// other programs need as much CPU time as the workers.
fn automatic_workers(cores: usize) -> u8 {
    const MOST: u8 = 8;
    u8::try_from(cores / 2).unwrap_or(MOST).clamp(1, MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transport() -> Transport {
        Transport {
            connections: None,
            max_transmit_segments: 40,
            max_transmit_datagrams: 80,
            receive_batches: 8,
            tun_batches: 128,
            congestion: Congestion::Adaptive,
            repair: true,
            driver: Driver::Warren,
            tun_offload: true,
            udp_gso: true,
            udp_gro: true,
            workers: None,
            pin: false,
        }
    }

    #[test]
    fn workers_follow_the_cores_unless_they_are_said() {
        let workers = [1, 2, 3, 4, 8, 16, 32, 1_000].map(automatic_workers);
        assert_eq!(workers, [1, 1, 1, 2, 4, 8, 8, 8]);
        assert_eq!(Transport { workers: Some(5), ..transport() }.tuning().workers, 5);
    }

    #[test]
    fn each_worker_has_a_connection_and_losses_that_are_not_repaired_are_shared_by_four() {
        let of = |workers| Transport { workers: Some(workers), ..transport() };
        assert_eq!([1, 2, 8].map(|workers| of(workers).connections()), [1, 2, 8]);
        assert_eq!(Transport { connections: Some(3), ..of(8) }.connections(), 3);
        for slowed in [
            Transport { repair: false, ..of(1) },
            Transport { driver: Driver::Noq, ..of(1) },
            Transport { congestion: Congestion::Cubic, ..of(1) },
        ] {
            assert_eq!(slowed.connections(), 4, "{slowed:?}");
        }
        assert_eq!(Transport { repair: false, ..of(8) }.connections(), 8);
    }

    #[test]
    fn running_daemon_takes_what_the_file_changed_and_keeps_what_was_set_by_hand() {
        let (before, tuning) = (transport(), transport().tuning());
        tuning.settings.receive_batches.set(3);
        let after = Transport {
            max_transmit_segments: 10,
            max_transmit_datagrams: 20,
            tun_batches: 5,
            congestion: Congestion::Bbr3,
            ..before
        };
        assert!(before.fixed_changes(&after).is_empty());

        after.retune(&before, &tuning);

        let settings = &tuning.settings;
        assert_eq!((settings.caps.segments(), settings.caps.datagrams()), (10, 20));
        assert_eq!((settings.receive_batches.get(), tuning.tun_batches.get()), (3, 5));
        assert_eq!(settings.congestion.get(), Congestion::Bbr3);
    }

    #[test]
    fn what_connections_are_made_with_takes_a_restart() {
        let before = transport();
        for after in [
            Transport { connections: Some(8), ..transport() },
            Transport { driver: Driver::Noq, ..transport() },
            Transport { tun_offload: false, ..transport() },
            Transport { udp_gso: false, ..transport() },
            Transport { udp_gro: false, ..transport() },
            Transport { workers: Some(2), ..transport() },
            Transport { pin: true, ..transport() },
        ] {
            assert_eq!(before.fixed_changes(&after).len(), 1, "{after:?}");
        }
        assert!(before.fixed_changes(&before).is_empty());
    }
}
