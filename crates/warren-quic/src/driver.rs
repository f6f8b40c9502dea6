//! The endpoint that the packet path talks to, and the one place that chooses a driver.
//!
//! Events and datagrams come in by polling. Datagrams and control bytes go out by calls that never wait. Every datagram is
//! sent, given back or counted.

use std::{
    io,
    net::{SocketAddr, UdpSocket},
    task::{Context, Poll},
};

use bytes::Bytes;

pub use crate::boundary::*;
use crate::{
    key::{PrivateKey, PublicKey},
    noq_driver::NoqEndpoint,
    settings::{Driver, TransportSettings},
    warren_driver::WarrenEndpoint,
};

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
    /// It has the first of `identities`, or another one if the client's proof says that it pins that. `reset_key` is 32 to 64 secret bytes; an exit that keeps them across restarts tells
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
    /// When there is none, or the TLS library refuses one; those before stay then.
    pub fn set_identities(&mut self, identities: &[PrivateKey]) -> Result<(), EndpointError> {
        if identities.is_empty() {
            return Err(EndpointError::NoIdentity);
        }
        match self {
            Self::Noq(endpoint) => endpoint.set_identities(identities),
            Self::Warren(endpoint) => endpoint.set_identities(identities),
        }
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
        self.connect_by_name(socket, remote, exit_keys, None)
    }

    /// The same with a server name in the hello (SNI), as HTTP/3 has it. Anybody on the way reads it; the exit takes no notice.
    ///
    /// # Errors
    /// As [`Self::connect`]; also when the name is not a DNS name.
    pub fn connect_by_name(
        &mut self,
        socket: UdpSocket,
        remote: SocketAddr,
        exit_keys: &[PublicKey],
        server_name: Option<&str>,
    ) -> Result<ConnectionId, ConnectError> {
        match self {
            Self::Noq(endpoint) => endpoint.connect(socket, remote, exit_keys, server_name),
            Self::Warren(endpoint) => endpoint.connect(socket, remote, exit_keys, server_name),
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

    /// Says that the peer of a connection is an enrolled client. From then on it has room and turns of its own where an exit is behind;
    /// until then it shares those of all keys that are not known to be enrolled.
    pub fn know_as_client(&mut self, connection: ConnectionId) {
        match self {
            // Its sockets' room is everybody's.
            Self::Noq(_) => {}
            Self::Warren(endpoint) => endpoint.know_as_client(connection),
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

    /// Closes every connection that is not `kept`, and gives up every handshake that is not.
    pub fn close_others(&mut self, code: u32, reason: &str, kept: impl Fn(ConnectionId) -> bool) {
        match self {
            Self::Noq(endpoint) => endpoint.close_others(code, reason, kept),
            Self::Warren(endpoint) => endpoint.close_others(code, reason, kept),
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
