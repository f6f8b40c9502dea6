//! One connection in the simulation, looked at only when something came for it, it was told to do something, or its time
//! has come: what a driver does, and what makes thousands of runs affordable.

use std::{net::SocketAddr, num::NonZeroUsize, time::Instant};

use noq_proto::{ConnectionEvent, Endpoint};

use super::wire::Wire;
use crate::{
    driver::Inbox,
    warren_driver::connection::{Connection, Left},
};

pub(super) struct Node {
    connection: Connection,
    due: Option<Instant>,
    is_stirred: bool,
}

impl Node {
    pub(super) fn new(connection: Connection) -> Self {
        Self { connection, due: None, is_stirred: true }
    }

    /// The connection, to be told something.
    pub(super) fn stir(&mut self) -> &mut Connection {
        self.is_stirred = true;
        &mut self.connection
    }

    pub(super) fn receive(&mut self, event: ConnectionEvent) {
        self.stir().quic().handle_event(event);
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.is_stirred || self.due.is_some_and(|due| due <= now)
    }

    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        if self.is_stirred { Some(now) } else { self.due }
    }

    pub(super) fn is_gone(&self) -> bool {
        self.connection.is_gone()
    }

    /// Takes all that the connection has to tell.
    pub(super) fn take(&mut self, now: Instant, endpoint: &mut Endpoint) -> Inbox {
        if self.connection.deadline().is_some_and(|deadline| deadline <= now) {
            self.connection.expire(now);
        }
        self.connection.absorb(endpoint, now);
        let mut inbox = Inbox::new();
        while self.connection.hand_over(&mut inbox) == Left::More {}
        inbox
    }

    /// Sends all that the connection has to send.
    pub(super) fn send(&mut self, now: Instant, endpoint: &mut Endpoint, from: SocketAddr, wire: &mut Wire) {
        let mut buffer = Vec::new();
        while let Some(transmit) = self.connection.quic().poll_transmit(now, NonZeroUsize::MIN, &mut buffer) {
            wire.send(now, from, transmit.destination, &buffer[..transmit.size]);
            buffer.clear();
        }
        let has_more = self.connection.absorb(endpoint, now);
        self.is_stirred = has_more || self.connection.has_news();
        self.due = self.connection.deadline();
    }
}
