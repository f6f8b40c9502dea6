//! Returns unused memory to the kernel: buffers and connections have freed it, but the allocator keeps it.

use std::thread;

/// The allocation sizes of glibc's per-thread cache (tcache): up to 1,032 bytes, in steps of 16.
const CACHED_SIZES: std::ops::RangeInclusive<usize> = 24..=1_032;
const SIZE_STEP: usize = 16;

/// Number of allocations of each size in that cache.
const CACHED_OF_EACH: usize = 7;

/// Allocations from glibc's per-thread cache. They are unused, but glibc does not treat them as free, so each pins its
/// page. Hundreds of them, left by closed connections, pin more than a megabyte.
#[derive(Debug)]
pub struct ThreadCache {
    _pieces: Vec<Vec<u8>>,
}

impl ThreadCache {
    /// Takes the calling thread's cached allocations.
    #[must_use]
    pub fn take() -> Self {
        let sizes = CACHED_SIZES.step_by(SIZE_STEP);
        Self { _pieces: sizes.flat_map(|size| [size; CACHED_OF_EACH]).map(Vec::with_capacity).collect() }
    }
}

/// Returns all unused whole pages of the process to the kernel, including those of `caches`. Threads that allocate or free in the
/// meantime may wait some milliseconds. This needs glibc. With any other C library, `caches` are only dropped.
pub fn release_spare_memory(caches: Vec<ThreadCache>) {
    // A thread caches the memory that it frees until the thread ends, so a short-lived thread does the freeing. If no thread can
    // be made, the memory returns to this thread's cache.
    if let Ok(thread) = thread::Builder::new().spawn(move || drop(caches)) {
        drop(thread.join());
    }
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim(3) may be called at any time by any thread, and touches no memory in use.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(all(test, target_env = "gnu"))]
#[allow(clippy::print_stdout, reason = "one of the tests exists to print a figure")]
mod tests {
    use std::{
        fs::File,
        os::unix::fs::FileExt as _,
        sync::atomic::{AtomicBool, Ordering::Relaxed},
        time::{Duration, Instant},
    };

    use super::*;

    /// Other tests run in this process at the same time, so the figures are not exact. The test therefore requires only a
    /// fraction of the memory to be released.
    #[test]
    fn memory_below_a_piece_that_stays_goes_back() {
        let resident_kib = || {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
            line.trim().trim_end_matches(" kB").parse::<usize>().unwrap()
        };
        // This imitates the memory of connections: the pieces are too small for mappings of their own, and one in a hundred
        // stays.
        let mut pieces: Vec<Vec<u8>> = (0..20_000).map(|_| vec![1; 4_096]).collect();
        let full = resident_kib();
        let mut number = 0;
        pieces.retain(|_| {
            number += 1;
            number % 100 == 0
        });
        release_spare_memory(vec![]);
        let after = resident_kib();
        assert!(after + 40_000 < full, "{full} KiB, then {after}");
        assert!(pieces.iter().flatten().all(|byte| *byte == 1));
    }

    /// Runs in a thread of its own, whose cache is empty. No pieces of other threads lie between its pieces.
    #[test]
    fn pages_of_a_threads_own_cache_go_back() {
        let (kept, left) = thread::spawn(|| {
            let between = vec![1_u8; 8_192];
            let (mut pieces, mut rest) = (Vec::new(), Vec::new());
            for size in CACHED_SIZES.step_by(SIZE_STEP).flat_map(|size| [size; CACHED_OF_EACH]) {
                pieces.push(vec![1_u8; size]);
                rest.push(between.clone());
            }
            let places: Vec<usize> = pieces.iter().map(|piece| piece.as_ptr() as usize).collect();
            drop((rest, pieces));
            release_spare_memory(vec![]);
            let kept = resident(&places);
            release_spare_memory(vec![ThreadCache::take()]);
            (kept, resident(&places))
        })
        .join()
        .unwrap();
        assert!(kept > 400, "{kept} of 448 pages are the cache's");
        assert!(left < 50, "{left} of 448 pages stay");
    }

    /// How many of these addresses are on a page that is in memory, according to bit 63 of each pagemap entry (the kernel's
    /// Documentation/admin-guide/mm/pagemap.rst).
    fn resident(places: &[usize]) -> usize {
        let map = File::open("/proc/self/pagemap").expect("proc is there");
        let is_resident = |place: &usize| {
            let mut entry = [0; 8];
            map.read_exact_at(&mut entry, (place / rustix::param::page_size() * 8) as u64)
                .expect("there is an entry for each page");
            u64::from_ne_bytes(entry) >> 63 == 1
        };
        places.iter().filter(|place| is_resident(place)).count()
    }

    /// The smallest figure is the time that the release itself takes. Larger figures may be due to other programs.
    #[test]
    #[ignore = "it measures: cargo test --release -p warren-quic --lib longest_wait -- --ignored --nocapture"]
    fn longest_wait_of_a_worker_while_memory_goes_back() {
        let spread = |mut times: Vec<Duration>| {
            times.sort();
            format!("{:.1?} at least, {:.1?} at the median", times[0], times[times.len() / 2])
        };
        for mebibytes in [9, 36, 144] {
            let (released, waits) =
                longest_waits(mebibytes, || release_spare_memory(vec![ThreadCache::take()]));
            let (_, alone) = longest_waits(mebibytes, || thread::sleep(Duration::from_millis(3)));
            println!(
                "measured: {mebibytes} MiB: released in {}; a worker that allocates waits {}; 3 ms without a release {}",
                spread(released),
                spread(waits),
                spread(alone),
            );
        }
    }

    /// Makes a thread allocate this much memory in pieces like those of connections, free all but one in a hundred, and go on
    /// allocating while `release` runs in another thread. Returns how long each release took, and the thread's longest wait
    /// during it.
    fn longest_waits(mebibytes: usize, release: fn()) -> (Vec<Duration>, Vec<Duration>) {
        (0..41)
            .map(|_| {
                let (is_ready, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
                thread::scope(|scope| {
                    let worker = scope.spawn(|| {
                        let kept = leave_holes(mebibytes << 20);
                        is_ready.store(true, Relaxed);
                        let mut longest = Duration::ZERO;
                        let mut last = Instant::now();
                        while !is_over.load(Relaxed) {
                            // Too large for the thread's own cache, so that it takes the heap's lock.
                            drop(std::hint::black_box(vec![0_u8; 3_000]));
                            let now = Instant::now();
                            longest = longest.max(now - last);
                            last = now;
                        }
                        drop(kept);
                        longest
                    });
                    while !is_ready.load(Relaxed) {
                        thread::yield_now();
                    }
                    let start = Instant::now();
                    release();
                    let took = start.elapsed();
                    is_over.store(true, Relaxed);
                    (took, worker.join().expect("it does not panic"))
                })
            })
            .unzip()
    }

    fn leave_holes(bytes: usize) -> Vec<Vec<u8>> {
        // 57 KiB together, as much as a connection has.
        const SIZES: [usize; 10] = [64, 200, 500, 1_200, 2_500, 4_096, 6_000, 9_000, 15_000, 20_000];
        let mut pieces = Vec::new();
        let mut left = bytes;
        for size in SIZES.into_iter().cycle() {
            let Some(rest) = left.checked_sub(size) else { break };
            left = rest;
            pieces.push(vec![1; size]);
        }
        let mut number = 0;
        pieces.retain(|_| {
            number += 1;
            number % 97 == 0
        });
        pieces
    }
}
