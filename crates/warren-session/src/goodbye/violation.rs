//! The ways in which a peer can break the control protocol.

use std::fmt;

/// The way in which the other side broke the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Violation {
    /// A message does not decode.
    Malformed,
    /// A message is longer than the limit that applies at this point.
    TooLong,
    /// A message came where it is not allowed.
    OutOfOrder,
    /// A name has characters other than letters, digits, `.`, `_` and `-`, or is longer than 63 characters.
    BadName,
    /// A nonce does not have 16 bytes.
    BadNonce,
    /// A prefix is not a network, or there are too many.
    BadPrefix,
    /// A connection's index is not below the session's number of connections.
    BadIndex,
    /// A `Welcome` cannot be used.
    BadWelcome,
}

impl Violation {
    /// Every violation, each once.
    pub const ALL: [Self; 8] = [
        Self::Malformed,
        Self::TooLong,
        Self::OutOfOrder,
        Self::BadName,
        Self::BadNonce,
        Self::BadPrefix,
        Self::BadIndex,
        Self::BadWelcome,
    ];

    /// The number that is added to the base of violation codes. It is never 0 and never reused.
    pub const fn number(self) -> u32 {
        match self {
            Self::Malformed => 1,
            Self::TooLong => 2,
            Self::OutOfOrder => 3,
            Self::BadName => 4,
            Self::BadNonce => 5,
            Self::BadPrefix => 6,
            Self::BadIndex => 7,
            Self::BadWelcome => 8,
        }
    }

    /// The violation of a number. `None` if this version does not know it.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|violation| violation.number() == number)
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => "a message that does not decode",
            Self::TooLong => "a message that is too long",
            Self::OutOfOrder => "a message out of order",
            Self::BadName => "a name with characters other than letters, digits, dot, dash and underscore",
            Self::BadNonce => "a nonce of the wrong length",
            Self::BadPrefix => "a prefix that is not a network",
            Self::BadIndex => "a connection index out of range",
            Self::BadWelcome => "a welcome that no client can use",
        })
    }
}
