//! The check of the exit's next key.

use std::time::Instant;

use warren_quic::driver::ConnectionId;
use warren_quic::key::PublicKey;

#[derive(Debug, Default)]
pub(super) struct ProvenKeys {
    /// The key of the latest check, and when it began.
    pub(super) latest: Option<(PublicKey, Instant)>,
    /// The connection of the latest check.
    pub(super) connection: Option<ConnectionId>,
}

impl ProvenKeys {
    pub(super) fn opened(&mut self, connection: ConnectionId) {
        self.connection = Some(connection);
    }
}
