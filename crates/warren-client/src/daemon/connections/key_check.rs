//! Checks whether the exit has the key that it has announced, by opening a separate connection.
//!
//! If the exit announces a new key in a session, only connections that are opened later use that key. So the client opens one
//! more connection at once, which accepts only that key, and closes it again. Both sides then know that the key works before the
//! old one is retired.

use std::time::{Duration, Instant};

use warren_quic::driver::ConnectionId;
use warren_quic::key::PublicKey;

use super::{Connections, Ordered, Which};
use crate::kill_switch::Lockdown;
use warren_tunnel::WorkerHandle;

/// Minimum time between two checks of the same key.
const CHECK_EVERY: Duration = Duration::from_secs(60);

impl Connections {
    /// Records the key that an exit has proven on one of a session's connections.
    pub(in crate::daemon) fn proven(&mut self, which: Which, index: u32, key: PublicKey) {
        if let Some(session) = self.of_mut(which) {
            session.proven.insert(index, key);
        }
    }

    /// The key that the exit has proven on the session's latest connection with an index.
    pub(in crate::daemon) fn proven_on(&self, index: u32) -> Option<PublicKey> {
        self.own.proven.get(&index).copied()
    }

    /// The key that the exit in use has proven or, before the handshake, must prove.
    pub(in crate::daemon) fn exit_key(&self) -> Option<PublicKey> {
        let accepted = &self.exit().public_keys;
        // An earlier connection to another exit may have proven that exit's key.
        let proven = self.proven_on(0).filter(|key| accepted.contains(key));
        proven.or(accepted.first().copied())
    }

    /// Whether the session may still use the exit in use, judging by the key that the exit has proven.
    pub(in crate::daemon) fn is_exit_accepted(&self) -> bool {
        let place = self.exits.current();
        self.proven_on(0).map_or(self.exits.has(place), |key| self.exits.accepts(place, key))
    }

    /// Checks whether the exit has a key, over the path that the session's connections take. Checks the same key at most once a minute.
    ///
    /// # Errors
    /// When this process may not mark its sockets.
    pub(in crate::daemon) async fn check_key(
        &mut self,
        worker: &WorkerHandle,
        lockdown: &mut Lockdown,
        now: Instant,
        key: PublicKey,
    ) -> anyhow::Result<()> {
        let is_early = |(latest, begun): &(PublicKey, Instant)| {
            *latest == key && now.saturating_duration_since(*begun) < CHECK_EVERY
        };
        let Some(way) = self.way().filter(|_| !self.keys.latest.as_ref().is_some_and(is_early)) else {
            return Ok(());
        };
        self.keys.latest = Some((key, now));
        self.open(worker, lockdown, 0, Ordered::for_check(way.remote, key)).await.map(drop)
    }

    /// Whether this connection, whose handshake is complete, was opened to check a key.
    pub(in crate::daemon) fn take_check(&mut self, connection: ConnectionId) -> bool {
        self.keys.connection.take_if(|checking| *checking == connection).is_some()
    }
}
