//! Memory for packets on their way to the carrier. It is reused in place once the packets are sent.
//!
//! A general allocator returns a burst's memory to the kernel and asks for it again with the next burst. Each packet would then cost page
//! faults and a cold cache.

use std::collections::VecDeque;

use bytes::BytesMut;

/// Memory for about 45 full packets.
// 1.5 s of one TCP flow took 10,494 page faults with new memory for each burst, and 312 with slabs that are used again
// (bench/LOG.md).
const SLAB: usize = 64 * 1024;
/// Maximum number of slabs: 2 MiB in total, somewhat more than a full queue with the smallest limit holds. A waiting packet keeps
/// its whole slab, so a few small packets could each keep one. When all slabs are in use, each packet gets memory of its own.
// With 32 slabs, a stalled path of 10,000 packets a second kept 4.2 to 4.7 MiB, with 64 slabs 5.8 to 6.3 MiB. Neither
// costs speed (bench/LOG.md, "What waiting packets keep").
const MOST: usize = 32;

/// Slabs, one of which is being filled.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    filling: BytesMut,
    is: Filling,
    /// Slabs that are full, the latest last.
    filled: VecDeque<BytesMut>,
}

/// The memory that is being filled.
#[derive(Debug, Default)]
enum Filling {
    #[default]
    Nothing,
    Slab,
    /// Memory of one packet. After this many more bytes, the slabs are searched again for a free one.
    Alone(usize),
}

impl Arena {
    /// Returns an empty buffer with room for `bytes`. The caller fills it and takes the packet out with [`BytesMut::split`].
    pub(crate) fn room(&mut self, bytes: usize) -> &mut BytesMut {
        // `split` takes each packet out, so `capacity` is the unused part of the slab. The packets share the memory, so the slab
        // becomes free only once all of them are gone.
        if self.filling.capacity() < bytes {
            self.next(bytes);
        }
        &mut self.filling
    }

    fn next(&mut self, bytes: usize) {
        let before = std::mem::take(&mut self.filling);
        let left = match self.is {
            Filling::Nothing => None,
            Filling::Slab => {
                self.filled.push_back(before);
                None
            }
            Filling::Alone(left) => left.checked_sub(bytes),
        };
        let slab = if left.is_none() { self.slab(SLAB.max(bytes)) } else { None };
        (self.filling, self.is) = match slab {
            Some(slab) => (slab, Filling::Slab),
            // The search visits all slabs, so it is repeated only after another 64 KiB.
            None => (BytesMut::with_capacity(bytes), Filling::Alone(left.unwrap_or(SLAB))),
        };
    }

    /// Returns a slab whose packets are all gone: the one that was filled last, because it is most likely still in the
    /// cache. Without one, returns a new slab, up to [`MOST`].
    fn slab(&mut self, bytes: usize) -> Option<BytesMut> {
        // `try_reclaim` succeeds only if no packet of the slab is left.
        let free = self.filled.iter_mut().rposition(|slab| slab.try_reclaim(bytes));
        match free {
            Some(index) => self.filled.remove(index),
            None => (self.filled.len() < MOST).then(|| BytesMut::with_capacity(bytes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fills a whole slab with packets of 1 KiB.
    fn fill(arena: &mut Arena) -> Vec<BytesMut> {
        (0..).take(SLAB / 1024).map(|number| packet(arena, number)).collect()
    }

    fn packet(arena: &mut Arena, byte: u8) -> BytesMut {
        let buffer = arena.room(1024);
        assert!(buffer.is_empty());
        buffer.resize(1024, byte);
        buffer.split()
    }

    #[test]
    fn memory_is_used_again_once_the_packets_are_gone() {
        let mut arena = Arena::default();
        let (first, second) = (fill(&mut arena), fill(&mut arena));
        let places = [first[0].as_ptr(), second[0].as_ptr()];
        drop((first, second));
        for _ in 0..10 {
            assert!(places.contains(&fill(&mut arena)[0].as_ptr()));
        }
        assert!(arena.filled.len() <= 2);
    }

    #[test]
    fn packets_under_way_keep_their_bytes() {
        let mut arena = Arena::default();
        let kept: Vec<_> = (0..4).map(|_| fill(&mut arena).swap_remove(7)).collect();
        for _ in 0..2 * MOST {
            fill(&mut arena);
        }
        assert!(kept.iter().all(|packet| packet.iter().all(|byte| *byte == 7)));
    }

    #[test]
    fn packets_that_wait_keep_no_more_slabs_than_it_says_and_then_only_their_own_bytes() {
        let mut arena = Arena::default();
        let kept: Vec<_> = (0..3 * MOST).map(|_| fill(&mut arena).swap_remove(7)).collect();
        assert_eq!(arena.filled.len(), MOST);
        assert!((1024..2048).contains(&arena.room(1024).capacity()), "{}", arena.filling.capacity());
        assert!(kept.iter().all(|packet| packet.iter().all(|byte| *byte == 7)));
        drop(kept);
        for _ in 0..2 * MOST {
            fill(&mut arena);
        }
        assert!(matches!(arena.is, Filling::Slab), "slabs again");
        assert!(arena.filled.len() <= MOST);
    }

    #[test]
    fn whatever_is_larger_than_a_slab_has_room() {
        let mut arena = Arena::default();
        for _ in 0..2 * MOST {
            let large = arena.room(3 * SLAB);
            assert!(large.is_empty() && large.capacity() >= 3 * SLAB);
            large.resize(3 * SLAB, 1);
            drop(large.split());
        }
        assert!(arena.filled.len() <= MOST);
    }
}
