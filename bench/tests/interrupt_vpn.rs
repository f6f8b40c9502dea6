//! Ctrl-C in the middle of `vpn`, at moments drawn anew in every run: no namespace, process, device, rule or file is left.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "helpers of tests")]

mod support;

use std::{
    collections::BTreeSet,
    fs,
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rustix::process::{Pid, Signal, kill_process_group};
use support::{eventually, runs};

const MOMENTS: u64 = 4;
/// Enough for two peers to be brought up, measured and taken down.
const LATEST: u64 = 4_000;
/// In the environment of every process that a run starts.
const MARK: &str = "WARREN_BENCH_TEST_RUN";

#[test]
fn interrupted_comparison_leaves_nothing_at_any_moment() {
    let Some(host) = Host::new() else { return };
    let clean = host.state();
    for moment in moments() {
        let directory = tempfile::tempdir().unwrap();
        let mark = format!("{}-{moment}", std::process::id());
        let mut run = host.start_vpn(directory.path(), &mark);
        let prefix = format!("wt-{}-bench-", run.id());
        thread::sleep(Duration::from_millis(moment));
        // A run that has ended by itself would prove nothing.
        assert_eq!(run.try_wait().unwrap(), None, "it ended within {moment} ms");

        // A terminal sends it to the whole group in the foreground.
        kill_process_group(Pid::from_raw(i32::try_from(run.id()).unwrap()).unwrap(), Signal::INT).unwrap();
        eventually("the run has ended", || run.try_wait().unwrap().is_some());

        let left: Vec<_> = names("/run/netns").into_iter().filter(|name| name.starts_with(&prefix)).collect();
        assert!(left.is_empty(), "after {moment} ms: {left:?}");
        assert_eq!(processes(&mark), Vec::<u32>::new(), "after {moment} ms");
        assert_eq!(host.state(), clean, "after {moment} ms");
        assert_eq!(names(directory.path().join("tmp")), BTreeSet::new(), "after {moment} ms");
    }
}

/// What the test looks for is there while a run goes on.
#[test]
fn running_comparison_is_seen_by_its_processes_and_namespaces() {
    let Some(host) = Host::new() else { return };
    let directory = tempfile::tempdir().unwrap();
    let mark = format!("{}-running", std::process::id());
    let mut run = host.start_vpn(directory.path(), &mark);
    let prefix = format!("wt-{}-bench-", run.id());
    eventually("namespaces, processes and files are there", || {
        names("/run/netns").iter().filter(|name| name.starts_with(&prefix)).count() == 2
            && processes(&mark).len() >= 2
            && !names(directory.path().join("tmp")).is_empty()
    });

    kill_process_group(Pid::from_raw(i32::try_from(run.id()).unwrap()).unwrap(), Signal::INT).unwrap();
    eventually("the run has ended", || run.try_wait().unwrap().is_some());
}

/// A network namespace that stands for a host's own, so that nobody else changes what is compared in it.
struct Host {
    holder: Child,
}

impl Host {
    /// None, with a word, where it cannot be made or `vpn` would install something.
    fn new() -> Option<Self> {
        let programs = ["unshare", "nsenter", "ip", "nft", "iperf3", "ping"];
        let missing = programs.iter().find(|program| {
            !["/usr/bin", "/bin", "/usr/sbin", "/sbin"].iter().any(|at| Path::new(at).join(program).exists())
        });
        if let Some(missing) = missing {
            eprintln!("skipped: there is no {missing}");
            return None;
        }
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: this needs root");
            return None;
        }
        let holder = Command::new("unshare").args(["--net", "sleep", "600"]).spawn().unwrap();
        let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/net")).ok();
        eventually("the host's namespace is there", || {
            namespace(&holder.id().to_string()).is_some_and(|there| Some(there) != namespace("self"))
        });
        Some(Self { holder })
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.holder.id())).arg(program).stdin(Stdio::null());
        command
    }

    /// A group of its own, as a terminal makes.
    fn start_vpn(&self, directory: &Path, mark: &str) -> Child {
        let temporary = directory.join("tmp");
        fs::create_dir(&temporary).unwrap();
        let bench = Path::new(env!("CARGO_BIN_EXE_warren-bench"));
        // Built beside this program by tests of the whole workspace; without it, the copier alone has to do.
        let warren = bench.with_file_name("warren");
        let peers = if warren.exists() {
            format!("tun-copy,warren:binary={}", warren.display())
        } else {
            eprintln!("without Warren, which is not built");
            "tun-copy".to_owned()
        };
        let mut command = self.command(bench.to_str().unwrap());
        command.args(["vpn", "--seconds", "2", "--rounds", "3", "--tests", "tcp1-both,udp120-20k,rtt-idle"]);
        command.args(["--peers", &peers, "--output"]).arg(directory.join("output"));
        command.env(MARK, mark).env("TMPDIR", temporary).process_group(0);
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    /// Devices, rules, routes and firewall of the host itself.
    fn state(&self) -> Vec<String> {
        let tell = |line: &str| {
            let mut words = line.split_whitespace();
            let output = self.command(words.next().unwrap()).args(words).output().unwrap();
            assert!(output.status.success(), "{line}: {output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        ["ip -brief link", "ip rule", "ip route show table all", "nft list ruleset"].map(tell).to_vec()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.holder.kill().unwrap();
        self.holder.wait().unwrap();
    }
}

/// Milliseconds, one from each part of the time.
fn moments() -> Vec<u64> {
    // Odd, so that it is not zero.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let mut state = since.as_secs() << 32 | u64::from(since.subsec_nanos()) | 1;
    let part = LATEST / MOMENTS;
    let draw = |index| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        index * part + state % part
    };
    (0..MOMENTS).map(draw).collect()
}

fn names(directory: impl AsRef<Path>) -> BTreeSet<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// The processes that run with this mark.
fn processes(mark: &str) -> Vec<u32> {
    let wanted = format!("{MARK}={mark}");
    let is_marked = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|&byte| byte == 0).any(|entry| entry == wanted.as_bytes())
    };
    let pids = names("/proc").into_iter().filter_map(|name| name.parse().ok());
    pids.filter(|pid| is_marked(pid) && runs(*pid)).collect()
}
