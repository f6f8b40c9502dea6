//! Why a roster from a peer or a file is not accepted.

use thiserror::Error;

use super::error::RosterError;
use super::key::FleetPublicKey;
use super::name::FleetName;

/// Why a roster is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RosterRefusal {
    /// The bytes are not a roster.
    #[error("it is not a valid roster: {0}")]
    Invalid(#[from] RosterError),
    /// The roster is another fleet's.
    #[error("it is a roster of the fleet {offered}, not of {followed}")]
    OtherFleet {
        /// The fleet that is followed.
        followed: FleetName,
        /// The roster's fleet.
        offered: FleetName,
    },
    /// Neither the fleet's key has signed the roster, nor a key to which the fleet was handed over.
    #[error("the key {signer} has signed it, but the fleet's key is {key}")]
    OtherSigner {
        /// The fleet's key.
        key: FleetPublicKey,
        /// The roster's signer.
        signer: FleetPublicKey,
    },
    /// The roster is older than the newest known one.
    #[error("its serial is {offered}, but {newest} is known already")]
    Older {
        /// The newest serial that is known.
        newest: u64,
        /// The roster's serial.
        offered: u64,
    },
    /// Two rosters have the same serial. Either somebody who should not have the fleet key signs with it, or somebody has changed
    /// and signed an old copy.
    #[error(
        "it has the same serial as another roster, {serial}, but differs from it; sign the next one with a higher serial"
    )]
    Conflicting {
        /// The serial.
        serial: u64,
    },
}
