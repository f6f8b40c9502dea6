//! Reusable receive buffers. Datagrams are slices of them. Once the last slice is dropped, the memory is reclaimed in place.

use std::{array, io::IoSliceMut};

use bytes::BytesMut;
use noq_udp::BATCH_SIZE;

/// One GRO batch, at most the largest IP packet.
const SLAB_BYTES: usize = 65_536;

/// Buffers in filling order. Each poll fills the same buffers first, because they are still in the CPU's cache.
#[derive(Debug, Default)]
pub(crate) struct Slabs {
    slabs: Vec<BytesMut>,
    /// Number of buffers filled since the last [`Self::restart`].
    filled: usize,
}

impl Slabs {
    /// Starts again with the first buffer.
    pub(crate) fn restart(&mut self) {
        self.filled = 0;
    }

    /// Number of buffers, out of `limit`, that were not filled since the last restart.
    pub(crate) fn left(&self, limit: usize) -> usize {
        limit.min(BATCH_SIZE).saturating_sub(self.filled)
    }

    /// Lends `count` empty buffers, at most [`BATCH_SIZE`], to `receive`, which returns the number that it filled.
    pub(crate) fn lend(
        &mut self,
        count: usize,
        receive: impl FnOnce(&mut [IoSliceMut<'_>]) -> Option<usize>,
    ) -> Option<usize> {
        let end = self.filled + count.min(BATCH_SIZE);
        if self.slabs.len() < end {
            self.slabs.resize_with(end, fresh);
        }
        let slabs = self.slabs.get_mut(self.filled..end)?;
        slabs.iter_mut().for_each(make_whole);
        let mut slabs = slabs.iter_mut();
        // On the stack, so that a receive allocates nothing.
        let mut buffers: [IoSliceMut<'_>; BATCH_SIZE] =
            array::from_fn(|_| IoSliceMut::new(slabs.next().map_or(&mut [], |slab| slab.as_mut())));
        receive(buffers.get_mut(..end - self.filled)?)
    }

    /// Takes the first `length` bytes of the next filled buffer.
    pub(crate) fn take(&mut self, length: usize) -> BytesMut {
        let slab = self.slabs.get_mut(self.filled);
        self.filled += 1;
        slab.map(|slab| slab.split_to(length.min(slab.len()))).unwrap_or_default()
    }
}

fn fresh() -> BytesMut {
    BytesMut::zeroed(SLAB_BYTES)
}

/// Restores a buffer's full length: in place if no slice of the buffer is left, otherwise with new memory.
fn make_whole(slab: &mut BytesMut) {
    if slab.len() == SLAB_BYTES {
        return;
    }
    slab.clear();
    if !slab.try_reclaim(SLAB_BYTES) {
        *slab = fresh();
        return;
    }
    // SAFETY: the capacity is at least SLAB_BYTES, as checked above. The memory is that of `fresh`, which initialized all of it,
    // and bytes stay initialized. A reclaim that would need other memory fails instead.
    unsafe { slab.set_len(SLAB_BYTES) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fills `count` buffers, each with its number, and returns where their memory begins.
    fn fill(slabs: &mut Slabs, count: usize) -> (Vec<BytesMut>, Vec<*const u8>) {
        let filled = slabs.lend(count, |buffers| {
            for (buffer, number) in buffers.iter_mut().zip(0..) {
                assert_eq!(buffer.len(), SLAB_BYTES);
                buffer.fill(number);
            }
            Some(buffers.len())
        });
        assert_eq!(filled, Some(count));
        let taken: Vec<_> = (0..count).map(|_| slabs.take(3_000)).collect();
        let places = taken.iter().map(|slice| slice.as_ptr()).collect();
        (taken, places)
    }

    #[test]
    fn buffers_whose_slices_are_gone_are_filled_again_in_place() {
        let mut slabs = Slabs::default();
        let (taken, places) = fill(&mut slabs, 4);
        assert!(taken.iter().zip(0..).all(|(slice, number)| slice.iter().all(|byte| *byte == number)));
        assert_eq!(slabs.left(8), 4);
        drop(taken);
        for _ in 0..3 {
            slabs.restart();
            let (_, again) = fill(&mut slabs, 4);
            assert_eq!(again, places);
        }
    }

    #[test]
    fn a_slice_that_is_kept_keeps_its_memory_and_the_buffer_gets_other() {
        let mut slabs = Slabs::default();
        let (mut taken, places) = fill(&mut slabs, 2);
        let kept = taken.remove(0).split_to(100).freeze();
        drop(taken);
        slabs.restart();
        let (_, again) = fill(&mut slabs, 2);
        assert!(again[0] != places[0] && again[1] == places[1]);
        assert_eq!(kept, vec![0; 100]);
    }

    #[test]
    fn buffers_that_were_lent_in_vain_stay_empty_and_whole() {
        let mut slabs = Slabs::default();
        assert_eq!(slabs.lend(3, |_| None), None);
        assert_eq!(slabs.left(3), 3);
        fill(&mut slabs, 3);
        assert_eq!((slabs.left(3), slabs.left(2)), (0, 0));
    }
}
