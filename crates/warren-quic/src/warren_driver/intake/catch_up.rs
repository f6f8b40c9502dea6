//! How an exit that is behind catches up: it reads ahead for all clients, and processes each one's share.

use std::{
    sync::atomic::Ordering::Relaxed,
    time::{Duration, Instant},
};

use bytes::BytesMut;
use noq_udp::RecvMeta;

use super::{Batch, Sender};
use crate::{
    strangers::is_long,
    warren_driver::{WarrenEndpoint, accept::ATTEMPTS_PER_POLL, connection::WarrenConnection, port::Port},
};

/// How long a poll empties the sockets before it processes some of the queued datagrams.
const READING_AHEAD: Duration = Duration::from_millis(1);

impl WarrenEndpoint {
    /// Records that a full inbox left the sockets unread. An exit can fall behind in this way too.
    pub(in super::super) fn leave_unread(&mut self, now: Instant) {
        // Only an exit's connections share a socket.
        if self.is_exit() {
            let has_company = self.has_company(now);
            self.intake.note(false, has_company, now);
        }
    }

    /// Receives more than can be processed now. The sockets are emptied in any case, unless only one sender is left. If `is_wanted`, each
    /// client's share is then processed.
    pub(in super::super) fn catch_up(&mut self, now: Instant, is_wanted: bool) {
        let start = Instant::now();
        let mut emptied = false;
        let has_company = self.has_company(now);
        while !emptied && has_company && start.elapsed() < READING_AHEAD {
            emptied = self.receive_once(|this, index, meta, batch| this.keep_batch(index, meta, &batch, now));
        }
        if !has_company {
            // Nothing was received, but a datagram may have used up the registered waker. It must be registered again, because this poll
            // may empty the queue.
            self.ports.iter_mut().flatten().for_each(Port::was_readable);
        }
        if is_wanted {
            self.deal_with_shares(now);
        }
        self.intake.note(emptied, has_company, now);
    }

    fn deal_with_shares(&mut self, now: Instant) {
        let mut share = self.intake.share(now);
        // Uses the current time in place of `now`, because reading ahead has taken time.
        self.intake.serve(Instant::now());
        while share > 0
            // Strangers get no turn while enough attempts for a whole poll wait already, because they would only add further
            // attempts.
            && let Some(batch) = self.intake.pop(self.attempts.len() < ATTEMPTS_PER_POLL)
        {
            let (slot, datagrams) = (batch.slot, batch.datagrams());
            let before = self.frames_received(slot);
            self.take_batch(batch.port, &batch.meta, batch.bytes, now);
            let frames = usize::try_from(self.frames_received(slot).saturating_sub(before));
            let more = frames.unwrap_or(usize::MAX).saturating_sub(datagrams);
            self.intake.charge(more);
            share = share.saturating_sub(datagrams).saturating_sub(more);
        }
    }

    /// Returns how many DATAGRAM frames a connection has received.
    fn frames_received(&mut self, slot: Option<usize>) -> u64 {
        let connection = slot.and_then(|slot| self.connections.get_mut(slot));
        connection.map_or(0, |connection| connection.quic().stats().frame_rx.datagram)
    }

    /// Queues a batch until its sender's turn. Each datagram of a stranger is judged separately, first now and again at the
    /// sender's turn. A flood of such datagrams costs a hash per datagram, but no queue space.
    pub(super) fn keep_batch(&mut self, index: usize, meta: &RecvMeta, batch: &BytesMut, now: Instant) {
        let slot = self.slot_of(index, meta, batch);
        let connection = slot.and_then(|slot| self.connections.get(slot));
        let sender = connection.map_or(Sender::Stranger, WarrenConnection::sender);
        if slot.is_none() {
            self.intake.hear_stranger(now);
        }
        let Some(port) = self.ports.get(index).and_then(Option::as_ref) else { return };
        let kept = match (slot, sender) {
            (None, _) => {
                Batch::sift(index, None, meta, batch, |datagram| port.lets_wait(meta.addr, datagram))
            }
            // Packets with long headers are left out, because attempts to connect belong into the strangers' queue.
            (_, Sender::Unenrolled) => Batch::sift(index, slot, meta, batch, |datagram| !is_long(datagram)),
            _ => Some(Batch::copy(index, slot, meta, batch)),
        };
        let Some(batch) = kept else { return };
        let dropped = self.intake.push(sender, batch);
        self.counters.intake_drops.fetch_add(dropped, Relaxed);
    }
}
