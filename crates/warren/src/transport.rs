//! From configuration to transport settings, one place for both roles.

use warren_quic::settings::{ReceiveBatches, TransmitCaps, TransportSettings};

use crate::config::Transport;
use crate::tuning::{TunBatches, TunOffload, Tuning};

/// What of `[transport]` a running daemon cannot change, for people.
pub(crate) const TAKES_RESTART: &str = "connections, workers, pin, driver or an offload in [transport]";

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
            workers: self.workers(),
            pin: self.pin,
        }
    }

    /// How many workers carry a daemon's traffic.
    pub(crate) fn workers(&self) -> u8 {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        self.workers.unwrap_or_else(|| automatic_workers(cores()))
    }

    /// Whether a running daemon can go over to other settings.
    pub(crate) fn can_become(&self, other: &Self) -> bool {
        let retuned = Self {
            max_transmit_segments: other.max_transmit_segments,
            max_transmit_datagrams: other.max_transmit_datagrams,
            receive_batches: other.receive_batches,
            tun_batches: other.tun_batches,
            congestion: other.congestion,
            ..self.clone()
        };
        retuned == *other
    }

    /// Gives a running daemon what differs from `before`; what `warren set` changed and the file did not stays.
    pub(crate) fn retune(&self, before: &Self, tuning: &Tuning) {
        let Tuning { settings, tun_batches, .. } = tuning;
        let caps = &settings.caps;
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

/// How many workers a host with so many cores gets: half as many, since as much time again goes to the kernel's share of a
/// packet's way and to programs.
fn automatic_workers(cores: usize) -> u8 {
    const MOST: u8 = 8;
    u8::try_from(cores / 2).unwrap_or(MOST).clamp(1, MOST)
}

#[cfg(test)]
mod tests {
    use warren_quic::settings::{Congestion, Driver};

    use super::*;

    fn transport() -> Transport {
        Transport {
            connections: 4,
            max_transmit_segments: 40,
            max_transmit_datagrams: 80,
            receive_batches: 8,
            tun_batches: 128,
            congestion: Congestion::Cubic,
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
        assert!(before.can_become(&after));

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
            Transport { connections: 8, ..transport() },
            Transport { driver: Driver::Noq, ..transport() },
            Transport { tun_offload: false, ..transport() },
            Transport { udp_gso: false, ..transport() },
            Transport { udp_gro: false, ..transport() },
            Transport { workers: Some(2), ..transport() },
            Transport { pin: true, ..transport() },
        ] {
            assert!(!before.can_become(&after), "{after:?}");
        }
        assert!(before.can_become(&before));
    }
}
