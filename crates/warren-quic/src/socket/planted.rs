//! Memory errors planted on purpose, one per test. `scripts/sanitize` must find each one, which shows that it can find real ones.
//! They exist only in test builds, and run only by name.

use std::{cell::UnsafeCell, hint::black_box, mem, sync::Barrier, thread};

use super::Slabs;

#[test]
#[ignore = "it breaks memory; `scripts/sanitize` runs it"]
fn a_receive_buffer_is_written_beyond_its_end() {
    lent_once(|buffer| {
        // SAFETY: none: it is the byte after the last one.
        unsafe { buffer.as_mut_ptr().add(buffer.len()).write(1) };
    });
}

#[test]
#[ignore = "it breaks memory; `scripts/sanitize` runs it"]
fn a_datagram_is_read_after_its_buffer_was_freed() {
    let mut slabs = lent_once(|buffer| buffer.fill(1));
    let datagram = slabs.take(100);
    let start = datagram.as_ptr();
    drop((datagram, slabs));
    // SAFETY: none: the buffer is freed already.
    black_box(unsafe { start.read() });
}

#[test]
#[ignore = "it breaks memory; `scripts/sanitize` runs it"]
fn receive_buffers_are_forgotten() {
    mem::forget(lent_once(|buffer| buffer.fill(1)));
}

#[test]
#[ignore = "it breaks memory; `scripts/sanitize` runs it"]
fn two_threads_write_the_same_place() {
    struct Shared(UnsafeCell<u64>);
    // SAFETY: none: every holder of a reference writes.
    unsafe impl Sync for Shared {}
    impl Shared {
        fn add(&self) {
            // SAFETY: none: another thread does the same.
            unsafe { *self.0.get() += black_box(1) };
        }
    }
    let shared = Shared(UnsafeCell::new(0));
    // Without the barrier, the second thread could start after all writes of the first, and the writes would be ordered.
    let start = Barrier::new(2);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                start.wait();
                (0..1_000).for_each(|_| shared.add());
            });
        }
    });
}

/// Buffers, one of which was lent to `filling`.
fn lent_once(filling: impl FnOnce(&mut [u8])) -> Slabs {
    let mut slabs = Slabs::default();
    slabs.lend(1, |buffers| {
        filling(buffers.first_mut()?);
        Some(1)
    });
    slabs
}
