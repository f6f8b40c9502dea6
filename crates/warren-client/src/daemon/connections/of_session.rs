//! The connections of one session, each with its index in the session.

use std::collections::HashMap;
use std::net::SocketAddr;

use warren_quic::driver::ConnectionId;
use warren_quic::key::PublicKey;
use warren_session::client::Vigil;
pub(in crate::daemon) use warren_session::client::Which;

use crate::exits::Way;

/// The connections of a session.
#[derive(Debug, Default)]
pub(super) struct SessionConnections {
    /// Distinguishes the sessions of this process. Both sessions of a move use the same indices.
    pub(super) number: u64,
    /// The exit and address of connection 0, which the session's other connections use too.
    pub(super) way: Option<Way>,
    pub(super) indices: HashMap<ConnectionId, u32>,
    pub(super) remotes: HashMap<u32, SocketAddr>,
    /// Tracks the attached connections on which the exit does not answer, and decides what to do about them.
    pub(super) silence: Vigil,
    /// The exit's key on each connection.
    pub(super) proven: HashMap<u32, PublicKey>,
}

impl SessionConnections {
    /// Creates the connections of a session whose connection 0 has completed its handshake.
    pub(super) fn begin(number: u64, connection: ConnectionId, way: Way, key: PublicKey) -> Self {
        Self {
            number,
            way: Some(way),
            indices: [(connection, 0)].into(),
            remotes: [(0, way.remote)].into(),
            proven: [(0, key)].into(),
            ..Self::default()
        }
    }

    /// The connection with an index.
    pub(super) fn with_index(&self, index: u32) -> Option<ConnectionId> {
        // A session has few connections, so a second map would not pay off.
        self.indices.iter().find(|(_, other)| **other == index).map(|(connection, _)| *connection)
    }
}
