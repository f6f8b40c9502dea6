//! Settings that can change while connections run. Clones share them.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicUsize, Ordering::Relaxed},
    },
};

use super::Congestion;

/// The two caps on sending. They can change while connections run. Clones share them.
#[derive(Clone)]
pub struct TransmitCaps(Arc<noq_proto::TransmitCaps>);

impl TransmitCaps {
    /// Makes caps that share nothing with others. 0 counts as 1.
    pub fn new(segments: usize, datagrams: usize) -> Self {
        let caps = Self(Arc::default());
        caps.set(segments, datagrams);
        caps
    }

    /// Changes both caps for every connection that shares them. 0 counts as 1.
    pub fn set(&self, segments: usize, datagrams: usize) {
        self.0.set(segments, datagrams);
    }

    /// Returns the maximum number of UDP datagrams per send. The kernel's own limits (64, and 65,507 bytes) also apply.
    pub fn segments(&self) -> usize {
        self.0.segments().get()
    }

    /// Returns the number of UDP datagrams after which a drive yields.
    pub fn datagrams(&self) -> usize {
        self.0.datagrams().get()
    }

    pub(crate) fn shared(&self) -> Arc<noq_proto::TransmitCaps> {
        self.0.clone()
    }
}

impl Default for TransmitCaps {
    /// 40 segments and 80 datagrams, measured as best in noq PR #636. With Warren, 44 and 88 or 45 and 90 brought no gain
    /// (bench/LOG.md).
    fn default() -> Self {
        Self::new(40, 80)
    }
}

impl fmt::Debug for TransmitCaps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TransmitCaps({}, {})", self.segments(), self.datagrams())
    }
}

/// Maximum number of batches received before they are processed. A batch is up to 64 datagrams of one sender, merged by GRO. The
/// limit can change while connections run. Clones share it.
#[derive(Clone, Debug)]
pub struct ReceiveBatches(Arc<AtomicUsize>);

impl ReceiveBatches {
    /// Maximum number of batches of one system call.
    // `BATCH_SIZE` of noq-udp.
    pub const MAX: usize = 32;

    /// Makes a limit that shares nothing with others, clamped to 1 to [`Self::MAX`].
    pub fn new(batches: usize) -> Self {
        let this = Self(Arc::default());
        this.set(batches);
        this
    }

    /// Changes the bound for every connection that shares it. It is clamped to 1 to [`Self::MAX`].
    pub fn set(&self, batches: usize) {
        self.0.store(batches.clamp(1, Self::MAX), Relaxed);
    }

    /// Returns the bound.
    pub fn get(&self) -> usize {
        self.0.load(Relaxed)
    }
}

impl Default for ReceiveBatches {
    /// 8 batches, which are about 360 full datagrams in half a MiB of buffers.
    fn default() -> Self {
        Self::new(8)
    }
}

/// The choice of a congestion controller, which can change while connections run. Clones share it.
#[derive(Clone, Debug)]
pub struct CongestionChoice(Arc<AtomicU8>);

impl CongestionChoice {
    /// Changes the controller of every connection that shares the choice. Each restarts from its initial window.
    pub fn set(&self, congestion: Congestion) {
        self.0.store(congestion as u8, Relaxed);
    }

    /// Returns the chosen controller.
    pub fn get(&self) -> Congestion {
        let chosen = self.0.load(Relaxed);
        // Only `set` and `from` write the number, so it is always the number of a controller.
        Congestion::ALL.into_iter().find(|known| *known as u8 == chosen).unwrap_or_default()
    }
}

impl From<Congestion> for CongestionChoice {
    fn from(congestion: Congestion) -> Self {
        Self(Arc::new(AtomicU8::new(congestion as u8)))
    }
}

impl Default for CongestionChoice {
    fn default() -> Self {
        Congestion::default().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::TransportSettings;

    #[test]
    fn caps_are_shared_by_clones_and_never_zero() {
        let settings = TransportSettings::default();
        let clone = settings.caps.clone();
        clone.set(0, 0);
        assert_eq!((settings.caps.segments(), settings.caps.datagrams()), (1, 1));
    }

    #[test]
    fn receive_batches_are_shared_by_clones_and_stay_within_bounds() {
        let batches = ReceiveBatches::default();
        let clone = batches.clone();
        clone.set(0);
        assert_eq!(batches.get(), 1);
        assert_eq!(ReceiveBatches::new(1_000).get(), ReceiveBatches::MAX);
    }

    #[test]
    fn congestion_choice_is_shared_by_clones() {
        let settings = TransportSettings::default();
        for congestion in Congestion::ALL {
            settings.clone().congestion.set(congestion);
            assert_eq!(settings.congestion.get(), congestion);
        }
    }
}
