//! The account of one direction: what happened to every frame.

use serde::{Deserialize, Serialize};

/// Counts of frames since the start. [`Account::is_balanced`] holds at any moment.
///
/// It has 19 fields because each is one thing that can happen to a frame, and a key of the JSON.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Account {
    /// Frames that the wire read.
    pub(crate) received: u64,
    pub(crate) received_bytes: u64,
    /// Copies that the wire made.
    pub(crate) duplicated: u64,
    /// Frames that the other end received.
    pub(crate) delivered: u64,
    pub(crate) delivered_bytes: u64,
    /// Lost at random.
    pub(crate) lost: u64,
    /// Lost in the bad state of the burst model.
    pub(crate) lost_in_burst: u64,
    /// Dropped in a blackout.
    pub(crate) blacked_out: u64,
    /// Dropped because the packet was larger than the MTU.
    pub(crate) too_large: u64,
    /// Dropped because the policer's bucket was empty.
    pub(crate) policed: u64,
    /// Dropped because the queue before the rate was full.
    pub(crate) queue_full: u64,
    /// Dropped by CoDel, because the sender does not use ECN.
    pub(crate) codel: u64,
    /// Refused by the device at the other end.
    pub(crate) refused: u64,
    /// Frames that are waiting for the rate.
    pub(crate) queued: u64,
    /// Frames that are in flight.
    pub(crate) in_flight: u64,

    // The frames of the following counts are also counted above.
    pub(crate) marked: u64,
    pub(crate) corrupted: u64,
    pub(crate) held_back: u64,
    /// Messages to senders of frames that were too large. They are not counted as frames.
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
