//! Connection attempts at an exit: taken, put off or refused.

use std::time::Instant;

use noq_proto::{Connection, ConnectionHandle, Incoming};

use super::port::Port;
use crate::strangers::{Admission, Seat, Strangers, Turned};

/// Attempts looked at in one poll: each costs as much as some dozens of datagrams.
pub(super) const ATTEMPTS_PER_POLL: usize = 8;

/// Takes an attempt if there is room for it, and else answers it as is fit.
pub(super) fn admit(
    port: &mut Port,
    incoming: Incoming,
    strangers: &Strangers,
    now: Instant,
) -> Option<((ConnectionHandle, Connection), Seat)> {
    let remote = incoming.remote_address();
    match strangers.crowd().admit(remote, incoming.remote_address_validated()) {
        Admission::Take(seat) => return Some((take(port, incoming, now)?, seat)),
        Admission::Prove => {
            strangers.count(Turned::AddressUnproven);
            port.answer(|endpoint, buffer| match endpoint.retry(incoming, buffer) {
                Ok(transmit) => Some(transmit),
                Err(error) => {
                    tracing::debug!(%remote, "cannot ask for a proof of the address");
                    endpoint.ignore(error.into_incoming());
                    None
                }
            });
        }
        Admission::Wait => {
            strangers.count(Turned::NetworkFull);
            tracing::debug!(%remote, "too many handshakes of its network are under way");
            port.endpoint.ignore(incoming);
        }
        Admission::Refuse => {
            strangers.count(Turned::ExitFull);
            tracing::debug!(%remote, "too many handshakes are under way");
            port.answer(|endpoint, buffer| Some(endpoint.refuse(incoming, buffer)));
        }
    }
    None
}

fn take(port: &mut Port, incoming: Incoming, now: Instant) -> Option<(ConnectionHandle, Connection)> {
    let remote = incoming.remote_address();
    let (mut accepted, identity) = (None, port.identity_for(&incoming));
    port.answer(|endpoint, buffer| match endpoint.accept(incoming, now, buffer, identity) {
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
