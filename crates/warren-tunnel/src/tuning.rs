//! The transport settings that can change while a daemon runs, and the bounds of each.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering::Relaxed};

use warren_packet::coalesce::Merge;
use warren_quic::settings::TransportSettings;

/// UDP payloads in one GSO send.
pub const SEGMENTS: RangeInclusive<u32> = 1..=128;
/// Datagrams in one drive.
pub const DATAGRAMS: RangeInclusive<u32> = 1..=1024;
/// Receives that are processed at once.
pub const RECEIVE_BATCHES: RangeInclusive<u32> = 1..=32;
/// Reads of the TUN in one turn.
pub const TUN_BATCHES: RangeInclusive<u32> = 1..=256;

/// A daemon's transport settings. Most of them can change while it runs. Clones share those with the workers and their connections.
#[derive(Clone, Debug)]
pub struct Tuning {
    /// The settings of the QUIC connections.
    pub settings: TransportSettings,
    /// The most reads of the TUN in one turn.
    pub tun_batches: TunBatches,
    /// The super-packets that the TUN accepts.
    pub tun_offload: TunOffload,
    /// How packets go to the TUN.
    pub tun_writes: TunWrites,
    /// How many workers there are, each with a queue of the TUN device. This and `pin` are fixed for the daemon's life.
    pub workers: u8,
    /// Whether each worker is pinned to a core.
    pub pin: bool,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            settings: TransportSettings::default(),
            tun_batches: TunBatches::new(128),
            tun_offload: TunOffload::default(),
            tun_writes: TunWrites::default(),
            workers: 1,
            pin: false,
        }
    }
}

/// The most reads of the TUN in one turn. Clones share it.
#[derive(Clone, Debug)]
pub struct TunBatches(Arc<AtomicUsize>);

impl TunBatches {
    /// Creates a limit of this many reads.
    pub fn new(reads: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(reads)))
    }

    /// Returns the present limit.
    pub fn get(&self) -> usize {
        // A worker may see a change one turn later, which does no harm.
        self.0.load(Relaxed)
    }

    /// Changes the limit for all clones.
    pub fn set(&self, reads: usize) {
        self.0.store(reads, Relaxed);
    }
}

/// The super-packets that the TUN device accepts. Known once there is a device. If the device refuses a kind, that kind is
/// removed. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct TunOffload(Arc<AtomicU8>);

impl TunOffload {
    const KNOWN: u8 = 1;
    const TCP: u8 = 2;
    const UDP: u8 = 4;

    /// Records the super-packets that a new device accepts, unless a device was recorded before.
    pub fn found(&self, takes: Merge) {
        // If another worker was first, its record stays, because the device may have refused something since.
        let _ = self.0.compare_exchange(0, Self::bits(takes), Relaxed, Relaxed);
    }

    /// Records that the device accepts no more than these super-packets. Returns whether this is new.
    pub fn restrict(&self, takes: Merge) -> bool {
        // A bitwise AND never adds a kind, so two workers that restrict at the same time lose neither restriction.
        let before = self.0.fetch_and(Self::bits(takes), Relaxed);
        before & !Self::bits(takes) != 0
    }

    /// The offloads in force, once there is a device.
    pub fn in_force(&self) -> Option<&'static str> {
        let bits = self.0.load(Relaxed);
        let word = match (bits & Self::TCP != 0, bits & Self::UDP != 0) {
            (true, true) => "tcp and udp",
            (true, false) => "tcp",
            (false, true) => "udp",
            (false, false) => "off",
        };
        (bits != 0).then_some(word)
    }

    fn bits(takes: Merge) -> u8 {
        Self::KNOWN | if takes.tcp { Self::TCP } else { 0 } | if takes.udp { Self::UDP } else { 0 }
    }
}

/// Whether the packets of a batch go to the TUN in one system call. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct TunWrites(Arc<AtomicBool>);

impl TunWrites {
    /// Records whether the workers have rings that work.
    pub(crate) fn found(&self, rings: bool) {
        self.0.store(rings, Relaxed);
    }

    /// The system call in use.
    pub fn in_force(&self) -> &'static str {
        if self.0.load(Relaxed) { "io_uring" } else { "writev" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offload_that_was_refused_is_news_once_and_stays_off() {
        let offload = TunOffload::default();
        assert_eq!(offload.in_force(), None);
        offload.found(Merge::ALL);
        assert_eq!(offload.in_force(), Some("tcp and udp"));
        assert!(offload.restrict(Merge { tcp: true, udp: false }));
        assert!(!offload.restrict(Merge { tcp: true, udp: false }));
        offload.found(Merge::ALL);
        assert_eq!(offload.in_force(), Some("tcp"));
        assert!(offload.restrict(Merge::NOTHING));
        assert_eq!(offload.in_force(), Some("off"));
    }

    #[test]
    fn receive_batches_are_bounded_as_the_socket_layer_bounds_them() {
        assert_eq!(*RECEIVE_BATCHES.end() as usize, warren_quic::settings::ReceiveBatches::MAX);
    }
}
