//! An allocator that counts, and leaves the rest to the system's.
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
/// What they were for, in bytes; of one that grows, what it grows by.
pub static ALLOCATED_BYTES: AtomicUsize = AtomicUsize::new(0);
/// Bytes that are in use.
pub static LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);

/// To be a test program's global allocator.
pub struct Counting;

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        ALLOCATED_BYTES.fetch_add(layout.size(), Relaxed);
        LIVE_BYTES.fetch_add(layout.size(), Relaxed);
        // SAFETY: the caller keeps GlobalAlloc's contract, which is the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as above; the pointer came from the system's allocator.
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
