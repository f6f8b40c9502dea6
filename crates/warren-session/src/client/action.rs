//! The actions that the client's state machine asks of its driver, and the states and events that go with them.

use std::fmt;
use std::time::Instant;

use super::SessionGrant;
use crate::PublicKey;
use crate::goodbye::Goodbye;
use crate::message::Roster;

/// How a connection ended, if the client did not close it itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectionEnd {
    /// The exit closed the connection with a code of [`Goodbye`]. Before [`super::ClientSession::connected`], nothing proves that
    /// the exit sent the code, so the connection counts as lost.
    Goodbye(Goodbye),
    /// The connection timed out, was reset, failed its handshake, or closed with an unknown code. The text describes the failure.
    /// A wrong exit key and a missing common ALPN are also reported this way, because anybody on the path can forge them. The
    /// client retries.
    Lost(String),
}

/// An action for the caller. Carry out all actions in the order given.
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
    /// Close the connection once everything sent before is delivered. Do not report further events of this connection.
    Close {
        /// The connection's number in the session.
        index: u32,
        /// The reason, whose code is the QUIC application close code.
        reason: Goodbye,
    },
    /// A session is open: configure the host accordingly. Precedes the session's first [`Self::Attach`].
    Welcome(Box<SessionGrant>),
    /// The exit has changed the resolvers or routes of the session: apply the change to the host. The session continues.
    Changed(Box<SessionGrant>),
    /// The exit has announced on this connection which keys it serves, the newest first. It may announce the same keys on other
    /// connections of the session.
    ExitKeys {
        /// The connection's number in the session.
        index: u32,
        /// At least one key, without duplicates.
        keys: Vec<PublicKey>,
    },
    /// The exit has sent its fleet's roster on this connection, or only the load of the fleet's exits. The content is unchecked;
    /// [`FollowedFleet`](crate::roster::FollowedFleet) checks it. Other connections of the session may deliver the same content.
    Roster {
        /// The connection's number in the session.
        index: u32,
        /// The roster and the load of the exits. The roster may be empty.
        roster: Box<Roster>,
    },
    /// The exit is being taken out of service, and asks the client to move to another exit. The session continues until the exit
    /// ends it. This action may come once per connection.
    AskedToLeave,
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
    /// The last connection that carried traffic is lost, or a later attempt has failed. The client keeps trying.
    Down {
        /// A sentence for the user: what happened and what to do.
        reason: String,
        /// The exit's reason, if it gave one, or this side's reason to refuse the exit's answer.
        goodbye: Option<Goodbye>,
    },
    /// The session is over for good.
    Stopped {
        /// Why the session is over.
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

/// The state of a client's session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientState {
    /// The session has not been started.
    Idle,
    /// Started, and no attempt has failed yet.
    Connecting,
    /// Traffic flows.
    Up {
        /// Number of connections that carry traffic, at least 1.
        attached: u32,
    },
    /// No connection carries traffic; the client keeps trying.
    Down {
        /// When the last connection was lost.
        since: Instant,
        /// Why the latest attempt failed.
        reason: String,
    },
    /// Over for good.
    Stopped(Stop),
}
