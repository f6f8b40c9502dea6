//! The noq driver. noq's tasks run each connection, and this driver turns their futures into one poll for the worker.
//!
//! The driver itself queues only two things: one datagram of each blocked connection, and control bytes that the peer does not
//! accept yet. Received datagrams stay in noq's bounded buffers until the inbox has room.

mod connection;
mod control;
mod listener;
mod open;
mod outbox;
mod ready;

use std::{
    collections::BTreeMap,
    net::{SocketAddr, UdpSocket},
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use noq::TokioRuntime;
use tokio::time::{Instant, timeout_at};

use self::{
    connection::{Life, NoqConnection},
    listener::Listener,
    outbox::Outbox,
    ready::{ReadyList, Source},
};
use crate::{
    attempt::Attempt,
    boundary::{
        CloseReason, ConnectError, ConnectionId, ConnectionStats, EndpointError, Event, Inbox, LossCounts,
        MAX_EVENTS_PER_POLL, SHUTDOWN_TIMEOUT, SendError, SocketStats,
    },
    identities::Identities,
    key::{PrivateKey, PublicKey},
    quic_config::{self, ListenerPlace},
    settings::TransportSettings,
    socket::QuicSocket,
    stats::SocketCounters,
    strangers::{Displaced, ExitSecrets, Gate},
    tls,
};

/// All connections of one worker over noq.
pub struct NoqEndpoint {
    settings: TransportSettings,
    /// A client's key.
    identity: Option<PrivateKey>,
    counters: Arc<SocketCounters>,
    ready: Arc<ReadyList>,
    outbox: Arc<Outbox>,
    listeners: Vec<Listener>,
    /// Handshakes that must end because other handshakes have taken their seats.
    displaced: Displaced,
    connections: BTreeMap<ConnectionId, NoqConnection>,
    /// Connections closed in the previous poll. Their counters are readable until the next poll.
    retired: Vec<ConnectionId>,
    next: u64,
}

impl NoqEndpoint {
    pub(crate) fn client(settings: TransportSettings, identity: PrivateKey) -> Result<Self, EndpointError> {
        Self::new(settings, Some(identity))
    }

    pub(crate) fn exit(
        settings: TransportSettings,
        identities: &[PrivateKey],
        sockets: Vec<UdpSocket>,
        reset_key: &[u8],
    ) -> Result<Self, EndpointError> {
        let mut this = Self::new(settings, None)?;
        let secrets = ExitSecrets::new(reset_key);
        let known: Vec<_> = identities.iter().map(PrivateKey::public).collect();
        let first = identities.first().ok_or(EndpointError::NoIdentity)?;
        let places = ListenerPlace::all(sockets.len());
        for (index, (socket, place)) in sockets.into_iter().zip(places).enumerate() {
            // The first key's configuration is the base. `Identities` makes a copy of it for each key.
            let config = quic_config::exit(&this.settings, socket.local_addr()?, tls::exit(first)?, &secrets);
            let of_keys = Identities::new(&config, identities)?;
            let gate = Gate::new(&this.settings.strangers, &known, &secrets);
            let endpoint = this.noq_endpoint(socket, reset_key, Some((config, gate.clone())), Some(place))?;
            let waker = this.ready.waker(Source::Listener(index));
            this.listeners.push(Listener::new(endpoint, gate, of_keys, waker));
        }
        Ok(this)
    }

    pub(crate) fn set_identities(&mut self, keys: &[PrivateKey]) -> Result<(), EndpointError> {
        self.listeners.iter_mut().try_for_each(|listener| listener.set_identities(keys))
    }

    fn new(settings: TransportSettings, identity: Option<PrivateKey>) -> Result<Self, EndpointError> {
        quic_config::check(&settings)?;
        Ok(Self {
            next: ConnectionId::floor(settings.worker),
            settings,
            identity,
            counters: Arc::new(SocketCounters::new()),
            ready: Arc::default(),
            outbox: Arc::default(),
            listeners: Vec::new(),
            displaced: Displaced::default(),
            connections: BTreeMap::new(),
            retired: Vec::new(),
        })
    }

    pub(crate) fn connect(
        &mut self,
        socket: UdpSocket,
        remote: SocketAddr,
        exit_keys: &[PublicKey],
        server_name: Option<&str>,
    ) -> Result<ConnectionId, ConnectError> {
        let identity = self.identity.as_ref();
        let Attempt { config, server_name, presented, reset_key } =
            Attempt::new(&self.settings, identity, &socket, remote, exit_keys, server_name)?;
        let endpoint = self.noq_endpoint(socket, &*reset_key, None, None)?;
        let connecting = endpoint
            .connect_with(config, remote, server_name)
            .map_err(|error| ConnectError::Address { remote, reason: error.to_string() })?;
        let id = self.next_id();
        let waker = self.ready.waker(Source::Connection(id));
        self.connections.insert(id, NoqConnection::outgoing(id, waker, connecting, endpoint, presented));
        Ok(id)
    }

    pub(crate) fn poll(&mut self, cx: &Context<'_>, inbox: &mut Inbox) -> Poll<()> {
        for id in self.retired.drain(..) {
            self.connections.remove(&id);
        }
        // Register before checking the list, so that a source that becomes ready after the check wakes the worker.
        self.ready.register(cx.waker());
        self.give_way(cx);
        self.outbox.swap(&mut inbox.datagrams);
        // There must be room for a batch of datagrams, and for the `MAX_EVENTS` events that one poll of a connection may add.
        while self.outbox.has_room() && inbox.events.len() + connection::MAX_EVENTS <= MAX_EVENTS_PER_POLL {
            match self.ready.next() {
                None => break,
                Some(Source::Listener(index)) => self.poll_listener(index),
                Some(Source::Connection(id)) => self.poll_connection(id, &mut inbox.events),
            }
        }
        self.outbox.swap(&mut inbox.datagrams);
        if inbox.is_empty() { Poll::Pending } else { Poll::Ready(()) }
    }

    /// Ends the handshakes that lost their seats.
    fn give_way(&mut self, cx: &Context<'_>) {
        self.displaced.wake(cx.waker());
        for (id, _) in self.displaced.take() {
            if let Some(connection) = self.connections.get_mut(&ConnectionId(id)) {
                connection.give_way();
            }
        }
    }

    fn poll_listener(&mut self, index: usize) {
        let Some(listener) = self.listeners.get_mut(index) else { return };
        for admitted in listener.poll(&self.settings.strangers, &self.displaced) {
            let id = self.next_id();
            admitted.seat.settle(id.0);
            let waker = self.ready.waker(Source::Connection(id));
            self.connections.insert(id, NoqConnection::incoming(id, waker, admitted));
        }
    }

    fn poll_connection(&mut self, id: ConnectionId, events: &mut Vec<Event>) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if connection.poll(&self.outbox, events) == Life::Over {
            self.retired.push(id);
        }
    }

    pub(crate) fn send_datagram(&mut self, id: ConnectionId, datagram: Bytes) -> Result<(), SendError> {
        match self.connections.get_mut(&id) {
            Some(connection) => connection.send_datagram(datagram),
            None => Err(SendError::Closed(datagram)),
        }
    }

    pub(crate) fn max_datagram_size(&self, id: ConnectionId) -> Option<usize> {
        self.connections.get(&id)?.max_datagram_size()
    }

    pub(crate) fn send_control(&mut self, id: ConnectionId, data: &[u8]) -> Result<(), SendError> {
        match self.connections.get_mut(&id) {
            Some(connection) => connection.send_control(data),
            None => Err(SendError::Closed(Bytes::copy_from_slice(data))),
        }
    }

    pub(crate) fn control_backlog(&self, id: ConnectionId) -> Option<usize> {
        self.connections.get(&id)?.control_backlog()
    }

    pub(crate) fn close(&mut self, id: ConnectionId, code: u32, reason: &str) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.close(code, reason, CloseReason::Local);
        }
    }

    pub(crate) fn close_others(&mut self, code: u32, reason: &str, kept: impl Fn(ConnectionId) -> bool) {
        for (_, connection) in self.connections.iter_mut().filter(|(id, _)| !kept(**id)) {
            connection.close(code, reason, CloseReason::Local);
        }
    }

    pub(crate) fn rouse(&self) {
        for endpoint in self.connections.values().filter_map(NoqConnection::own_endpoint) {
            endpoint.handle_network_change(None);
        }
    }

    pub(crate) fn rebind(&self, id: ConnectionId, socket: UdpSocket) -> std::io::Result<()> {
        // A connection that has ended needs no socket. `Event::Closed` tells the caller that it has ended.
        let Some(endpoint) = self.connections.get(&id).and_then(NoqConnection::own_endpoint) else {
            return Ok(());
        };
        let using = quic_config::socket_use(&self.settings, false);
        endpoint.rebind_abstract(Box::new(QuicSocket::new(socket, using, self.counters.clone(), None)?))?;
        endpoint.handle_network_change(None);
        Ok(())
    }

    pub(crate) fn stats(&self, id: ConnectionId) -> Option<ConnectionStats> {
        self.connections.get(&id)?.stats()
    }

    pub(crate) fn loss_counts(&self, id: ConnectionId) -> Option<LossCounts> {
        self.connections.get(&id)?.loss_counts()
    }

    pub(crate) fn socket_stats(&self) -> SocketStats {
        self.counters.snapshot()
    }

    pub(crate) async fn shutdown(mut self) {
        let deadline = Instant::now() + SHUTDOWN_TIMEOUT;
        let mut endpoints: Vec<_> = self.listeners.drain(..).map(Listener::into_endpoint).collect();
        endpoints.extend(self.connections.values().filter_map(NoqConnection::own_endpoint));
        for connection in self.connections.values_mut() {
            connection.close(0, "", CloseReason::Local);
        }
        let _timed_out = timeout_at(deadline, self.all_closed()).await;
        // noq's tasks send the closes, so the endpoints must live until the peers have answered.
        for endpoint in endpoints {
            endpoint.close(0_u32.into(), b"");
            let _timed_out = timeout_at(deadline, endpoint.wait_all_draining()).await;
        }
    }

    /// Polls until no connection is left. Discards everything received meanwhile.
    async fn all_closed(&mut self) {
        let mut inbox = Inbox::new();
        std::future::poll_fn(|cx| {
            loop {
                inbox.clear();
                let polled = self.poll(cx, &mut inbox);
                // A retired connection is removed only by the next poll.
                if self.connections.len() == self.retired.len() {
                    return Poll::Ready(());
                }
                if polled.is_pending() {
                    return Poll::Pending;
                }
            }
        })
        .await;
    }

    fn noq_endpoint(
        &self,
        socket: UdpSocket,
        reset_key: &[u8],
        exit: Option<(noq::ServerConfig, Gate)>,
        place: Option<ListenerPlace>,
    ) -> std::io::Result<noq::Endpoint> {
        let using = quic_config::socket_use(&self.settings, exit.is_some());
        let (server, gate) = exit.unzip();
        let socket = QuicSocket::new(socket, using, self.counters.clone(), gate)?;
        let config = quic_config::endpoint(&self.settings, reset_key, place);
        noq::Endpoint::new_with_abstract_socket(config, server, Box::new(socket), Arc::new(TokioRuntime))
    }

    fn next_id(&mut self) -> ConnectionId {
        self.next += 1;
        ConnectionId(self.next)
    }
}

impl std::fmt::Debug for NoqEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NoqEndpoint")
            .field("listeners", &self.listeners.len())
            .field("connections", &self.connections.len())
            .finish_non_exhaustive()
    }
}
