//! What the daemon's process uses.

use serde::{Deserialize, Serialize};

/// What the process uses.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ProcessStatus {
    pub rss_kib: u64,
    /// CPU time of all threads, in user space and in the kernel.
    pub cpu_seconds: f64,
    pub fds: usize,
    pub threads: u64,
    /// What this process has given up.
    #[serde(default)]
    pub sandbox: Sandbox,
}

/// What is in force, as `warren status` says it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    /// No capability but CAP_NET_ADMIN, none to be gained, no core dump, no debugger but root's.
    pub rights: bool,
    /// No system calls but the daemons' own (seccomp).
    pub system_calls: bool,
    /// No files but the daemon's own (landlock).
    pub files: FileAccess,
}

/// How far the kernel keeps a daemon to its files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileAccess {
    /// To those alone.
    Confined,
    /// As far as this kernel's landlock can.
    Partly,
    /// Not at all.
    #[default]
    Unconfined,
}

impl ProcessStatus {
    /// Reads this process's own figures; what cannot be read is 0.
    pub fn read(sandbox: Sandbox) -> Self {
        let status = own_status();
        let fds = std::fs::read_dir("/proc/self/fd").map(Iterator::count).unwrap_or(0);
        let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        let cpu_seconds = cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9;
        Self {
            rss_kib: field(&status, "VmRSS:"),
            cpu_seconds,
            fds,
            threads: field(&status, "Threads:"),
            sandbox,
        }
    }
}

/// What of this process is in memory; 0 if that cannot be read.
pub fn resident_kib() -> u64 {
    field(&own_status(), "VmRSS:")
}

fn own_status() -> String {
    std::fs::read_to_string("/proc/self/status").unwrap_or_default()
}

fn field(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_whitespace().next()).and_then(|value| value.parse().ok()).unwrap_or(0)
}
