//! One connection in the simulation. As in a driver, it is visited only if something arrived for it, if it was told to do
//! something, or if its timer is due. This makes thousands of runs affordable.

use std::{net::SocketAddr, num::NonZeroUsize, time::Instant};

use bytes::{Bytes, BytesMut};
use noq_proto::{ConnectionEvent, Endpoint, FourTuple, ShortRoute};

use super::{kept::Ledger, speech::Speech, wire::Wire};
use crate::{
    boundary::{ConnectionId, Inbox, LostDatagram, MAX_LOST_PER_POLL, SendError},
    warren_driver::connection::{Left, WarrenConnection},
};

/// Maximum number of datagrams in one transmit. The wire carries each of them separately.
const SEGMENTS: NonZeroUsize = NonZeroUsize::new(4).unwrap();

/// Number of other connections' lost datagrams in the inbox. They leave room for one more.
const OTHERS: usize = MAX_LOST_PER_POLL - 1;

pub(super) struct Node {
    connection: WarrenConnection,
    /// The kept datagrams that have not come back.
    pub(super) ledger: Ledger,
    due: Option<Instant>,
    is_stirred: bool,
}

impl Node {
    pub(super) fn new(connection: WarrenConnection) -> Self {
        Self { connection, ledger: Ledger::default(), due: None, is_stirred: true }
    }

    /// Returns the connection so that it can be told something.
    pub(super) fn stir(&mut self) -> &mut WarrenConnection {
        self.is_stirred = true;
        &mut self.connection
    }

    pub(super) fn receive(&mut self, event: ConnectionEvent) {
        self.stir().quic().handle_event(event);
    }

    /// Takes a datagram with a short header, or returns it if it is not plain.
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

    /// Takes all events and datagrams of the connection.
    pub(super) fn take(&mut self, now: Instant, endpoint: &mut Endpoint) -> Inbox {
        if self.connection.deadline().is_some_and(|deadline| deadline <= now) {
            self.connection.expire(now);
        }
        self.connection.absorb(endpoint, now);
        let mut taken = Inbox::new();
        while self.connection.has_news() {
            let mut inbox = Inbox::new();
            inbox.lost.resize_with(OTHERS, || of_another(now));
            let left = self.connection.deliver(&mut inbox);
            taken.events.append(&mut inbox.events);
            taken.datagrams.append(&mut inbox.datagrams);
            inbox.lost.drain(OTHERS..).for_each(|(_, lost)| self.ledger.take_lost(&lost));
            if left != Left::More {
                break;
            }
        }
        taken
    }

    /// Sends a datagram. Every second datagram is kept until it is acknowledged.
    pub(super) fn say(&mut self, speech: Speech) -> Result<(), SendError> {
        let sent = self.stir().send_datagram(speech.write(), Ledger::context(speech));
        if sent.is_ok() {
            self.ledger.keep(speech);
        }
        sent
    }

    /// Checks what became of the kept datagrams, if the connection lives. Nothing may be under way any more.
    pub(super) fn settle(&self, is_heard: impl Fn(Speech) -> bool) {
        if let Some(stats) = self.connection.stats()
            && !self.connection.is_over()
        {
            self.ledger.settle(&stats, is_heard);
        }
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

/// A lost datagram of another connection.
fn of_another(now: Instant) -> (ConnectionId, LostDatagram) {
    (ConnectionId(0), LostDatagram { data: Bytes::new(), context: 0, sent: now })
}
