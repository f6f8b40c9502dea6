//! The account of one direction: how many frames were delivered, dropped for each reason, or are still on the way.

use serde::{Deserialize, Serialize};

/// Counts of frames since the start. [`Account::is_balanced`] holds at any moment.
///
/// It has 19 fields because each is one thing that can happen to a frame, and a key of the JSON.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Account {
    /// Frames that the wire read.
    pub(crate) received: u64,
    pub(crate) received_bytes: u64,
    /// Copies that the wire made of frames.
    pub(crate) duplicated: u64,
    /// Frames that the other end received.
    pub(crate) delivered: u64,
    pub(crate) delivered_bytes: u64,
    /// Frames that were dropped at random.
    pub(crate) lost: u64,
    /// Frames that were dropped in the bad state of the burst model.
    pub(crate) lost_in_burst: u64,
    /// Frames that were dropped in a blackout.
    pub(crate) blacked_out: u64,
    /// Frames that were dropped because the packet was larger than the MTU.
    pub(crate) too_large: u64,
    /// Frames that were dropped because the policer's bucket had too few tokens.
    pub(crate) policed: u64,
    /// Frames that were dropped because the rate limiter's queue was full.
    pub(crate) queue_full: u64,
    /// Frames that CoDel dropped, because it could not mark them with ECN.
    pub(crate) codel: u64,
    /// Frames that the device at the other end refused.
    pub(crate) refused: u64,
    /// Frames that are in the rate limiter's queue.
    pub(crate) queued: u64,
    /// Frames that have left the queue and have not arrived yet.
    pub(crate) in_flight: u64,

    // The following frames are also in one of the counts above.
    pub(crate) marked: u64,
    pub(crate) corrupted: u64,
    pub(crate) held_back: u64,
    /// ICMP messages to the senders of frames that were too large. These messages are not in any other count.
    pub(crate) told: u64,
}

impl Account {
    /// Returns the frames that were dropped for any reason.
    pub(crate) fn dropped(&self) -> u64 {
        let by_link = self.lost + self.lost_in_burst + self.blacked_out + self.too_large + self.policed;
        by_link + self.queue_full + self.codel + self.refused
    }

    /// Returns whether every frame is accounted for: delivered, dropped, queued or in flight.
    pub(crate) fn is_balanced(&self) -> bool {
        self.received + self.duplicated == self.delivered + self.dropped() + self.queued + self.in_flight
    }
}
