//! From the TUN to the carrier: each read brings a super-packet, which is segmented and queued on its flow's connection, or handed
//! over to the worker that has the connection.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::task::{Context, Poll};
use std::time::Instant;

use rustix::io::Errno;
use slab::Slab;
use warren_packet::datagram::{PACKET_OVERHEAD, TRAILER, write_packet};
use warren_packet::ip::IpPacket;
use warren_packet::mss::{clamp_mss, is_syn};
use warren_packet::reason::DropReason;
use warren_packet::segment::{Segment, segment};
use warren_packet::too_big::too_big;
use warren_packet::tuple::FiveTuple;
use warren_packet::virtio::VirtioNetHeader;
use warren_quic::driver::ConnectionId;
use warren_quic::settings::MINIMUM_MTU;
use warren_tun::Lane;

use super::wireguard::Sealing;
use super::{Device, Worker};
use crate::arena::Arena;
use crate::client_limit::ClientLimit;
use crate::counters::{Drops, Totals};
use crate::forward::{Forwarding, Place, Sessions};
use crate::hand_over::HandedOver;
use crate::message::Report;
use crate::pump::{Pump, with_room};

/// The most that QUIC adds to a datagram: 1 byte of flags, 20 of connection ID, 4 of packet number, 16 of authentication and
/// 3 around the frame.
const QUIC_OVERHEAD: usize = 44;
/// About as many bytes as a connection sends in one turn.
const ENOUGH: usize = 128 * 1024;
/// A TUN device counts as broken after this many failed reads in a row.
const FAILED_READS: u32 = 16;
/// Batches of other workers taken in one turn.
const BATCHES_PER_TURN: usize = 16;

impl Worker {
    /// Reads the TUN. Returns true if there may be more to read.
    pub(super) fn take_device(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        // Each read returns up to 64 KiB with offload, and one packet without offload.
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
                // After one bad read, the next may succeed, unless the device is gone.
                Poll::Ready(Err(error)) if device.failed_reads < FAILED_READS && may_pass(&error) => {
                    device.failed_reads += 1;
                    // A failed read counts as one packet, so that the sums of docs/counters.md hold.
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

    /// Whether a full queue stops the reading of the TUN, so that the kernel holds back the senders. Only a client
    /// stops: at an exit, one slow client would hold back all others.
    pub(super) fn is_held_back(&self, now: Instant) -> bool {
        self.pumps_hold_back(now) || self.is_client() && self.hand_over.is_filling()
    }

    fn pumps_hold_back(&self, now: Instant) -> bool {
        self.is_client() && self.pumps.iter().any(|(_, pump)| pump.holds_back(now))
    }

    fn is_client(&self) -> bool {
        matches!(&self.device, Some(Device { forwarding: Forwarding::Client, .. }))
    }

    /// Handles packets that other workers read for this worker's connections. Returns whether there may be more. If a client's
    /// queues are full, leaves the packets in the inbox, so that the other workers stop reading too. Full inboxes of other
    /// workers do not count here: otherwise two workers could wait for each other.
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

    /// Hands over the turn's reads that are for connections of other workers.
    pub(super) fn hand_over(&mut self) {
        let (totals, drops, sessions) = (&mut self.totals, &mut self.drops, &self.sessions);
        self.hand_over.send(|HandedOver { header, packet, .. }| {
            // The read was counted when it was put into the batch.
            totals.handed_over -= 1;
            let packets = count_refused(header, &packet, DropReason::HandOverFull, totals, drops);
            count_at_client(sessions, &packet, DropReason::HandOverFull, packets);
        });
    }

    /// Whether a pump can send and holds as much as it sends in one turn. More packets would only wait, or be dropped
    /// although the connection is fast enough.
    fn has_enough(&self, slot: Option<usize>) -> bool {
        let pump = slot.and_then(|slot| self.pumps.get(slot));
        pump.is_some_and(|pump| !pump.blocked && pump.queue_bytes() >= ENOUGH)
    }

    /// Handles the packet or super-packet of one read. Returns the pump that has the packet now.
    fn take_read(&mut self, header: VirtioNetHeader, range: Range<usize>, now: Instant) -> Option<usize> {
        // The buffer is taken out so that the packet can be borrowed while `self` is changed.
        let mut buffer = std::mem::take(&mut self.device.as_mut()?.buffer);
        let super_packet = buffer.get_mut(range);
        let slot =
            super_packet.and_then(|super_packet| self.take_super_packet(header, super_packet, None, now));
        if let Some(device) = &mut self.device {
            device.buffer = buffer;
        }
        slot
    }

    /// Queues a super-packet on its connection, or hands it over to the worker that has the connection. `named` is the connection
    /// that another worker named when it handed the super-packet over. Returns the pump that has the super-packet now.
    fn take_super_packet(
        &mut self,
        header: VirtioNetHeader,
        super_packet: &mut [u8],
        named: Option<ConnectionId>,
        now: Instant,
    ) -> Option<usize> {
        let before = self.totals.tun_read_packets;
        let taken = self.queue_super_packet(header, super_packet, named, now);
        let slot = taken.unwrap_or_else(|reason| {
            let packets = count_refused(header, super_packet, reason, &mut self.totals, &mut self.drops);
            count_at_client(&self.sessions, super_packet, reason, packets);
            None
        });
        let packets = self.totals.tun_read_packets - before;
        if packets > 0 {
            self.occupancy.packets_per_tun_read.record(packets);
        }
        slot
    }

    /// Returns the pump that has the super-packet now, or `None` if another worker has it.
    ///
    /// # Errors
    /// The reason under which to count each of its packets. None of them was counted yet.
    fn queue_super_packet(
        &mut self,
        header: VirtioNetHeader,
        super_packet: &mut [u8],
        named: Option<ConnectionId>,
        now: Instant,
    ) -> Result<Option<usize>, DropReason> {
        let device = self.device.as_mut();
        let Routed { place, limit, flow_hash, is_syn } =
            route(&self.sessions, device.as_deref(), super_packet, now)?;
        let slot = match (place, named) {
            (Place::Here(slot), _) => slot,
            (Place::Peer(peer), _) => {
                if let Some(device) = device {
                    device.bulk_flows.count(flow_hash, super_packet.len(), now);
                }
                let sealing = Sealing { totals: &mut self.totals, drops: &mut self.drops, limit, now };
                let wireguard = self.wireguard.as_deref_mut();
                Self::queue_for_peer(wireguard, peer, (header, super_packet), sealing)?;
                return Ok(None);
            }
            (Place::There(connection), None) => {
                let has_room = self.hand_over.push(connection, header, super_packet, &mut self.arena);
                self.totals.handed_over += u64::from(has_room);
                return if has_room { Ok(None) } else { Err(DropReason::HandOverFull) };
            }
            // For a moment, the workers disagree on where the flow belongs. A super-packet is handed over only once.
            (Place::There(_), Some(named)) => {
                attached(&self.by_connection, &self.pumps, named).ok_or(DropReason::NoConnection)?
            }
        };
        // The worker that has the connection counts these bytes, because it also writes the flow's replies. The kernel puts
        // the flow's packets on the lane through which the flow was last written to (`tun_flow_update` in
        // `drivers/net/tun.c`).
        if let Some(device) = device {
            device.bulk_flows.count(flow_hash, super_packet.len(), now);
        }
        // The pump always exists, because a pump that is removed leaves its session first.
        let Some(pump) = self.pumps.get_mut(slot) else { return Ok(None) };
        // A small super-packet fits into every datagram, so the connection's datagram size need not be looked up.
        let may_be_cut = is_syn || super_packet.len() > usize::from(MINIMUM_MTU) - QUIC_OVERHEAD;
        let largest_whole = may_be_cut.then(|| pump.largest_whole_packet(&self.endpoint, now)).flatten();
        if let Some(largest) = largest_whole.filter(|_| is_syn) {
            clamp_mss(super_packet, header.needs_checksum(), largest);
        }
        let (arena, totals, drops) = (&mut self.arena, &mut self.totals, &mut self.drops);
        let mut framing =
            Framing { pump, arena, totals, drops, limit, flow_hash, largest_whole, too_large: None, now };
        let cut = segment(header, super_packet, &mut |packet| framing.take(&packet));
        let too_large = framing.too_large;
        // After an error, no packet was emitted, so the super-packet counts as one.
        if cut.is_err() {
            self.totals.tun_read_packets += 1;
            self.totals.tun_read_bytes += super_packet.len() as u64;
            self.drops.count_to_carrier(DropReason::BadPacket);
            count_at_client(&self.sessions, super_packet, DropReason::BadPacket, 1);
        }
        if let (Some(packet), Some(largest)) = (too_large, largest_whole) {
            self.answer_too_big(slot, &packet, largest, now);
        }
        self.list(slot, now);
        Ok(Some(slot))
    }

    /// Tells the sender of a packet that needs fragments how large a packet fits into one datagram.
    fn answer_too_big(&mut self, slot: usize, packet: &[u8], largest: usize, now: Instant) {
        let Some(Device { queue, .. }) = &mut self.device else { return };
        let Some(pump) = self.pumps.get_mut(slot) else { return };
        let answer = IpPacket::parse(packet).ok().and_then(|packet| too_big(&packet, largest));
        let Some(answer) = answer.filter(|_| pump.may_answer(now)) else { return };
        // If the TUN refuses the answer, it is not repeated: the next packet that is too big causes another one.
        if queue.write(Lane::Prompt, VirtioNetHeader::default(), &[&answer]).is_ok() {
            self.totals.too_big_answers += 1;
        }
    }
}

/// The route of a super-packet, and the facts that are needed to send it.
struct Routed<'a> {
    place: Place,
    /// The client's rate limit.
    limit: Option<&'a ClientLimit>,
    flow_hash: u32,
    is_syn: bool,
}

fn route<'a>(
    sessions: &'a Sessions,
    device: Option<&Device>,
    super_packet: &[u8],
    now: Instant,
) -> Result<Routed<'a>, DropReason> {
    let packet = IpPacket::parse(super_packet).map_err(|_| DropReason::BadPacket)?;
    let device = device.ok_or(DropReason::NoConnection)?;
    let flow = FiveTuple::of(&packet);
    let (place, limit) = match sessions.moving() {
        None => sessions.place_for(&device.forwarding, &flow)?,
        Some(moving) => (sessions.place_during(moving, &flow, &packet, now)?, None),
    };
    Ok(Routed { place, limit, flow_hash: flow.symmetric_hash(), is_syn: is_syn(&packet) })
}

/// The pump of a connection that is attached to a session.
fn attached(
    by_connection: &HashMap<ConnectionId, usize>,
    pumps: &Slab<Pump>,
    connection: ConnectionId,
) -> Option<usize> {
    let slot = *by_connection.get(&connection)?;
    pumps.get(slot)?.attached.map(|_| slot)
}

/// Frames the packets of one super-packet and queues them on a pump.
struct Framing<'a> {
    pump: &'a mut Pump,
    arena: &'a mut Arena,
    totals: &'a mut Totals,
    drops: &'a mut Drops,
    limit: Option<&'a ClientLimit>,
    flow_hash: u32,
    /// The largest packet that needs no fragments, if some packet may be larger.
    largest_whole: Option<usize>,
    /// The first packet that is larger than one datagram.
    too_large: Option<Vec<u8>>,
    now: Instant,
}

impl Framing<'_> {
    fn take(&mut self, packet: &Segment<'_>) {
        // Counted before any drop, so that the sums of docs/counters.md hold.
        self.totals.tun_read_packets += 1;
        self.totals.tun_read_bytes += packet.len() as u64;
        if self.limit.is_some_and(|limit| !limit.to_client.admits(packet.len(), self.now)) {
            self.drops.count_to_carrier(DropReason::RateLimit);
            return;
        }
        if self.too_large.is_none() && self.largest_whole.is_some_and(|largest| packet.len() > largest) {
            // One answer for a super-packet is enough, because all of its packets have one sender.
            self.too_large = Some(packet.parts().concat());
        }
        let buffer = self.arena.room(PACKET_OVERHEAD + packet.len() + TRAILER);
        write_packet(packet.flags(), &packet.parts(), buffer);
        self.pump.enqueue(self.flow_hash, with_room(buffer), self.now, self.drops);
    }
}

/// Counts drops at the client to which the packets belong. With [`DropReason::NoRoute`], no client has the address, so
/// none counts them.
fn count_at_client(sessions: &Sessions, super_packet: &[u8], reason: DropReason, packets: u64) {
    if reason != DropReason::NoRoute
        && let Ok(packet) = IpPacket::parse(super_packet)
    {
        sessions.count_drops_to(packet.destination(), reason, packets);
    }
}

/// Counts every packet of a super-packet that is dropped, and returns how many there are.
fn count_refused(
    header: VirtioNetHeader,
    super_packet: &[u8],
    reason: DropReason,
    totals: &mut Totals,
    drops: &mut Drops,
) -> u64 {
    let mut packets = 0_u64;
    // Segmented only for the count: a drop counts as many packets as would have been sent.
    let cut = segment(header, super_packet, &mut |_| packets += 1);
    let packets = if cut.is_ok() { packets.max(1) } else { packets + 1 };
    totals.tun_read_packets += packets;
    totals.tun_read_bytes += super_packet.len() as u64;
    drops.to_carrier.add_many(reason, packets);
    packets
}

/// Whether the next read may succeed after this error. Such an error comes from a read without a valid header, or from
/// a packet that the kernel cannot describe (`EINVAL` for a super-packet that virtio-net has no name for,
/// `drivers/net/tun.c`). A read from a device that is gone fails with `EBADFD`.
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
