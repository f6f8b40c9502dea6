//! A port: one UDP socket, its QUIC endpoint, and the transmit that found the socket full.

use std::{
    io,
    net::{SocketAddr, UdpSocket},
    num::NonZeroUsize,
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use bytes::BytesMut;
use noq_proto::{
    ConnectionEvent, ConnectionHandle, DatagramEvent, EcnCodepoint, Endpoint, EndpointConfig, FourTuple,
    Incoming, ServerConfig, ShortRoute, Transmit,
};
use noq_udp::RecvMeta;

use crate::{
    boundary::EndpointError,
    identities::Identities,
    key::{PrivateKey, PublicKey},
    socket::{CountedSocket, Resume, SocketUse},
    stats::SocketCounters,
    strangers::{Gate, is_long},
};

/// The largest UDP payload of an IPv4 packet, and thus of a GSO send.
const MAX_GSO_BYTES: usize = 65_507;

/// A socket and its QUIC endpoint.
pub(super) struct Port {
    pub(super) socket: CountedSocket,
    pub(super) endpoint: Endpoint,
    pub(super) listening: Option<Listening>,
    /// The table slots of the port's connections, by handle.
    routes: Vec<Option<usize>>,
    parked: Option<Parked>,
    /// Connections that wait for the parked transmit to be sent.
    pub(super) stalled: Vec<usize>,
    /// Whether the worker's waker is registered for reading, and for writing.
    readable_is_awaited: bool,
    writable_is_awaited: bool,
    /// A buffer for the endpoint's own answers.
    answer: Vec<u8>,
}

/// The additional state of an exit's port.
pub(super) struct Listening {
    /// The filter in front of the endpoint.
    pub(super) gate: Gate,
    pub(super) identities: Identities,
}

/// A transmit that waits for room in the socket.
struct Parked {
    transmit: Transmit,
    contents: Vec<u8>,
    resume: Resume,
}

/// The common properties of one batch's datagrams.
pub(super) struct Origin {
    address: SocketAddr,
    pub(super) path: FourTuple,
    pub(super) mark: Option<EcnCodepoint>,
}

impl Origin {
    pub(super) fn of(meta: &RecvMeta) -> Self {
        Self {
            address: meta.addr,
            path: FourTuple::new(meta.addr, meta.dst_ip),
            mark: meta.ecn.map(received_mark),
        }
    }
}

/// The result of routing a datagram.
pub(super) enum Routed {
    /// An event for the connection in this slot.
    To(usize, ConnectionEvent),
    /// An attempt to connect.
    Attempt(Incoming),
    /// Handled completely.
    Done,
}

impl Port {
    /// Registers the socket with tokio, so it must be called inside a tokio runtime.
    pub(super) fn new(
        socket: UdpSocket,
        using: SocketUse,
        counters: Arc<SocketCounters>,
        config: EndpointConfig,
        server: Option<ServerConfig>,
    ) -> io::Result<Self> {
        let socket = CountedSocket::new(socket, using, counters)?;
        // MTU discovery needs datagrams that are not fragmented on the way.
        let endpoint = Endpoint::new(Arc::new(config), server.map(Arc::new), !socket.may_fragment());
        Ok(Self {
            socket,
            endpoint,
            listening: None,
            routes: Vec::new(),
            parked: None,
            stalled: Vec::new(),
            readable_is_awaited: false,
            writable_is_awaited: false,
            answer: Vec::new(),
        })
    }

    /// Replaces the socket. A parked transmit is lost. Returns the connections that waited for the transmit.
    pub(super) fn replace_socket(
        &mut self,
        socket: UdpSocket,
        using: SocketUse,
        counters: Arc<SocketCounters>,
    ) -> io::Result<Vec<usize>> {
        self.socket = CountedSocket::new(socket, using, counters)?;
        // The transmit and its progress belong to the old socket. The transmit is lost, as if the path had lost it.
        self.parked = None;
        self.forget_waker();
        Ok(std::mem::take(&mut self.stalled))
    }

    pub(super) fn add_route(&mut self, handle: ConnectionHandle, slot: usize) {
        if self.routes.len() <= handle.0 {
            self.routes.resize(handle.0 + 1, None);
        }
        if let Some(route) = self.routes.get_mut(handle.0) {
            *route = Some(slot);
        }
    }

    /// Removes a connection's route, unless its handle belongs to another connection by now.
    pub(super) fn remove_route(&mut self, handle: ConnectionHandle, slot: usize) {
        if let Some(route) = self.routes.get_mut(handle.0) {
            route.take_if(|of| *of == slot);
        }
    }

    /// Finds the slot of a datagram's connection, if the datagram has a short header. Nearly all datagrams do.
    pub(super) fn route_short(&self, datagram: &[u8]) -> Option<(usize, ShortRoute)> {
        let route = self.endpoint.route_short(datagram)?;
        let slot = self.routes.get(route.connection.0).copied().flatten()?;
        Some((slot, route))
    }

    /// Replaces the keys that an exit accepts connections with.
    pub(super) fn set_identities(&mut self, keys: &[PrivateKey]) -> Result<(), EndpointError> {
        let Some(Listening { gate, identities }) = &mut self.listening else { return Ok(()) };
        identities.set(keys)?;
        gate.set_keys(&keys.iter().map(PrivateKey::public).collect::<Vec<_>>());
        // The endpoint must not keep a key that the exit no longer has.
        self.endpoint.set_server_config(identities.first());
        Ok(())
    }

    /// Returns the key that the connecting client pins, and the configuration with this key.
    pub(super) fn identity_for(&self, incoming: &Incoming) -> Option<(PublicKey, Arc<ServerConfig>)> {
        let Listening { gate, identities } = self.listening.as_ref()?;
        let place = gate.pinned_by(incoming.remote_address(), &incoming.orig_dst_cid());
        identities.key_at(place).zip(identities.at(place))
    }

    /// Whether to pass the endpoint a datagram that belongs to no known connection.
    pub(super) fn lets_in(&self, from: SocketAddr, datagram: &[u8]) -> bool {
        self.listening.as_ref().is_none_or(|listening| listening.gate.lets_in(from, datagram))
    }

    /// Whether to buffer a datagram that belongs to no known connection.
    pub(super) fn lets_wait(&self, from: SocketAddr, datagram: &[u8]) -> bool {
        self.listening.as_ref().is_none_or(|listening| listening.gate.lets_wait(from, datagram))
    }

    /// Routes a datagram, and sends the endpoint's own answer if it has one.
    pub(super) fn route(&mut self, now: Instant, origin: &Origin, mut datagram: BytesMut) -> Routed {
        // Datagrams with short headers are always let in.
        if is_long(&datagram) {
            if !self.lets_in(origin.address, &datagram) {
                return Routed::Done;
            }
            // An attempt keeps its first packet while it waits, and the token in it until the handshake completes. The copy
            // prevents the attempt from pinning the receive buffer, which is many times larger.
            datagram = BytesMut::from(&*datagram);
        }
        self.answer.clear();
        match self.endpoint.handle(now, origin.path, origin.mark, datagram, &mut self.answer) {
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                match self.routes.get(handle.0).copied().flatten() {
                    Some(slot) => Routed::To(slot, event),
                    // The driver has removed the connection.
                    None => Routed::Done,
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) => Routed::Attempt(incoming),
            Some(DatagramEvent::Response(transmit)) => {
                self.send_answer(&transmit);
                Routed::Done
            }
            None => Routed::Done,
        }
    }

    /// Sends the transmit that `answer` builds, if the socket has room now. Otherwise it is lost, and the peer retries.
    pub(super) fn answer(&mut self, answer: impl FnOnce(&mut Endpoint, &mut Vec<u8>) -> Option<Transmit>) {
        self.answer.clear();
        if let Some(transmit) = answer(&mut self.endpoint, &mut self.answer) {
            self.send_answer(&transmit);
        }
    }

    fn send_answer(&self, transmit: &Transmit) {
        if let Some(contents) = self.answer.get(..transmit.size) {
            let _full = self.socket.send(&outgoing(transmit, contents), &mut Resume::default());
        }
    }

    /// Returns how many datagrams of a path's MTU one send may carry: at most `cap`.
    pub(super) fn segments(&self, cap: NonZeroUsize, mtu: u16) -> NonZeroUsize {
        let fitting = NonZeroUsize::new(MAX_GSO_BYTES / usize::from(mtu.max(1))).unwrap_or(NonZeroUsize::MIN);
        cap.min(fitting).min(self.socket.max_segments())
    }

    /// Sends a transmit, or parks it with its contents if the socket is full. Returns whether it was sent.
    pub(super) fn send(&mut self, transmit: Transmit, contents: &mut Vec<u8>) -> bool {
        let mut resume = Resume::default();
        let bytes = contents.get(..transmit.size).unwrap_or_default();
        if self.socket.send(&outgoing(&transmit, bytes), &mut resume).is_ok() {
            return true;
        }
        // The buffer is parked with the transmit. The next transmit gets a new one.
        self.parked = Some(Parked { transmit, contents: std::mem::take(contents), resume });
        false
    }

    pub(super) fn is_parked(&self) -> bool {
        self.parked.is_some()
    }

    /// Retries a parked transmit. Returns whether no transmit is parked any more.
    pub(super) fn unpark(&mut self) -> bool {
        let Some(Parked { transmit, contents, resume }) = &mut self.parked else { return true };
        let bytes = contents.get(..transmit.size).unwrap_or_default();
        let left = self.socket.send(&outgoing(transmit, bytes), resume).is_ok();
        if left {
            self.parked = None;
            self.writable_is_awaited = false;
            // If the waker stayed registered, each packet that leaves would wake the worker.
            self.socket.forget_room();
        }
        left
    }

    /// Records that the socket was ready, so the waker must be registered again.
    pub(super) fn was_readable(&mut self) {
        self.readable_is_awaited = false;
    }

    /// Registers `cx` for reading, and for writing if a transmit is parked.
    pub(super) fn wait(&mut self, cx: &mut Context<'_>) {
        if !self.readable_is_awaited {
            self.readable_is_awaited = is_awaited(self.socket.poll_readable(cx), cx);
        }
        if self.parked.is_some() && !self.writable_is_awaited {
            self.writable_is_awaited = is_awaited(self.socket.poll_writable(cx), cx);
        }
    }

    /// Forgets the registered waker.
    pub(super) fn forget_waker(&mut self) {
        self.readable_is_awaited = false;
        self.writable_is_awaited = false;
    }
}

/// Whether the waker is registered with the socket. If not, it is woken now. A task without budget gets Pending even if the
/// socket is ready (`tokio::task::coop`).
fn is_awaited(polled: Poll<io::Result<()>>, cx: &Context<'_>) -> bool {
    let awaited = polled.is_pending() && tokio::task::coop::has_budget_remaining();
    if !awaited {
        cx.waker().wake_by_ref();
    }
    awaited
}

fn outgoing<'a>(transmit: &Transmit, contents: &'a [u8]) -> noq_udp::Transmit<'a> {
    noq_udp::Transmit {
        destination: transmit.destination,
        ecn: transmit.ecn.map(|mark| match mark {
            EcnCodepoint::Ect0 => noq_udp::EcnCodepoint::Ect0,
            EcnCodepoint::Ect1 => noq_udp::EcnCodepoint::Ect1,
            EcnCodepoint::Ce => noq_udp::EcnCodepoint::Ce,
        }),
        contents,
        segment_size: transmit.segment_size,
        src_ip: transmit.src_ip,
    }
}

fn received_mark(mark: noq_udp::EcnCodepoint) -> EcnCodepoint {
    match mark {
        noq_udp::EcnCodepoint::Ect0 => EcnCodepoint::Ect0,
        noq_udp::EcnCodepoint::Ect1 => EcnCodepoint::Ect1,
        noq_udp::EcnCodepoint::Ce => EcnCodepoint::Ce,
    }
}
