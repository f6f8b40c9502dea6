//! One connection in the simulation, looked at only when something came for it, it was told to do something, or its time
//! has come: what a driver does, and what makes thousands of runs affordable.

use std::{net::SocketAddr, num::NonZeroUsize, time::Instant};

use bytes::BytesMut;
use noq_proto::{ConnectionEvent, Endpoint, FourTuple, ShortRoute};

use super::wire::Wire;
use crate::{
    boundary::Inbox,
    warren_driver::connection::{Left, WarrenConnection},
};

/// Datagrams that one transmit may hold, each of which the wire carries by itself.
const SEGMENTS: NonZeroUsize = NonZeroUsize::new(4).unwrap();

pub(super) struct Node {
    connection: WarrenConnection,
    due: Option<Instant>,
    is_stirred: bool,
}

impl Node {
    pub(super) fn new(connection: WarrenConnection) -> Self {
        Self { connection, due: None, is_stirred: true }
    }

    /// The connection, to be told something.
    pub(super) fn stir(&mut self) -> &mut WarrenConnection {
        self.is_stirred = true;
        &mut self.connection
    }

    pub(super) fn receive(&mut self, event: ConnectionEvent) {
        self.stir().quic().handle_event(event);
    }

    /// Takes a datagram in with a short header, or gives it back if it is not plain.
    pub(super) fn receive_short(
        &mut self,
        now: Instant,
        path: FourTuple,
        route: ShortRoute,
        datagram: BytesMut,
    ) -> Option<BytesMut> {
        self.stir().quic().handle_plain_datagram(now, path, None, route, datagram)
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
        while self.connection.deliver(&mut inbox) == Left::More {}
        inbox
    }

    /// Sends all that the connection has to send.
    pub(super) fn send(&mut self, now: Instant, endpoint: &mut Endpoint, from: SocketAddr, wire: &mut Wire) {
        let mut buffer = Vec::new();
        while let Some(transmit) = self.connection.quic().poll_transmit(now, SEGMENTS, &mut buffer) {
            let stride = transmit.segment_size.unwrap_or(transmit.size).max(1);
            for datagram in buffer[..transmit.size].chunks(stride) {
                wire.send(now, from, transmit.destination, datagram);
            }
            buffer.clear();
        }
        let has_more = self.connection.absorb(endpoint, now);
        self.is_stirred = has_more || self.connection.has_news();
        self.due = self.connection.deadline();
    }
}
