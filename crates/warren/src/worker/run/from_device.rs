//! From the TUN to the carrier: one read a super-packet, the flow's connection, the cut, the queue.

use std::io;
use std::ops::Range;
use std::task::{Context, Poll};
use std::time::Instant;

use warren_packet::datagram::{PACKET_OVERHEAD, write_packet};
use warren_packet::ip::IpPacket;
use warren_packet::reason::DropReason;
use warren_packet::segment::segment;
use warren_packet::tuple::FiveTuple;
use warren_packet::virtio::VirtioNetHeader;

use super::{ARENA, Device, Worker};
use crate::worker::counters::{Drops, Totals};
use crate::worker::forward::Forwarding;
use crate::worker::message::Report;

impl Worker {
    /// Reads the TUN; true when there may be more to read.
    pub(super) fn take_device(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        // Each read brings up to 64 KiB with offload and one packet without.
        for _ in 0..self.tun_batches.get() {
            if self.is_held_back(now) {
                return false;
            }
            let Some(device) = &mut self.device else { return false };
            match device.queue.poll_read(cx, &mut device.buffer) {
                Poll::Pending => return false,
                Poll::Ready(Ok((header, range))) => {
                    self.totals.tun_reads += 1;
                    self.take_super_packet(header, range, now);
                }
                // One read that made no sense says nothing about the next.
                Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::InvalidData => {
                    self.totals.tun_read_packets += 1;
                    self.drops.count_to_carrier(DropReason::TunRead);
                }
                Poll::Ready(Err(error)) => {
                    self.device = None;
                    self.report(Report::DeviceFailed { error: error.to_string() });
                    return true;
                }
            }
        }
        true
    }

    /// Whether a full queue asks the kernel to hold its senders. Only a client does: on an exit one slow client would
    /// hold back all others.
    pub(super) fn is_held_back(&self, now: Instant) -> bool {
        let Some(Device { forwarding: Forwarding::Client, .. }) = &self.device else { return false };
        self.pumps.iter().flatten().any(|pump| pump.holds_back(now))
    }

    fn take_super_packet(&mut self, header: VirtioNetHeader, range: Range<usize>, now: Instant) {
        let Some(device) = &self.device else { return };
        let Some(super_packet) = device.buffer.get(range) else { return };
        let pump = match IpPacket::parse(super_packet) {
            Ok(packet) => self.sessions.pump_for(&device.forwarding, &FiveTuple::of(&packet)),
            Err(_) => Err(DropReason::BadPacket),
        };
        let slot = match pump {
            Ok(slot) => slot,
            Err(reason) => {
                count_refused(header, super_packet, reason, &mut self.totals, &mut self.drops);
                return;
            }
        };
        let Some(pump) = self.pumps.get_mut(slot).and_then(Option::as_mut) else { return };
        let (arena, totals, drops) = (&mut self.arena, &mut self.totals, &mut self.drops);
        let cut = segment(header, super_packet, &mut |packet| {
            totals.tun_read_packets += 1;
            totals.tun_read_bytes += packet.len() as u64;
            if arena.capacity() < PACKET_OVERHEAD + packet.len() {
                arena.reserve(ARENA.max(PACKET_OVERHEAD + packet.len()));
            }
            write_packet(packet.flags(), &packet.parts(), arena);
            if let Err(reason) = pump.enqueue(arena.split().freeze(), now) {
                drops.count_to_carrier(reason);
            }
        });
        if cut.is_err() {
            self.totals.tun_read_packets += 1;
            self.totals.tun_read_bytes += super_packet.len() as u64;
            self.drops.count_to_carrier(DropReason::BadPacket);
        }
        self.list(slot);
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
