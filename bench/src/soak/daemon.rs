//! Reads a daemon's reports about itself: `warren status --json` and its log.

use std::{
    collections::BTreeMap,
    fmt, fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::{
    interrupt::Interrupt,
    namespace::Namespace,
    vpn::{peers::Installed, process, topology::Topology},
};

/// Longest run time of `warren status`.
const ANSWER: Duration = Duration::from_secs(20);

/// One side of the tunnel.
#[derive(Debug)]
pub(super) struct Daemon<'a> {
    host: &'a Namespace,
    program: String,
    /// The parent directory of the daemon's configuration, runtime and state directories.
    directory: PathBuf,
    /// The daemon's log file, or a directory that contains its log files.
    logs: PathBuf,
}

/// The counters of `warren status --json`. docs/counters.md explains them.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Counters {
    totals: BTreeMap<String, u64>,
    drops_to_carrier: BTreeMap<String, u64>,
    drops_to_tun: BTreeMap<String, u64>,
    transport_drops: BTreeMap<String, u64>,
}

/// One equation of docs/counters.md: two sums of counters that must be equal.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub(super) struct Sum {
    pub(super) name: &'static str,
    pub(super) left: u64,
    pub(super) right: u64,
}

/// A daemon's counters and warnings at the end of the run.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Balance {
    pub(super) sums: Vec<Sum>,
    pub(super) drops: BTreeMap<String, u64>,
    pub(super) quic_datagrams_sent: u64,
    pub(super) quic_datagrams_received: u64,
    /// Number of WARN and ERROR lines in the daemon's log.
    pub(super) warnings: usize,
    /// The first few WARN and ERROR lines.
    pub(super) first_warnings: Vec<String>,
}

impl<'a> Daemon<'a> {
    pub(super) fn client(topology: &'a Topology, installed: &Installed) -> anyhow::Result<Self> {
        let directory = topology.path().join("client");
        let program = installed.program(0)?.to_owned();
        // The client's daemon is not a child of the benchmark, so its log is in a file below its own directories.
        Ok(Self { host: &topology.client, program, logs: directory.clone(), directory })
    }

    pub(super) fn exit(topology: &'a Topology, installed: &Installed) -> anyhow::Result<Self> {
        let program = installed.program(0)?.to_owned();
        // The benchmark writes the exit's output to this file.
        let logs = topology.path().join("warren-exit.log");
        Ok(Self { host: &topology.exit, program, directory: topology.path().join("exit"), logs })
    }

    pub(super) fn counters(&self, interrupt: &Interrupt) -> anyhow::Result<Counters> {
        // These are the directories with which `vpn` has started the daemon.
        let option = |name: &str| format!("--{name}-dir={}", self.directory.join(name).display());
        let mut command = self.host.command(&self.program);
        command.args(["config", "runtime", "state"].map(option)).args(["status", "--json"]);
        let said = process::run(&mut command, ANSWER, interrupt)?;
        serde_json::from_str(&said).context("warren status printed unexpected JSON")
    }

    pub(super) fn balance(&self, interrupt: &Interrupt) -> anyhow::Result<Balance> {
        let counters = self.counters(interrupt)?;
        let lines = warnings(&log(&self.logs)?);
        Ok(Balance {
            sums: counters.sums(),
            drops: counters.drops(),
            quic_datagrams_sent: counters.total("quic_datagrams_sent"),
            quic_datagrams_received: counters.total("quic_datagrams_received"),
            warnings: lines.len(),
            first_warnings: lines.into_iter().take(5).collect(),
        })
    }
}

impl Counters {
    pub(super) fn dropped(&self) -> u64 {
        self.drops().values().sum()
    }

    fn total(&self, name: &str) -> u64 {
        // A missing counter counts as 0. `Balance::holds` fails if a sum is 0.
        self.totals.get(name).copied().unwrap_or(0)
    }

    /// Returns the number of drops for each reason that has drops.
    fn drops(&self) -> BTreeMap<String, u64> {
        let mut drops = BTreeMap::new();
        for (reason, &count) in
            [&self.drops_to_carrier, &self.drops_to_tun, &self.transport_drops].into_iter().flatten()
        {
            if count > 0 {
                *drops.entry(reason.clone()).or_default() += count;
            }
        }
        drops
    }

    /// Returns the sums of docs/counters.md. The last two are equal only when no packets are in flight.
    fn sums(&self) -> Vec<Sum> {
        let all = |drops: &BTreeMap<String, u64>| drops.values().sum::<u64>();
        let of = |reason: &str| self.transport_drops.get(reason).copied().unwrap_or(0);
        let total = |name| self.total(name);
        let sum = |name, left, right| Sum { name, left, right };
        let sent = total("carrier_sent_packets") + all(&self.drops_to_carrier) + total("queued_packets");
        let by_quic =
            of("transport_full") + of("transport_too_large") + of("transport_stale") + of("connection_lost");
        let from_quic = total("carrier_received_datagrams") + of("receive_buffer_full");
        vec![
            sum("read from the TUN = sent + dropped + queued", total("tun_read_packets"), sent),
            sum(
                "received = written to the TUN + dropped",
                total("carrier_received_packets"),
                total("tun_written_packets") + all(&self.drops_to_tun),
            ),
            sum(
                "datagrams given to QUIC = sent + dropped by it",
                total("carrier_sent_datagrams") + total("repairs_sent"),
                total("quic_datagrams_sent") + by_quic,
            ),
            sum(
                "datagrams from QUIC + dropped by it = received",
                from_quic,
                total("quic_datagrams_received"),
            ),
        ]
    }
}

impl Sum {
    pub(super) fn holds(&self) -> bool {
        self.left == self.right
    }
}

impl fmt::Display for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { left, right, .. } = self;
        if self.holds() { write!(f, "{left}") } else { write!(f, "{left} is not {right}") }
    }
}

impl Balance {
    pub(super) fn holds(&self) -> bool {
        // In an unused tunnel, all sums are 0 and so equal, which would prove nothing.
        self.sums.iter().all(Sum::holds) && self.sums.iter().all(|sum| sum.left > 0)
    }

    /// Formats the drops, as in `queue_full 12, no_route 1`.
    pub(super) fn drops(&self) -> String {
        let all: Vec<_> = self.drops.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
        if all.is_empty() { "none".to_owned() } else { all.join(", ") }
    }
}

/// Reads a log, or all logs below a directory.
fn log(path: &Path) -> anyhow::Result<String> {
    if path.is_file() {
        return fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()));
    }
    let mut text = String::new();
    for entry in fs::read_dir(path).with_context(|| format!("cannot read {}", path.display()))? {
        let path = entry.context("cannot read a directory")?.path();
        // The directories also contain keys and configurations. Only files that end with `.log` are read.
        if path.is_dir() || path.extension().is_some_and(|extension| extension == "log") {
            text.push_str(&log(&path)?);
        }
    }
    Ok(text)
}

fn warnings(log: &str) -> Vec<String> {
    let is_one = |line: &&str| line.split_whitespace().any(|word| word == "WARN" || word == "ERROR");
    log.lines().filter(is_one).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(sent: u64) -> Counters {
        let map =
            |pairs: &[(&str, u64)]| pairs.iter().map(|&(name, count)| (name.to_owned(), count)).collect();
        Counters {
            totals: map(&[
                ("tun_read_packets", 110),
                ("carrier_sent_packets", sent),
                ("queued_packets", 3),
                ("carrier_received_packets", 50),
                ("tun_written_packets", 49),
                ("carrier_sent_datagrams", 98),
                ("repairs_sent", 6),
                ("quic_datagrams_sent", 102),
                ("carrier_received_datagrams", 51),
                ("quic_datagrams_received", 55),
            ]),
            drops_to_carrier: map(&[("queue_full", 7), ("no_route", 0)]),
            drops_to_tun: map(&[("spoofed_source", 1)]),
            transport_drops: map(&[("transport_full", 2), ("receive_buffer_full", 4)]),
        }
    }

    #[test]
    fn sums_are_those_of_the_documentation_and_one_packet_breaks_them() {
        let balance = |sent| Balance { sums: counters(sent).sums(), ..Balance::default() };
        assert!(balance(100).holds(), "{:?}", balance(100));
        assert!(!balance(101).holds() && !balance(99).holds());
        assert!(!Balance { sums: Counters::default().sums(), ..Balance::default() }.holds());
    }

    #[test]
    fn drops_are_those_of_all_three_places() {
        let drops = counters(100).drops();
        assert_eq!(drops.len(), 4);
        assert_eq!(counters(100).dropped(), 14);
    }

    #[test]
    fn warnings_are_counted_by_their_level() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("home")).unwrap();
        let text = "2026 INFO all WARNings\n2026  WARN one\n2026 ERROR two\n";
        fs::write(directory.path().join("home/daemon.log"), text).unwrap();
        fs::write(directory.path().join("home/other.txt"), "WARN").unwrap();
        assert_eq!(warnings(&log(directory.path()).unwrap()), ["2026  WARN one", "2026 ERROR two"]);
    }
}
