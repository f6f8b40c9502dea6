//! A worker's WireGuard peers and sockets. Each peer that is up is a connection of a session, like one of QUIC's.

use std::collections::HashMap;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use warren_packet::reason::DropReason;
use warren_quic::driver::{ConnectionId, ConnectionStats, Datagrams, SocketStats};
use warren_quic::settings::{TransportSettings, WorkerPlace};
use warren_quic::socket::PlainSocket;
use warren_session::exit::SessionId;
use warren_wireguard::{OVERHEAD, Path, PrivateKey, Refusal, Server};

use super::counters::{ConnectionSnapshot, RepairSnapshot};
use super::traffic::Traffic;

/// How often the upkeep of every peer runs.
const ROUND: Duration = Duration::from_millis(250);
/// Maximum number of a peer's packets that wait until the daemon has opened its session, which takes about a millisecond.
const MOST_HELD: usize = 32;
/// Maximum bytes of one send: the largest UDP payload, with room for an IPv6 header.
const MOST_BYTES: usize = 65_000;
/// Maximum datagrams of one send. Every kernel that can send several at once accepts this many.
const MOST_DATAGRAMS: usize = 64;

/// The parts that an exit needs to serve WireGuard.
pub struct WireGuardCarrier {
    /// The exit's key.
    pub key: PrivateKey,
    /// The sockets for WireGuard, already bound.
    pub sockets: Vec<UdpSocket>,
    /// The largest packet that the TUN passes on to clients.
    pub mtu: u16,
}

/// One worker's WireGuard state.
pub(crate) struct WireGuard {
    pub(crate) server: Server,
    pub(crate) sockets: Vec<PlainSocket>,
    pub(crate) mtu: u16,
    /// The peers that are up.
    pub(crate) members: Members,
    pub(crate) run: Run,
    looked_after: Instant,
}

/// The peers that are up, keyed by the peers' numbers.
pub(crate) struct Members {
    worker: WorkerPlace,
    by_peer: HashMap<usize, Member>,
    by_connection: HashMap<ConnectionId, usize>,
    /// How many connections were numbered so far.
    connections: u64,
}

/// One peer that is up.
pub(crate) struct Member {
    pub(crate) connection: ConnectionId,
    /// The peer's session, once it is attached.
    pub(crate) session: Option<SessionId>,
    /// The traffic that the peer carried for the session.
    pub(crate) traffic: Traffic,
    /// Packets that came before the peer was attached.
    held: Vec<BytesMut>,
    sent: Datagrams,
    received: Datagrams,
}

impl WireGuard {
    /// Registers the sockets, so it must be called inside a tokio runtime.
    ///
    /// # Errors
    /// If the kernel refuses one.
    pub(crate) fn new(carrier: WireGuardCarrier, settings: &TransportSettings) -> std::io::Result<Self> {
        let WireGuardCarrier { key, sockets, mtu } = carrier;
        let sockets = sockets.into_iter().map(|socket| PlainSocket::new(socket, settings));
        let now = Instant::now();
        Ok(Self {
            server: Server::new(key, now),
            sockets: sockets.collect::<Result<_, _>>()?,
            mtu,
            members: Members::new(settings.worker),
            run: Run::default(),
            looked_after: now,
        })
    }

    /// Whether the upkeep of every peer is due now.
    pub(crate) fn is_due(&mut self, now: Instant) -> bool {
        let due = self.server.has_peers() && now.duration_since(self.looked_after) >= ROUND;
        if due {
            self.looked_after = now;
        }
        due
    }

    /// How long until [`Self::is_due`] is true. `None` without peers.
    pub(crate) fn due(&self, now: Instant) -> Option<Duration> {
        let next = self.looked_after + ROUND;
        self.server.has_peers().then(|| next.saturating_duration_since(now))
    }

    /// Encrypts a packet for a peer and adds it to the send that is being prepared. Returns false if the peer has no keys.
    pub(crate) fn seal(
        &mut self,
        peer: usize,
        packet: &[u8],
        lost: &mut impl FnMut(DropReason, u64),
    ) -> bool {
        let length = packet.len() + OVERHEAD;
        if !self.run.has_room(peer, length) {
            self.send_run(lost);
        }
        let Some(path) = self.server.path_of(peer) else { return false };
        let Run { contents, size, datagrams, .. } = &mut self.run;
        let start = contents.len();
        contents.resize(start + length, 0);
        let message = contents.get_mut(start..).unwrap_or_default();
        let Some(sealed) = self.server.encrypt(peer, packet, message) else {
            contents.truncate(start);
            return false;
        };
        contents.truncate(start + sealed);
        if *datagrams == 0 {
            *size = sealed;
        }
        *datagrams += 1;
        // UDP segmentation offload allows only the last datagram to be shorter (`UDP_SEGMENT` in udp(7)).
        self.run.is_full = sealed < self.run.size;
        self.run.to = Some((peer, path));
        if let Some(member) = self.members.by_peer.get_mut(&peer) {
            member.traffic.packets_out += 1;
            member.traffic.bytes_out += packet.len() as u64;
            member.sent.count += 1;
            member.sent.bytes += sealed as u64;
        }
        true
    }

    /// Sends the encrypted datagrams. Datagrams for which the socket has no room are lost.
    pub(crate) fn send_run(&mut self, lost: &mut impl FnMut(DropReason, u64)) {
        let Run { to, contents, size, datagrams, .. } = &mut self.run;
        if let Some((_, path)) = to.take()
            && let Some(socket) = self.sockets.get_mut(path.socket)
            && !socket.send(path.remote, path.local, contents, *size)
        {
            lost(DropReason::QueueFull, *datagrams as u64);
        }
        contents.clear();
        (*size, *datagrams, self.run.is_full) = (0, 0, false);
    }

    /// Adds the sockets' counters to `into`.
    pub(crate) fn socket_stats(&self, into: &mut SocketStats) {
        self.sockets.iter().for_each(|socket| into.merge(&socket.stats()));
    }
}

impl Members {
    fn new(worker: WorkerPlace) -> Self {
        Self { worker, by_peer: HashMap::new(), by_connection: HashMap::new(), connections: 0 }
    }

    /// Makes a peer a member, with a connection of its own.
    pub(crate) fn add(&mut self, peer: usize) -> ConnectionId {
        // A number is never used twice, because commands for an earlier connection may still be under way.
        self.connections += 1;
        let connection = ConnectionId::of_other_protocol(self.worker, self.connections);
        let member = Member {
            connection,
            session: None,
            traffic: Traffic::default(),
            held: Vec::new(),
            sent: Datagrams::default(),
            received: Datagrams::default(),
        };
        self.by_peer.insert(peer, member);
        self.by_connection.insert(connection, peer);
        connection
    }

    pub(crate) fn get_mut(&mut self, peer: usize) -> Option<&mut Member> {
        self.by_peer.get_mut(&peer)
    }

    /// The peer of a connection.
    pub(crate) fn of(&self, connection: ConnectionId) -> Option<usize> {
        self.by_connection.get(&connection).copied()
    }

    pub(crate) fn remove(&mut self, peer: usize) -> Option<Member> {
        let member = self.by_peer.remove(&peer)?;
        self.by_connection.remove(&member.connection);
        Some(member)
    }

    /// Counts a datagram from a peer.
    pub(crate) fn heard(&mut self, peer: usize, bytes: usize) {
        if let Some(member) = self.by_peer.get_mut(&peer) {
            member.received.count += 1;
            member.received.bytes += bytes as u64;
        }
    }

    /// Every member with its number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &Member)> {
        self.by_peer.iter().map(|(peer, member)| (*peer, member))
    }
}

impl Member {
    /// Keeps a packet until the member is attached; returns it if too many wait.
    pub(crate) fn hold(&mut self, packet: BytesMut) -> Result<(), BytesMut> {
        if self.held.len() >= MOST_HELD {
            return Err(packet);
        }
        self.held.push(packet);
        Ok(())
    }

    /// Removes and returns the packets that were held.
    pub(crate) fn take_held(&mut self) -> Vec<BytesMut> {
        std::mem::take(&mut self.held)
    }

    pub(crate) fn snapshot(&self, path: Path) -> ConnectionSnapshot {
        let Traffic { packets_out, bytes_out, packets_in, bytes_in } = self.traffic;
        ConnectionSnapshot {
            connection: self.connection,
            session: self.session,
            index: self.session.map(|_| 0),
            packets_out,
            bytes_out,
            packets_in,
            bytes_in,
            queue_packets: 0,
            queue_bytes: 0,
            quic: Some(ConnectionStats::of_other_protocol(path.remote, self.sent, self.received)),
            repair: RepairSnapshot::default(),
        }
    }
}

/// Datagrams to one peer that go out with one send: all of one size except the last.
#[derive(Default)]
pub(crate) struct Run {
    to: Option<(usize, Path)>,
    contents: Vec<u8>,
    size: usize,
    datagrams: usize,
    /// Whether the last datagram was shorter.
    is_full: bool,
}

impl Run {
    /// Whether a datagram of this length to this peer can be the next one.
    fn has_room(&self, peer: usize, length: usize) -> bool {
        let Some((to, _)) = self.to else { return true };
        to == peer
            && !self.is_full
            && length <= self.size
            && self.datagrams < MOST_DATAGRAMS
            && self.contents.len() + length <= MOST_BYTES
    }
}

/// Returns the reason under which to count a dropped datagram.
pub(crate) fn drop_reason(refusal: Refusal) -> DropReason {
    match refusal {
        Refusal::Malformed => DropReason::BadDatagram,
        Refusal::NotAuthentic => DropReason::Unauthenticated,
        Refusal::Repeated => DropReason::Repeated,
        Refusal::TooMany => DropReason::HandshakeLimit,
    }
}
