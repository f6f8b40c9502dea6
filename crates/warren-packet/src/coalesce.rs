//! Coalesces a peer's packets into super-packets. One gather write hands each super-packet to the TUN device.
//!
//! A packet merges only into the newest item of its flow, so the order within a flow holds by construction. Packets of different
//! flows may be reordered within a batch. The rules for merging are those of Linux's GRO (`coalesce/run.rs`), so the kernel can
//! segment a super-packet into exactly the same packets.
//!
//! The virtio-net header contains no value that the peer claims. Every offset, length and sum in it is derived here from a packet
//! that passed the rules of [`crate::receive`].

mod merge;
mod open_flows;
mod run;

use std::net::IpAddr;

use crate::datagram::Flags;
use crate::ip::IpPacket;
use crate::planted::{Bug, is_planted};
use crate::reason::DropReason;
use crate::receive;
use crate::transport::TransportHeader;
use crate::tuple::FiveTuple;
use crate::virtio::{GSO_UDP_L4, VirtioNetHeader};

pub use merge::{MAX_PARTS, Merge};

use open_flows::OpenFlows;
use run::{MAX_HEADERS, Run, Shape};

/// One write to the TUN device.
#[derive(Clone, Copy, Debug)]
pub struct GatherWrite<'a> {
    /// The virtio-net header that precedes the packet.
    pub header: VirtioNetHeader,
    /// The packet or super-packet, in at most [`MAX_PARTS`] parts.
    pub parts: &'a [&'a [u8]],
    /// Number of pushed packets that it contains.
    pub packets: u64,
    /// Total length of these packets in bytes, including each one's headers.
    pub bytes: u64,
    /// The symmetric hash of their flow.
    pub flow_hash: u32,
}

/// The result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The device took it.
    Written,
    /// It is dropped. Writing the packets one by one would fail too.
    Lost,
    /// The device refused this kind of write.
    Refused,
}

/// Collects the packets of a batch and returns them as writes, merged where possible.
///
/// Payloads are not copied. `B` owns a packet's bytes, and `as_ref` must return the same bytes at every call. Storage is reused
/// from batch to batch.
#[derive(Debug)]
pub struct Coalescer<B> {
    merge: Merge,
    packets: Vec<Stored<B>>,
    /// In the order of each item's first packet.
    items: Vec<Item>,
    open: OpenFlows,
}

impl<B: AsRef<[u8]>> Coalescer<B> {
    /// Makes an empty coalescer.
    pub fn new(merge: Merge) -> Self {
        Self { merge, packets: Vec::new(), items: Vec::new(), open: OpenFlows::default() }
    }

    /// Checks one packet from a peer and keeps it until [`Self::flush`]. The caller bounds the number of packets.
    ///
    /// # Errors
    /// As [`receive::accept`]. The packet is dropped then.
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
        if self.merge == Merge::NOTHING {
            self.add(packet, flow_hash, flagged, None);
            return Ok(());
        }

        let Some(transport) = transport else {
            // A fragment has no ports, so it may belong to any flow between its addresses. Closing them all keeps every flow in
            // order.
            self.open.close_between(view.source(), view.destination());
            self.add(packet, flow_hash, None, None);
            return Ok(());
        };
        // A packet that cannot merge closes its flow's run, so that no later packet overtakes it.
        let shape = Shape::of(&view, transport, partial, self.merge);
        let newest = self.open.item_of(&flow, flow_hash);
        if let (Some(shape), Some(item)) = (&shape, newest) {
            let first = self.packets[self.items[item].first].packet.as_ref();
            if let Some(run) = &mut self.items[item].run
                && run.append(first, packet.as_ref(), shape)
            {
                if !run.is_open() {
                    self.open.close(&flow, flow_hash);
                }
                self.append(item, packet);
                return Ok(());
            }
        }
        let run = shape.and_then(|shape| Run::starting_with(packet.as_ref(), shape));
        if run.is_some() {
            self.open.put(flow, flow_hash, self.items.len());
        } else if newest.is_some() {
            self.open.close(&flow, flow_hash);
        }
        self.add(packet, flow_hash, flagged, run);
        Ok(())
    }

    /// The kinds of super-packets that are made at present.
    pub fn merge(&self) -> Merge {
        self.merge
    }

    /// Hands every packet to `write` and empties the coalescer. Writes are in the order of each one's first packet.
    ///
    /// A refused super-packet is written again packet by packet. If one of these writes succeeds, the device does not support
    /// that kind of super-packet, and [`Self::merge`] excludes it from then on.
    pub fn flush(&mut self, mut write: impl FnMut(GatherWrite<'_>) -> Outcome) {
        let mut refused = Merge::NOTHING;
        for item in &self.items {
            let Some(run) = item.run.as_ref().filter(|_| item.packets > 1) else {
                // Nothing was merged here, so the outcome says nothing about merging.
                let _ = self.write_single(item.first, item, &mut write);
                continue;
            };
            let header = match self.write_run(item, run, &mut write) {
                (_, Outcome::Written | Outcome::Lost) => continue,
                (header, Outcome::Refused) => header,
            };
            let mut next = Some(item.first);
            while let Some(index) = next {
                next = self.packets[index].next;
                // If single packets fail too, it is not about super-packets: the device may be down.
                if self.write_single(index, item, &mut write) == Outcome::Written {
                    let udp = header.gso_type == GSO_UDP_L4;
                    refused = Merge { tcp: refused.tcp || !udp, udp: refused.udp || udp };
                }
            }
        }
        // Not before the end: the items that were left in the loop had been merged already.
        self.merge = Merge { tcp: self.merge.tcp && !refused.tcp, udp: self.merge.udp && !refused.udp };
        self.items.clear();
        self.packets.clear();
        self.open.clear();
    }

    /// Whether there is nothing to flush.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Begins a new item.
    fn add(&mut self, packet: B, flow_hash: u32, flagged: Option<TransportHeader>, run: Option<Run>) {
        let (first, bytes) = (self.packets.len(), packet.as_ref().len() as u64);
        self.packets.push(Stored { packet, next: None });
        self.items.push(Item { first, last: first, packets: 1, bytes, flow_hash, flagged, run });
    }

    /// Adds a packet to an item.
    fn append(&mut self, item: usize, packet: B) {
        let (index, item) = (self.packets.len(), &mut self.items[item]);
        item.packets += 1;
        item.bytes += packet.as_ref().len() as u64;
        self.packets[item.last].next = Some(index);
        item.last = index;
        self.packets.push(Stored { packet, next: None });
    }

    fn write_single(
        &self,
        index: usize,
        item: &Item,
        write: &mut impl FnMut(GatherWrite<'_>) -> Outcome,
    ) -> Outcome {
        let packet = self.packets[index].packet.as_ref();
        let (packets, bytes, flow_hash) = (1, packet.len() as u64, item.flow_hash);
        let Some(transport) = item.flagged else {
            return write(GatherWrite {
                header: VirtioNetHeader::default(),
                parts: &[packet],
                packets,
                bytes,
                flow_hash,
            });
        };
        let field = transport.checksum_field();
        let sum = transport.partial_checksum(packet, packet.len()).to_be_bytes();
        write(GatherWrite {
            header: transport.completion(),
            // The sum is gathered in between, because the packet's buffer is shared and stays as it is.
            parts: &[&packet[..field], &sum, &packet[field + 2..]],
            packets,
            bytes,
            flow_hash,
        })
    }

    fn write_run(
        &self,
        item: &Item,
        run: &Run,
        write: &mut impl FnMut(GatherWrite<'_>) -> Outcome,
    ) -> (VirtioNetHeader, Outcome) {
        let mut scratch = [0; MAX_HEADERS];
        let (header, packet_header) =
            run.super_packet(self.packets[item.first].packet.as_ref(), &mut scratch);
        let payload_start = packet_header.len();
        let mut parts: [&[u8]; MAX_PARTS] = [&[]; MAX_PARTS];
        parts[0] = packet_header;
        let mut used = 1;
        let mut next = Some(item.first);
        while let Some(index) = next {
            let stored = &self.packets[index];
            parts[used] = &stored.packet.as_ref()[payload_start..];
            used += 1;
            next = stored.next;
        }
        let outcome = write(GatherWrite {
            header,
            parts: &parts[..used],
            packets: item.packets,
            bytes: item.bytes,
            flow_hash: item.flow_hash,
        });
        (header, outcome)
    }
}

/// A packet, and the index of the next one in its item.
#[derive(Debug)]
struct Stored<B> {
    packet: B,
    next: Option<usize>,
}

/// The packets of one future write.
#[derive(Debug)]
struct Item {
    /// Index of its first packet in the list of packets.
    first: usize,
    last: usize,
    packets: u64,
    bytes: u64,
    flow_hash: u32,
    /// The transport header, if the packets are flagged as having a partial checksum.
    flagged: Option<TransportHeader>,
    /// Set if more packets could merge into the item's first packet.
    run: Option<Run>,
}
