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
mod tests {
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
}
