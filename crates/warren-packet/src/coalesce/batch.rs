//! The packets of a batch, grouped into items. Each item becomes one write.

use crate::transport::TransportHeader;

use super::run::Run;

/// The packets of a batch and their items.
#[derive(Debug)]
pub(super) struct Batch<B> {
    pub(super) packets: Vec<Stored<B>>,
    /// In the order of each item's first packet.
    pub(super) items: Vec<Item>,
}

/// A packet, and the index of the next one in its item.
#[derive(Debug)]
pub(super) struct Stored<B> {
    pub(super) packet: B,
    // A linked list, because the packets of different items arrive interleaved.
    pub(super) next: Option<usize>,
}

/// The packets of one future write.
#[derive(Debug)]
pub(super) struct Item {
    /// Index of the item's first packet in the list of packets.
    pub(super) first: usize,
    last: usize,
    pub(super) packets: u64,
    pub(super) bytes: u64,
    pub(super) flow_hash: u32,
    /// The transport header, if the packets are flagged as having a partial checksum.
    pub(super) flagged: Option<TransportHeader>,
    /// Set if the item's first packet can merge with others.
    pub(super) run: Option<Run>,
}

impl<B> Default for Batch<B> {
    fn default() -> Self {
        Self { packets: Vec::new(), items: Vec::new() }
    }
}

impl<B: AsRef<[u8]>> Batch<B> {
    pub(super) fn add(
        &mut self,
        packet: B,
        flow_hash: u32,
        flagged: Option<TransportHeader>,
        run: Option<Run>,
    ) {
        let (first, bytes) = (self.packets.len(), packet.as_ref().len() as u64);
        self.packets.push(Stored { packet, next: None });
        self.items.push(Item { first, last: first, packets: 1, bytes, flow_hash, flagged, run });
    }

    /// Adds a packet to an item.
    pub(super) fn append(&mut self, item: usize, packet: B) {
        let (index, item) = (self.packets.len(), &mut self.items[item]);
        item.packets += 1;
        item.bytes += packet.as_ref().len() as u64;
        self.packets[item.last].next = Some(index);
        item.last = index;
        self.packets.push(Stored { packet, next: None });
    }

    /// The bytes of a packet.
    pub(super) fn packet(&self, index: usize) -> &[u8] {
        self.packets[index].packet.as_ref()
    }

    /// The indices of an item's packets, in order.
    pub(super) fn indices(&self, item: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(self.items[item].first), |index| self.packets[*index].next)
    }

    pub(super) fn clear(&mut self) {
        self.packets.clear();
        self.items.clear();
    }
}
