//! From the carrier to the TUN: events, then datagrams, which are reassembled, checked and merged.

use std::task::Context;
use std::time::{Duration, Instant};

use bytes::{Buf as _, Bytes, BytesMut};
use warren_packet::datagram::{Datagram, Flags, Numbering, PACKET_OVERHEAD};
use warren_packet::flow_step::FlowStep;
use warren_packet::ip::IpPacket;
use warren_packet::mss::{clamp_mss, is_syn};
use warren_packet::reason::DropReason;
use warren_packet::tuple::FiveTuple;
use warren_quic::driver::{ConnectionId, Event, LostDatagram};
use warren_session::exit::SessionId;

use super::{Device, Worker};
use crate::forward::{Forwarding, Place, Sessions};
use crate::message::Report;
use crate::pump::Pump;

/// Minimum time between two runs of postponed repairs.
const REPAIR_PAUSE: Duration = Duration::from_millis(1);
/// Maximum memory for the datagrams that all of a worker's connections together hold for order. Above this limit, a connection
/// that holds one more datagram releases everything that it holds.
const HELD_BY_ALL: usize = 64 * 1024 * 1024;

impl Worker {
    /// Receives packets from the carrier and writes them to the TUN. Returns whether any arrived.
    pub(super) fn take_carrier(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        // Events become reports. While the control plane lags behind, the carrier waits. Otherwise, a peer could fill
        // the memory with reports.
        if !self.unsent_reports.is_empty() {
            return true;
        }
        if self.endpoint.poll(cx, &mut self.inbox).is_pending() {
            return false;
        }
        // The inbox is taken out because handling its contents borrows `self`. Its memory is kept for the
        // next turn.
        let mut inbox = std::mem::take(&mut self.inbox);
        // Events first: a new connection's pump must exist before its datagrams come.
        for event in inbox.events.drain(..) {
            self.take_event(event, now);
        }
        self.totals.carrier_received_datagrams += inbox.datagrams.len() as u64;
        // Datagrams come in runs of one connection, so one look-up per run is enough.
        let mut run = None;
        for (connection, datagram) in inbox.datagrams.drain(..) {
            if run.is_none_or(|(of, _)| of != connection) {
                run = Some((connection, self.by_connection.get(&connection).copied()));
            }
            self.take_datagram(run.and_then(|(_, slot)| slot), datagram, now);
        }
        for (connection, lost) in inbox.lost.drain(..) {
            self.take_lost(connection, lost, now);
        }
        self.inbox = inbox;
        self.write_to_device();
        true
    }

    fn take_lost(&mut self, connection: ConnectionId, lost: LostDatagram, now: Instant) {
        let Some(slot) = self.by_connection.get(&connection).copied() else { return };
        if let Some(pump) = self.pumps.get_mut(slot) {
            pump.repair.take_lost(lost, now);
            let due = pump.copy_due();
            self.note_repair_due(slot, due);
        }
        self.list(slot, now);
    }

    /// Records when a connection's next postponed repair is due, if there is one.
    fn note_repair_due(&mut self, slot: usize, due: Option<Instant>) {
        let (Some(due), Some(pump)) = (due, self.pumps.get_mut(slot)) else { return };
        if !std::mem::replace(&mut pump.has_repairs, true) {
            self.repairs.push(slot);
        }
        let due = due.max(self.last_repairs + REPAIR_PAUSE);
        self.repair_due = Some(self.repair_due.map_or(due, |other| other.min(due)));
    }

    /// Runs the postponed repairs.
    pub(super) fn run_repairs(&mut self, now: Instant) {
        // This time is set first, because new due times are computed from it.
        self.last_repairs = now;
        self.repair_due = None;
        let mut slots = std::mem::take(&mut self.repairs);
        // If a connection has ended since, another one may have its slot.
        slots.retain(|slot| {
            self.pumps.get_mut(*slot).is_some_and(|pump| std::mem::take(&mut pump.has_repairs))
        });
        self.expire_held(&slots, now);
        for slot in slots {
            self.list(slot, now);
            let dues = self.pumps.get(slot).map(|pump| [pump.copy_due(), pump.resequencer.next_deadline()]);
            self.note_repair_due(slot, dues.into_iter().flatten().flatten().min());
        }
        // Due copies leave at once and do not wait for the next turn.
        self.fill_connections(now);
    }

    fn take_event(&mut self, event: Event, now: Instant) {
        match event {
            Event::Connected { connection, peer, remote, proven } => {
                self.add_pump(connection, now);
                self.report(Report::Connected { connection, peer, remote, proven });
            }
            Event::Control { connection, data } => self.report(Report::Control { connection, data }),
            Event::Writable { connection } => {
                let Some(slot) = self.by_connection.get(&connection).copied() else { return };
                let due = self.pumps.get_mut(slot).and_then(|pump| {
                    pump.blocked = false;
                    pump.copy_due()
                });
                self.note_repair_due(slot, due);
                self.list(slot, now);
            }
            Event::Answers { connection, answers } => {
                let slot = self.by_connection.get(&connection).copied();
                let session = slot.and_then(|slot| self.pumps.get(slot)?.attached);
                if let (Some(slot), Some((session, _))) = (slot, session) {
                    self.sessions.set_silent(session, Place::Here(slot), !answers);
                }
                // The control plane tells the other workers (`WorkerHandle::tell_others`).
                self.report(Report::Answers { connection, answers });
            }
            Event::Closed { connection, reason } => {
                self.remove_pump(connection, now);
                self.report(Report::Closed { connection, reason });
            }
        }
    }

    fn add_pump(&mut self, connection: ConnectionId, now: Instant) {
        let slot = self.pumps.insert(Pump::new(connection, now));
        self.by_connection.insert(connection, slot);
    }

    pub(super) fn remove_pump(&mut self, connection: ConnectionId, now: Instant) {
        let Some(slot) = self.by_connection.remove(&connection) else { return };
        if let Some(pump) = self.pumps.get_mut(slot) {
            // The datagrams that were held for order have arrived. They are delivered while the pump still has its
            // session.
            pump.resequencer.release_all(&mut self.released);
            pump.note_held(&mut self.held);
            self.settle_released(slot, now);
        }
        let Some(mut pump) = self.pumps.try_remove(slot) else { return };
        pump.abandon(&mut self.drops);
        if let Some((session, _)) = pump.attached {
            self.sessions.detach(session, Place::Here(slot));
            self.keep_traffic(session, &pump.traffic);
        }
        // The final figures of a closed connection are available until the next poll.
        if let Some(quic) = self.endpoint.stats(connection) {
            self.past.add(&quic, &pump.repair_snapshot());
        }
        let unfinished = pump.assembler.finish();
        self.totals.carrier_received_packets += unfinished;
        self.drops.to_tun.add_many(DropReason::ConnectionLost, unfinished);
        self.see_again(slot);
    }

    fn take_datagram(&mut self, slot: Option<usize>, mut datagram: Bytes, now: Instant) {
        let found = slot.and_then(|slot| Some((slot, self.pumps.get_mut(slot)?)));
        let Some((slot, pump)) = found else {
            self.refuse(DropReason::NotAttached);
            return;
        };
        let Some(session) = session_of(pump, self.device.as_ref(), &self.sessions) else {
            self.refuse(DropReason::NotAttached);
            return;
        };
        match Numbering::cut(&mut datagram) {
            Ok(Numbering::Unnumbered) => {}
            // The peer was told that this side does not support numbered datagrams.
            Ok(_) if !self.sessions.repairs(session) => {
                self.refuse_of(session, DropReason::BadDatagram);
                return;
            }
            Ok(Numbering::Numbered(place)) => {
                let taken = pump.resequencer.take(now, place, datagram, pump.hold, &mut self.released);
                pump.note_held(&mut self.held);
                if self.held > HELD_BY_ALL {
                    pump.resequencer.release_all(&mut self.released);
                    pump.note_held(&mut self.held);
                }
                let due = pump.resequencer.next_deadline();
                self.note_repair_due(slot, due);
                self.take_released(slot, session, now);
                if let Err(reason) = taken {
                    self.refuse_of(session, reason);
                }
                return;
            }
            Ok(Numbering::NothingBelow(place)) => {
                pump.resequencer.nothing_below(place, &mut self.released);
                pump.note_held(&mut self.held);
                self.take_released(slot, session, now);
                return;
            }
            Err(reason) => {
                self.refuse_of(session, reason);
                return;
            }
        }
        self.take_in_order(slot, session, datagram, now);
    }

    /// Handles the numbered datagrams that no longer wait for earlier ones.
    fn take_released(&mut self, slot: usize, session: SessionId, now: Instant) {
        while let Some(datagram) = self.released.pop_front() {
            self.take_in_order(slot, session, datagram, now);
        }
    }

    /// Stops waiting for numbered datagrams that did not arrive in time.
    fn expire_held(&mut self, slots: &[usize], now: Instant) {
        for slot in slots.iter().copied() {
            let Some(pump) = self.pumps.get_mut(slot) else { continue };
            if pump.resequencer.next_deadline().is_none_or(|deadline| deadline > now) {
                continue;
            }
            pump.resequencer.expire(now, &mut self.released);
            pump.note_held(&mut self.held);
            self.settle_released(slot, now);
        }
        self.write_to_device();
    }

    /// Handles the datagrams that the connection no longer holds for order. Drops them if the connection has lost its session
    /// meanwhile.
    fn settle_released(&mut self, slot: usize, now: Instant) {
        let pump = self.pumps.get(slot);
        let session = pump.and_then(|pump| session_of(pump, self.device.as_ref(), &self.sessions));
        if let Some(session) = session {
            self.take_released(slot, session, now);
        }
        while self.released.pop_front().is_some() {
            self.refuse(DropReason::NotAttached);
        }
    }

    /// Handles a datagram without a number, or one that no longer waits for earlier ones.
    fn take_in_order(&mut self, slot: usize, session: SessionId, mut datagram: Bytes, now: Instant) {
        let Some(pump) = self.pumps.get_mut(slot) else { return };
        match Datagram::parse_without_trailer(&datagram) {
            Ok(Datagram::Packet { flags, packet }) => {
                // Counted before the checks, because this is everything that the connection carried.
                pump.traffic.packets_in += 1;
                pump.traffic.bytes_in += packet.len() as u64;
                datagram.advance(PACKET_OVERHEAD);
                self.deliver(slot, session, flags, datagram, now);
            }
            Ok(Datagram::Fragment(fragment)) => {
                self.totals.fragments_received += 1;
                let inserted = pump.assembler.insert(now, fragment);
                if let Ok(Some(whole)) = &inserted {
                    pump.traffic.packets_in += 1;
                    pump.traffic.bytes_in += whole.packet.len() as u64;
                }
                // The new fragment may have caused older assemblies to be dropped.
                let expired = pump.assembler.expire(now);
                self.count_expired(expired);
                if expired > 0 {
                    self.sessions.count_drops_of(session, DropReason::FragmentTimeout, expired);
                }
                match inserted {
                    Ok(None) => self.upkeep.note_assembly(),
                    Ok(Some(whole)) => self.deliver(slot, session, whole.flags, whole.packet.into(), now),
                    Err(reason) => self.refuse_of(session, reason),
                }
            }
            Err(reason) => self.refuse_of(session, reason),
        }
    }

    /// Counts packets that were given up because fragments were missing.
    pub(super) fn count_expired(&mut self, packets: u64) {
        self.totals.carrier_received_packets += packets;
        self.drops.to_tun.add_many(DropReason::FragmentTimeout, packets);
    }

    /// Counts one dropped packet from the carrier.
    pub(super) fn refuse(&mut self, reason: DropReason) {
        self.totals.carrier_received_packets += 1;
        self.drops.count_to_tun(reason);
    }

    /// Counts one dropped packet of a session.
    fn refuse_of(&mut self, session: SessionId, reason: DropReason) {
        self.refuse(reason);
        self.sessions.count_drops_of(session, reason, 1);
    }

    /// Validates a packet from the peer and keeps it for the batch's writes.
    fn deliver(&mut self, slot: usize, session: SessionId, flags: Flags, packet: Bytes, now: Instant) {
        self.totals.carrier_received_packets += 1;
        if let Err(reason) = self.try_deliver(slot, session, flags, packet, now) {
            self.drops.count_to_tun(reason);
            self.sessions.count_drops_of(session, reason, 1);
        }
    }

    fn try_deliver(
        &mut self,
        slot: usize,
        session: SessionId,
        flags: Flags,
        mut packet: Bytes,
        now: Instant,
    ) -> Result<(), DropReason> {
        let view = self.admit(session, &packet, now)?;
        if let Some(moving) = self.sessions.moving() {
            moving.received(session, &FiveTuple::of(&view), FlowStep::of(&view), now);
        }
        if is_syn(&view)
            && let Some(pump) = self.pumps.get_mut(slot)
            && let Some(largest) = pump.largest_whole_packet(&self.endpoint, now)
        {
            // This side's packets of the flow should fit into one datagram, too.
            let mut clamped = BytesMut::from(packet.as_ref());
            clamp_mss(&mut clamped, flags.partial_checksum(), largest);
            packet = clamped.freeze();
        }
        let Some(device) = &mut self.device else { return Err(DropReason::NotAttached) };
        device.coalescer.push(flags, packet)
    }

    /// Checks that a session may send a packet.
    pub(super) fn admit<'a>(
        &self,
        session: SessionId,
        packet: &'a [u8],
        now: Instant,
    ) -> Result<IpPacket<'a>, DropReason> {
        let Some(device) = &self.device else { return Err(DropReason::NotAttached) };
        let view = IpPacket::parse(packet).map_err(|_| DropReason::BadPacket)?;
        let limit = self.sessions.check_from_carrier(
            &device.forwarding,
            session,
            view.source(),
            view.destination(),
        )?;
        // Checked last, so that a packet that is dropped for another reason uses up nothing of the limit.
        if limit.is_some_and(|limit| !limit.from_client.admits(packet.len(), now)) {
            return Err(DropReason::RateLimit);
        }
        Ok(view)
    }
}

/// The session that a connection's packets belong to. An exit may send packets before `Attached` has come from the
/// control stream to the client's worker. Taking them is safe: a client has one session, and only an exit whose key it
/// pinned can send on its connection.
fn session_of(pump: &Pump, device: Option<&Device>, sessions: &Sessions) -> Option<SessionId> {
    let is_client = || device.is_some_and(|device| matches!(device.forwarding, Forwarding::Client));
    let attached = pump.attached.map(|(session, _)| session);
    // Only at a client: at an exit with one session left, a detached connection would deliver the datagrams that it holds as if
    // they were that session's.
    attached.or_else(|| sessions.only().filter(|_| is_client()))
}
