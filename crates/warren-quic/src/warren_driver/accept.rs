//! Accepts or defers connection attempts at an exit.

use std::time::Instant;

use noq_proto::{Connection, ConnectionHandle, Incoming};

use super::port::Port;
use crate::key::PublicKey;
use crate::strangers::{Admission, Displaced, Seat, Strangers, Turned};

/// Maximum number of attempts handled in one poll. Each costs as much as dozens of datagrams.
pub(super) const ATTEMPTS_PER_POLL: usize = 8;

/// A connection attempt that was accepted.
pub(super) struct Admitted {
    pub(super) connection: (ConnectionHandle, Connection),
    pub(super) seat: Seat,
    /// The key that the exit proves.
    pub(super) proven: Option<PublicKey>,
}

/// A connection, and the key that the exit proves on it.
type Taken = ((ConnectionHandle, Connection), Option<PublicKey>);

/// Accepts an attempt if there is room. Otherwise asks the client to prove its address (Retry).
pub(super) fn admit(
    port: &mut Port,
    incoming: Incoming,
    (strangers, displaced): (&Strangers, &Displaced),
    now: Instant,
) -> Option<Admitted> {
    let remote = incoming.remote_address();
    match strangers.crowd().admit(remote, incoming.remote_address_validated(), displaced, now) {
        Admission::Take { seat, displaced } => {
            if displaced {
                strangers.count(Turned::Displaced);
            }
            // If the attempt cannot be accepted, its seat is dropped, which makes the seat free again.
            let (connection, proven) = take(port, incoming, now)?;
            return Some(Admitted { connection, seat, proven });
        }
        Admission::Prove => {
            strangers.count(Turned::AddressUnproven);
            port.answer(|endpoint, buffer| match endpoint.retry(incoming, buffer) {
                Ok(transmit) => Some(transmit),
                Err(error) => {
                    tracing::debug!(%remote, "cannot ask for a proof of the address");
                    // Without this, the library would keep the attempt.
                    endpoint.ignore(error.into_incoming());
                    None
                }
            });
        }
    }
    None
}

fn take(port: &mut Port, incoming: Incoming, now: Instant) -> Option<Taken> {
    let remote = incoming.remote_address();
    let (proven, identity) = port.identity_for(&incoming).unzip();
    let mut accepted = None;
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
    accepted.map(|connection| (connection, proven))
}
