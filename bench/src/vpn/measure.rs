//! The resource use of the VPN processes at both ends, read from /proc: CPU seconds, context switches, peak memory.
//!
//! CPU seconds do not include kernel work for a process that runs in the context of another process, such as softirqs. On a veth
//! pair, most softirq work runs in the system call of the process that sends.

use std::fs;

use serde::Serialize;

use crate::usage::status_field;

/// The resource use of a group of processes, up to one moment or between two moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Used {
    pub(crate) cpu_seconds: f64,
    /// Voluntary and involuntary context switches of the threads that still run.
    pub(crate) context_switches: u64,
}

impl Used {
    /// Reads the counters of the processes. A process that has ended counts as 0.
    pub(crate) fn by(pids: &[u32]) -> Self {
        let ticks = ticks_per_second();
        let mut used = Self::default();
        for pid in pids {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            used.cpu_seconds += cpu_ticks(&stat).unwrap_or(0.0) / ticks;
            for thread in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
                let status = fs::read_to_string(thread.path().join("status")).unwrap_or_default();
                used.context_switches += context_switches(&status);
            }
        }
        used
    }

    pub(crate) fn since(self, start: Self) -> Self {
        Self {
            cpu_seconds: (self.cpu_seconds - start.cpu_seconds).max(0.0),
            context_switches: self.context_switches.saturating_sub(start.context_switches),
        }
    }
}

/// Returns the sum of the processes' peak resident memory in MiB. None without a process.
pub(crate) fn peak_rss_mib(pids: &[u32]) -> Option<f64> {
    memory_mib(pids, "VmHWM:")
}

/// Returns the sum of the processes' resident memory now in MiB. None without a process.
pub(crate) fn rss_mib(pids: &[u32]) -> Option<f64> {
    memory_mib(pids, "VmRSS:")
}

fn memory_mib(pids: &[u32], field: &str) -> Option<f64> {
    let mut sum = None;
    for pid in pids {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        if let Some(kib) = status_field(&status, field) {
            sum = Some(sum.unwrap_or(0.0) + f64::from(u32::try_from(kib).unwrap_or(u32::MAX)) / 1024.0);
        }
    }
    sum
}

fn ticks_per_second() -> f64 {
    let ticks = rustix::param::clock_ticks_per_second();
    // The fallback of 100 is the value on nearly all architectures.
    u32::try_from(ticks).map_or(100.0, f64::from).max(1.0)
}

/// Returns user and system time of all threads of a process, including threads that have ended (fields 14 and 15 of
/// proc_pid_stat(5)).
fn cpu_ticks(stat: &str) -> Option<f64> {
    // The process name in parentheses may contain any character, so the text is split at the last `)`. Fields 3 to 13 are
    // skipped.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let user: f64 = fields.next()?.parse().ok()?;
    let system: f64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

fn context_switches(status: &str) -> u64 {
    let count = |name| status_field(status, name).unwrap_or(0);
    count("voluntary_ctxt_switches:") + count("nonvoluntary_ctxt_switches:")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_read_behind_a_name_with_parentheses() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194560 100 0 0 0 150 50 7 8 20 0 3 0 9 0 0";
        assert_eq!(cpu_ticks(stat), Some(200.0));
        assert_eq!(cpu_ticks(""), None);
        assert_eq!(cpu_ticks("42 (a) S 1"), None);
    }

    #[test]
    fn both_kinds_of_context_switches_are_counted_once() {
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t150\nnonvoluntary_ctxt_switches:\t7\n";
        assert_eq!(context_switches(status), 157);
        assert_eq!(context_switches("Name:\tx\n"), 0);
    }

    #[test]
    fn memory_is_that_of_all_processes_that_exist() {
        assert!(peak_rss_mib(&[std::process::id()]).unwrap() > 0.5);
        assert!(rss_mib(&[std::process::id()]).unwrap() <= peak_rss_mib(&[std::process::id()]).unwrap());
        assert_eq!(peak_rss_mib(&[]), None);
        assert_eq!(peak_rss_mib(&[u32::MAX]), None);
    }

    #[test]
    fn use_is_that_between_two_moments() {
        let start = Used { cpu_seconds: 1.0, context_switches: 10 };
        let end = Used { cpu_seconds: 3.5, context_switches: 25 };
        assert_eq!(end.since(start), Used { cpu_seconds: 2.5, context_switches: 15 });
    }
}
