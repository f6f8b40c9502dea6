//! Sessions of WireGuard clients. The worker performs WireGuard's handshakes. Here, each peer is a connection that sends no
//! messages.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

use super::ExitSessions;
use super::handshake::Wish;
use super::session::NONCE_LENGTH;
use crate::PublicKey;
use crate::goodbye::Goodbye;

impl ExitSessions {
    /// Adds a WireGuard client that has connected. The client gets a session with this one connection. If it is refused, the
    /// connection is closed.
    pub fn wireguard_up(&mut self, now: Instant, connection: u64, key: PublicKey) {
        self.closed(now, connection);
        // The connection counts as waiting until it is attached, a few lines below.
        let network = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        if !self.connections.add(connection, key, network, true, now) {
            return;
        }
        if let Err(reason) = self.begin_wireguard(now, connection, key) {
            self.dismiss(connection, reason);
        }
    }

    fn begin_wireguard(&mut self, now: Instant, connection: u64, key: PublicKey) -> Result<(), Goodbye> {
        let client = self.registry.by_key(key).filter(|client| client.by_wireguard().is_some());
        let client = client.ok_or(Goodbye::NotEnrolled)?;
        let prefixes = client.prefixes.clone();
        if let Some(planned) = self.first_lease(key)? {
            // The client tries again by itself after a few seconds.
            self.ask_for_lease(key, &planned, None);
            return Err(Goodbye::NotStored);
        }
        // A WireGuard client cannot ask for prefixes, so it gets all prefixes that the operator has set.
        let wish = Wish {
            nonce: [0; NONCE_LENGTH],
            host: String::new(),
            connections: 1,
            features: 0,
            prefixes,
            has_other_exit: Some(false),
            claim: 0,
        };
        let session = self.begin(now, key, wish)?;
        self.attach_connection(now, session, connection, 0);
        Ok(())
    }
}
