//! The owner of an address on the client's side.

use std::fmt;

/// Who already uses an address, as seen from the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressOwner {
    /// This host, on a device other than the tunnel's.
    Host,
    /// A gateway of this host's routes.
    Gateway,
    /// The exit, outside the tunnel.
    Exit,
    /// Another exit of the profile. This exit's network may use the address for something else.
    KnownExit,
    /// A resolver that this host asks outside the tunnel. The resolver may belong to another tunnel, and its address may be the
    /// inner address that exits usually have.
    Resolver,
}

impl AddressOwner {
    /// Whether the exit's inner address must also differ from an address of this owner.
    pub(super) fn is_beside_the_exit(self) -> bool {
        matches!(self, Self::Host | Self::Gateway | Self::Exit)
    }
}

impl fmt::Display for AddressOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "an address of this host already",
            Self::Gateway => "the address of this host's gateway",
            Self::Exit => "the exit's address outside the tunnel",
            Self::KnownExit => "the address of an exit of the profile",
            Self::Resolver => "the address of this host's resolver",
        })
    }
}
