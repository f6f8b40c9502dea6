//! Reassembles the fragmented packets of one connection, in bounded memory and with every loss counted.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::datagram::Fragment;
use crate::ip::MAX_PACKET;
use crate::planted::{Bug, is_planted};
use crate::reason::DropReason;

mod assembly;
mod history;

pub use assembly::Reassembled;
pub use history::MAX_NEWER_IDS;

use assembly::Assembly;
use history::{History, Place};

/// Longest time from the first fragment of an assembly to the last.
pub const MAX_AGE: Duration = Duration::from_secs(1);
/// Bounds on the state of an [`Assembler`]. A new packet that would exceed them replaces the oldest assemblies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of packets in assembly, raised to at least 1.
    pub max_assemblies: usize,
    /// Maximum bytes of packets in assembly, each counted with its full length. Raised to at least 65,535.
    pub max_bytes: usize,
}

impl Default for Limits {
    /// 64 packets with at most 256 KiB together, which is enough for four of the largest packets.
    fn default() -> Self {
        Self { max_assemblies: 64, max_bytes: 256 * 1024 }
    }
}

/// The packets of one connection that are incomplete so far.
///
/// Each packet is counted exactly once: it is returned by [`Self::insert`], or causes an error there, or is in the count of
/// [`Self::expire`], or is still [`Self::pending`]. This holds for ids up to 4,096 below the newest. For older ids, each fragment
/// counts as a packet of its own.
#[derive(Debug)]
pub struct Assembler {
    limits: Limits,
    /// Oldest first.
    assemblies: VecDeque<Assembly>,
    bytes: usize,
    history: History,
    /// Assemblies dropped since the last [`Self::expire`].
    dropped: u64,
}

impl Assembler {
    /// Makes an empty assembler.
    pub fn new(limits: Limits) -> Self {
        let limits = Limits {
            max_assemblies: limits.max_assemblies.max(1),
            // Without this, `open` could not make room for the largest packet.
            max_bytes: limits.max_bytes.max(MAX_PACKET),
        };
        Self { limits, assemblies: VecDeque::new(), bytes: 0, history: History::new(), dropped: 0 }
    }

    /// Adds a fragment that arrived at `now`. Returns the packet if it is complete.
    ///
    /// Ignores a fragment whose packet was completed or dropped before, because that packet has been counted.
    ///
    /// # Errors
    /// The fragment's packet is dropped and counts once, with this reason: [`DropReason::BadFragment`] if the fragment overlaps
    /// another, differs from it in length or flags, or arrived first with less than 1/64 of the packet.
    /// [`DropReason::FragmentTimeout`] if 1,024 or more newer ids were seen.
    pub fn insert(
        &mut self,
        now: Instant,
        fragment: Fragment<'_>,
    ) -> Result<Option<Reassembled>, DropReason> {
        // Anybody can build a `Fragment` without `Datagram::parse`, and `Assembly::add` relies on its bounds.
        if !fragment.is_possible() {
            return Err(DropReason::BadFragment);
        }
        // First, so that a late fragment does not complete an expired assembly.
        self.drop_expired(now);
        match self.history.place(fragment.id) {
            Place::Finished => return Ok(None),
            Place::Forgotten => return Err(DropReason::FragmentTimeout),
            Place::TooOld => {
                // The packet's other fragments must not be counted again.
                self.history.finish(fragment.id);
                return Err(DropReason::FragmentTimeout);
            }
            Place::Open => {}
        }
        // `place` may have made this id the newest. Others may be too old now.
        self.drop_overtaken();

        let has_it = |assembly: &Assembly| {
            let is_alike = assembly.total() == usize::from(fragment.total);
            assembly.id() == fragment.id || is_alike && is_planted(Bug::FragmentsMergedAcrossPackets)
        };
        // Searches from the newest assembly, to which most fragments belong.
        let index = match self.assemblies.iter().rposition(has_it) {
            Some(index) => index,
            None if fragment.is_large_enough() => self.open(now, &fragment),
            // A tiny fragment must not reserve up to 64 KiB. An honest one is the last fragment and follows others. The packet
            // counts as dropped, so its other fragments are ignored.
            None => {
                self.history.finish(fragment.id);
                return Err(DropReason::BadFragment);
            }
        };
        let added = self.assemblies[index].add(&fragment);
        match added {
            Ok(false) => Ok(None),
            Ok(true) => Ok(self.remove(index).map(Assembly::into_packet)),
            Err(reason) => {
                // It is unclear which of the fragments is wrong, so the whole packet is dropped.
                self.remove(index);
                Err(reason)
            }
        }
    }

    /// Drops the assemblies that are 1 s old at `now`. Returns the number dropped since the last call, whether for their age,
    /// for newer ids or for the limits. Each is one packet lost to [`DropReason::FragmentTimeout`].
    pub fn expire(&mut self, now: Instant) -> u64 {
        self.drop_expired(now);
        std::mem::take(&mut self.dropped)
    }

    /// When [`Self::expire`] must be called next.
    pub fn timeout(&self) -> Option<Instant> {
        self.assemblies.front().map(|oldest| oldest.started() + MAX_AGE)
    }

    /// Number of packets in assembly.
    pub fn pending(&self) -> usize {
        self.assemblies.len()
    }

    /// Ends the assembler when its connection ends. Returns the number of packets that are incomplete, or were dropped since
    /// the last [`Self::expire`].
    pub fn finish(self) -> u64 {
        self.dropped + self.assemblies.len() as u64
    }

    /// Starts an assembly, dropping older ones if necessary. Returns its index.
    fn open(&mut self, now: Instant, fragment: &Fragment<'_>) -> usize {
        let total = usize::from(fragment.total);
        // The loop ends before the list is empty: `new` raised both limits to the needs of the largest packet.
        while self.assemblies.len() >= self.limits.max_assemblies
            || self.bytes + total > self.limits.max_bytes
        {
            self.drop_at(0);
        }
        self.bytes += total;
        self.assemblies.push_back(Assembly::new(now, fragment));
        self.assemblies.len() - 1
    }

    fn drop_expired(&mut self, now: Instant) {
        while let Some(oldest) = self.assemblies.front()
            && now.saturating_duration_since(oldest.started()) >= MAX_AGE
        {
            self.drop_at(0);
        }
    }

    fn drop_overtaken(&mut self) {
        // Iterates from the end, because removing an assembly moves those after it.
        for index in (0..self.assemblies.len()).rev() {
            if self.history.newer_than(self.assemblies[index].id()) >= MAX_NEWER_IDS {
                self.drop_at(index);
            }
        }
    }

    fn drop_at(&mut self, index: usize) {
        self.remove(index);
        self.dropped += 1;
    }

    fn remove(&mut self, index: usize) -> Option<Assembly> {
        let assembly = self.assemblies.remove(index)?;
        self.bytes -= assembly.total();
        self.history.finish(assembly.id());
        Some(assembly)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datagram::Flags;

    const HALF: [u8; 500] = [7; 500];

    /// Half of a packet of 1,000 bytes.
    fn half(id: u32, offset: u16) -> Fragment<'static> {
        Fragment { flags: Flags::NONE, id, total: 1_000, offset, payload: &HALF }
    }

    fn whole() -> Reassembled {
        Reassembled { flags: Flags::NONE, packet: vec![7; 1_000] }
    }

    fn assembler(max_assemblies: usize) -> Assembler {
        Assembler::new(Limits { max_assemblies, max_bytes: usize::MAX })
    }

    #[test]
    fn an_assembly_lives_for_one_second_less_a_nanosecond() {
        let start = Instant::now();
        let mut assembler = assembler(64);
        assert_eq!(assembler.insert(start, half(0, 0)), Ok(None));
        assert_eq!(assembler.timeout(), Some(start + MAX_AGE));
        assert_eq!(assembler.expire(start + MAX_AGE - Duration::from_nanos(1)), 0);
        assert_eq!(assembler.expire(start + MAX_AGE), 1);
        assert_eq!(assembler.expire(start + MAX_AGE), 0);
        assert_eq!((assembler.pending(), assembler.timeout()), (0, None));
    }

    #[test]
    fn a_fragment_that_comes_too_late_completes_nothing_and_is_not_counted_again() {
        let start = Instant::now();
        let mut assembler = assembler(64);
        assert_eq!(assembler.insert(start, half(0, 0)), Ok(None));
        assert_eq!(assembler.insert(start + MAX_AGE, half(0, 500)), Ok(None));
        assert_eq!((assembler.pending(), assembler.expire(start + MAX_AGE * 9)), (0, 1));
    }

    #[test]
    fn an_assembly_lives_for_1023_newer_ids() {
        for (first, newer, completes) in [(5, 1_023, true), (5, 1_024, false), (u32::MAX - 9, 1_023, true)] {
            let now = Instant::now();
            let mut assembler = assembler(usize::MAX);
            for step in 0..=newer {
                assert_eq!(assembler.insert(now, half(first.wrapping_add(step), 0)), Ok(None));
            }
            let last = assembler.insert(now, half(first, 500));
            assert_eq!(last, Ok(completes.then(whole)));
            assert_eq!(assembler.expire(now), u64::from(!completes));
            assert_eq!(assembler.pending(), 1_023 + usize::from(!completes));
        }
    }

    #[test]
    fn a_packet_first_seen_after_1024_newer_ones_is_dropped_once() {
        let now = Instant::now();
        let mut assembler = assembler(64);
        assert_eq!(assembler.insert(now, half(2_000, 0)), Ok(None));
        assert_eq!(assembler.insert(now, half(976, 0)), Err(DropReason::FragmentTimeout));
        assert_eq!(assembler.insert(now, half(976, 500)), Ok(None));
        assert_eq!(assembler.expire(now), 0);
        assert_eq!(assembler.insert(now, half(977, 0)), Ok(None));
        assert_eq!(assembler.insert(now, half(977, 500)), Ok(Some(whole())));
    }

    #[test]
    fn the_oldest_assembly_goes_where_one_more_would_be_too_many() {
        let now = Instant::now();
        let mut assembler = assembler(2);
        for id in 0..3 {
            assert_eq!(assembler.insert(now, half(id, 0)), Ok(None));
        }
        assert_eq!((assembler.pending(), assembler.expire(now)), (2, 1));
        assert_eq!(assembler.insert(now, half(0, 500)), Ok(None));
        assert_eq!(assembler.insert(now, half(1, 500)), Ok(Some(whole())));
        assert_eq!(assembler.insert(now, half(2, 500)), Ok(Some(whole())));
    }

    #[test]
    fn memory_is_bounded_by_whole_packets() {
        let now = Instant::now();
        let mut assembler = Assembler::new(Limits { max_assemblies: 1_000, max_bytes: 100_000 });
        for id in 0..500 {
            let total = if id % 7 == 0 { u16::MAX } else { 1_500 };
            let fragment = Fragment { flags: Flags::NONE, id, total, offset: 0, payload: &[1; 1_024] };
            assert_eq!(assembler.insert(now, fragment), Ok(None));
            let held: usize = assembler.assemblies.iter().map(Assembly::total).sum();
            assert_eq!(assembler.bytes, held);
            assert!(held <= 100_000);
        }
        assert_eq!(assembler.pending() as u64 + assembler.expire(now), 500);
    }

    #[test]
    fn limits_always_leave_room_for_one_packet() {
        let now = Instant::now();
        let mut assembler = Assembler::new(Limits { max_assemblies: 0, max_bytes: 0 });
        let (start, end) = ([1; 65_000], [2; 535]);
        let fragment = Fragment { flags: Flags::NONE, id: 0, total: u16::MAX, offset: 0, payload: &start };
        assert_eq!(assembler.insert(now, fragment), Ok(None));
        let fragment = Fragment { offset: 65_000, payload: &end, ..fragment };
        assert!(matches!(assembler.insert(now, fragment), Ok(Some(whole)) if whole.packet.len() == 65_535));
    }

    #[test]
    fn a_repeated_or_disagreeing_fragment_drops_the_packet_for_good() {
        let first = half(0, 0);
        for bad in [
            first,
            Fragment { offset: 499, ..first },
            Fragment { total: 1_001, offset: 500, ..first },
            Fragment { flags: Flags::PARTIAL_CHECKSUM, offset: 500, ..first },
        ] {
            let now = Instant::now();
            let mut assembler = assembler(64);
            assert_eq!(assembler.insert(now, first), Ok(None));
            assert_eq!(assembler.insert(now, bad), Err(DropReason::BadFragment));
            assert_eq!(assembler.insert(now, half(0, 500)), Ok(None));
            assert_eq!((assembler.pending(), assembler.bytes, assembler.finish()), (0, 0, 0));
        }
    }

    #[test]
    fn a_fragment_made_by_hand_is_checked_too() {
        let now = Instant::now();
        let mut assembler = assembler(64);
        for (total, offset, payload) in [(1_000, 501, &HALF[..]), (500, 0, &HALF), (0, 0, &[]), (9, 3, &[])] {
            let fragment = Fragment { flags: Flags::NONE, id: 0, total, offset, payload };
            assert_eq!(assembler.insert(now, fragment), Err(DropReason::BadFragment));
        }
        assert_eq!(assembler.finish(), 0);
    }

    #[test]
    fn a_last_fragment_of_a_few_bytes_completes_a_packet_and_begins_none() {
        let (now, start) = (Instant::now(), [7; 999]);
        let first = Fragment { flags: Flags::NONE, id: 0, total: 1_000, offset: 0, payload: &start };
        let last = Fragment { offset: 999, payload: &[7], ..first };
        let mut assembler = assembler(64);
        assert_eq!(assembler.insert(now, first), Ok(None));
        assert_eq!(assembler.insert(now, last), Ok(Some(whole())));

        let (first, last) = (Fragment { id: 1, ..first }, Fragment { id: 1, ..last });
        assert_eq!(assembler.insert(now, last), Err(DropReason::BadFragment));
        assert_eq!((assembler.pending(), assembler.bytes), (0, 0));
        assert_eq!(assembler.insert(now, first), Ok(None), "that packet was counted");
        assert_eq!(assembler.finish(), 0);
    }

    #[test]
    fn fragments_that_are_next_to_nothing_cost_no_assembly_its_place() {
        let now = Instant::now();
        let mut assembler = assembler(64);
        for id in 0..64 {
            assert_eq!(assembler.insert(now, half(id, 0)), Ok(None));
        }
        for id in 64..200 {
            for offset in [0, 30_000, 65_534] {
                let fragment = Fragment { flags: Flags::NONE, id, total: u16::MAX, offset, payload: &[1] };
                assert_eq!(assembler.insert(now, fragment), Err(DropReason::BadFragment));
            }
        }
        assert_eq!((assembler.pending(), assembler.bytes, assembler.expire(now)), (64, 64_000, 0));
        assert_eq!(assembler.insert(now, half(0, 500)), Ok(Some(whole())));
    }

    #[test]
    fn what_is_pending_is_lost_with_the_connection() {
        let now = Instant::now();
        let mut assembler = assembler(2);
        for id in 0..5 {
            assert_eq!(assembler.insert(now, half(id, 0)), Ok(None));
        }
        assert_eq!(assembler.finish(), 5);
    }
}
