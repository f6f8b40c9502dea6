//! An allocator that counts allocations and leaves the work to the system's allocator.
#![allow(
    unsafe_code,
    reason = "an allocator is unsafe by nature; this one counts and leaves the rest to the system's"
)]
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

/// Allocations since the program began.
pub static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
/// Bytes of all allocations. A reallocation counts the growth.
pub static ALLOCATED_BYTES: AtomicUsize = AtomicUsize::new(0);
/// Bytes currently in use.
pub static LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);

/// The global allocator of a test program.
pub struct Counting;

// SAFETY: every call is passed unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        ALLOCATED_BYTES.fetch_add(layout.size(), Relaxed);
        LIVE_BYTES.fetch_add(layout.size(), Relaxed);
        // SAFETY: the caller keeps GlobalAlloc's contract, which is also the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as above; the pointer comes from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        ALLOCATED_BYTES.fetch_add(size.saturating_sub(layout.size()), Relaxed);
        LIVE_BYTES.fetch_add(size, Relaxed);
        LIVE_BYTES.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
