//! Memory for packets on their way to the carrier, taken back in place once they have left.
//!
//! A memory allocator gives what a burst used back to the kernel and asks for it again with the next: page faults and a cold
//! cache for every packet.

use std::collections::VecDeque;

use bytes::BytesMut;

/// Memory for about 45 full packets.
const SLAB: usize = 64 * 1024;
/// Slabs with packets under way that are remembered: 1 MiB, what two full queues hold.
const REMEMBERED: usize = 16;

/// Slabs, one of which is being filled.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    filling: BytesMut,
    /// Those filled before, the latest last.
    filled: VecDeque<BytesMut>,
}

impl Arena {
    /// Returns an empty buffer with room for `bytes`. Who fills it takes them out of it by [`BytesMut::split`].
    pub(crate) fn room(&mut self, bytes: usize) -> &mut BytesMut {
        if self.filling.capacity() < bytes {
            self.next(SLAB.max(bytes));
        }
        &mut self.filling
    }

    /// Goes on to the slab filled last of those with nothing under way, which the cache knows best, or to a new one.
    fn next(&mut self, bytes: usize) {
        self.filled.push_back(std::mem::take(&mut self.filling));
        let free = self.filled.iter_mut().rposition(|slab| slab.try_reclaim(bytes));
        self.filling = free
            .and_then(|index| self.filled.remove(index))
            .unwrap_or_else(|| BytesMut::with_capacity(bytes));
        if self.filled.len() > REMEMBERED {
            self.filled.pop_front();
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
        for _ in 0..2 * REMEMBERED {
            fill(&mut arena);
        }
        assert!(kept.iter().all(|packet| packet.iter().all(|byte| *byte == 7)));
    }

    #[test]
    fn no_more_is_remembered_than_it_says() {
        let mut arena = Arena::default();
        let kept: Vec<_> = (0..3 * REMEMBERED).map(|_| fill(&mut arena)).collect();
        assert_eq!(arena.filled.len(), REMEMBERED);
        drop(kept);
        let large = arena.room(3 * SLAB);
        assert!(large.is_empty() && large.capacity() >= 3 * SLAB);
    }
}
