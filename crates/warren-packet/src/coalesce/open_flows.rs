//! The flows of a batch whose newest item may still take packets.

use super::IpAddr;
use crate::tuple::FiveTuple;

/// Maximum number of open flows. Opening one more closes the flow with the oldest item. A batch from the carrier has a few
/// hundred packets, so with more flows than this there is little to merge.
const MAX_OPEN: usize = 16;

/// At most [`MAX_OPEN`] flows, each with its newest item.
#[derive(Debug, Default)]
pub(super) struct OpenFlows {
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    /// The hash of `flow`, compared first because it is cheaper.
    hash: u32,
    flow: FiveTuple,
    item: usize,
}

impl OpenFlows {
    /// The newest item of a flow, if it is open. `hash` is always the flow's symmetric hash.
    pub(super) fn item_of(&self, flow: &FiveTuple, hash: u32) -> Option<usize> {
        self.position(flow, hash).map(|position| self.entries[position].item)
    }

    /// Makes `item` the flow's newest.
    pub(super) fn put(&mut self, flow: FiveTuple, hash: u32, item: usize) {
        if let Some(position) = self.position(&flow, hash) {
            self.entries[position].item = item;
            return;
        }
        if self.entries.len() == MAX_OPEN {
            // Items are numbered in the order of their first packets, so the smallest number is the oldest. `MAX_OPEN` is not
            // 0, so there always is one.
            let oldest = (0..MAX_OPEN).min_by_key(|&position| self.entries[position].item).unwrap_or(0);
            self.entries.swap_remove(oldest);
        }
        self.entries.push(Entry { hash, flow, item });
    }

    /// Closes a flow: no packet merges into its newest item any more.
    pub(super) fn close(&mut self, flow: &FiveTuple, hash: u32) {
        if let Some(position) = self.position(flow, hash) {
            self.entries.swap_remove(position);
        }
    }

    /// Closes every flow from one address to another.
    pub(super) fn close_between(&mut self, source: IpAddr, destination: IpAddr) {
        self.entries.retain(|entry| (entry.flow.source, entry.flow.destination) != (source, destination));
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
    }

    fn position(&self, flow: &FiveTuple, hash: u32) -> Option<usize> {
        self.entries.iter().position(|entry| entry.hash == hash && entry.flow == *flow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(port: u16) -> FiveTuple {
        FiveTuple {
            source: [10, 0, 0, 1].into(),
            destination: [10, 0, 0, 2].into(),
            protocol: 6,
            source_port: port,
            destination_port: 443,
        }
    }

    fn item_of(open: &OpenFlows, flow: &FiveTuple) -> Option<usize> {
        open.item_of(flow, flow.symmetric_hash())
    }

    fn put(open: &mut OpenFlows, flow: FiveTuple, item: usize) {
        open.put(flow, flow.symmetric_hash(), item);
    }

    #[test]
    fn a_flow_has_its_newest_item_until_it_is_closed() {
        let mut open = OpenFlows::default();
        assert_eq!(item_of(&open, &flow(1)), None);
        put(&mut open, flow(1), 0);
        put(&mut open, flow(2), 1);
        put(&mut open, flow(1), 2);
        assert_eq!((item_of(&open, &flow(1)), item_of(&open, &flow(2))), (Some(2), Some(1)));
        open.close(&flow(1), flow(1).symmetric_hash());
        assert_eq!((item_of(&open, &flow(1)), item_of(&open, &flow(2))), (None, Some(1)));
    }

    #[test]
    fn both_directions_of_a_flow_are_two() {
        let mut open = OpenFlows::default();
        put(&mut open, flow(1), 0);
        assert_eq!(item_of(&open, &flow(1).reversed()), None);
    }

    #[test]
    fn of_too_many_flows_the_one_with_the_oldest_item_is_closed() {
        let mut open = OpenFlows::default();
        for port in 0..16 {
            put(&mut open, flow(port), usize::from(port));
        }
        put(&mut open, flow(0), 16);
        put(&mut open, flow(99), 17);
        assert_eq!(item_of(&open, &flow(1)), None);
        assert_eq!(item_of(&open, &flow(0)), Some(16));
        assert_eq!(item_of(&open, &flow(99)), Some(17));
        assert!((2..16).all(|port| item_of(&open, &flow(port)).is_some()));
    }

    #[test]
    fn all_flows_between_two_addresses_can_be_closed() {
        let mut open = OpenFlows::default();
        put(&mut open, flow(1), 0);
        put(&mut open, flow(2), 1);
        put(&mut open, flow(1).reversed(), 2);
        open.close_between(flow(1).source, flow(1).destination);
        assert_eq!((item_of(&open, &flow(1)), item_of(&open, &flow(2))), (None, None));
        assert_eq!(item_of(&open, &flow(1).reversed()), Some(2));
    }
}
