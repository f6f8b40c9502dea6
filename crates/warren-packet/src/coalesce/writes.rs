//! The writes of a batch, laid out so that a device may take all of them at once: each write stores the headers that Warren
//! makes for it.

use crate::virtio::VirtioNetHeader;

use super::batch::Batch;
use super::merge::MAX_PARTS;
use super::run::MAX_HEADERS;

/// One write to the TUN device. Its parts live as long as the batch (`'a`). The list of the parts lives only until the next write
/// (`'list`).
#[derive(Clone, Copy, Debug)]
pub struct GatherWrite<'list, 'a> {
    /// The virtio-net header that precedes the packet.
    pub header: VirtioNetHeader,
    /// The packet or super-packet, in at most [`MAX_PARTS`] parts.
    pub parts: &'list [&'a [u8]],
    /// Number of pushed packets that it contains.
    pub packets: u64,
    /// Total length of these packets in bytes, including each one's headers.
    pub bytes: u64,
    /// The symmetric hash of the packets' flow.
    pub flow_hash: u32,
}

/// The result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The device took the packets.
    Written,
    /// The write is dropped, because writing its packets one by one would fail too.
    Lost,
    /// The device refused this kind of write.
    Refused,
}

/// The writes of a batch, in the order in which the device is to take them.
#[derive(Debug)]
pub struct Writes<'a, B> {
    pub(super) batch: &'a Batch<B>,
    pub(super) planned: &'a [Planned],
}

impl<'a, B: AsRef<[u8]>> Writes<'a, B> {
    /// The number of writes.
    pub fn len(&self) -> usize {
        self.planned.len()
    }

    /// Whether there are no writes.
    pub fn is_empty(&self) -> bool {
        self.planned.is_empty()
    }

    /// Passes each write to `take`.
    pub fn for_each(&self, mut take: impl FnMut(GatherWrite<'_, 'a>)) {
        // One list serves all writes, so that a write allocates nothing.
        let mut parts = Vec::with_capacity(MAX_PARTS);
        for planned in self.planned {
            parts.clear();
            let first = self.batch.packet(planned.first);
            let item = &self.batch.items[planned.item];
            if planned.packets > 1 {
                parts.push(planned.made());
                let payloads = self.batch.indices(planned.item).map(|index| self.batch.packet(index));
                parts.extend(payloads.map(|packet| &packet[planned.made..]));
            } else if let Some(transport) = item.flagged {
                let field = transport.checksum_field();
                // The sum replaces the two bytes in between. The packet itself is not changed, because its buffer may be
                // shared.
                parts.extend([&first[..field], planned.made(), &first[field + 2..]]);
            } else {
                parts.push(first);
            }
            take(GatherWrite {
                header: planned.header,
                parts: &parts,
                packets: planned.packets,
                bytes: planned.bytes,
                flow_hash: item.flow_hash,
            });
        }
    }

    /// How many packets each write contains, and how many bytes they have.
    pub fn contents(&self) -> impl Iterator<Item = (u64, u64)> {
        self.planned.iter().map(|planned| (planned.packets, planned.bytes))
    }
}

/// A write, and the bytes that are generated for it.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) header: VirtioNetHeader,
    item: usize,
    /// Index of the write's first packet.
    first: usize,
    packets: u64,
    bytes: u64,
    /// A super-packet's headers, or the partial sum of a single packet.
    scratch: [u8; MAX_HEADERS],
    /// How many bytes of `scratch` are in use.
    made: usize,
}

impl Planned {
    /// Plans the write of a whole item, merged if it has several packets.
    pub(super) fn item<B: AsRef<[u8]>>(batch: &Batch<B>, index: usize) -> Self {
        let item = &batch.items[index];
        let Some(run) = item.run.as_ref().filter(|_| item.packets > 1) else {
            return Self::single(batch, index, item.first);
        };
        let mut scratch = [0; MAX_HEADERS];
        let first = batch.packet(item.first);
        let (header, made) = run.super_packet(first, &mut scratch);
        let made = made.len();
        Self {
            header,
            item: index,
            first: item.first,
            packets: item.packets,
            bytes: item.bytes,
            scratch,
            made,
        }
    }

    /// Plans the write of one packet of an item.
    pub(super) fn single<B: AsRef<[u8]>>(batch: &Batch<B>, item: usize, first: usize) -> Self {
        let packet = batch.packet(first);
        let mut planned = Self {
            header: VirtioNetHeader::default(),
            item,
            first,
            packets: 1,
            bytes: packet.len() as u64,
            scratch: [0; MAX_HEADERS],
            made: 0,
        };
        if let Some(transport) = batch.items[item].flagged {
            planned.header = transport.completion();
            planned.made = 2;
            planned.scratch[..2]
                .copy_from_slice(&transport.partial_checksum(packet, packet.len()).to_be_bytes());
        }
        planned
    }

    /// The index of the item, if this is a super-packet.
    pub(super) fn merged(&self) -> Option<usize> {
        (self.packets > 1).then_some(self.item)
    }

    fn made(&self) -> &[u8] {
        &self.scratch[..self.made]
    }
}
