//! The program that makes keys of a client's kind, for messages.

use std::fmt;

/// The program that makes keys of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyMaker {
    /// A Warren key.
    Warren,
    /// A WireGuard key.
    WireGuard,
}

impl fmt::Display for KeyMaker {
    /// The command to type.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Warren => "warren keygen",
            Self::WireGuard => "wg genkey",
        })
    }
}
