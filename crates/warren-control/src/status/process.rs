//! The resources of the daemon's process.

use serde::{Deserialize, Serialize};

/// The resources of the process.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ProcessStatus {
    pub rss_kib: u64,
    /// CPU time of all threads, in user space and in the kernel.
    pub cpu_seconds: f64,
    pub fds: usize,
    pub threads: u64,
    /// The restrictions in force for the process.
    #[serde(default)]
    pub sandbox: Sandbox,
}

/// The restrictions of a daemon's sandbox that are in force, as `warren status` shows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    /// The process has only CAP_NET_ADMIN, no way to gain privileges, no core dumps, and no debuggers except root's.
    pub rights: bool,
    /// The process may use only the daemons' own system calls (seccomp).
    pub system_calls: bool,
    /// The process may use only the daemon's own files (landlock).
    pub files: FileAccess,
}

/// Whether the kernel restricts a daemon to its own files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileAccess {
    /// Only to its own files.
    Confined,
    /// In part, because this kernel's landlock does not support all restrictions.
    Partly,
    /// The daemon may open any file that its user may open.
    #[default]
    Unconfined,
}

impl ProcessStatus {
    /// Reads this process's own figures. A figure that cannot be read is 0.
    pub fn read(sandbox: Sandbox) -> Self {
        let status = own_status();
        // The count includes the descriptor by which the directory is listed.
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

/// Memory of this process in KiB. 0 if it cannot be read.
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
