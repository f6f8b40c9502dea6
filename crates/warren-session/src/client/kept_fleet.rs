//! What a client keeps of the fleet that it follows.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::choice::Lot;
use crate::PublicKey;
use crate::roster::FollowedFleet;

/// A fleet, and the keys that vouched for it. The fleet counts only while the profile pins one of these keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptFleet {
    /// The fleet's name, for people who read the file.
    pub name: String,
    /// The roster's serial, also for people who read the file.
    pub serial: u64,
    /// The fleet's newest roster.
    pub roster: FollowedFleet,
    /// The keys that the profile pinned for the exit that gave the client the fleet's key.
    pub vouched_by: Vec<PublicKey>,
    /// The latest round-trip times in microseconds, keyed by the exits' names.
    #[serde(default)]
    pub round_trips: BTreeMap<String, u32>,
    /// The client's lot. Unset until the client has had an address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lot: Option<Lot>,
}
