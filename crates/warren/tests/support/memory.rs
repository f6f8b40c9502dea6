//! Searches the memory of processes, as root can.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use super::Namespace;

/// The number of copies of `bytes` in the memory of all processes on a host.
pub fn copies_on(host: &Namespace, bytes: &[u8]) -> usize {
    host.pids().into_iter().map(|pid| copies_in(pid, bytes)).sum()
}

/// The number of copies of `bytes` in a process's memory, without read-only file mappings.
pub fn copies_in(pid: i32, bytes: &[u8]) -> usize {
    // The process may have ended meanwhile.
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let Ok(memory) = File::open(format!("/proc/{pid}/mem")) else { return 0 };
    let part = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (from, to) = words[0].split_once('-').unwrap();
        let [from, to] = [from, to].map(|text| u64::from_str_radix(text, 16).unwrap());
        let (mode, inode) = (words[1], words[4]);
        if !mode.starts_with('r') || (inode != "0" && !mode.contains('w')) {
            return None;
        }
        let mut part = vec![0; usize::try_from(to - from).unwrap()];
        // Some kernel-provided mappings cannot be read.
        memory.read_exact_at(&mut part, from).ok()?;
        Some(part)
    };
    maps.lines().filter_map(part).map(|part| copies(&part, bytes)).sum()
}

/// A process's current resident memory in KiB.
pub fn rss_kib(pid: i32) -> u64 {
    status_kib(pid, "VmRSS:")
}

/// The peak of a process's resident memory in KiB, since the last [`forget_peak`].
pub fn peak_kib(pid: i32) -> u64 {
    status_kib(pid, "VmHWM:")
}

/// Resets the peak, and returns the current value.
pub fn forget_peak(pid: i32) -> u64 {
    // Writing 5 to clear_refs sets the peak to the current value (proc(5)).
    std::fs::write(format!("/proc/{pid}/clear_refs"), "5").unwrap();
    peak_kib(pid)
}

fn status_kib(pid: i32, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// The number of times that `bytes` occurs in `text`.
fn copies(text: &[u8], bytes: &[u8]) -> usize {
    text.windows(bytes.len()).filter(|window| window[0] == bytes[0] && *window == bytes).count()
}
