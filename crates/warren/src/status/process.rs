//! What the daemon's process uses.

use serde::{Deserialize, Serialize};

/// What the process uses, from /proc/self.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct ProcessStatus {
    pub(crate) rss_kib: u64,
    pub(crate) fds: usize,
    pub(crate) threads: u64,
}

impl ProcessStatus {
    /// Reads this process's own figures; what cannot be read is 0.
    pub(crate) fn read() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|rest| rest.split_whitespace().next())
                .and_then(|value| value.parse().ok())
                .unwrap_or(0)
        };
        let fds = std::fs::read_dir("/proc/self/fd").map(Iterator::count).unwrap_or(0);
        Self { rss_kib: field("VmRSS:"), fds, threads: field("Threads:") }
    }
}
