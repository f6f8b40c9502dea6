//! All peers of an exit. Finds the peer that sent a datagram, and processes the datagram.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use boringtun::noise::errors::WireGuardError;
use boringtun::noise::handshake::parse_handshake_anon;
use boringtun::noise::rate_limiter::RateLimiter;
use boringtun::noise::{Packet, Tunn, TunnResult};
use boringtun::x25519;
use slab::Slab;
use warren_session::PublicKey;
use warren_session::clients::WireGuardClient;

use super::budget::{Budget, UNDER_LOAD};
use super::key::{PrivateKey, is_safe};
use super::peer::{Path, Peer};

/// Bytes that a data message adds to its packet: 16 of header and 16 of authentication.
pub const OVERHEAD: usize = 32;
/// Longest message except data messages. The first message of a handshake has this length.
const HANDSHAKE: usize = 148;
/// A key is not used beyond this counter (WireGuard's paper, section 6.1). Messages beyond it are refused.
const REJECT_AFTER_MESSAGES: u64 = u64::MAX - (1 << 13);
/// boringtun uses the low 8 bits of a receiver index to tell a peer's keys apart.
const KEY_BITS: u32 = 8;
/// Maximum number of peers at a time. The remaining bits of the index can count this many.
const PEERS: usize = 1 << (32 - KEY_BITS);

/// The result of processing a datagram.
#[derive(Debug)]
pub enum Taken<'a> {
    /// The datagram was a message of the protocol itself, and has no answer.
    Nothing,
    /// The datagram was a keep-alive of this peer. It contains no packet.
    KeepAlive {
        /// The number of the peer.
        peer: usize,
    },
    /// The caller must send this answer.
    Answer(&'a [u8]),
    /// The datagram contained a packet of this peer. The caller checks whether the packet is valid.
    Packet {
        /// The number of the peer.
        peer: usize,
        /// The packet, at the start of the buffer.
        length: usize,
    },
    /// The datagram is dropped.
    Refused(Refusal),
}

/// Why a datagram was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The datagram is not a WireGuard message.
    Malformed,
    /// The sender did not prove an enrolled key, or the key of a connection.
    NotAuthentic,
    /// The datagram has arrived before, or is too old to find out.
    Repeated,
    /// Too many handshakes were begun.
    TooMany,
}

/// News of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The peer of this number has come up, and has this key. Its packets may arrive before this event is handled.
    Up {
        /// The peer's number, until it is down.
        peer: usize,
        /// The peer's key.
        key: PublicKey,
        /// The peer's address.
        remote: SocketAddr,
    },
    /// The peer of this number, which was up, is gone.
    Down {
        /// The peer's number, which another peer may have next.
        peer: usize,
    },
}

/// The exit's side of WireGuard.
pub struct Server {
    key: PrivateKey,
    public: x25519::PublicKey,
    /// Checks the first code of a handshake message, and asks for cookies under load.
    guard: Arc<RateLimiter>,
    /// The limiter for peers, whose messages [`Self::guard`] has counted already.
    counted: Arc<RateLimiter>,
    budget: Budget,
    known: HashMap<PublicKey, Known>,
    peers: Slab<Peer>,
    events: VecDeque<Event>,
    scratch: [u8; HANDSHAKE],
}

/// An enrolled key.
struct Known {
    client: WireGuardClient,
    /// The number of the key's peer, once a handshake has begun.
    peer: Option<usize>,
}

impl Server {
    /// A server with this key and without peers.
    pub fn new(key: PrivateKey, now: Instant) -> Self {
        let public = x25519::PublicKey::from(key.secret());
        Self {
            guard: Arc::new(RateLimiter::new(&public, UNDER_LOAD)),
            counted: Arc::new(RateLimiter::new(&public, u64::MAX)),
            key,
            public,
            budget: Budget::new(now),
            known: HashMap::new(),
            peers: Slab::new(),
            events: VecDeque::new(),
            scratch: [0; HANDSHAKE],
        }
    }

    /// Admits a key, or refuses it from now on. If this changes anything, the key's current connection ends.
    pub fn set_client(&mut self, key: PublicKey, client: Option<WireGuardClient>) {
        if let Some(known) = self.known.get(&key)
            && client.as_ref() == Some(&known.client)
        {
            return;
        }
        if let Some(Known { peer: Some(peer), .. }) = self.known.remove(&key) {
            self.forget(peer);
        }
        match client {
            Some(client) if is_safe(key) => {
                self.known.insert(key, Known { client, peer: None });
            }
            Some(_) => {
                tracing::warn!(%key, "a WireGuard client has an unsafe key and is refused; give it another")
            }
            None => {}
        }
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The path of a peer.
    pub fn path_of(&self, peer: usize) -> Option<Path> {
        self.peers.get(peer).map(|peer| peer.path)
    }

    /// Whether there is a peer whose timers [`Self::tick`] must handle.
    pub fn has_peers(&self) -> bool {
        !self.peers.is_empty()
    }

    /// Records that a peer has a session. It asks for no other until [`Self::end_session`].
    pub fn attached(&mut self, peer: usize) {
        if let Some(peer) = self.peers.get_mut(peer) {
            peer.attached();
        }
    }

    /// Ends a peer's session and keeps its keys. The peer's next message brings the session up again.
    pub fn end_session(&mut self, peer: usize) {
        if let Some(peer) = self.peers.get_mut(peer) {
            peer.end_session();
        }
    }

    #[cfg(test)]
    pub(crate) fn known_keys(&self) -> impl Iterator<Item = PublicKey> {
        self.known.keys().copied()
    }

    /// Handles a datagram. `buffer` receives a packet or the answer. It must be longer than the datagram, and at least 148 bytes
    /// long.
    pub fn receive<'a>(
        &mut self,
        now: Instant,
        from: Path,
        datagram: &[u8],
        buffer: &'a mut [u8],
    ) -> Taken<'a> {
        match Tunn::parse_incoming_packet(datagram) {
            Err(_) => Taken::Refused(Refusal::Malformed),
            Ok(Packet::PacketData(data)) => {
                if counter_of(datagram) >= REJECT_AFTER_MESSAGES {
                    return Taken::Refused(Refusal::Malformed);
                }
                self.take_data(peer_of(data.receiver_idx), now, from, datagram, buffer)
            }
            // A cookie reply is useful only if it answers this exit's own handshake. The peer checks that.
            Ok(Packet::PacketCookieReply(cookie)) => {
                self.answer(peer_of(cookie.receiver_idx), from, datagram, buffer)
            }
            Ok(Packet::HandshakeResponse(response)) => {
                let peer = peer_of(response.receiver_idx);
                match self.admit(now, from, datagram) {
                    Ok(()) => self.answer(peer, from, datagram, buffer),
                    Err(taken) => taken.into_taken(buffer, &self.scratch),
                }
            }
            Ok(Packet::HandshakeInit(init)) => match self.admit(now, from, datagram) {
                Ok(()) => {
                    let Ok(half) = parse_handshake_anon(self.key.secret(), &self.public, &init) else {
                        return Taken::Refused(Refusal::NotAuthentic);
                    };
                    self.begin(PublicKey(half.peer_static_public), now, from, datagram, buffer)
                }
                Err(taken) => taken.into_taken(buffer, &self.scratch),
            },
        }
    }

    /// Encrypts a packet for a peer at the start of `message`, which must have room for the packet and [`OVERHEAD`]. Returns the
    /// message's length, or `None` if the peer has no keys.
    pub fn encrypt(&mut self, peer: usize, packet: &[u8], message: &mut [u8]) -> Option<usize> {
        match self.peers.get_mut(peer)?.tunnel.encapsulate(packet, message) {
            TunnResult::WriteToNetwork(message) => Some(message.len()),
            TunnResult::Done
            | TunnResult::Err(_)
            | TunnResult::WriteToTunnelV4(..)
            | TunnResult::WriteToTunnelV6(..) => None,
        }
    }

    /// Whether a peer has keys to send with. Do not call [`Self::encrypt`] without keys, because it would keep the packet.
    pub fn can_send(&self, peer: usize) -> bool {
        self.peers.get(peer).is_some_and(Peer::has_keys)
    }

    /// Handles the timers of every peer. Call it four times a second while [`Self::has_peers`].
    pub fn tick(&mut self, now: Instant, mut send: impl FnMut(Path, &[u8])) {
        self.guard.reset_count();
        let mut buffer = [0; HANDSHAKE];
        let mut gone = Vec::new();
        for (number, peer) in &mut self.peers {
            if !peer.tick(now, &mut buffer, &mut send) {
                gone.push(number);
            }
        }
        for peer in gone {
            self.forget(peer);
        }
    }

    /// Checks that a handshake message is for this exit, and that the budget allows one more handshake.
    fn admit(&mut self, now: Instant, from: Path, datagram: &[u8]) -> Result<(), NotAdmitted> {
        let address = from.remote.ip();
        self.guard.reset_count();
        match self.guard.verify_packet(Some(address), datagram, &mut self.scratch) {
            Ok(_) if self.budget.admits(address, now) => Ok(()),
            Ok(_) => Err(NotAdmitted::Refused(Refusal::TooMany)),
            Err(TunnResult::WriteToNetwork(cookie)) => Err(NotAdmitted::Cookie(cookie.len())),
            Err(_) => Err(NotAdmitted::Refused(Refusal::NotAuthentic)),
        }
    }

    /// Handles the first message of a handshake, whose sender claims to have a key.
    fn begin<'a>(
        &mut self,
        key: PublicKey,
        now: Instant,
        from: Path,
        datagram: &[u8],
        buffer: &'a mut [u8],
    ) -> Taken<'a> {
        let Some(known) = self.known.get(&key) else { return Taken::Refused(Refusal::NotAuthentic) };
        if let Some(peer) = known.peer {
            let taken = self.answer(peer, from, datagram, buffer);
            if matches!(taken, Taken::Answer(_)) {
                self.peers.get_mut(peer).into_iter().for_each(|peer| peer.begin_again(now));
            }
            return taken;
        }
        if self.peers.len() >= PEERS {
            return Taken::Refused(Refusal::TooMany);
        }
        let preshared = known.client.preshared_key.as_ref().map(|key| *key.as_bytes());
        let entry = self.peers.vacant_entry();
        let number = entry.key();
        let index = u32::try_from(number).unwrap_or_default();
        let (own, counted) = (self.key.secret().clone(), self.counted.clone());
        let tunnel = Tunn::new(own, x25519::PublicKey::from(key.0), preshared, None, index, Some(counted));
        entry.insert(Peer::new(key, tunnel, from, now));
        let taken = self.answer(number, from, datagram, buffer);
        if matches!(taken, Taken::Answer(_)) {
            if let Some(known) = self.known.get_mut(&key) {
                known.peer = Some(number);
            }
        } else {
            // The sender does not have the key's private key, so nothing of the handshake is kept.
            self.peers.remove(number);
        }
        taken
    }

    /// Passes a message other than a data message to a peer. The peer's path does not change, because anybody can repeat such a
    /// message.
    fn answer<'a>(&mut self, peer: usize, from: Path, datagram: &[u8], buffer: &'a mut [u8]) -> Taken<'a> {
        let Some(peer) = self.peers.get_mut(peer) else { return Taken::Refused(Refusal::NotAuthentic) };
        match peer.tunnel.decapsulate(Some(from.remote.ip()), datagram, buffer) {
            TunnResult::WriteToNetwork(answer) => Taken::Answer(answer),
            TunnResult::Err(error) => Taken::Refused(refusal(&error)),
            TunnResult::Done | TunnResult::WriteToTunnelV4(..) | TunnResult::WriteToTunnelV6(..) => {
                Taken::Nothing
            }
        }
    }

    fn take_data<'a>(
        &mut self,
        number: usize,
        now: Instant,
        from: Path,
        datagram: &[u8],
        buffer: &'a mut [u8],
    ) -> Taken<'a> {
        let Some(peer) = self.peers.get_mut(number) else { return Taken::Refused(Refusal::NotAuthentic) };
        let taken = match peer.tunnel.decapsulate(Some(from.remote.ip()), datagram, buffer) {
            TunnResult::WriteToTunnelV4(packet, _) | TunnResult::WriteToTunnelV6(packet, _) => {
                Taken::Packet { peer: number, length: packet.len() }
            }
            TunnResult::Done | TunnResult::WriteToNetwork(_) => Taken::KeepAlive { peer: number },
            TunnResult::Err(error) => return Taken::Refused(refusal(&error)),
        };
        if peer.heard(from, now) {
            let (key, remote) = (peer.key, from.remote);
            self.events.push_back(Event::Up { peer: number, key, remote });
        }
        taken
    }

    fn forget(&mut self, number: usize) {
        let Some(peer) = self.peers.try_remove(number) else { return };
        if let Some(known) = self.known.get_mut(&peer.key) {
            known.peer = None;
        }
        if peer.is_up() {
            self.events.push_back(Event::Down { peer: number });
        }
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("known", &self.known.len())
            .field("peers", &self.peers.len())
            .finish_non_exhaustive()
    }
}

/// Why a handshake message is not processed.
enum NotAdmitted {
    Refused(Refusal),
    /// The sender must prove its address first. The answer of this length is in the scratch buffer.
    Cookie(usize),
}

impl NotAdmitted {
    fn into_taken<'a>(self, buffer: &'a mut [u8], scratch: &[u8]) -> Taken<'a> {
        match self {
            Self::Refused(refusal) => Taken::Refused(refusal),
            Self::Cookie(length) => match (buffer.get_mut(..length), scratch.get(..length)) {
                (Some(answer), Some(cookie)) => {
                    answer.copy_from_slice(cookie);
                    Taken::Answer(answer)
                }
                _ => Taken::Refused(Refusal::TooMany),
            },
        }
    }
}

fn peer_of(index: u32) -> usize {
    usize::try_from(index >> KEY_BITS).unwrap_or(usize::MAX)
}

/// The counter of a data message, whose length was checked.
fn counter_of(datagram: &[u8]) -> u64 {
    let counter = datagram.get(8..16).and_then(|bytes| bytes.try_into().ok());
    counter.map_or(u64::MAX, u64::from_le_bytes)
}

fn refusal(error: &WireGuardError) -> Refusal {
    match error {
        WireGuardError::DuplicateCounter
        | WireGuardError::InvalidCounter
        | WireGuardError::WrongTai64nTimestamp => Refusal::Repeated,
        WireGuardError::IncorrectPacketLength
        | WireGuardError::WrongPacketType
        | WireGuardError::InvalidPacket
        | WireGuardError::DestinationBufferTooSmall => Refusal::Malformed,
        WireGuardError::UnderLoad => Refusal::TooMany,
        WireGuardError::UnexpectedPacket
        | WireGuardError::WrongIndex
        | WireGuardError::WrongKey
        | WireGuardError::InvalidTai64nTimestamp
        | WireGuardError::InvalidMac
        | WireGuardError::InvalidAeadTag
        | WireGuardError::NoCurrentSession
        | WireGuardError::LockFailed
        | WireGuardError::ConnectionExpired => Refusal::NotAuthentic,
    }
}
