//! The endpoint that the packet path uses, and the only place that selects a driver.
//!
//! Events and datagrams are received by polling. Datagrams and control bytes are sent by calls that never block. Every datagram
//! is sent, returned or counted as dropped.

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
///
/// ```no_run
/// use std::{future::poll_fn, net::UdpSocket};
///
/// use warren_quic::{
///     driver::{Endpoint, Event, Inbox},
///     key::{PrivateKey, PublicKey},
///     settings::TransportSettings,
/// };
///
/// async fn greet(exit_key: PublicKey) -> Result<(), Box<dyn std::error::Error>> {
///     let mut endpoint = Endpoint::client(TransportSettings::default(), PrivateKey::generate()?)?;
///     let connection =
///         endpoint.connect(UdpSocket::bind("0.0.0.0:0")?, "192.0.2.1:443".parse()?, &[exit_key])?;
///     let mut inbox = Inbox::default();
///     loop {
///         poll_fn(|cx| {
///             endpoint.flush(cx);
///             endpoint.poll(cx, &mut inbox)
///         })
///         .await;
///         for event in inbox.events.drain(..) {
///             match event {
///                 Event::Connected { .. } => endpoint.send_datagram(connection, "hello".into())?,
///                 Event::Closed { .. } => return Ok(()),
///                 _ => {}
///             }
///         }
///         inbox.datagrams.clear();
///     }
/// }
/// ```
#[derive(Debug)]
pub enum Endpoint {
    /// Connections driven by noq's own tasks on the same runtime.
    Noq(Box<NoqEndpoint>),
    /// Connections driven by the polls themselves.
    Warren(Box<WarrenEndpoint>),
}

impl Endpoint {
    /// Makes a client's endpoint. Must be called inside a tokio runtime with time and I/O enabled.
    ///
    /// # Errors
    /// When a setting is out of its bounds.
    pub fn client(settings: TransportSettings, identity: PrivateKey) -> Result<Self, EndpointError> {
        match settings.driver {
            Driver::Noq => NoqEndpoint::client(settings, identity).map(Self::noq),
            Driver::Warren => WarrenEndpoint::client(settings, identity).map(Self::warren),
        }
    }

    /// Makes an exit's endpoint that listens on `sockets`. Must be called inside a tokio runtime with time and I/O enabled.
    ///
    /// The exit proves the first of `identities`, unless a client's proof shows that the client pins another of them. `reset_key`
    /// is 32 to 64 secret bytes. An exit that keeps these bytes across restarts can reset the connections of its previous process
    /// at once.
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
        // HMAC-SHA256 is weaker with a key of less than 32 bytes, and hashes a key of more than 64 first (RFC 2104 sections 2
        // and 3).
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

    /// Replaces an exit's keys. Existing connections are not affected.
    ///
    /// # Errors
    /// If there is no key, or the TLS library refuses one. In that case the previous keys stay.
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

    /// Starts a connection to an exit that holds one of `exit_keys`. No other connection uses `socket`.
    ///
    /// # Errors
    /// If the attempt cannot start. Later failures are reported as [`Event::Closed`].
    pub fn connect(
        &mut self,
        socket: UdpSocket,
        remote: SocketAddr,
        exit_keys: &[PublicKey],
    ) -> Result<ConnectionId, ConnectError> {
        self.connect_by_name(socket, remote, exit_keys, None)
    }

    /// Like [`Self::connect`], with a server name in the TLS hello (SNI), as in HTTP/3. Anybody on the path can read the name.
    /// The exit ignores it.
    ///
    /// # Errors
    /// As [`Self::connect`], or if the name is not a DNS name.
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

    /// Moves new events and datagrams into `inbox`. Returns ready if there are any. Otherwise `cx` is woken once there are some.
    ///
    /// The caller should drop the datagrams before the next poll, so that the poll can reuse their memory. Datagrams that the
    /// caller keeps longer stay valid, but the poll then needs new memory. After a ready poll, the caller polls again, with or
    /// without a flush in between. One call adds at most [`MAX_DATAGRAMS_PER_POLL`] datagrams, [`MAX_LOST_PER_POLL`] lost ones
    /// and [`MAX_EVENTS_PER_POLL`] events to an empty inbox.
    pub fn poll(&mut self, cx: &mut Context<'_>, inbox: &mut Inbox) -> Poll<()> {
        match self {
            Self::Noq(endpoint) => endpoint.poll(cx, inbox),
            Self::Warren(endpoint) => endpoint.poll(cx, inbox),
        }
    }

    /// Ends a turn: sends everything queued since the last poll. Without this call, the next poll sends it. `cx` is woken if the
    /// flush leaves something to poll for.
    pub fn flush(&mut self, cx: &mut Context<'_>) {
        match self {
            // noq's tasks wake by themselves when they have something to send.
            Self::Noq(_) => {}
            Self::Warren(endpoint) => endpoint.flush(cx),
        }
    }

    /// Queues a datagram for the next [`flush`](Self::flush) or poll.
    ///
    /// # Errors
    /// Returns the datagram if the buffer is full, the datagram is too large, or the connection is not open. An accepted datagram
    /// is sent, or counted as a send drop.
    pub fn send_datagram(&mut self, connection: ConnectionId, datagram: Bytes) -> Result<(), SendError> {
        match self {
            Self::Noq(endpoint) => endpoint.send_datagram(connection, datagram),
            Self::Warren(endpoint) => endpoint.send_datagram(connection, datagram),
        }
    }

    /// Queues a datagram like [`send_datagram`](Self::send_datagram), and keeps it until its packet is acknowledged. If the packet
    /// is lost, [`Inbox::lost`] returns the datagram once, with `context`. The endpoint does not send the datagram again by itself.
    ///
    /// An endpoint that does not keep datagrams ([`keeps_datagrams`](Self::keeps_datagrams)) only sends the datagram. A datagram is
    /// also not returned if it was dropped before it was sent, if too many bytes are kept ([`LossCounts::forgotten`]), or if the
    /// connection ends.
    ///
    /// # Errors
    /// As [`send_datagram`](Self::send_datagram).
    pub fn send_datagram_kept(
        &mut self,
        connection: ConnectionId,
        datagram: Bytes,
        context: u64,
    ) -> Result<(), SendError> {
        match self {
            Self::Noq(endpoint) => endpoint.send_datagram(connection, datagram),
            Self::Warren(endpoint) => endpoint.send_datagram_kept(connection, datagram, context),
        }
    }

    /// Whether [`send_datagram_kept`](Self::send_datagram_kept) keeps anything. noq's driver does not.
    pub fn keeps_datagrams(&self) -> bool {
        match self {
            Self::Noq(_) => false,
            Self::Warren(_) => true,
        }
    }

    /// Marks the peer of a connection as an enrolled client. An overloaded exit gives each enrolled client its own queue space and
    /// processing turns. All other peers together get the share of one client.
    pub fn know_as_client(&mut self, connection: ConnectionId) {
        match self {
            // With noq, all clients share the space in the sockets' buffers.
            Self::Noq(_) => {}
            Self::Warren(endpoint) => endpoint.know_as_client(connection),
        }
    }

    /// Returns the largest datagram that the connection accepts at present. `None` if it is not open.
    pub fn max_datagram_size(&self, connection: ConnectionId) -> Option<usize> {
        match self {
            Self::Noq(endpoint) => endpoint.max_datagram_size(connection),
            Self::Warren(endpoint) => endpoint.max_datagram_size(connection),
        }
    }

    /// Appends bytes to the control stream.
    ///
    /// # Errors
    /// If the connection is not open, or more than [`MAX_CONTROL_BACKLOG`] bytes would wait for the peer. In the latter case
    /// the connection is closed.
    pub fn send_control(&mut self, connection: ConnectionId, data: &[u8]) -> Result<(), SendError> {
        match self {
            Self::Noq(endpoint) => endpoint.send_control(connection, data),
            Self::Warren(endpoint) => endpoint.send_control(connection, data),
        }
    }

    /// Returns the number of control bytes that wait for the peer. `None` if the connection is not open. When the number shrinks,
    /// the worker is woken, but there is no event.
    pub fn control_backlog(&self, connection: ConnectionId) -> Option<usize> {
        match self {
            Self::Noq(endpoint) => endpoint.control_backlog(connection),
            Self::Warren(endpoint) => endpoint.control_backlog(connection),
        }
    }

    /// Closes every connection and aborts every handshake for which `kept` is false.
    pub fn close_others(&mut self, code: u32, reason: &str, kept: impl Fn(ConnectionId) -> bool) {
        match self {
            Self::Noq(endpoint) => endpoint.close_others(code, reason, kept),
            Self::Warren(endpoint) => endpoint.close_others(code, reason, kept),
        }
    }

    /// Closes a connection after delivering its control bytes, which may take 200 ms. [`Event::Closed`] follows.
    pub fn close(&mut self, connection: ConnectionId, code: u32, reason: &str) {
        match self {
            Self::Noq(endpoint) => endpoint.close(connection, code, reason),
            Self::Warren(endpoint) => endpoint.close(connection, code, reason),
        }
    }

    /// Pings every peer at once. Call it when this host's addresses or routes change or the host wakes from sleep. The ping
    /// shows an exit a client's new address.
    pub fn rouse(&mut self) {
        match self {
            Self::Noq(endpoint) => endpoint.rouse(),
            Self::Warren(endpoint) => endpoint.rouse(),
        }
    }

    /// Moves a client's connection to another socket of the same IP version and pings the exit. Call it when the path from the
    /// old port is broken.
    ///
    /// # Errors
    /// If the socket cannot be used. In that case the connection keeps the old one.
    pub fn rebind(&mut self, connection: ConnectionId, socket: UdpSocket) -> io::Result<()> {
        match self {
            Self::Noq(endpoint) => endpoint.rebind(connection, socket),
            Self::Warren(endpoint) => endpoint.rebind(connection, socket),
        }
    }

    /// Returns a connection's state and counters. After [`Event::Closed`], the final counters are available until the next poll.
    pub fn stats(&self, connection: ConnectionId) -> Option<ConnectionStats> {
        match self {
            Self::Noq(endpoint) => endpoint.stats(connection),
            Self::Warren(endpoint) => endpoint.stats(connection),
        }
    }

    /// Returns the losses of an open connection's path. Cheap enough to be read every 100 ms. `None` if the connection is not
    /// open.
    pub fn loss_counts(&self, connection: ConnectionId) -> Option<LossCounts> {
        match self {
            Self::Noq(endpoint) => endpoint.loss_counts(connection),
            Self::Warren(endpoint) => endpoint.loss_counts(connection),
        }
    }

    /// Returns the number of drives. `None` with noq's driver, whose tasks do not count them.
    pub fn drives(&self) -> Option<u64> {
        match self {
            Self::Noq(_) => None,
            Self::Warren(endpoint) => Some(endpoint.drives()),
        }
    }

    /// Returns the counters of all present and past sockets of the endpoint.
    pub fn socket_stats(&self) -> SocketStats {
        match self {
            Self::Noq(endpoint) => endpoint.socket_stats(),
            Self::Warren(endpoint) => endpoint.socket_stats(),
        }
    }

    /// Closes every connection and waits until the peers know, for at most [`SHUTDOWN_TIMEOUT`].
    pub async fn shutdown(self) {
        match self {
            Self::Noq(endpoint) => endpoint.shutdown().await,
            Self::Warren(endpoint) => endpoint.shutdown().await,
        }
    }
}
