//! `FleetNews`: what an exit tells clients of its fleet.

use crate::message::ExitLoad;
use crate::roster::FollowedFleet;

/// The fleet's state that an exit sends to clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetNews {
    /// The fleet with its newest roster. `None` if the exit has no roster.
    pub fleet: Option<FollowedFleet>,
    /// How busy the fleet's exits are.
    pub loads: Vec<ExitLoad>,
}
