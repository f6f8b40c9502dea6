//! The machine that a result was measured on.

use std::{fmt, fs, thread};

use serde::Serialize;

/// The properties of the machine that matter for speed.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    pub(crate) kernel: String,
    /// The host's default TCP congestion control, which new namespaces inherit.
    pub(crate) tcp: String,
    /// The load average of the last minute. It shows whether other programs are running.
    pub(crate) load: String,
}

impl Machine {
    pub(crate) fn here() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let cpu = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        Self {
            cpu: cpu.map_or_else(|| "unknown CPU".to_owned(), |(_, name)| name.trim().to_owned()),
            // The cores that this process may use, which can be fewer than the machine has.
            cores: thread::available_parallelism().map_or(1, usize::from),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            tcp: read("/proc/sys/net/ipv4/tcp_congestion_control").trim().to_owned(),
            load: read("/proc/loadavg").split_whitespace().next().unwrap_or("?").to_owned(),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cpu, cores, kernel, tcp, load } = self;
        write!(f, "{cpu}, {cores} cores, Linux {kernel}, TCP by {tcp}, load {load}")
    }
}
