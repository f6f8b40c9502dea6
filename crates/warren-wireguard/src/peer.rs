//! One peer that has begun a handshake: its keys and its address.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use boringtun::noise::{Tunn, TunnResult};
use warren_session::PublicKey;

/// How long a peer may take to prove, with a data message, that its handshake was not a repeated old one. A peer sends such a
/// message at once, so this time only has to cover lost messages.
const UNPROVEN: Duration = Duration::from_secs(30);
/// Minimum time from when a peer came up until it may come up again, if its session was ended since.
const UP_AGAIN: Duration = Duration::from_secs(1);

/// The path on which a datagram came. An answer takes the same path back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The number of the socket that received the datagram.
    pub socket: usize,
    /// The peer's address.
    pub remote: SocketAddr,
    /// The exit's address to which it was sent, if known.
    pub local: Option<IpAddr>,
}

/// A peer that has begun a handshake.
pub(crate) struct Peer {
    pub(crate) key: PublicKey,
    pub(crate) tunnel: Box<Tunn>,
    /// The path of the peer's latest authentic data message.
    pub(crate) path: Path,
    begun: Instant,
    /// Whether the peer counts as up.
    is_up: bool,
    /// When the peer last came up.
    came_up: Option<Instant>,
}

impl Peer {
    pub(crate) fn new(key: PublicKey, tunnel: Tunn, path: Path, now: Instant) -> Self {
        Self { key, tunnel: Box::new(tunnel), path, begun: now, is_up: false, came_up: None }
    }

    pub(crate) fn is_up(&self) -> bool {
        self.is_up
    }

    /// Handles a new handshake of the peer.
    pub(crate) fn begin_again(&mut self, now: Instant) {
        self.begun = now;
    }

    /// Records that the peer has a session, so that it asks for no other.
    pub(crate) fn attached(&mut self) {
        self.is_up = true;
    }

    /// Ends the session, so that the next data message brings the peer up again.
    pub(crate) fn end_session(&mut self) {
        self.is_up = false;
    }

    /// Records an authentic data message. Returns whether this message brings the peer up.
    pub(crate) fn heard(&mut self, path: Path, now: Instant) -> bool {
        self.path = path;
        if self.is_up || self.came_up.is_some_and(|at| now.saturating_duration_since(at) < UP_AGAIN) {
            return false;
        }
        self.is_up = true;
        self.came_up = Some(now);
        true
    }

    /// Whether the peer has session keys, and has proven that it knows them.
    pub(crate) fn has_keys(&self) -> bool {
        self.tunnel.time_since_last_handshake().is_some()
    }

    /// Handles the peer's timers. Returns false if nothing is left of the peer.
    pub(crate) fn tick(
        &mut self,
        now: Instant,
        buffer: &mut [u8],
        send: &mut impl FnMut(Path, &[u8]),
    ) -> bool {
        match self.tunnel.update_timers(buffer) {
            TunnResult::WriteToNetwork(message) => send(self.path, message),
            // The peer has not answered for a long time.
            TunnResult::Err(_) => return false,
            TunnResult::Done | TunnResult::WriteToTunnelV4(..) | TunnResult::WriteToTunnelV6(..) => {}
        }
        self.has_keys() || self.came_up.is_none() && now.saturating_duration_since(self.begun) < UNPROVEN
    }
}
