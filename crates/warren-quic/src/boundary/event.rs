//! What an endpoint tells: whose, what happened, and what arrived.

use std::{fmt, net::SocketAddr};

use bytes::Bytes;

use super::{MAX_DATAGRAMS_PER_POLL, MAX_EVENTS_PER_POLL};
use crate::{key::PublicKey, settings::WorkerPlace};

/// Names a connection; never used again within a daemon. The number of its worker stands above bit 40.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Ord, PartialOrd, Debug)]
pub struct ConnectionId(pub u64);

impl ConnectionId {
    const WORKER_SHIFT: u32 = 40;

    /// Returns the number of the worker whose endpoint it is on.
    pub fn worker(self) -> usize {
        usize::try_from(self.0 >> Self::WORKER_SHIFT).unwrap_or(usize::MAX)
    }

    /// The number below every number that a worker gives.
    pub(crate) fn floor(worker: WorkerPlace) -> u64 {
        u64::from(worker.index()) << Self::WORKER_SHIFT
    }
}

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What happened to a connection.
///
/// At an exit a connection is first heard of when it is `Connected`; at a client every connection that
/// [`Endpoint::connect`](crate::driver::Endpoint::connect) returned ends with exactly one `Closed`.
#[derive(Clone, Debug)]
pub enum Event {
    /// The handshake is done and the peer's key proven.
    Connected {
        /// The connection.
        connection: ConnectionId,
        /// The peer's key.
        peer: PublicKey,
        /// The peer's UDP address.
        remote: SocketAddr,
    },
    /// Bytes of the control stream, in order; where they are cut means nothing.
    Control {
        /// The connection.
        connection: ConnectionId,
        /// The bytes.
        data: Bytes,
    },
    /// A connection that was [`SendError::Blocked`](super::SendError::Blocked) takes datagrams again.
    Writable {
        /// The connection.
        connection: ConnectionId,
    },
    /// Nothing of what the connection sends is answered any more, or it is again. Only with [`Driver::Warren`](crate::settings::Driver::Warren).
    Answers {
        /// The connection.
        connection: ConnectionId,
        /// Whether the peer answers.
        answers: bool,
    },
    /// The connection is over; all its datagrams and control bytes were handed over before.
    Closed {
        /// The connection.
        connection: ConnectionId,
        /// Why.
        reason: CloseReason,
    },
}

/// Why a connection ended; its text is a sentence for the user.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum CloseReason {
    /// This side closed it.
    Local,
    /// The peer's application closed it.
    Peer {
        /// The application's code.
        code: u64,
        /// The application's words.
        reason: String,
    },
    /// Nothing came from the peer for the idle timeout.
    TimedOut,
    /// The peer no longer knows the connection.
    Reset,
    /// The peer showed another key than the pinned ones.
    WrongPeerKey {
        /// The key it showed.
        presented: PublicKey,
    },
    /// The peer does not speak this protocol (ALPN).
    NoCommonProtocol,
    /// The transport failed; the text says how.
    Transport(String),
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => f.write_str("the connection was closed on this side"),
            Self::Peer { code, reason } if reason.is_empty() => {
                write!(f, "the peer closed the connection (code {code})")
            }
            Self::Peer { code, reason } => {
                write!(f, "the peer closed the connection (code {code}): {reason}")
            }
            Self::TimedOut => f.write_str("the peer no longer answers"),
            Self::Reset => f.write_str("the peer no longer knows the connection; it was probably restarted"),
            Self::WrongPeerKey { presented } => {
                write!(f, "the peer has another key than expected: it showed {presented}")
            }
            Self::NoCommonProtocol => f.write_str("the peer does not speak Warren's protocol"),
            Self::Transport(what) => write!(f, "the connection failed: {what}"),
        }
    }
}

/// What a poll brought. The caller clears it, or takes its content, before the next poll.
#[derive(Debug, Default)]
pub struct Inbox {
    /// What happened, in order for each connection.
    pub events: Vec<Event>,
    /// Datagrams received, in the order of arrival for each connection.
    pub datagrams: Vec<(ConnectionId, Bytes)>,
}

impl Inbox {
    /// Makes an inbox with room for one poll.
    pub fn new() -> Self {
        Self {
            events: Vec::with_capacity(MAX_EVENTS_PER_POLL),
            datagrams: Vec::with_capacity(MAX_DATAGRAMS_PER_POLL),
        }
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty() && self.datagrams.is_empty()
    }

    /// Empties it and keeps its memory.
    pub fn clear(&mut self) {
        self.events.clear();
        self.datagrams.clear();
    }
}
