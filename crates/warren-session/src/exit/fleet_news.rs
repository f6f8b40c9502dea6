//! `FleetNews`: what an exit tells clients of its fleet.

use crate::message::ExitLoad;
use crate::roster::FollowedFleet;

/// What an exit tells clients of its fleet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetNews {
    /// The fleet with its newest roster. `None` if the exit knows of none.
    pub fleet: Option<FollowedFleet>,
    /// How busy the fleet's exits are.
    pub loads: Vec<ExitLoad>,
}
