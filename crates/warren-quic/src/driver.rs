//! The boundary between the packet path and QUIC: events and datagrams come in by polling, datagrams and control bytes go
//! out by calls that never wait, and every datagram is sent, given back or counted.

use std::{
    fmt, io,
    net::{SocketAddr, UdpSocket},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;

use crate::{
    key::{PrivateKey, PublicKey},
    noq_driver::NoqEndpoint,
    settings::{Driver, TransportSettings, WorkerPlace},
    warren_driver::WarrenEndpoint,
};

pub use crate::stats::{ConnectionStats, SendErrors, SocketStats};

/// Most datagrams that one [`Endpoint::poll`] hands over.
pub const MAX_DATAGRAMS_PER_POLL: usize = 256;

/// Most events that one [`Endpoint::poll`] hands over.
pub const MAX_EVENTS_PER_POLL: usize = 64;

/// Most control bytes of a connection that wait to be sent; more close the connection.
pub const MAX_CONTROL_BACKLOG: usize = 64 * 1024;

/// How long a shutdown waits for the peers to be told. Whoever hears nothing by then, 300 ms after the last close was sent, is
/// taken to be out of reach.
pub const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(500);

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
/// [`Endpoint::connect`] returned ends with exactly one `Closed`.
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
    /// A connection that was [`SendError::Blocked`] takes datagrams again.
    Writable {
        /// The connection.
        connection: ConnectionId,
    },
    /// Nothing of what the connection sends is answered any more, or it is again. Only with [`Driver::Warren`].
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
            Self::NoCommonProtocol => f.write_str("the peer does not speak warren/1"),
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

/// Why bytes were not taken; they are given back.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The connection's buffer is full; [`Event::Writable`] follows.
    #[error("the connection's send buffer is full")]
    Blocked(Bytes),
    /// The datagram is larger than the path carries at present.
    #[error("the datagram is larger than the path carries")]
    TooLarge(Bytes),
    /// There is no such connection, or it is not open.
    #[error("the connection is not open")]
    Closed(Bytes),
}

/// Why no connection could be started.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No exit key was given, so nobody could be trusted.
    #[error("no exit key is given; name the key that `warren exit init` printed")]
    NoExitKey,
    /// The endpoint is an exit's.
    #[error("an exit's endpoint does not connect")]
    NotAClient,
    /// The address cannot be connected to.
    #[error("cannot connect to {remote}: {reason}")]
    Address {
        /// Where to.
        remote: SocketAddr,
        /// Why not.
        reason: String,
    },
    /// The socket could not be used.
    #[error("cannot use the UDP socket: {0}")]
    Socket(#[from] io::Error),
    /// The TLS library refused the keys.
    #[error("cannot use the keys: {0}")]
    Tls(#[from] rustls::Error),
}

/// Why no endpoint could be made.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// The exit was given no private key.
    #[error("the exit has no private key")]
    NoIdentity,
    /// The exit was given no socket.
    #[error("the exit has no address to listen on")]
    NoSocket,
    /// The reset key is not of 32 to 64 bytes.
    #[error("a reset key is 32 to 64 bytes, and this is {0}")]
    ResetKey(usize),
    /// A setting is out of its bounds.
    #[error("{0}")]
    Setting(String),
    /// A socket could not be used.
    #[error("cannot use the UDP socket: {0}")]
    Socket(#[from] io::Error),
    /// The TLS library refused the key.
    #[error("cannot use the private key: {0}")]
    Tls(#[from] rustls::Error),
}

/// The QUIC side of one worker: all its connections, polled by one task of a tokio runtime on one thread.
#[derive(Debug)]
pub enum Endpoint {
    /// Connections driven by noq's own tasks on the same runtime.
    Noq(Box<NoqEndpoint>),
    /// Connections driven by the polls themselves.
    Warren(Box<WarrenEndpoint>),
}

impl Endpoint {
    /// Makes a client's endpoint; to be called inside a tokio runtime with time and I/O enabled.
    ///
    /// # Errors
    /// When a setting is out of its bounds.
    pub fn client(settings: TransportSettings, identity: PrivateKey) -> Result<Self, EndpointError> {
        match settings.driver {
            Driver::Noq => NoqEndpoint::client(settings, identity).map(Self::noq),
            Driver::Warren => WarrenEndpoint::client(settings, identity).map(Self::warren),
        }
    }

    /// Makes an exit's endpoint that listens on `sockets`; to be called inside a tokio runtime with time and I/O enabled.
    ///
    /// It has the first of `identities`, or another one that the client pins. `reset_key` is 32 to 64 secret bytes; an exit that keeps them across restarts tells
    /// clients of its old life at once that it forgot them.
    ///
    /// # Errors
    /// When there is no key or socket, a socket cannot be used, or a setting is out of its bounds.
    pub fn exit(
        settings: TransportSettings,
        identities: Vec<PrivateKey>,
        sockets: Vec<UdpSocket>,
        reset_key: impl AsRef<[u8]>,
    ) -> Result<Self, EndpointError> {
        let reset_key = reset_key.as_ref();
        if identities.is_empty() {
            return Err(EndpointError::NoIdentity);
        }
        if !(32..=64).contains(&reset_key.len()) {
            return Err(EndpointError::ResetKey(reset_key.len()));
        }
        if sockets.is_empty() {
            return Err(EndpointError::NoSocket);
        }
        match settings.driver {
            Driver::Noq => NoqEndpoint::exit(settings, &identities, sockets, reset_key).map(Self::noq),
            Driver::Warren => {
                WarrenEndpoint::exit(settings, &identities, sockets, reset_key).map(Self::warren)
            }
        }
    }

    /// Has these keys from now on, as an exit; its connections are left alone.
    ///
    /// # Errors
    /// When the TLS library refuses a key; those before stay then.
    pub fn set_identities(&self, identities: &[PrivateKey]) -> Result<(), EndpointError> {
        if identities.is_empty() {
            return Err(EndpointError::NoIdentity);
        }
        match self {
            Self::Noq(endpoint) => endpoint.set_identities(identities)?,
            Self::Warren(endpoint) => endpoint.set_identities(identities)?,
        }
        Ok(())
    }

    fn noq(endpoint: NoqEndpoint) -> Self {
        Self::Noq(Box::new(endpoint))
    }

    fn warren(endpoint: WarrenEndpoint) -> Self {
        Self::Warren(Box::new(endpoint))
    }

    /// Starts a connection to an exit that holds one of `exit_keys`, over a socket of its own.
    ///
    /// # Errors
    /// When it cannot even be tried; what fails later is an [`Event::Closed`].
    pub fn connect(
        &mut self,
        socket: UdpSocket,
        remote: SocketAddr,
        exit_keys: &[PublicKey],
    ) -> Result<ConnectionId, ConnectError> {
        match self {
            Self::Noq(endpoint) => endpoint.connect(socket, remote, exit_keys),
            Self::Warren(endpoint) => endpoint.connect(socket, remote, exit_keys),
        }
    }

    /// Moves what happened into `inbox`: ready when that is anything, else `cx` is woken once there is something.
    ///
    /// Datagrams are to be dropped before the next poll, which receives into the same memory; what is kept longer is not
    /// touched, but costs new memory. After a poll that was ready, the caller polls again, or flushes and then polls again.
    /// One call adds at most [`MAX_DATAGRAMS_PER_POLL`] datagrams and [`MAX_EVENTS_PER_POLL`] events to an empty inbox.
    pub fn poll(&mut self, cx: &mut Context<'_>, inbox: &mut Inbox) -> Poll<()> {
        match self {
            Self::Noq(endpoint) => endpoint.poll(cx, inbox),
            Self::Warren(endpoint) => endpoint.poll(cx, inbox),
        }
    }

    /// Ends a turn: sends what was queued since the last poll, which would otherwise wait for the next. `cx` is woken if
    /// that brings something to poll for.
    pub fn flush(&mut self, cx: &mut Context<'_>) {
        match self {
            // noq's tasks are woken by whatever they have to send.
            Self::Noq(_) => {}
            Self::Warren(endpoint) => endpoint.flush(cx),
        }
    }

    /// Queues a datagram; it leaves with the next [`flush`](Self::flush) or poll.
    ///
    /// # Errors
    /// Gives the datagram back when the buffer is full, the datagram too large, or the connection not open. What was taken
    /// is sent, or counted as a send drop.
    pub fn send_datagram(&mut self, connection: ConnectionId, datagram: Bytes) -> Result<(), SendError> {
        match self {
            Self::Noq(endpoint) => endpoint.send_datagram(connection, datagram),
            Self::Warren(endpoint) => endpoint.send_datagram(connection, datagram),
        }
    }

    /// Returns the largest datagram that the connection takes at present; `None` when it is not open.
    pub fn max_datagram_size(&self, connection: ConnectionId) -> Option<usize> {
        match self {
            Self::Noq(endpoint) => endpoint.max_datagram_size(connection),
            Self::Warren(endpoint) => endpoint.max_datagram_size(connection),
        }
    }

    /// Appends bytes to the control stream.
    ///
    /// # Errors
    /// When the connection is not open, or the peer takes none and more than [`MAX_CONTROL_BACKLOG`] bytes wait, which
    /// closes it.
    pub fn send_control(&mut self, connection: ConnectionId, data: &[u8]) -> Result<(), SendError> {
        match self {
            Self::Noq(endpoint) => endpoint.send_control(connection, data),
            Self::Warren(endpoint) => endpoint.send_control(connection, data),
        }
    }

    /// Returns how many control bytes wait here for the peer to take more; `None` when the connection is not open. The worker
    /// is woken when they become fewer, though no event tells of it.
    pub fn control_backlog(&self, connection: ConnectionId) -> Option<usize> {
        match self {
            Self::Noq(endpoint) => endpoint.control_backlog(connection),
            Self::Warren(endpoint) => endpoint.control_backlog(connection),
        }
    }

    /// Closes a connection: control bytes are delivered first, for at most 200 ms, and [`Event::Closed`] follows.
    pub fn close(&mut self, connection: ConnectionId, code: u32, reason: &str) {
        match self {
            Self::Noq(endpoint) => endpoint.close(connection, code, reason),
            Self::Warren(endpoint) => endpoint.close(connection, code, reason),
        }
    }

    /// Asks every peer for a sign of life at once, for when this host's addresses or routes have changed or time has
    /// passed unseen. An exit learns a client's new address by it.
    pub fn rouse(&mut self) {
        match self {
            Self::Noq(endpoint) => endpoint.rouse(),
            Self::Warren(endpoint) => endpoint.rouse(),
        }
    }

    /// Gives a client's connection another socket of the same IP version, for when the way from the old one's port is
    /// broken, and asks the exit for a sign of life.
    ///
    /// # Errors
    /// When the socket cannot be used; the connection keeps the one it has.
    pub fn rebind(&mut self, connection: ConnectionId, socket: UdpSocket) -> io::Result<()> {
        match self {
            Self::Noq(endpoint) => endpoint.rebind(connection, socket),
            Self::Warren(endpoint) => endpoint.rebind(connection, socket),
        }
    }

    /// Returns a connection's state and counters; final ones until the poll after the one that brought [`Event::Closed`].
    pub fn stats(&self, connection: ConnectionId) -> Option<ConnectionStats> {
        match self {
            Self::Noq(endpoint) => endpoint.stats(connection),
            Self::Warren(endpoint) => endpoint.stats(connection),
        }
    }

    /// Returns how many drives there were; nothing where the library's tasks run them unseen.
    pub fn drives(&self) -> Option<u64> {
        match self {
            Self::Noq(_) => None,
            Self::Warren(endpoint) => Some(endpoint.drives()),
        }
    }

    /// Returns the counters of all sockets the endpoint has or had.
    pub fn socket_stats(&self) -> SocketStats {
        match self {
            Self::Noq(endpoint) => endpoint.socket_stats(),
            Self::Warren(endpoint) => endpoint.socket_stats(),
        }
    }

    /// Closes every connection and waits until the peers were told, for at most [`SHUTDOWN_TIMEOUT`].
    pub async fn shutdown(self) {
        match self {
            Self::Noq(endpoint) => endpoint.shutdown().await,
            Self::Warren(endpoint) => endpoint.shutdown().await,
        }
    }
}
