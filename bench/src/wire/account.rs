//! What became of every frame of one direction.

use serde::{Deserialize, Serialize};

/// Counts since the start; [`Account::is_balanced`] holds at any moment.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Account {
    /// Frames that came in.
    pub(crate) received: u64,
    pub(crate) received_bytes: u64,
    /// Frames that were made by doubling one.
    pub(crate) duplicated: u64,
    /// Frames that the other end got.
    pub(crate) delivered: u64,
    pub(crate) delivered_bytes: u64,
    /// By random loss.
    pub(crate) lost: u64,
    /// By the bad state of the burst model.
    pub(crate) lost_in_burst: u64,
    /// While nothing passed.
    pub(crate) blacked_out: u64,
    /// Their packet was larger than the MTU.
    pub(crate) too_large: u64,
    /// The queue before the rate was full.
    pub(crate) queue_full: u64,
    /// The device at the other end did not take them.
    pub(crate) refused: u64,
    /// Frames that wait for the rate now.
    pub(crate) queued: u64,
    /// Frames that are under way now.
    pub(crate) in_flight: u64,

    // What happened to frames that are counted above as well.
    pub(crate) marked: u64,
    pub(crate) corrupted: u64,
    pub(crate) held_back: u64,
    /// Messages to the sender of a frame that was too large; they are no frames of any direction.
    pub(crate) told: u64,
}

impl Account {
    /// Frames that are gone, whatever for.
    pub(crate) fn dropped(&self) -> u64 {
        self.lost + self.lost_in_burst + self.blacked_out + self.too_large + self.queue_full + self.refused
    }

    /// Whether what came in and was doubled is what went out, is gone, or is still here.
    pub(crate) fn is_balanced(&self) -> bool {
        self.received + self.duplicated == self.delivered + self.dropped() + self.queued + self.in_flight
    }
}
