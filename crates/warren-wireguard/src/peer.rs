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
        // A handshake may have begun while the old keys were valid, and they may expire before the handshake is proven.
        self.has_keys() || now.saturating_duration_since(self.begun) < UNPROVEN
    }
}

#[cfg(test)]
mod tests {
    use boringtun::x25519::{PublicKey as Key, StaticSecret};

    use super::*;

    #[test]
    fn peer_whose_old_keys_expire_during_a_new_handshake_stays_until_the_handshake_is_proven() {
        let (own, theirs) = (StaticSecret::from([7; 32]), StaticSecret::from([8; 32]));
        let (public, client_public) = (Key::from(&own), Key::from(&theirs));
        let mut client = Tunn::new(theirs, public, None, None, 5, None);
        let tunnel = Tunn::new(own, client_public, None, None, 1, None);
        let path = Path { socket: 0, remote: "192.0.2.2:1000".parse().unwrap(), local: None };
        let now = Instant::now();
        let mut peer = Peer::new(PublicKey(client_public.to_bytes()), tunnel, path, now);
        // The peer has been up for three minutes, its keys have expired, and it begins a new handshake.
        assert!(peer.heard(path, now));
        let now = now + Duration::from_secs(180);
        let mut buffer = [0; 256];
        let mut first = [0; 256];
        let TunnResult::WriteToNetwork(first) = client.format_handshake_initiation(&mut first, true) else {
            panic!("no first message");
        };
        let answer = peer.tunnel.decapsulate(None, first, &mut buffer);
        assert!(matches!(answer, TunnResult::WriteToNetwork(_)), "{answer:?}");
        peer.begin_again(now);

        assert!(!peer.has_keys(), "the handshake is not proven yet");
        let mut stays = |now| peer.tick(now, &mut [0; 256], &mut |_, _| {});
        assert!(stays(now) && stays(now + UNPROVEN - Duration::from_secs(1)));
        assert!(!stays(now + UNPROVEN), "no message has proven it");
    }
}
