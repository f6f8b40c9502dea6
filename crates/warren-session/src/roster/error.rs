//! Errors of a roster, and of a change to a roster.

use thiserror::Error;

use super::key::FleetPublicKey;
use super::{MAX_HANDOVERS, MAX_ROSTER_ENDPOINTS, MAX_ROSTER_EXITS, MAX_ROSTER_LENGTH, MAX_WEIGHT};

/// Why some bytes are not a roster, or a roster cannot be signed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RosterError {
    /// The bytes are not an encoded roster.
    #[error("it does not decode")]
    Malformed,
    /// The bytes are a roster, but not in this version's encoding.
    #[error("it is not encoded as a roster of this version")]
    NotCanonical,
    /// The roster is too long.
    #[error("it has {length} bytes, but may have {MAX_ROSTER_LENGTH}")]
    TooLong {
        /// The roster's length in bytes.
        length: usize,
    },
    /// The signature is not the signer's.
    #[error("its signature is not that of the key {signer}")]
    Signature {
        /// The key that the roster names as its signer.
        signer: FleetPublicKey,
    },
    /// The signer is not a key.
    #[error("it names no signer")]
    Signer,
    /// The name of a fleet or of an exit is invalid.
    #[error("{name:?} is not a name: use up to 63 lower-case letters, digits, `-`, `_` and `.`")]
    Name {
        /// The name.
        name: String,
    },
    /// An endpoint is invalid.
    #[error(
        "{endpoint:?} is not an endpoint: write HOST:PORT in lower case, such as \"ams2.example.net:443\" or \"[2001:db8::1]:443\""
    )]
    Endpoint {
        /// The endpoint.
        endpoint: String,
    },
    /// A number or a list is out of its bounds.
    #[error("{what} is out of range")]
    OutOfRange {
        /// The field.
        what: &'static str,
    },
    /// A region is too long or has characters that cannot be shown.
    #[error("the region of {exit:?} must be up to 32 printable ASCII characters")]
    Region {
        /// The exit.
        exit: String,
    },
    /// A name, key or endpoint occurs twice.
    #[error("{what} {value:?} occurs twice")]
    Twice {
        /// The name, key or endpoint that occurs twice.
        what: &'static str,
        /// The value as text.
        value: String,
    },
    /// There are too many exits.
    #[error("it has {count} exits, but may have {MAX_ROSTER_EXITS}")]
    TooManyExits {
        /// The number of exits.
        count: usize,
    },
    /// An exit has no endpoint, or too many.
    #[error("{exit:?} has {count} endpoints, but must have 1 to {MAX_ROSTER_ENDPOINTS}")]
    Endpoints {
        /// The exit.
        exit: String,
        /// The number of its endpoints.
        count: usize,
    },
    /// An exit has no key, an invalid one, or too many.
    #[error("{exit:?} must have one or two keys, each as `warren pubkey` prints it")]
    Keys {
        /// The exit.
        exit: String,
    },
    /// A weight is out of its bounds.
    #[error("the weight of {exit:?} is {weight}, but must be 1 to {MAX_WEIGHT}")]
    Weight {
        /// The exit.
        exit: String,
        /// The weight.
        weight: u32,
    },
    /// The changes of the fleet key do not form a chain that contains the signer.
    #[error(
        "its changes of the fleet key are not a chain of up to {MAX_HANDOVERS} signed ones that contains the signer"
    )]
    Handovers,
}

/// Why a roster cannot be changed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ChangeError {
    /// The key is not the one that has signed the roster.
    #[error("the roster is signed by the key {signer}, and this is the key {key}: take the right fleet.key")]
    OtherKey {
        /// The roster's signer.
        signer: FleetPublicKey,
        /// The key that was given.
        key: FleetPublicKey,
    },
    /// The roster has no exit of this name.
    #[error("the roster has no exit {name:?}")]
    NoExit {
        /// The name.
        name: String,
    },
    /// The fleet key has been used before.
    #[error("the new fleet key must be one that the fleet has never had: make one")]
    UsedKey,
    /// The key is an exit's. Whoever controls that exit could admit other exits.
    #[error(
        "the fleet key is the key of the exit {exit}, which must never sign a roster; name the file of the fleet key"
    )]
    ExitKey {
        /// The exit's name.
        exit: String,
    },
    /// The result would not be a valid roster.
    #[error("the roster would be invalid: {0}")]
    Invalid(#[from] RosterError),
}
