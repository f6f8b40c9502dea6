//! What an exit of a fleet remembers besides its sessions.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{Deadline, Deadlines, SessionId};
use crate::PublicKey;

/// The state that only an exit of a fleet has.
#[derive(Debug, Default)]
pub(super) struct FleetRules {
    /// Sessions whose clients have moved to another exit, and when they end.
    pub(super) leaving: BTreeMap<SessionId, Instant>,
    /// Whether this host's clock differs so much from the fleet's that no invitation may be redeemed here.
    pub(super) is_clock_wrong: bool,
    /// How often each client has kept a session within the latest [`STAYS_TIME`].
    stays: BTreeMap<PublicKey, u32>,
    /// How many times a client was not allowed to keep its session, because it had kept sessions too often shortly before.
    pub(super) stays_refused: u64,
}

/// How long the exit remembers that a client has kept a session.
const STAYS_TIME: Duration = Duration::from_secs(30);

/// How often a client may keep a session within [`STAYS_TIME`]. Each time costs the store a write. A client whose moves all fail
/// keeps its session at most once every five seconds.
const MAX_STAYS: u32 = 8;

impl FleetRules {
    /// Returns whether a client may keep its session once more, and counts the attempt.
    pub(super) fn may_stay(&mut self, deadlines: &mut Deadlines, now: Instant, key: PublicKey) -> bool {
        let count = self.stays.entry(key).or_default();
        if *count == MAX_STAYS {
            self.stays_refused += 1;
            return false;
        }
        *count += 1;
        if *count == 1 {
            // The first attempt starts the timer after which all attempts are forgotten.
            deadlines.add(now + STAYS_TIME, Deadline::Stays(key));
        }
        true
    }

    /// Forgets how often the client has kept a session.
    pub(super) fn forget_stays(&mut self, key: PublicKey) {
        self.stays.remove(&key);
    }
}
