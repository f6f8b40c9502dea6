//! A bounded set of flows that several workers use at once without a lock.
//!
//! The table exists only while a client moves, and has a fixed number of slots. A flow that finds no empty slot gets the slot of a
//! flow that is over.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use warren_packet::tuple::FiveTuple;

/// Number of slots. A move takes half a minute, so this is enough for about 900 flows a second, and for more if they end.
const SLOTS: usize = 32_768;
/// Maximum number of slots that are tried for one flow.
const PROBES: usize = 64;
/// The mark of a flow that has ended. The other 31 bits are the time of its latest packet: they hold 24 days of
/// milliseconds.
const ENDED: u32 = 1 << 31;
/// A flow that has ended is over once it had no packet for this long. Until then, the peer may still send.
const OVER_AFTER: u32 = 15_000;

/// A set of flows, each with the time of its latest packet. Times are in milliseconds since the table was made.
#[derive(Debug)]
pub(super) struct FlowTable {
    slots: Box<[Slot]>,
    /// A flow without a packet for this long is over, in milliseconds.
    idle_after: u32,
    /// The hash is keyed at random, so that nobody can choose flows that share slots.
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct Slot {
    /// The flow's hash, which is never 0. 0 while the slot is empty. Two flows share 64 bits about once in 10^10 moves.
    flow: AtomicU64,
    /// When the latest packet was seen, and the bit [`ENDED`].
    seen: AtomicU32,
}

impl Slot {
    /// Records a packet. A flow that has ended stays ended.
    fn see(&self, at: u32) {
        let seen = self.seen.load(Ordering::Relaxed);
        // Several workers may have the flow's packets. Most find that another worker has recorded the time
        // already.
        if seen & !ENDED != at {
            self.seen.store(at | (seen & ENDED), Ordering::Relaxed);
        }
    }

    /// Gives the slot to another flow, if the flow in it is over.
    fn take(&self, hash: u64, at: u32, idle_after: u32) -> bool {
        let seen = self.seen.load(Ordering::Relaxed);
        let after = if seen & ENDED != 0 { OVER_AFTER } else { idle_after };
        let is_over = at.saturating_sub(seen & !ENDED) >= after;
        // Sets the time first: from then on, no other worker takes the slot. If the old flow sends at this moment, it keeps the
        // slot.
        let taken =
            is_over && self.seen.compare_exchange(seen, at, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if taken {
            self.flow.store(hash, Ordering::Release);
        }
        taken
    }
}

impl FlowTable {
    /// A table whose flows are over once they had no packet for this many milliseconds.
    pub(super) fn new(idle_after: u32) -> Self {
        let slots = (0..SLOTS).map(|_| Slot::default()).collect();
        Self { slots, idle_after, hasher: RandomState::new() }
    }

    /// Records a packet of a flow. Adds the flow if the table does not contain it. Returns false if there is no room for it.
    pub(super) fn note(&self, flow: &FiveTuple, at: u32) -> bool {
        let hash = self.hash(flow);
        for slot in self.slots_of(hash) {
            let known = match slot.flow.load(Ordering::Acquire) {
                0 => slot.flow.compare_exchange(0, hash, Ordering::AcqRel, Ordering::Acquire).map_or_else(
                    // Another worker was faster, perhaps with the same flow.
                    |taken_by| taken_by,
                    |_| hash,
                ),
                known => known,
            };
            if known == hash {
                slot.see(at);
                return true;
            }
        }
        self.slots_of(hash).any(|slot| slot.take(hash, at, self.idle_after))
    }

    /// When the latest packet of a flow was noted. `None` if the table does not contain the flow.
    pub(super) fn seen(&self, flow: &FiveTuple) -> Option<u32> {
        self.slot(flow).map(|slot| slot.seen.load(Ordering::Relaxed) & !ENDED)
    }

    /// Records a packet of a flow, if the table contains the flow. Returns whether it does.
    pub(super) fn see(&self, flow: &FiveTuple, at: u32) -> bool {
        let slot = self.slot(flow);
        slot.iter().for_each(|slot| slot.see(at));
        slot.is_some()
    }

    /// Records that a flow has ended, so that it is no longer counted.
    pub(super) fn end(&self, flow: &FiveTuple) {
        if let Some(slot) = self.slot(flow) {
            slot.seen.fetch_or(ENDED, Ordering::Relaxed);
        }
    }

    /// Number of flows that have not ended and had a packet since a time.
    pub(super) fn count_since(&self, at: u32) -> usize {
        let is_live = |slot: &&Slot| {
            let seen = slot.seen.load(Ordering::Relaxed);
            slot.flow.load(Ordering::Relaxed) != 0 && seen & ENDED == 0 && seen >= at
        };
        self.slots.iter().filter(is_live).count()
    }

    fn slot(&self, flow: &FiveTuple) -> Option<&Slot> {
        let hash = self.hash(flow);
        // An empty slot ends the search, because slots are never emptied.
        self.slots_of(hash)
            .map(|slot| (slot, slot.flow.load(Ordering::Acquire)))
            .take_while(|(_, known)| *known != 0)
            .find_map(|(slot, known)| (known == hash).then_some(slot))
    }

    fn slots_of(&self, hash: u64) -> impl Iterator<Item = &Slot> {
        let first = usize::try_from(hash % SLOTS as u64).unwrap_or_default();
        let (before, from) = self.slots.split_at(first);
        from.iter().chain(before).take(PROBES)
    }

    fn hash(&self, flow: &FiveTuple) -> u64 {
        self.hasher.hash_one(flow).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: u32 = 300_000;

    #[test]
    fn flows_that_are_over_make_room_and_the_others_keep_theirs() {
        let table = FlowTable::new(IDLE);
        let all = u32::try_from(SLOTS).unwrap();
        let taken = |from: u32, at| {
            (from..from + all).filter(|number| table.note(&flow(*number), at)).collect::<Vec<_>>()
        };
        let first = taken(0, 1);
        let (over, others) = first.split_at(first.len() / 2);
        over.iter().for_each(|number| table.end(&flow(*number)));

        assert!(taken(all, 10_000).len() < 3_000, "the peers of ended flows may still send");
        let later = taken(2 * all, 20_000);
        assert!(later.len() > SLOTS / 3, "{}", later.len());
        assert!(others.iter().all(|number| table.seen(&flow(*number)) == Some(1)));
        assert!(later.iter().all(|number| table.seen(&flow(*number)) == Some(20_000)));
        // All of these flows have been silent for long.
        assert!(taken(3 * all, 20_000 + IDLE).len() > SLOTS * 9 / 10);
    }

    fn flow(number: u32) -> FiveTuple {
        FiveTuple {
            source: std::net::Ipv4Addr::from(number).into(),
            destination: "203.0.113.7".parse().unwrap(),
            protocol: 6,
            source_port: 1,
            destination_port: 443,
        }
    }

    #[test]
    fn a_full_table_says_so_and_forgets_nobody() {
        let table = FlowTable::new(IDLE);
        let most = u32::try_from(SLOTS).unwrap() + 1_000;

        let taken: Vec<u32> = (0..most).filter(|number| table.note(&flow(*number), 1)).collect();

        assert!(taken.len() > SLOTS * 9 / 10 && taken.len() <= SLOTS, "{}", taken.len());
        assert!(taken.iter().all(|number| table.seen(&flow(*number)) == Some(1)));
        assert_eq!((0..most).filter(|number| table.seen(&flow(*number)).is_some()).count(), taken.len());
    }

    #[test]
    fn flows_that_go_on_are_counted_and_ended_ones_are_not() {
        let table = FlowTable::new(IDLE);
        (0..3).for_each(|number| assert!(table.note(&flow(number), 10)));
        table.note(&flow(0), 2_000);
        table.note(&flow(1), 2_000);
        table.end(&flow(1));
        table.note(&flow(1), 3_000);

        assert_eq!(table.count_since(1_000), 1);
        assert_eq!(table.count_since(0), 2);
    }

    #[test]
    fn workers_that_note_the_same_flows_at_once_take_one_slot_for_each() {
        let table = FlowTable::new(IDLE);

        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..5_000).for_each(|number| assert!(table.note(&flow(number), 1))));
            }
        });

        assert_eq!(table.count_since(0), 5_000);
    }
}
