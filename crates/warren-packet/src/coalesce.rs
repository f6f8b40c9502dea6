//! Coalesces a peer's packets into super-packets. One gather write hands each super-packet to the TUN device.
//!
//! A packet merges only into the newest item of its flow, so the order within a flow holds by construction. Packets of different
//! flows may be reordered within a batch. The rules for merging are those of Linux's GRO (`coalesce/run.rs`), so the kernel can
//! segment a super-packet into exactly the same packets.
//!
//! The virtio-net header contains no value that the peer claims. Every offset, length and sum in it is derived here from a packet
//! that passed the rules of [`crate::receive`].

mod batch;
mod merge;
mod open_flows;
mod run;
mod writes;

use std::net::IpAddr;

use crate::datagram::Flags;
use crate::ip::IpPacket;
use crate::planted::{Bug, is_planted};
use crate::reason::DropReason;
use crate::receive;
use crate::transport::TransportHeader;
use crate::tuple::FiveTuple;
use crate::virtio::GSO_UDP_L4;

pub use merge::{MAX_PARTS, Merge};
pub use writes::{GatherWrite, Outcome, Writes};

use batch::Batch;
use open_flows::OpenFlows;
use run::{Run, Shape};
use writes::Planned;

/// Collects the packets of a batch and returns them as writes, merged where possible.
///
/// Payloads are not copied. `B` owns a packet's bytes, and `as_ref` must return the same bytes at every call. Storage is reused
/// from batch to batch.
///
/// [`segment`](crate::segment::segment) is the inverse: it cuts the super-packet into the same packets.
///
/// ```
/// use warren_packet::coalesce::{Coalescer, Merge, Outcome};
/// use warren_packet::datagram::Flags;
/// use warren_packet::segment::segment;
///
/// // A UDP datagram of 100 bytes from 10.0.0.1:7 to 10.0.0.2:9. The receiver completes its checksum.
/// let mut datagram = [0; 128];
/// datagram[..28].copy_from_slice(&[
///     0x45, 0, 0, 128, 0, 0, 0x40, 0, 64, 17, 0x26, 0x6b, 10, 0, 0, 1, 10, 0, 0, 2, // IPv4
///     0, 7, 0, 9, 0, 108, 0x12, 0x34, // UDP
/// ]);
/// let mut coalescer = Coalescer::new(Merge::ALL);
/// for _ in 0..3 {
///     coalescer.push(Flags::PARTIAL_CHECKSUM, datagram)?;
/// }
/// coalescer.flush(|write| {
///     assert_eq!(write.header.gso_size, 100);
///     let super_packet = write.parts.concat();
///     assert_eq!(super_packet.len(), 28 + 3 * 100);
///     let mut lengths = Vec::new();
///     segment(write.header, &super_packet, &mut |packet| lengths.push(packet.len())).expect("it was valid");
///     assert_eq!(lengths, [128, 128, 128]);
///     Outcome::Written
/// });
/// # Ok::<(), warren_packet::DropReason>(())
/// ```
#[derive(Debug)]
pub struct Coalescer<B> {
    merge: Merge,
    batch: Batch<B>,
    open: OpenFlows,
    /// The writes of the present flush. Empty between flushes.
    planned: Vec<Planned>,
    outcomes: Vec<Outcome>,
}

impl<B: AsRef<[u8]>> Coalescer<B> {
    /// Makes an empty coalescer.
    pub fn new(merge: Merge) -> Self {
        Self {
            merge,
            batch: Batch::default(),
            open: OpenFlows::default(),
            planned: Vec::new(),
            outcomes: Vec::new(),
        }
    }

    /// Checks one packet from a peer and keeps it until [`Self::flush`]. The caller bounds the number of packets.
    ///
    /// # Errors
    /// The errors of [`receive::accept`]. The packet is dropped.
    pub fn push(&mut self, flags: Flags, packet: B) -> Result<(), DropReason> {
        let view = IpPacket::parse(packet.as_ref()).map_err(|_| DropReason::BadPacket)?;
        let partial = flags.partial_checksum();
        let transport = if partial { Some(receive::flagged(&view)?) } else { TransportHeader::of(&view) };
        let flagged = transport.filter(|_| partial);
        let mut flow = FiveTuple::of(&view);
        if is_planted(Bug::MergedAcrossFlows) {
            (flow.source_port, flow.destination_port) = (0, 0);
        }
        let flow_hash = flow.symmetric_hash();
        // Every packet becomes a write of its own, so flows need no tracking.
        if self.merge == Merge::NOTHING {
            self.batch.add(packet, flow_hash, flagged, None);
            return Ok(());
        }

        let Some(transport) = transport else {
            // A fragment has no ports, so it may belong to any flow between its addresses. Closing them all keeps every flow in
            // order.
            self.open.close_between(view.source(), view.destination());
            self.batch.add(packet, flow_hash, None, None);
            return Ok(());
        };
        // A packet that cannot merge closes its flow's run, so that no later packet overtakes it.
        let shape = Shape::of(&view, transport, partial, self.merge);
        let newest = self.open.item_of(&flow, flow_hash);
        if let (Some(shape), Some(item)) = (&shape, newest) {
            let first = self.batch.packets[self.batch.items[item].first].packet.as_ref();
            if let Some(run) = &mut self.batch.items[item].run
                && run.append(first, packet.as_ref(), shape)
            {
                if !run.is_open() {
                    self.open.close(&flow, flow_hash);
                }
                self.batch.append(item, packet);
                return Ok(());
            }
        }
        let run = shape.and_then(|shape| Run::starting_with(packet.as_ref(), shape));
        if run.is_some() {
            self.open.put(flow, flow_hash, self.batch.items.len());
        } else if newest.is_some() {
            self.open.close(&flow, flow_hash);
        }
        self.batch.add(packet, flow_hash, flagged, run);
        Ok(())
    }

    /// The kinds of super-packets that are made at present.
    pub fn merge(&self) -> Merge {
        self.merge
    }

    /// Passes every packet to `write`, like [`Self::flush_together`], but one write at a time.
    pub fn flush(&mut self, mut write: impl FnMut(GatherWrite<'_, '_>) -> Outcome) {
        self.flush_together(|writes, outcomes| writes.for_each(|one| outcomes.push(write(one))));
    }

    /// Passes every packet to `write` and empties the coalescer. Writes are ordered by their first packets. `write` pushes one
    /// outcome per write. A write without an outcome counts as lost.
    ///
    /// The packets of refused super-packets are passed to `write` again one by one, after the rest of the batch. If one of them can
    /// be written alone, the merging was the reason for the refusal: the device does not support that kind of super-packet, and
    /// [`Self::merge`] makes no more of them.
    pub fn flush_together(&mut self, mut write: impl FnMut(&Writes<'_, B>, &mut Vec<Outcome>)) {
        // Taken out while `self.batch` is borrowed, and put back below, so that their memory is reused.
        let (mut planned, mut outcomes) =
            (std::mem::take(&mut self.planned), std::mem::take(&mut self.outcomes));
        planned.extend((0..self.batch.items.len()).map(|item| Planned::item(&self.batch, item)));
        let mut give = |planned: &[Planned], outcomes: &mut Vec<Outcome>| {
            outcomes.clear();
            if !planned.is_empty() {
                write(&Writes { batch: &self.batch, planned }, outcomes);
                outcomes.resize(planned.len(), Outcome::Lost);
            }
        };
        give(&planned, &mut outcomes);

        let mut refused = Merge::NOTHING;
        for (outcome, planned) in outcomes.iter().zip(&planned) {
            // A refused single packet says nothing about merging.
            let (Outcome::Refused, Some(item)) = (outcome, planned.merged()) else { continue };
            let udp = planned.header.gso_type == GSO_UDP_L4;
            let singles: Vec<_> =
                self.batch.indices(item).map(|packet| Planned::single(&self.batch, item, packet)).collect();
            let mut taken = Vec::new();
            give(&singles, &mut taken);
            // If the single packets fail too, super-packets are not the cause: the device may be down.
            if taken.contains(&Outcome::Written) {
                refused = Merge { tcp: refused.tcp || !udp, udp: refused.udp || udp };
            }
        }
        self.merge = Merge { tcp: self.merge.tcp && !refused.tcp, udp: self.merge.udp && !refused.udp };
        planned.clear();
        (self.planned, self.outcomes) = (planned, outcomes);
        self.batch.clear();
        self.open.clear();
    }

    /// Whether there is nothing to flush.
    pub fn is_empty(&self) -> bool {
        self.batch.items.is_empty()
    }
}
