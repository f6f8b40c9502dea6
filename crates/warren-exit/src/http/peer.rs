//! Who is at the other end of an HTTP connection.

use std::net::{IpAddr, SocketAddr};

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// The peer's address, and this end's.
    Tcp { remote: SocketAddr, local: SocketAddr },
    /// The user's number, from the kernel.
    Unix { user: Option<u32> },
}

impl Peer {
    /// The address of a TCP peer.
    pub(crate) fn address(self) -> Option<IpAddr> {
        match self {
            Self::Tcp { remote, .. } => Some(remote.ip().to_canonical()),
            Self::Unix { .. } => None,
        }
    }

    /// Returns the user of this host that has the other end. Behind `ssh -L`, that is the user who logged in. `None` if the
    /// kernel cannot tell, for instance because the connection is over.
    pub(crate) fn user(self) -> Option<u32> {
        match self {
            Self::Tcp { remote, local } => warren_host::socket_owner(remote, local).ok().flatten(),
            Self::Unix { user } => user,
        }
    }
}
