//! The resource use of a process or thread: CPU time, context switches, memory.

use std::{fs, time::Duration};

use anyhow::Context as _;
use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeVal,
};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Bytes of a GB, as in "CPU seconds per GB".
pub(crate) const GB: f64 = 1e9;

/// The resource use of a process or thread up to one moment. Marks can be sent to another process and subtracted there.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) struct Mark {
    /// The moment, by CLOCK_MONOTONIC.
    at: Duration,
    user: Duration,
    system: Duration,
    voluntary_switches: i64,
    involuntary_switches: i64,
}

/// The resource use of a process or thread between two marks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Usage {
    pub(crate) seconds: f64,
    pub(crate) cpu_user_seconds: f64,
    pub(crate) cpu_system_seconds: f64,
    pub(crate) voluntary_switches: i64,
    pub(crate) involuntary_switches: i64,
}

impl Mark {
    /// Reads the counters of this whole process.
    pub(crate) fn of_process() -> anyhow::Result<Self> {
        Self::of(UsageWho::RUSAGE_SELF)
    }

    /// Reads the counters of the calling thread.
    pub(crate) fn of_thread() -> anyhow::Result<Self> {
        Self::of(UsageWho::RUSAGE_THREAD)
    }

    fn of(who: UsageWho) -> anyhow::Result<Self> {
        let usage = getrusage(who)?;
        Ok(Self {
            at: Duration::try_from(clock_gettime(ClockId::Monotonic)).context("the clock is negative")?,
            user: duration(usage.user_time()),
            system: duration(usage.system_time()),
            voluntary_switches: usage.voluntary_context_switches(),
            involuntary_switches: usage.involuntary_context_switches(),
        })
    }

    pub(crate) fn until(&self, end: &Self) -> Usage {
        Usage {
            seconds: end.at.saturating_sub(self.at).as_secs_f64(),
            cpu_user_seconds: end.user.saturating_sub(self.user).as_secs_f64(),
            cpu_system_seconds: end.system.saturating_sub(self.system).as_secs_f64(),
            voluntary_switches: end.voluntary_switches - self.voluntary_switches,
            involuntary_switches: end.involuntary_switches - self.involuntary_switches,
        }
    }
}

impl Usage {
    pub(crate) fn cpu_seconds(&self) -> f64 {
        self.cpu_user_seconds + self.cpu_system_seconds
    }

    /// Returns CPU time in per cent of one core.
    pub(crate) fn cpu_percent(&self) -> f64 {
        if self.seconds > 0.0 { self.cpu_seconds() / self.seconds * 100.0 } else { 0.0 }
    }

    /// Returns the CPU time for each GB of `bytes`. None if `bytes` is 0.
    pub(crate) fn cpu_seconds_per_gb(&self, bytes: f64) -> Option<f64> {
        (bytes > 0.0).then(|| self.cpu_seconds() / (bytes / GB))
    }
}

fn duration(time: TimeVal) -> Duration {
    // The kernel reports no negative times, so the fallbacks are never used.
    let seconds = u64::try_from(time.tv_sec()).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_micros(u64::try_from(time.tv_usec()).unwrap_or(0))
}

/// Returns this process's peak resident memory in KiB.
///
/// This reads `VmHWM`, because `ru_maxrss` includes the memory that the process used before exec(2).
pub(crate) fn peak_rss_kib() -> Option<u64> {
    status_field(&fs::read_to_string("/proc/self/status").ok()?, "VmHWM:")
}

/// Returns a number from a proc_pid_status(5) file. Sizes of memory are in KiB.
pub(crate) fn status_field(status: &str, name: &str) -> Option<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix(name))?;
    value.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_shows_as_cpu_time_of_the_process_that_did_it() {
        let start = Mark::of_process().unwrap();
        let begun = std::time::Instant::now();
        let mut sum = 0_u64;
        while begun.elapsed() < Duration::from_millis(50) {
            sum = sum.wrapping_mul(31).wrapping_add(1);
        }
        let usage = start.until(&Mark::of_process().unwrap());
        assert!(usage.seconds >= 0.05, "{usage:?} {sum}");
        assert!(usage.cpu_seconds() > 0.0, "{usage:?}");
    }

    #[test]
    fn cpu_is_counted_per_gb_of_payload() {
        let usage =
            Usage { seconds: 2.0, cpu_user_seconds: 0.5, cpu_system_seconds: 1.0, ..Usage::default() };
        assert_eq!(usage.cpu_percent(), 75.0);
        assert_eq!(usage.cpu_seconds_per_gb(5e8), Some(3.0));
        assert_eq!(usage.cpu_seconds_per_gb(0.0), None);
    }

    #[test]
    fn peak_memory_is_read_from_the_status_file() {
        assert_eq!(status_field("Name:\tx\nVmHWM:\t    5120 kB\n", "VmHWM:"), Some(5120));
        assert_eq!(status_field("Name:\tx\n", "VmHWM:"), None);
        assert!(peak_rss_kib().unwrap() > 100);
    }
}
