//! What an exit of a fleet remembers besides its sessions.

use std::collections::BTreeMap;
use std::time::Instant;

use super::SessionId;

/// What applies only to an exit of a fleet.
#[derive(Debug, Default)]
pub(super) struct FleetRules {
    /// Sessions whose clients have moved to another exit, and when they end.
    pub(super) leaving: BTreeMap<SessionId, Instant>,
    /// Whether this host's clock differs so much from the fleet's that no invitation may be redeemed here.
    pub(super) is_clock_wrong: bool,
}
