//! The other end of an HTTP connection.

use std::net::{IpAddr, SocketAddr};

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// TCP: the peer's address, and the address of this end.
    Tcp { remote: SocketAddr, local: SocketAddr },
    /// A Unix socket: the number of the peer's user, from the kernel.
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

    /// Returns the local user who owns the other end. Behind `ssh -L`, that is the user who logged in. `None` if the kernel cannot
    /// tell, for instance because the connection is over.
    pub(crate) fn user(self) -> Option<u32> {
        match self {
            Self::Tcp { remote, local } => warren_host::socket_owner(remote, local).ok().flatten(),
            Self::Unix { user } => user,
        }
    }
}
