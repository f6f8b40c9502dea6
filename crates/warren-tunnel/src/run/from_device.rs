//! From the TUN to the carrier: one read a super-packet, the flow's connection, the cut and the queue there, or the way to the
//! worker that has the connection.

use std::io;
use std::ops::Range;
use std::task::{Context, Poll};
use std::time::Instant;

use rustix::io::Errno;
use warren_packet::datagram::{PACKET_OVERHEAD, write_packet};
use warren_packet::ip::IpPacket;
use warren_packet::mss::{clamp_mss, is_syn};
use warren_packet::reason::DropReason;
use warren_packet::segment::segment;
use warren_packet::too_big::too_big;
use warren_packet::tuple::FiveTuple;
use warren_packet::virtio::VirtioNetHeader;
use warren_quic::driver::ConnectionId;
use warren_quic::settings::MINIMUM_MTU;
use warren_tun::Lane;

use super::{Device, Worker};
use crate::counters::{Drops, Totals};
use crate::forward::{Forwarding, Place};
use crate::hand_over::HandedOver;
use crate::message::Report;

/// The most that QUIC adds to a datagram: 1 byte of flags, 20 of connection ID, 4 of packet number, 16 of authentication and
/// 3 around the frame.
const QUIC_OVERHEAD: usize = 44;
/// Bytes that a connection sends in one turn, about: a drive.
const ENOUGH: usize = 128 * 1024;
/// Reads of a TUN device that may fail one after the other before it counts as broken.
const FAILED_READS: u32 = 16;
/// Batches of other workers taken in one turn.
const BATCHES_PER_TURN: usize = 16;

impl Worker {
    /// Reads the TUN; true when there may be more to read.
    pub(super) fn take_device(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        // Each read brings up to 64 KiB with offload and one packet without.
        for _ in 0..self.tuning.tun_batches.get() {
            if self.is_held_back(now) {
                return false;
            }
            let Some(device) = &mut self.device else { return false };
            match device.queue.poll_read(cx, &mut device.buffer) {
                Poll::Pending => return false,
                Poll::Ready(Ok((header, range))) => {
                    device.failed_reads = 0;
                    self.totals.tun_reads += 1;
                    let slot = self.take_read(header, range, now);
                    if self.has_enough(slot) {
                        return true;
                    }
                }
                // One read that made no sense says nothing about the next, but for a device that is gone.
                Poll::Ready(Err(error)) if device.failed_reads < FAILED_READS && may_pass(&error) => {
                    device.failed_reads += 1;
                    self.totals.tun_read_packets += 1;
                    self.drops.count_to_carrier(DropReason::TunRead);
                }
                Poll::Ready(Err(error)) => {
                    let device = device.queue.device_index();
                    self.device = None;
                    self.report(Report::DeviceFailed { device, error: error.to_string() });
                    return true;
                }
            }
        }
        true
    }

    /// Whether a full queue asks the kernel to hold its senders. Only a client does: on an exit one slow client would
    /// hold back all others.
    pub(super) fn is_held_back(&self, now: Instant) -> bool {
        self.pumps_hold_back(now) || self.is_client() && self.hand_over.is_filling()
    }

    fn pumps_hold_back(&self, now: Instant) -> bool {
        self.is_client() && self.pumps.iter().flatten().any(|pump| pump.holds_back(now))
    }

    fn is_client(&self) -> bool {
        matches!(&self.device, Some(Device { forwarding: Forwarding::Client, .. }))
    }

    /// Takes what other workers read for this one's connections; true when there may be more. A client whose queues are full
    /// leaves it where it is, so that the others stop reading too; what it has for them is no reason to, or two would wait for
    /// each other.
    pub(super) fn take_handed_over(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        for _ in 0..BATCHES_PER_TURN {
            if self.pumps_hold_back(now) {
                return false;
            }
            let Poll::Ready(mut batch) = self.hand_over.poll_receive(cx) else { return false };
            let mut enough = false;
            for HandedOver { connection, header, mut packet } in batch.take_reads() {
                let slot = self.take_super_packet(header, &mut packet, Some(connection), now);
                enough |= self.has_enough(slot);
            }
            if enough {
                return true;
            }
        }
        true
    }

    /// Hands the turn's reads for other workers' connections over.
    pub(super) fn hand_over(&mut self) {
        let (totals, drops) = (&mut self.totals, &mut self.drops);
        self.hand_over.send(|HandedOver { header, packet, .. }| {
            totals.handed_over -= 1;
            count_refused(header, &packet, DropReason::HandOverFull, totals, drops);
        });
    }

    /// Whether a pump has as much as it sends in one turn, and can send: more would only wait, or be dropped, for no fault of
    /// its connection.
    fn has_enough(&self, slot: Option<usize>) -> bool {
        let pump = slot.and_then(|slot| self.pumps.get(slot)).and_then(Option::as_ref);
        pump.is_some_and(|pump| !pump.blocked && pump.queue_bytes() >= ENOUGH)
    }

    /// Takes what one read brought. Returns the pump that has it.
    fn take_read(&mut self, header: VirtioNetHeader, range: Range<usize>, now: Instant) -> Option<usize> {
        // The buffer is taken out meanwhile, so that the packet can be borrowed beside everything else.
        let mut buffer = std::mem::take(&mut self.device.as_mut()?.buffer);
        let super_packet = buffer.get_mut(range);
        let slot =
            super_packet.and_then(|super_packet| self.take_super_packet(header, super_packet, None, now));
        if let Some(device) = &mut self.device {
            device.buffer = buffer;
        }
        slot
    }

    /// Queues a super-packet, or hands it over unless another worker did so, for the connection that it named. Returns the pump
    /// that has it.
    fn take_super_packet(
        &mut self,
        header: VirtioNetHeader,
        super_packet: &mut [u8],
        named: Option<ConnectionId>,
        now: Instant,
    ) -> Option<usize> {
        let before = self.totals.tun_read_packets;
        let slot = self.queue_super_packet(header, super_packet, named, now);
        let packets = self.totals.tun_read_packets - before;
        if packets > 0 {
            self.occupancy.packets_per_tun_read.record(packets);
        }
        slot
    }

    fn queue_super_packet(
        &mut self,
        header: VirtioNetHeader,
        super_packet: &mut [u8],
        named: Option<ConnectionId>,
        now: Instant,
    ) -> Option<usize> {
        let found = match (IpPacket::parse(super_packet), &self.device) {
            (Ok(packet), Some(device)) => {
                let flow = FiveTuple::of(&packet);
                let place = self.sessions.place_for(&device.forwarding, &flow);
                place.map(|(place, limit)| (place, limit, flow.symmetric_hash(), is_syn(&packet)))
            }
            (Err(_), _) => Err(DropReason::BadPacket),
            (_, None) => Err(DropReason::NoConnection),
        };
        let slot = match (&found, named) {
            (Ok((Place::Here(slot), ..)), _) => Ok(*slot),
            (Ok((Place::There(connection), ..)), None) => {
                if self.hand_over.push(*connection, header, super_packet, &mut self.arena) {
                    self.totals.handed_over += 1;
                    return None;
                }
                Err(DropReason::HandOverFull)
            }
            // The workers differ in where the flow belongs, for a moment: it is handed over once.
            (Ok((Place::There(_), ..)), Some(named)) => {
                let attached = |slot: &usize| {
                    let pump = self.pumps.get(*slot).and_then(Option::as_ref);
                    pump.is_some_and(|pump| pump.attached.is_some())
                };
                let slot = self.by_connection.get(&named).copied().filter(attached);
                slot.ok_or(DropReason::NoConnection)
            }
            (Err(reason), _) => Err(*reason),
        };
        let (slot, limit, flow_hash, is_syn) = match (slot, found) {
            (Ok(slot), Ok((_, limit, flow_hash, is_syn))) => (slot, limit, flow_hash, is_syn),
            (Err(reason), _) | (_, Err(reason)) => {
                count_refused(header, super_packet, reason, &mut self.totals, &mut self.drops);
                return None;
            }
        };
        if let Some(device) = &mut self.device {
            device.bulk_flows.count(flow_hash, super_packet.len(), now);
        }
        let pump = self.pumps.get_mut(slot)?.as_mut()?;
        // What is small in any case need not be looked at.
        let largest_whole = (is_syn || super_packet.len() > usize::from(MINIMUM_MTU) - QUIC_OVERHEAD)
            .then(|| pump.largest_whole_packet(&self.endpoint, now))
            .flatten();
        if let Some(largest) = largest_whole
            && is_syn
        {
            clamp_mss(super_packet, header.needs_checksum(), largest);
        }
        let mut answer = None;
        let (arena, totals, drops) = (&mut self.arena, &mut self.totals, &mut self.drops);
        let cut = segment(header, super_packet, &mut |packet| {
            totals.tun_read_packets += 1;
            totals.tun_read_bytes += packet.len() as u64;
            if limit.is_some_and(|limit| !limit.to_client.admits(packet.len(), now)) {
                drops.count_to_carrier(DropReason::RateLimit);
                return;
            }
            if let Some(largest) = largest_whole
                && packet.len() > largest
                && answer.is_none()
            {
                answer = Some(packet.parts().concat());
            }
            let buffer = arena.room(PACKET_OVERHEAD + packet.len());
            write_packet(packet.flags(), &packet.parts(), buffer);
            pump.enqueue(flow_hash, buffer.split(), now, drops);
        });
        if cut.is_err() {
            self.totals.tun_read_packets += 1;
            self.totals.tun_read_bytes += super_packet.len() as u64;
            self.drops.count_to_carrier(DropReason::BadPacket);
        }
        if let (Some(packet), Some(largest)) = (answer, largest_whole) {
            self.answer_too_big(slot, &packet, largest, now);
        }
        self.list(slot);
        Some(slot)
    }

    /// Tells the sender of a packet that went in fragments how large a packet goes in one piece.
    fn answer_too_big(&mut self, slot: usize, packet: &[u8], largest: usize, now: Instant) {
        let Some(Device { queue, .. }) = &mut self.device else { return };
        let Some(pump) = self.pumps.get_mut(slot).and_then(Option::as_mut) else { return };
        let answer = IpPacket::parse(packet).ok().and_then(|packet| too_big(&packet, largest));
        let Some(answer) = answer.filter(|_| pump.may_answer(now)) else { return };
        // A TUN that does not take it now will not be asked again: the next packet brings another answer.
        if queue.write(Lane::Prompt, VirtioNetHeader::default(), &[&answer]).is_ok() {
            self.totals.too_big_answers += 1;
        }
    }
}

/// Counts every packet of a super-packet that goes nowhere.
fn count_refused(
    header: VirtioNetHeader,
    super_packet: &[u8],
    reason: DropReason,
    totals: &mut Totals,
    drops: &mut Drops,
) {
    let mut packets = 0_u64;
    let cut = segment(header, super_packet, &mut |_| packets += 1);
    let packets = if cut.is_ok() { packets.max(1) } else { packets + 1 };
    totals.tun_read_packets += packets;
    totals.tun_read_bytes += super_packet.len() as u64;
    drops.to_carrier.add_many(reason, packets);
}

/// Whether a read that failed so says nothing about the next: it brought no valid header, or the kernel could not tell what it had
/// (`EINVAL` for a super-packet that virtio-net has no name for, `drivers/net/tun.c`). A device that is gone says `EBADFD`.
fn may_pass(error: &io::Error) -> bool {
    const PASSING: [Errno; 5] = [Errno::INVAL, Errno::IO, Errno::NOBUFS, Errno::NOMEM, Errno::INTR];
    match Errno::from_io_error(error) {
        Some(number) => PASSING.contains(&number),
        None => error.kind() == io::ErrorKind::InvalidData,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_packet_that_cannot_be_read_is_no_broken_device_and_one_that_is_gone_is() {
        assert!(may_pass(&io::Error::new(io::ErrorKind::InvalidData, "no header")));
        assert!(may_pass(&Errno::INVAL.into()) && may_pass(&Errno::INTR.into()));
        assert!(!may_pass(&Errno::BADFD.into()) && !may_pass(&Errno::FAULT.into()));
        assert!(!may_pass(&io::Error::new(io::ErrorKind::InvalidInput, "too small")));
    }
}
