//! Samples of both daemons' processes: memory, descriptors, threads and drops.

use std::{fs, time::Duration};

use anyhow::Context as _;
use serde::Serialize;

use super::daemon::Daemon;
use crate::{interrupt::Interrupt, usage::status_field, vpn::peers::Tunnel};

/// The process IDs of the tunnel's two ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    client: u32,
    exit: u32,
}

/// The state of one process at one moment.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
pub(super) struct ProcessSample {
    pub(super) rss_kib: u64,
    pub(super) descriptors: u64,
    pub(super) threads: u64,
}

/// The state of both processes at one moment.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Sample {
    pub(super) seconds: f64,
    pub(super) client: ProcessSample,
    pub(super) exit: ProcessSample,
    pub(super) client_drops: u64,
    pub(super) exit_drops: u64,
}

impl Ends {
    pub(super) fn of(tunnel: &Tunnel) -> anyhow::Result<Self> {
        let one = |pids: &[u32]| pids.first().copied().context("the tunnel has no process");
        Ok(Self { client: one(&tunnel.client_pids)?, exit: one(&tunnel.exit_pids)? })
    }
}

impl Sample {
    pub(super) fn take(
        ends: &Ends,
        daemons: &[Daemon<'_>; 2],
        at: Duration,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Self> {
        let [client, exit] = daemons;
        Ok(Self {
            seconds: at.as_secs_f64(),
            client: ProcessSample::of(ends.client).context("the client daemon is gone")?,
            exit: ProcessSample::of(ends.exit).context("the exit daemon is gone")?,
            client_drops: client.counters(interrupt)?.dropped(),
            exit_drops: exit.counters(interrupt)?.dropped(),
        })
    }
}

impl ProcessSample {
    fn of(pid: u32) -> anyhow::Result<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd"))?.count();
        Ok(Self {
            // The status file of a zombie does not have this field.
            rss_kib: status_field(&status, "VmRSS:").context("it has no memory left")?,
            descriptors: u64::try_from(descriptors)?,
            threads: status_field(&status, "Threads:").context("it has no threads left")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_is_seen_with_its_memory_descriptors_and_threads() {
        let before = ProcessSample::of(std::process::id()).unwrap();
        assert!(before.rss_kib > 100 && before.threads >= 1, "{before:?}");
        let files: Vec<_> = (0..50).map(|_| fs::File::open("/proc/self/status").unwrap()).collect();
        let after = ProcessSample::of(std::process::id()).unwrap();
        drop(files);
        // Other tests of this process open and close descriptors at the same time, so the numbers are not exact.
        assert!(after.descriptors > before.descriptors + 20, "{before:?} {after:?}");
        assert!(ProcessSample::of(u32::MAX).is_err());
    }
}
