//! The held datagrams of one lane: a ring of pages, so that numbers far apart need little memory and are found quickly.

use std::collections::VecDeque;

use bytes::Bytes;

use super::planted::{Bug, is_planted};
use crate::datagram::Number;

/// How far above its lane's next number a datagram is still held. A datagram that is further ahead releases everything that
/// its lane holds.
pub const MAX_AHEAD: u32 = 65_536;
/// Numbers per page.
const PAGE: u32 = u64::BITS;
const PAGE_COUNT: u32 = Number::COUNT / PAGE;
/// Bytes of a page's place in the ring. A ring grows by doubling, so a place may cost twice its size.
const PLACE_SIZE: usize = 2 * size_of::<Option<Box<Page>>>();
/// Bytes for each datagram in addition to its own: the allocator's overhead, and the entry of a gap before it.
const DATAGRAM_SIZE: usize = 80;
/// Maximum number of places for which the ring of an empty lane keeps memory.
const KEPT_PLACES: usize = 64;

/// Held datagrams by number. The numbers are all above the lane's next one, and at most [`MAX_AHEAD`] above it.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// The page of the lowest place in the ring.
    first: u32,
    pages: VecDeque<Option<Box<Page>>>,
    /// Number of pages that are allocated.
    allocated: usize,
    datagrams: usize,
    bytes: usize,
}

#[derive(Debug)]
struct Page {
    /// A bit for each datagram.
    held: u64,
    datagrams: [Bytes; PAGE as usize],
}

impl Ahead {
    /// Number of datagrams.
    pub(super) fn datagrams(&self) -> usize {
        self.datagrams
    }

    /// Bytes of all datagrams.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of memory.
    pub(super) fn size(&self) -> usize {
        self.bytes
            + self.datagrams * DATAGRAM_SIZE
            + self.allocated * size_of::<Page>()
            + self.pages.len() * PLACE_SIZE
    }

    /// Copies a datagram in, unless its number is held already. `next` is the lane's next number. Returns whether it was
    /// copied.
    pub(super) fn insert(&mut self, next: Number, number: Number, datagram: &[u8]) -> bool {
        // An empty ring has no places, so it may begin with any page.
        if self.datagrams == 0 {
            self.first = page_of(next);
        }
        let place = pages_between(self.first, page_of(number));
        // The ring has at most 1,025 places, because `number` is at most `MAX_AHEAD` above `next`.
        if place >= self.pages.len() {
            self.pages.resize_with(place + 1, || None);
        }
        let page = match &mut self.pages[place] {
            Some(page) => page,
            empty => {
                self.allocated += 1;
                empty.insert(Page::new())
            }
        };
        let (slot, bit) = slot_of(number);
        let is_held = page.held & bit != 0;
        if is_held && !is_planted(Bug::HeldReplaced) {
            return false;
        }
        page.held |= bit;
        // Subtracts 0, unless a planted bug replaces a held datagram.
        self.bytes -= page.datagrams[slot].len();
        page.datagrams[slot] = Bytes::copy_from_slice(datagram);
        self.datagrams += usize::from(!is_held);
        self.bytes += datagram.len();
        !is_held
    }

    /// Takes out the datagram with the lane's next number, if it is held. `next` never goes back, and never skips a held
    /// datagram.
    pub(super) fn take(&mut self, next: Number) -> Option<Bytes> {
        if self.datagrams == 0 {
            return None;
        }
        while self.first != page_of(next) {
            self.pages.pop_front();
            self.first = (self.first + 1) % PAGE_COUNT;
        }
        let place = self.pages.front_mut()?;
        let page = place.as_mut()?;
        let (slot, bit) = slot_of(next);
        if page.held & bit == 0 {
            return None;
        }
        page.held &= !bit;
        let datagram = std::mem::take(&mut page.datagrams[slot]);
        if page.held == 0 {
            *place = None;
            self.allocated -= 1;
        }
        self.bytes -= datagram.len();
        self.datagrams -= 1;
        if self.datagrams == 0 {
            self.pages.clear();
            // Otherwise the lane would keep a ring as large as its longest gap needed, for the life of the connection.
            self.pages.shrink_to(KEPT_PLACES);
        }
        Some(datagram)
    }

    /// The lowest number that is held.
    pub(super) fn lowest(&self) -> Option<Number> {
        let (pages, page) = (0..).zip(&self.pages).find_map(|(index, page)| Some((index, page.as_ref()?)))?;
        Some(Number::new((self.first + pages) % PAGE_COUNT * PAGE + page.held.trailing_zeros()))
    }
}

impl Page {
    fn new() -> Box<Self> {
        Box::new(Self { held: 0, datagrams: [const { Bytes::new() }; PAGE as usize] })
    }
}

/// The page that has a number's slot.
fn page_of(number: Number) -> u32 {
    number.value() / PAGE
}

/// How many pages `page` is after `first`. Whole pages fill the range of numbers exactly, so pages wrap where numbers wrap.
fn pages_between(first: u32, page: u32) -> usize {
    ((page + PAGE_COUNT - first) % PAGE_COUNT) as usize
}

/// The slot of a number in its page, and its bit there.
fn slot_of(number: Number) -> (usize, u64) {
    let slot = number.value() % PAGE;
    (slot as usize, 1 << slot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_come_out_by_number_across_pages_and_the_wrap() {
        for first in [0, 63, 64, 1_000, Number::COUNT - 1, Number::COUNT - 64, Number::COUNT - 100] {
            let next = Number::new(first);
            let mut ahead = Ahead::default();
            let steps = [300, 1, 64, MAX_AHEAD, 63, 65, 2];
            for step in steps {
                assert!(ahead.insert(next, next.plus(step), &step.to_be_bytes()), "{first} {step}");
                assert!(!ahead.insert(next, next.plus(step), &[9; 4]), "{first} {step}");
            }
            assert_eq!((ahead.datagrams(), ahead.bytes()), (steps.len(), 4 * steps.len()));
            let mut found = Vec::new();
            while let Some(lowest) = ahead.lowest() {
                let datagram = ahead.take(lowest).unwrap();
                assert_eq!(datagram[..], lowest.since(next).to_be_bytes());
                found.push(lowest.since(next));
            }
            assert_eq!(found, [1, 2, 63, 64, 65, 300, MAX_AHEAD]);
            assert_eq!((ahead.datagrams(), ahead.size(), ahead.allocated), (0, 0, 0));
            assert!(ahead.pages.capacity() <= 2 * KEPT_PLACES, "{}", ahead.pages.capacity());
        }
    }

    #[test]
    fn a_number_that_is_not_held_is_not_taken() {
        let mut ahead = Ahead::default();
        let next = Number::new(60);
        assert_eq!(ahead.take(next), None);
        ahead.insert(next, next.plus(100), &[1]);
        for step in 0..100 {
            assert_eq!(ahead.take(next.plus(step)), None);
        }
        assert_eq!(ahead.take(next.plus(100)).as_deref(), Some(&[1][..]));
    }

    #[test]
    fn a_datagram_far_ahead_costs_a_page_and_places() {
        let mut ahead = Ahead::default();
        ahead.insert(Number::ZERO, Number::new(MAX_AHEAD), &[1; 100]);
        assert_eq!(ahead.pages.len(), 1_025);
        assert!(ahead.size() < 20_000, "{}", ahead.size());
    }
}
