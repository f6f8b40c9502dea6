//! Connection attempts at an exit, bounded: past a threshold, addresses must be proven; past the bound, none is taken.

use std::time::Instant;

use noq_proto::{Connection, ConnectionHandle, Incoming};

use super::port::Port;

/// Handshakes under way from which on a client must first prove its address (RFC 9000 section 8.1), so that forged
/// addresses cannot take the rest of the room.
const RETRY_FROM: usize = 128;

/// Most handshakes under way at an endpoint.
const MAX_HANDSHAKES: usize = 256;

/// Attempts looked at in one poll: each costs as much as some dozens of datagrams.
pub(super) const ATTEMPTS_PER_POLL: usize = 8;

/// Takes an attempt, asks it to prove its address or refuses it, given how many handshakes are under way.
pub(super) fn admit(
    port: &mut Port,
    incoming: Incoming,
    handshakes: usize,
    now: Instant,
) -> Option<(ConnectionHandle, Connection)> {
    let remote = incoming.remote_address();
    if handshakes >= RETRY_FROM && !incoming.remote_address_validated() {
        port.answer(|endpoint, buffer| match endpoint.retry(incoming, buffer) {
            Ok(transmit) => Some(transmit),
            Err(error) => {
                tracing::debug!(%remote, "cannot ask for a proof of the address");
                endpoint.ignore(error.into_incoming());
                None
            }
        });
        return None;
    }
    if handshakes >= MAX_HANDSHAKES {
        tracing::debug!(%remote, "too many handshakes are under way");
        port.answer(|endpoint, buffer| Some(endpoint.refuse(incoming, buffer)));
        return None;
    }
    let mut accepted = None;
    port.answer(|endpoint, buffer| match endpoint.accept(incoming, now, buffer, None) {
        Ok(connection) => {
            accepted = Some(connection);
            None
        }
        Err(error) => {
            tracing::debug!(%remote, error = %error.cause, "cannot accept");
            error.response
        }
    });
    accepted
}
