//! Warren's own driver, directly on noq-proto and noq-udp. Everything happens in the worker's polls, with no task, channel, lock
//! or copy between a connection and its socket.
//!
//! A poll handles timers, receives, passes datagrams to connections, and delivers their events. Sending is left to the end of the
//! turn ([`flush`](WarrenEndpoint::flush)), so that a turn's datagrams and acknowledgements share sends. Received datagrams are
//! slices of a few buffers, which the next poll reuses if the caller has dropped them. An exit that is behind ([`intake`]) copies
//! received datagrams into per-client queues instead.

mod accept;
mod connection;
mod control;
mod intake;
mod port;
mod receive;
mod room;
mod silence;
mod table;
#[cfg(test)]
mod tests;
mod timers;
mod turn;
mod work;

use std::{
    collections::VecDeque,
    net::{SocketAddr, UdpSocket},
    sync::Arc,
    task::{Poll, Waker},
    time::Instant,
};

use bytes::Bytes;
use noq_proto::Incoming;
use noq_udp::RecvMeta;

use self::{
    connection::WarrenConnection,
    intake::Intake,
    port::{Listening, Port},
    table::Table,
    timers::Timers,
    work::Work,
};
use crate::{
    attempt::Attempt,
    boundary::{
        ConnectError, ConnectionId, ConnectionStats, EndpointError, Inbox, LossCounts, SHUTDOWN_TIMEOUT,
        SendError, SocketStats,
    },
    identities::Identities,
    key::{PrivateKey, PublicKey},
    quic_config::{self, ListenerPlace},
    settings::TransportSettings,
    socket::Slabs,
    stats::SocketCounters,
    strangers::{Displaced, ExitSecrets, Gate},
    tls,
};

/// All connections of one worker.
pub struct WarrenEndpoint {
    settings: TransportSettings,
    /// A client's key.
    identity: Option<PrivateKey>,
    counters: Arc<SocketCounters>,
    /// An exit's listening sockets, or one socket for each of a client's connections.
    ports: Vec<Option<Port>>,
    connections: Table,
    attempts: VecDeque<(usize, Incoming)>,
    /// Handshakes that must end because other handshakes have taken their seats.
    displaced: Displaced,
    work: Work,
    /// Connections whose end was delivered, oldest first. Their counters are readable until the next poll, and they answer late
    /// packets.
    retired: Vec<usize>,
    timers: Timers,
    receiving: Receiving,
    intake: Intake,
    sending: Sending,
    waker: Option<Waker>,
}

/// The state of receiving across polls.
#[derive(Default)]
struct Receiving {
    slabs: Slabs,
    /// Metadata of each batch of the last receive.
    metas: Vec<RecvMeta>,
    /// The port to receive from first.
    first_port: usize,
}

/// The state of sending across turns.
#[derive(Default)]
struct Sending {
    /// The buffer in which transmits are built.
    buffer: Vec<u8>,
    /// Drives since the start.
    drives: u64,
    /// Whether the caller flushed since the last poll.
    flushed: bool,
}

impl WarrenEndpoint {
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
        let listeners = ListenerPlace::all(sockets.len());
        for (socket, listener) in sockets.into_iter().zip(listeners) {
            // The first key's configuration is the base. `Identities` makes a copy of it for each key.
            let server = quic_config::exit(&this.settings, socket.local_addr()?, tls::exit(first)?, &secrets);
            let of_keys = Identities::new(&server, identities)?;
            let mut port = this.port(socket, reset_key, Some((server, listener)))?;
            let gate = Gate::new(&this.settings.strangers, &known, &secrets);
            port.listening = Some(Listening { gate, identities: of_keys });
            this.ports.push(Some(port));
        }
        Ok(this)
    }

    pub(crate) fn set_identities(&mut self, keys: &[PrivateKey]) -> Result<(), EndpointError> {
        self.ports.iter_mut().flatten().try_for_each(|port| port.set_identities(keys))
    }

    fn new(settings: TransportSettings, identity: Option<PrivateKey>) -> Result<Self, EndpointError> {
        quic_config::check(&settings)?;
        Ok(Self {
            connections: Table::new(ConnectionId::floor(settings.worker)),
            settings,
            identity,
            counters: Arc::new(SocketCounters::new()),
            ports: Vec::new(),
            attempts: VecDeque::new(),
            displaced: Displaced::default(),
            work: Work::default(),
            retired: Vec::new(),
            timers: Timers::new(),
            receiving: Receiving::default(),
            intake: Intake::new(),
            sending: Sending::default(),
            waker: None,
        })
    }

    fn port(
        &self,
        socket: UdpSocket,
        reset_key: &[u8],
        exit: Option<(noq_proto::ServerConfig, ListenerPlace)>,
    ) -> std::io::Result<Port> {
        let (server, listener) = exit.unzip();
        let using = quic_config::socket_use(&self.settings, server.is_some());
        Port::new(
            socket,
            using,
            self.counters.clone(),
            quic_config::endpoint(&self.settings, reset_key, listener),
            server,
        )
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
        let mut port = self.port(socket, &*reset_key, None)?;
        let now = Instant::now();
        let made = port
            .endpoint
            .connect(now, config, remote, server_name)
            .map_err(|error| ConnectError::Address { remote, reason: error.to_string() })?;
        let handle = made.0;
        // The index of a port that is gone is used again. Ports never move, because connections name them by index.
        let index = self.ports.iter().position(Option::is_none).unwrap_or(self.ports.len());
        let (slot, id) = self
            .connections
            .insert(|id| WarrenConnection::new(id, index, made, remote, Some(presented), now));
        port.add_route(handle, slot);
        match self.ports.get_mut(index) {
            Some(place) => *place = Some(port),
            None => self.ports.push(Some(port)),
        }
        // The next turn sends the first packet.
        self.list(slot);
        self.wake();
        Ok(id)
    }

    pub(crate) fn send_datagram(&mut self, id: ConnectionId, datagram: Bytes) -> Result<(), SendError> {
        self.queue_datagram(id, datagram, None)
    }

    pub(crate) fn send_datagram_kept(
        &mut self,
        id: ConnectionId,
        datagram: Bytes,
        context: u64,
    ) -> Result<(), SendError> {
        self.queue_datagram(id, datagram, Some(context))
    }

    fn queue_datagram(
        &mut self,
        id: ConnectionId,
        datagram: Bytes,
        context: Option<u64>,
    ) -> Result<(), SendError> {
        let found =
            self.connections.slot_of(id).and_then(|slot| Some((slot, self.connections.get_mut(slot)?)));
        let Some((slot, connection)) = found else { return Err(SendError::Closed(datagram)) };
        connection.send_datagram(datagram, context)?;
        // No wake-up is needed, because the caller sends datagrams during its turn and flushes at the turn's
        // end.
        self.work.list_to_send(slot, &mut connection.place.listed);
        Ok(())
    }

    pub(crate) fn know_as_client(&mut self, id: ConnectionId) {
        let slot = self.connections.slot_of(id);
        if let Some(connection) = slot.and_then(|slot| self.connections.get_mut(slot)) {
            connection.know_as_client();
        }
    }

    pub(crate) fn max_datagram_size(&self, id: ConnectionId) -> Option<usize> {
        self.get(id)?.max_datagram_size()
    }

    pub(crate) fn send_control(&mut self, id: ConnectionId, data: &[u8]) -> Result<(), SendError> {
        let found =
            self.connections.slot_of(id).and_then(|slot| Some((slot, self.connections.get_mut(slot)?)));
        let Some((slot, connection)) = found else {
            return Err(SendError::Closed(Bytes::copy_from_slice(data)));
        };
        let result = connection.send_control(Instant::now(), data);
        self.list(slot);
        self.wake();
        result
    }

    pub(crate) fn control_backlog(&self, id: ConnectionId) -> Option<usize> {
        self.get(id)?.control_backlog()
    }

    pub(crate) fn close(&mut self, id: ConnectionId, code: u32, reason: &str) {
        if let Some(slot) = self.connections.slot_of(id) {
            self.close_slot(slot, code, reason);
        }
    }

    pub(crate) fn close_others(&mut self, code: u32, reason: &str, kept: impl Fn(ConnectionId) -> bool) {
        for slot in self.connections.slots() {
            if self.connections.get(slot).is_some_and(|connection| !kept(connection.place.id)) {
                self.close_slot(slot, code, reason);
            }
        }
    }

    fn close_slot(&mut self, slot: usize, code: u32, reason: &str) {
        if let Some(connection) = self.connections.get_mut(slot) {
            connection.close(Instant::now(), code, reason);
            self.list(slot);
            self.wake();
        }
    }

    pub(crate) fn rouse(&mut self) {
        let now = Instant::now();
        for slot in self.connections.slots() {
            if let Some(connection) = self.connections.get_mut(slot) {
                connection.rouse(now);
                self.list(slot);
            }
        }
        self.wake();
    }

    pub(crate) fn rebind(&mut self, id: ConnectionId, socket: UdpSocket) -> std::io::Result<()> {
        let using = quic_config::socket_use(&self.settings, self.is_exit());
        let found =
            self.connections.slot_of(id).and_then(|slot| Some((slot, self.connections.get_mut(slot)?)));
        // A connection that has ended needs no socket. `Event::Closed` tells the caller that it has ended.
        let Some((slot, connection)) = found else { return Ok(()) };
        let Some(port) = self.ports.get_mut(connection.place.port).and_then(Option::as_mut) else {
            return Ok(());
        };
        let stalled = port.replace_socket(socket, using, self.counters.clone())?;
        connection.rouse(Instant::now());
        // These connections waited for the parked transmit, which is lost with the old socket.
        self.work.to_send.extend(stalled);
        self.list(slot);
        self.wake();
        Ok(())
    }

    pub(crate) fn stats(&self, id: ConnectionId) -> Option<ConnectionStats> {
        self.get(id)?.stats()
    }

    pub(crate) fn loss_counts(&self, id: ConnectionId) -> Option<LossCounts> {
        self.get(id)?.loss_counts()
    }

    pub(crate) fn socket_stats(&self) -> SocketStats {
        self.counters.snapshot()
    }

    pub(crate) fn drives(&self) -> u64 {
        self.sending.drives
    }

    pub(crate) async fn shutdown(mut self) {
        self.connections.slots().for_each(|slot| self.close_slot(slot, 0, ""));
        let _timed_out = tokio::time::timeout(SHUTDOWN_TIMEOUT, self.all_told()).await;
    }

    /// Polls until every peer has answered its close or timed out. Discards everything received meanwhile.
    async fn all_told(&mut self) {
        let mut inbox = Inbox::new();
        std::future::poll_fn(|cx| {
            loop {
                inbox.clear();
                let polled = self.poll(cx, &mut inbox);
                self.flush(cx);
                let told = self.connections.iter().all(WarrenConnection::is_told);
                if told && !self.has_to_send() {
                    return Poll::Ready(());
                }
                if polled.is_pending() {
                    return Poll::Pending;
                }
            }
        })
        .await;
    }

    fn get(&self, id: ConnectionId) -> Option<&WarrenConnection> {
        self.connections.get(self.connections.slot_of(id)?)
    }

    /// Wakes the worker for work that arises outside its turn.
    fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }
}

impl Drop for WarrenEndpoint {
    fn drop(&mut self) {
        for (index, incoming) in self.attempts.drain(..) {
            if let Some(port) = self.ports.get_mut(index).and_then(Option::as_mut) {
                // The library keeps an attempt until it is accepted, refused or ignored.
                port.endpoint.ignore(incoming);
            }
        }
    }
}

impl std::fmt::Debug for WarrenEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WarrenEndpoint")
            .field("ports", &self.ports.len())
            .field("connections", &self.connections.len())
            .finish_non_exhaustive()
    }
}
