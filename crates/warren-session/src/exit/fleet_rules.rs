//! What an exit of a fleet remembers besides its sessions.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::SessionId;
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
    /// How often a client could not keep its session, because it had kept sessions too often shortly before.
    pub(super) stays_refused: u64,
}

/// How long a client's stays count.
pub(super) const STAYS_TIME: Duration = Duration::from_secs(30);

/// How often a client may stay within [`STAYS_TIME`]. Each stay costs the store a write. A client whose moves all fail stays at
/// most once every five seconds.
pub(super) const MAX_STAYS: u32 = 8;

/// Whether a client may stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stay {
    /// The client may stay. Its stays count from now on: [`FleetRules::forget_stays`] is due after [`STAYS_TIME`].
    First,
    /// The client may stay.
    Another,
    /// The client has stayed too often.
    TooMany,
}

impl FleetRules {
    /// Counts that a client stays.
    pub(super) fn stay(&mut self, key: PublicKey) -> Stay {
        let count = self.stays.entry(key).or_default();
        *count += 1;
        match *count {
            1 => Stay::First,
            2..=MAX_STAYS => Stay::Another,
            _ => {
                *count = MAX_STAYS;
                self.stays_refused += 1;
                Stay::TooMany
            }
        }
    }

    /// Forgets the client's stays.
    pub(super) fn forget_stays(&mut self, key: PublicKey) {
        self.stays.remove(&key);
    }
}
