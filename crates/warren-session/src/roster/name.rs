//! `FleetName`: the name of a fleet.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::error::RosterError;
use crate::clients::is_valid_name;

/// The name of a fleet, of the same characters as a client's name. It never changes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FleetName(String);

impl FleetName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for FleetName {
    type Error = RosterError;

    fn try_from(name: String) -> Result<Self, RosterError> {
        if is_valid_name(&name) { Ok(Self(name)) } else { Err(RosterError::Name { name }) }
    }
}

impl FromStr for FleetName {
    type Err = RosterError;

    fn from_str(name: &str) -> Result<Self, RosterError> {
        Self::try_from(name.to_owned())
    }
}

impl From<FleetName> for String {
    fn from(name: FleetName) -> Self {
        name.0
    }
}

impl fmt::Display for FleetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}
