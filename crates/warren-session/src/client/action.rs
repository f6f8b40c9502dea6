//! What the client's state machine asks its driver to do, and what it is told.

use std::fmt;
use std::time::Instant;

use super::SessionGrant;
use crate::goodbye::Goodbye;

/// How a connection ended that the client did not close itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectionEnd {
    /// The exit closed it with one of the codes of [`Goodbye`]. Before [`super::ClientSession::connected`] nothing has proven
    /// that it was the exit, and the connection counts as lost.
    Goodbye(Goodbye),
    /// It timed out, was reset, its handshake failed (a wrong exit key and no common ALPN included, which anybody on the path can
    /// forge), or its close code is none of ours; with a sentence. Tried again.
    Lost(String),
}

/// One thing to do, in the order given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientAction {
    /// Begin to connect to the exit.
    Connect {
        /// The connection's number in the session.
        index: u32,
    },
    /// Send bytes on the connection's control stream.
    Send {
        /// The connection's number in the session.
        index: u32,
        /// An encoded message.
        bytes: Vec<u8>,
    },
    /// Close the connection, after what was sent before, and report nothing more of it.
    Close {
        /// The connection's number in the session.
        index: u32,
        /// Its code is the QUIC application close code.
        reason: Goodbye,
    },
    /// A session is open: bring the host to what it says. Comes before the first [`Self::Attach`] of the session.
    Welcome(Box<SessionGrant>),
    /// Traffic may flow on the connection.
    Attach {
        /// The connection's number in the session.
        index: u32,
    },
    /// Traffic may no longer flow on the connection.
    Detach {
        /// The connection's number in the session.
        index: u32,
    },
    /// No connection carries traffic, or yet another attempt failed while none does; the client keeps trying.
    Down {
        /// What happened and what to do, a sentence.
        reason: String,
        /// The exit's reason, if it gave one, or this side's to refuse what the exit answered.
        goodbye: Option<Goodbye>,
    },
    /// The session is over for good.
    Stopped {
        /// Why.
        reason: Stop,
    },
}

/// Why a client's session is over for good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// [`super::ClientSession::stop`] was called.
    Requested,
    /// The exit's answer is final.
    Goodbye(Goodbye),
}

/// The sentence for the user.
impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Requested => f.write_str("the client was told to stop"),
            Self::Goodbye(reason) => reason.fmt(f),
        }
    }
}

/// Where a client's session stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientState {
    /// Not started.
    Idle,
    /// Started, and no attempt has failed yet.
    Connecting,
    /// Traffic flows.
    Up {
        /// Number of connections that carry it, at least 1.
        attached: u32,
    },
    /// No connection carries traffic; the client keeps trying.
    Down {
        /// Since when.
        since: Instant,
        /// Why the latest attempt failed.
        reason: String,
    },
    /// Over for good.
    Stopped(Stop),
}
