//! Receives datagrams and passes them to their connections.

use std::time::Instant;

use bytes::BytesMut;
use noq_proto::ShortRoute;
use noq_udp::{BATCH_SIZE, RecvMeta};

use super::{
    WarrenEndpoint,
    port::{Origin, Routed},
};

impl WarrenEndpoint {
    /// Receives datagrams and handles them.
    pub(super) fn receive(&mut self, now: Instant) {
        let emptied = self.receive_once(|this, index, meta, batch| {
            if this.intake.is_full() && this.slot_of(index, meta, &batch).is_none() {
                this.intake.hear_stranger(now);
            }
            this.take_batch(index, meta, batch, now);
        });
        // Only an exit's connections share a socket, so only an exit can be behind.
        if self.is_exit() {
            let has_company = !emptied && self.has_company(now);
            self.intake.note(emptied, has_company, now);
        }
    }

    /// Receives into every free buffer, starting with another port each time, and passes each batch to `take`. Returns whether
    /// the sockets were emptied.
    pub(super) fn receive_once(
        &mut self,
        mut take: impl FnMut(&mut Self, usize, &RecvMeta, BytesMut),
    ) -> bool {
        self.receiving.slabs.restart();
        let limit = self.settings.receive_batches.get();
        let count = self.ports.len();
        // Taken out until the end, because `take` borrows all of the driver.
        let mut metas = std::mem::take(&mut self.receiving.metas);
        metas.resize_with(BATCH_SIZE, RecvMeta::default);
        let mut emptied = true;
        for offset in 0..count {
            let index = (self.receiving.first_port + offset) % count;
            let left = self.receiving.slabs.left(limit);
            if left == 0 {
                break;
            }
            let Some(port) = self.ports.get_mut(index).and_then(Option::as_mut) else { continue };
            let received =
                self.receiving.slabs.lend(left, |buffers| port.socket.receive(buffers, &mut metas));
            let Some(received) = received else { continue };
            // If every buffer was filled, the socket may have more.
            emptied &= received < left;
            port.was_readable();
            for meta in metas.iter().take(received) {
                let batch = self.receiving.slabs.take(meta.len);
                take(self, index, meta, batch);
            }
        }
        self.receiving.metas = metas;
        self.receiving.first_port = self.receiving.first_port.wrapping_add(1);
        emptied
    }

    /// Returns the slot of a batch's connection: that of the first datagram with a known connection's ID. The whole batch is
    /// charged to that connection's client, which sent all of it.
    pub(super) fn slot_of(&self, index: usize, meta: &RecvMeta, batch: &BytesMut) -> Option<usize> {
        let port = self.ports.get(index)?.as_ref()?;
        batch.chunks(meta.stride.max(1)).find_map(|datagram| Some(port.route_short(datagram)?.0))
    }

    /// Passes a batch of datagrams to their connections. All datagrams are from one sender, and all but the last have the same
    /// size.
    pub(super) fn take_batch(&mut self, index: usize, meta: &RecvMeta, mut batch: BytesMut, now: Instant) {
        let Some(port) = self.ports.get_mut(index).and_then(Option::as_mut) else { return };
        let origin = Origin::of(meta);
        // Nearly all datagrams of a batch belong to one connection and have one connection ID.
        let mut last = None;
        while !batch.is_empty() {
            // Splits off at least one byte, because with a stride of 0 the loop would not end.
            let mut datagram = batch.split_to(meta.stride.clamp(1, batch.len()));
            last = last
                .filter(|(_, route): &(usize, ShortRoute)| route.is_also_of(&datagram))
                .or_else(|| port.route_short(&datagram));
            if let Some((slot, route)) = last
                && let Some(connection) = self.connections.get_mut(slot)
            {
                let quic = connection.quic();
                let rest = quic.handle_plain_datagram(now, origin.path, origin.mark, route, datagram);
                self.work.list(slot, &mut connection.place.listed);
                // Only packets with other frames than datagrams take the general path (patch `datagram-fast-path`).
                let Some(rest) = rest else { continue };
                datagram = rest;
            }
            match port.route(now, &origin, datagram) {
                Routed::To(slot, event) => {
                    let Some(connection) = self.connections.get_mut(slot) else { continue };
                    connection.quic().handle_event(event);
                    self.work.list(slot, &mut connection.place.listed);
                }
                Routed::Attempt(incoming) => self.attempts.push_back((index, incoming)),
                Routed::Done => {}
            }
        }
    }

    /// Whether there is more than one sender: two clients, or strangers.
    pub(super) fn has_company(&self, now: Instant) -> bool {
        let mut peers = self.connections.iter().filter_map(|connection| connection.peer);
        let first = peers.next();
        self.intake.has_strangers(now) || peers.any(|peer| Some(peer) != first)
    }

    /// Whether this is an exit's endpoint.
    pub(super) fn is_exit(&self) -> bool {
        self.identity.is_none()
    }
}
