//! Memory that buffers and connections had and that the allocator keeps for the next ones: back to the kernel.

/// Gives the kernel all whole pages that the process has but does not use. What allocates or frees meanwhile may wait for it, some
/// milliseconds when there is much; only for the C library that Debian has, any other keeps what it keeps.
pub fn release_spare_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim(3) may be called at any time by any thread, and touches nothing that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(all(test, target_env = "gnu"))]
#[allow(clippy::print_stdout, reason = "a figure is what one of the tests is for")]
mod tests {
    use std::{
        sync::atomic::{AtomicBool, Ordering::Relaxed},
        thread,
        time::{Duration, Instant},
    };

    use super::*;

    /// In a process of its own the figures would be exact; beside other tests they are good for a fraction.
    #[test]
    fn memory_below_a_piece_that_stays_goes_back() {
        let resident_kib = || {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
            line.trim().trim_end_matches(" kB").parse::<usize>().unwrap()
        };
        // As connections: pieces too small to be mapped apart, of which one in a hundred stays.
        let mut pieces: Vec<Vec<u8>> = (0..20_000).map(|_| vec![1; 4_096]).collect();
        let full = resident_kib();
        let mut number = 0;
        pieces.retain(|_| {
            number += 1;
            number % 100 == 0
        });
        release_spare_memory();
        let after = resident_kib();
        assert!(after + 40_000 < full, "{full} KiB, then {after}");
        assert!(pieces.iter().flatten().all(|byte| *byte == 1));
    }

    /// The least is what it takes by itself; what is above it is also what else runs on the machine.
    #[test]
    #[ignore = "it measures: cargo test --release -p warren-quic --lib longest_wait -- --ignored --nocapture"]
    fn longest_wait_of_a_worker_while_memory_goes_back() {
        let spread = |mut times: Vec<Duration>| {
            times.sort();
            format!("{:.1?} at least, {:.1?} at the median", times[0], times[times.len() / 2])
        };
        for mebibytes in [9, 36, 144] {
            let (released, waits) = longest_waits(mebibytes, release_spare_memory);
            let (_, alone) = longest_waits(mebibytes, || thread::sleep(Duration::from_millis(3)));
            println!(
                "measured: {mebibytes} MiB: released in {}; a worker that allocates waits {}; 3 ms without a release {}",
                spread(released),
                spread(waits),
                spread(alone),
            );
        }
    }

    /// Lets a thread have so much memory, in pieces as connections have, free all but one piece in a hundred, and allocate on and on
    /// while `release` runs in another. Returns how long that took each time, and the thread's longest wait meanwhile.
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
        // 57 KiB each, as a connection has.
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
