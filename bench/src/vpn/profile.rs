//! Profiles the VPN processes with perf during one test. The result is a flame graph and a table of the symbols with the most
//! samples.

mod flame;
mod stacks;

use std::{
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::Context as _;

use self::stacks::{Stacks, Top};
use super::{
    peers::on_path,
    plan::{Bed, Test},
    process::{self, Process},
    topology::wait_for,
};
use crate::{
    report::{Table, print, write},
    stats::share,
};

/// Samples per second. It is a prime number, so that samples do not coincide with periodic work.
const SAMPLES_PER_SECOND: &str = "499";
/// Optimised code has no frame pointers, so perf unwinds this many bytes of stack.
const CALL_GRAPH: &str = "dwarf,16384";
/// Longest time that perf may take to attach to all threads of both ends.
const STARTING: Duration = Duration::from_secs(30);
/// Longest time that perf may take to print the samples, which is slow.
const READING: Duration = Duration::from_secs(300);
const TOP: usize = 15;

/// The samples of one test.
#[derive(Debug)]
pub(super) struct Profile {
    stacks: Stacks,
}

/// Runs a test while perf samples the VPN processes.
pub(super) fn record(bed: &Bed<'_>, test: Test, seconds: u32) -> anyhow::Result<Profile> {
    let perf = on_path("perf").context("perf is not on this machine; install Debian's package linux-perf")?;
    let data = bed.topology.path().join("perf.data");
    let tunnel = bed.tunnel;
    let pids: Vec<_> = tunnel.client_pids.iter().chain(&tunnel.exit_pids).map(u32::to_string).collect();
    let mut command = Command::new(&perf);
    // `cpu-clock` is a software event, which works on virtual machines without hardware counters too.
    command.args(["record", "-e", "cpu-clock", "-F", SAMPLES_PER_SECOND, "--call-graph", CALL_GRAPH]);
    command.args(["-p", &pids.join(","), "-o"]).arg(&data);
    // perf starts its command once it has attached to all threads, which takes seconds on a busy machine.
    let ready = bed.topology.path().join("perf-is-ready");
    command
        // The shell gets the path and the time as $0 and $1, so they need no escaping.
        .args(["--", "sh", "-c", "touch \"$0\" && exec sleep \"$1\""])
        .arg(&ready)
        .arg(seconds.to_string());
    let mut recorder = Process::start("perf", bed.topology.path(), &mut command)?;
    wait_for("the start of perf", STARTING, bed.interrupt, || {
        recorder.check()?;
        Ok(ready.exists().then_some(()))
    })?;
    let start = Instant::now();
    bed.run(test, seconds)?;
    let limit = READING.saturating_sub(start.elapsed());
    // `check` returns an error when perf has ended, which is expected here.
    wait_for("the end of perf record", limit, bed.interrupt, || Ok(recorder.check().is_err().then_some(())))?;

    let mut command = Command::new(&perf);
    command.args(["script", "--no-inline", "-F", "comm,pid,ip,sym", "-i"]).arg(&data);
    let text = process::run(&mut command, READING, bed.interrupt).context("cannot read perf's samples")?;
    // The copier is a single process for both ends, so it is neither the client nor the exit.
    let role = |pid: u32| {
        if tunnel.exit_pids.contains(&pid) {
            "exit"
        } else if tunnel.exit_pids.is_empty() {
            "both ends"
        } else {
            "client"
        }
    };
    let stacks = Stacks::parse(&text, role);
    anyhow::ensure!(stacks.count() > 0, "perf took no samples: {}", recorder.output().trim());
    Ok(Profile { stacks })
}

impl Profile {
    /// Writes the table and the flame graph to files named `profile-PEER`. If `show` is set, also prints the table.
    pub(super) fn publish(&self, peer: &str, directory: &Path, show: bool) -> anyhow::Result<()> {
        let mut text = String::new();
        for Top { process, samples, symbols } in self.stacks.top(TOP) {
            let percent = |count: u64| format!("{:.1}", share(count, samples) * 100.0);
            let mut table = Table::new([&format!("{peer}, {process}: {samples} samples"), "self %"]);
            for (symbol, count) in symbols {
                table.row([symbol, percent(count)]);
            }
            text += &format!("{table}\n");
        }
        if show {
            print(&text)?;
        }
        // The name of a variant may contain slashes and colons.
        let safe =
            |char: char| if char.is_ascii_alphanumeric() || "-.=+".contains(char) { char } else { '_' };
        let name: String = peer.chars().map(safe).collect();
        write(&directory.join(format!("profile-{name}.md")), &text)?;
        write(&directory.join(format!("profile-{name}.svg")), &flame::svg(peer, &self.stacks))
    }
}
