//! The connections of the second session that a client has while it moves to another exit.

use std::time::Instant;

use warren_quic::driver::ConnectionId;
use warren_quic::key::PublicKey;

use super::of_session::{SessionConnections, Which};
use super::{Connections, Ordered, close_quietly};
use crate::exits::Way;
use warren_tunnel::WorkerHandle;

impl Connections {
    /// Begins a second session, beside the one in use. The winner of a race is its connection 0.
    pub(in crate::daemon) fn begin_beside(&mut self, connection: ConnectionId, way: Way, key: PublicKey) {
        self.sessions += 1;
        self.beside = Some(SessionConnections::begin(self.sessions, connection, way, key));
    }

    /// Swaps the two sessions: the second session becomes the session in use, and the session in use becomes the second one.
    pub(in crate::daemon) fn swap(&mut self, now: Instant) {
        let Some(beside) = &mut self.beside else { return };
        std::mem::swap(&mut self.own, beside);
        if let Some(way) = self.own.way {
            self.exits.use_exit(way.exit);
            self.failback.uses(now, usize::from(!self.exits.is_home(way.exit)));
        }
    }

    /// Forgets the second session, and closes the connections that it still has.
    pub(in crate::daemon) async fn end_beside(&mut self, worker: &WorkerHandle) {
        let Some(beside) = self.beside.take() else { return };
        for connection in beside.indices.into_keys() {
            close_quietly(worker, connection).await;
        }
    }

    /// The session that has a connection, and the connection's index in that session.
    pub(in crate::daemon) fn place_of(&self, connection: ConnectionId) -> Option<(Which, u32)> {
        [Which::InUse, Which::Beside]
            .into_iter()
            .find_map(|which| Some((which, *self.of(which)?.indices.get(&connection)?)))
    }

    /// Whether a connection belongs to the second session.
    pub(in crate::daemon) fn is_beside(&self, connection: ConnectionId) -> bool {
        self.place_of(connection).is_some_and(|(which, _)| which == Which::Beside)
    }

    /// Orders a connection of a session to the same exit and address as the session's connection 0. `None` if the session has no
    /// connection 0 yet.
    pub(in crate::daemon) fn order_for(&self, which: Which) -> Option<Ordered> {
        let session = self.of(which)?;
        Some(Ordered::for_session(session.way?.remote, session.number))
    }

    /// The exit and address that a session's connections use.
    pub(in crate::daemon) fn way_of(&self, which: Which) -> Option<Way> {
        self.of(which)?.way
    }

    /// The connection of a session with an index.
    pub(in crate::daemon) fn connection_of(&self, which: Which, index: u32) -> Option<ConnectionId> {
        self.of(which)?.with_index(index)
    }

    /// The time since which the exit has answered on none of a session's connections. `None` if it answers on at least one.
    pub(in crate::daemon) fn silent_since(&self, which: Which) -> Option<Instant> {
        self.of(which)?.silence.silent_since()
    }

    /// Whether a session may still use the second session's exit, judging by the key that the exit has
    /// proven.
    pub(in crate::daemon) fn is_beside_accepted(&self) -> bool {
        let Some((beside, way)) = self.beside.as_ref().and_then(|beside| Some((beside, beside.way?))) else {
            return true;
        };
        let key = beside.proven.get(&0);
        key.map_or(self.exits.has(way.exit), |key| self.exits.accepts(way.exit, *key))
    }

    pub(super) fn of(&self, which: Which) -> Option<&SessionConnections> {
        match which {
            Which::InUse => Some(&self.own),
            Which::Beside => self.beside.as_ref(),
        }
    }

    pub(super) fn of_mut(&mut self, which: Which) -> Option<&mut SessionConnections> {
        match which {
            Which::InUse => Some(&mut self.own),
            Which::Beside => self.beside.as_mut(),
        }
    }

    /// The session that a connection was ordered for, if it still exists.
    pub(super) fn with_number(&self, number: u64) -> Option<Which> {
        [Which::InUse, Which::Beside]
            .into_iter()
            .find(|which| self.of(*which).is_some_and(|session| session.number == number))
    }
}
