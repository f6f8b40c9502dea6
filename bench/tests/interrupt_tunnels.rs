//! Ctrl-C during `vpn`, `path`, `soak` and `sweep`, at random moments, leaves no namespace, process, device, rule or file behind.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "helpers of tests")]

mod support;

use std::{
    collections::BTreeSet,
    fs,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rustix::process::{Pid, Signal, kill_process_group};
use support::{eventually, is_root, runs};

const MOMENTS: u64 = 4;
/// The latest moment of the interrupt in milliseconds after the start. Until this moment, `vpn` has visited two peers, `soak` has
/// measured the capacity and started the load, and `sweep` has brought up a tunnel over a wire.
const LATEST: u64 = 4_000;
const VPN: &str = "vpn --seconds 2 --rounds 3 --tests tcp1-both,udp120-20k,rtt-idle --peers tun-copy,WARREN";
const SOAK: &str = "soak --minutes 1 --capacity-seconds 1 --peer WARREN";
const SWEEP: &str = "sweep --seconds 2 --nets 30ms,clean --caps 40/80 --mtus 1280 --connections 1,4 --no-lesson --peer WARREN";
const PATH: &str = "path --seconds 1 --warm-up 1 --rounds 3 --paths 1%,black-out --tests tcp8-up,voice,native --tunnels none,WARREN";
/// The name of an environment variable by which the test finds every process that a run has started.
const MARK: &str = "WARREN_BENCH_TEST_RUN";

#[test]
fn interrupted_comparison_leaves_nothing_at_any_moment() {
    leaves_nothing(VPN, MOMENTS);
}

#[test]
fn interrupted_paths_leave_nothing_at_any_moment() {
    leaves_nothing(PATH, MOMENTS / 2);
}

#[test]
fn interrupted_soak_leaves_nothing_at_any_moment() {
    leaves_nothing(SOAK, MOMENTS / 2);
}

#[test]
fn interrupted_sweep_leaves_nothing_at_any_moment() {
    leaves_nothing(SWEEP, MOMENTS / 2);
}

fn leaves_nothing(arguments: &str, count: u64) {
    let Some(host) = Host::new() else { return };
    let clean = host.state();
    for moment in moments(count) {
        let directory = tempfile::tempdir().unwrap();
        let mark = format!("{}-{}-{moment}", std::process::id(), arguments.len());
        let mut run = host.start(arguments, directory.path(), &mark);
        let prefix = format!("wt-{}-bench-", run.id());
        thread::sleep(Duration::from_millis(moment));
        // If the run had already ended, the test would not test the interrupt.
        assert_eq!(run.try_wait().unwrap(), None, "it ended within {moment} ms");

        interrupt(&run);
        eventually("the run has ended", || run.try_wait().unwrap().is_some());

        let left: Vec<_> = names("/run/netns").into_iter().filter(|name| name.starts_with(&prefix)).collect();
        assert!(left.is_empty(), "after {moment} ms: {left:?}");
        assert_eq!(processes(&mark), Vec::<u32>::new(), "after {moment} ms");
        assert_eq!(host.state(), clean, "after {moment} ms");
        assert_eq!(names(directory.path().join("tmp")), BTreeSet::new(), "after {moment} ms");
    }
}

/// Negative control: shows that the tests above would find processes and namespaces that are left behind.
#[test]
fn running_benchmarks_are_seen_by_their_processes_and_namespaces() {
    let Some(host) = Host::new() else { return };
    for arguments in [VPN, PATH, SOAK, SWEEP] {
        let directory = tempfile::tempdir().unwrap();
        let mark = format!("{}-{}-running", std::process::id(), arguments.len());
        let mut run = host.start(arguments, directory.path(), &mark);
        let prefix = format!("wt-{}-bench-", run.id());
        eventually("namespaces, processes and files are there", || {
            names("/run/netns").iter().filter(|name| name.starts_with(&prefix)).count() == 2
                && processes(&mark).len() >= 2
                && !names(directory.path().join("tmp")).is_empty()
        });

        interrupt(&run);
        eventually("the run has ended", || run.try_wait().unwrap().is_some());
    }
}

/// Sends SIGINT to the process group of a run, as a terminal does for Ctrl-C.
fn interrupt(run: &Child) {
    kill_process_group(Pid::from_raw(i32::try_from(run.id()).unwrap()).unwrap(), Signal::INT).unwrap();
}

/// A network namespace that takes the place of the host's, so that other programs do not change its state during a test.
struct Host {
    holder: Child,
    /// The path of the `warren` binary in the build directory of this test. `cargo test --workspace` builds it.
    warren: PathBuf,
}

impl Host {
    /// Makes the namespace. If this is not possible, or if `vpn` would have to install programs, prints a message and returns
    /// None.
    fn new() -> Option<Self> {
        let programs = ["unshare", "nsenter", "ip", "nft", "iperf3", "ping"];
        let missing = programs.iter().find(|program| {
            !["/usr/bin", "/bin", "/usr/sbin", "/sbin"].iter().any(|at| Path::new(at).join(program).exists())
        });
        if let Some(missing) = missing {
            eprintln!("skipped: there is no {missing}");
            return None;
        }
        if !is_root() {
            return None;
        }
        let warren = Path::new(env!("CARGO_BIN_EXE_warren-bench")).with_file_name("warren");
        if !warren.exists() {
            eprintln!("skipped: there is no {}; `cargo build -p warren` makes it", warren.display());
            return None;
        }
        // The namespace exists as long as this process.
        let holder = Command::new("unshare").args(["--net", "sleep", "600"]).spawn().unwrap();
        let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/net")).ok();
        // unshare(1) enters the new namespace some time after its start.
        eventually("the host's namespace is there", || {
            namespace(&holder.id().to_string()).is_some_and(|there| Some(there) != namespace("self"))
        });
        Some(Self { holder, warren })
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.holder.id())).arg(program).stdin(Stdio::null());
        command
    }

    /// Starts a run in its own process group, as a terminal does.
    fn start(&self, arguments: &str, directory: &Path, mark: &str) -> Child {
        let temporary = directory.join("tmp");
        fs::create_dir(&temporary).unwrap();
        let mut command = self.command(env!("CARGO_BIN_EXE_warren-bench"));
        let warren = format!("warren:binary={}", self.warren.display());
        command.args(arguments.replace("WARREN", &warren).split(' '));
        command.arg("--output").arg(directory.join("output"));
        command.env(MARK, mark).env("TMPDIR", temporary).process_group(0);
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    /// Returns the host's devices, rules, routes and firewall rules as text.
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

/// Draws random moments in milliseconds. The time until `LATEST` is divided into `count` equal parts, and each part has one
/// moment.
fn moments(count: u64) -> Vec<u64> {
    // The state of xorshift must not be zero, so the lowest bit is set.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let mut state = since.as_secs() << 32 | u64::from(since.subsec_nanos()) | 1;
    let part = LATEST / count;
    let draw = |index| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        index * part + state % part
    };
    (0..count).map(draw).collect()
}

fn names(directory: impl AsRef<Path>) -> BTreeSet<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Returns the process IDs of the running processes whose environment has this mark.
fn processes(mark: &str) -> Vec<u32> {
    let wanted = format!("{MARK}={mark}");
    let is_marked = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|&byte| byte == 0).any(|entry| entry == wanted.as_bytes())
    };
    let pids = names("/proc").into_iter().filter_map(|name| name.parse().ok());
    pids.filter(|pid| is_marked(pid) && runs(*pid)).collect()
}
