//! The events and datagrams that an endpoint reports.

use std::{fmt, net::SocketAddr, time::Instant};

use bytes::Bytes;

use super::{MAX_DATAGRAMS_PER_POLL, MAX_EVENTS_PER_POLL};
use crate::{key::PublicKey, settings::WorkerPlace};

/// Names a connection, unique within a daemon's lifetime. The worker's number is in the bits from 40 up.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Ord, PartialOrd, Debug)]
pub struct ConnectionId(pub u64);

impl ConnectionId {
    const WORKER_SHIFT: u32 = 40;

    /// Returns the number of the worker whose endpoint has the connection.
    pub fn worker(self) -> usize {
        // The shift leaves 24 bits, which always fit into a `usize`.
        usize::try_from(self.0 >> Self::WORKER_SHIFT).unwrap_or(usize::MAX)
    }

    /// The bit that marks the number of a connection that does not use QUIC. QUIC connections are numbered from zero and never
    /// reach this bit.
    const OTHER_PROTOCOL: u64 = 1 << (Self::WORKER_SHIFT - 1);

    /// Makes the ID of a connection that uses another protocol than QUIC.
    pub fn of_other_protocol(worker: WorkerPlace, number: u64) -> Self {
        Self(Self::floor(worker) | Self::OTHER_PROTOCOL | (number % Self::OTHER_PROTOCOL))
    }

    /// Whether the connection uses another protocol than QUIC.
    pub fn is_of_other_protocol(self) -> bool {
        self.0 & Self::OTHER_PROTOCOL != 0
    }

    /// The lower bound of a worker's connection numbers.
    pub(crate) fn floor(worker: WorkerPlace) -> u64 {
        u64::from(worker.index()) << Self::WORKER_SHIFT
    }
}

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An event of a connection.
///
/// At an exit, a connection's first event is `Connected`. At a client, every connection that
/// [`Endpoint::connect`](crate::driver::Endpoint::connect) returned ends with exactly one `Closed`.
#[derive(Clone, Debug)]
pub enum Event {
    /// The handshake is complete and the peer has proven its key.
    Connected {
        /// The connection.
        connection: ConnectionId,
        /// The peer's key.
        peer: PublicKey,
        /// The peer's UDP address.
        remote: SocketAddr,
        /// At an exit: the key that the exit has proven to the peer, one of its current keys.
        proven: Option<PublicKey>,
    },
    /// Bytes of the control stream, in order. Chunk boundaries have no meaning.
    Control {
        /// The connection.
        connection: ConnectionId,
        /// The bytes.
        data: Bytes,
    },
    /// A connection that was [`SendError::Blocked`](super::SendError::Blocked) accepts datagrams again.
    Writable {
        /// The connection.
        connection: ConnectionId,
    },
    /// The peer stopped answering, or answers again. Only with [`Driver::Warren`](crate::settings::Driver::Warren).
    Answers {
        /// The connection.
        connection: ConnectionId,
        /// Whether the peer answers.
        answers: bool,
    },
    /// The connection is over. All its datagrams and control bytes were delivered before.
    Closed {
        /// The connection.
        connection: ConnectionId,
        /// Why the connection ended.
        reason: CloseReason,
    },
}

/// Why a connection ended. Its text is a sentence for the user.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum CloseReason {
    /// This side closed the connection.
    Local,
    /// The peer's application closed the connection.
    Peer {
        /// The application's code.
        code: u64,
        /// The application's reason phrase.
        reason: String,
    },
    /// The peer was silent for the idle timeout.
    TimedOut,
    /// The peer sent a stateless reset, because it no longer knows the connection.
    Reset,
    /// The peer presented a key that is not pinned.
    WrongPeerKey {
        /// The presented key.
        presented: PublicKey,
    },
    /// The peer does not speak this protocol (ALPN).
    NoCommonProtocol,
    /// The transport failed, as the text describes.
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
                write!(f, "the peer has a different key than expected: it showed {presented}")
            }
            Self::NoCommonProtocol => f.write_str("the peer does not speak Warren's protocol"),
            Self::Transport(what) => write!(f, "the connection failed: {what}"),
        }
    }
}

/// A kept datagram whose packet was lost.
#[derive(Clone, Debug)]
pub struct LostDatagram {
    /// The datagram, byte for byte.
    pub data: Bytes,
    /// The context that was passed to [`Endpoint::send_datagram_kept`](crate::driver::Endpoint::send_datagram_kept) with the
    /// datagram.
    pub context: u64,
    /// When the datagram was sent.
    pub sent: Instant,
}

/// The results of a poll. The caller clears the inbox, or takes its content, before the next poll.
#[derive(Debug, Default)]
pub struct Inbox {
    /// Events, in order per connection.
    pub events: Vec<Event>,
    /// Received datagrams, in order of arrival per connection.
    pub datagrams: Vec<(ConnectionId, Bytes)>,
    /// Kept datagrams that were lost, in the order in which each connection noticed it.
    pub lost: Vec<(ConnectionId, LostDatagram)>,
}

impl Inbox {
    /// Makes an inbox with room for one poll.
    pub fn new() -> Self {
        Self {
            events: Vec::with_capacity(MAX_EVENTS_PER_POLL),
            datagrams: Vec::with_capacity(MAX_DATAGRAMS_PER_POLL),
            // Many connections never lose a kept datagram.
            lost: Vec::new(),
        }
    }

    /// Whether the inbox is empty.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty() && self.datagrams.is_empty() && self.lost.is_empty()
    }

    /// Empties the inbox, and keeps its memory.
    pub fn clear(&mut self) {
        self.events.clear();
        self.datagrams.clear();
        self.lost.clear();
    }
}
