//! The roster of a fleet: which exits belong to it, where they are, and which keys clients accept for them.
//!
//! An operator signs the roster with the *fleet key*, which is stored on no exit. Exits send the signed roster to clients, and
//! cannot change it: [`SignedRoster`] exists only with a valid signature. Each roster has a higher serial than the previous one. A
//! client or an exit keeps its knowledge of a fleet in [`FollowedFleet`]. A `FollowedFleet` accepts only a newer roster whose
//! signer is the known fleet key, or a key to which the known key was handed over.
//!
//! A roster does not expire. With an expiry, the offline key would be needed on fixed days, and after one missed day, all clients
//! would refuse the fleet's exits. The disadvantage is that an exit can withhold a newer roster from clients that use no other
//! exit.

mod change;
mod content;
mod endpoint;
mod error;
mod followed;
mod handover;
mod key;
mod name;
mod refusal;
mod signed;
#[cfg(test)]
mod tests;
pub(crate) mod wire;

pub use self::change::{RosterChange, begin, change, rotate};
pub use self::content::{ExitState, Roster, RosterExit};
pub use self::endpoint::RosterEndpoint;
pub use self::error::{ChangeError, RosterError};
pub use self::followed::{FollowedFleet, RosterNews};
pub use self::handover::Handover;
pub use self::key::{FleetKey, FleetKeyError, FleetPublicKey};
pub use self::name::FleetName;
pub use self::refusal::RosterRefusal;
pub use self::signed::SignedRoster;

/// Maximum number of exits of a roster.
pub const MAX_ROSTER_EXITS: usize = 64;

/// Maximum number of endpoints of an exit.
pub const MAX_ROSTER_ENDPOINTS: usize = 8;

/// Maximum size of a signed roster in bytes.
pub const MAX_ROSTER_LENGTH: usize = 16 * 1_024;

/// Largest weight of an exit.
pub const MAX_WEIGHT: u32 = 1_000;

/// Maximum number of changes of the fleet key that one roster proves. Clients that have missed more changes cannot follow.
pub const MAX_HANDOVERS: usize = 4;

/// Longest name of a region in bytes.
const MAX_REGION_LENGTH: usize = 32;
