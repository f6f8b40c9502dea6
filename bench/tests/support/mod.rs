//! Code that the tests share: running the program, and a network of two namespaces.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "helpers of tests, of which each test file uses a part"
)]

use std::{
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;

/// Returns a command that runs the program. Spaces separate the arguments.
pub fn bench(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_warren-bench"));
    command.args(arguments.split_whitespace()).stdin(Stdio::null());
    command
}

/// Runs a command that must succeed, and parses the JSON that it prints.
#[track_caller]
pub fn json(command: &mut Command) -> Value {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Returns whether the test runs as root. If not, prints a message.
pub fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("skipped: this needs root");
    }
    is_root
}

/// Waits until `holds` returns true. Panics after 20 s.
#[track_caller]
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(20), "gave up after 20 s of waiting until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the process IDs of the children of a process.
pub fn children(pid: u32) -> Vec<u32> {
    let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_whitespace().filter_map(|child| child.parse().ok()).collect()
}

/// Returns whether a process exists and is not a zombie.
pub fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

/// The namespaces of a client (192.0.2.2) and an exit (192.0.2.1), joined by a veth pair.
pub struct Net {
    pub client: String,
    pub exit: String,
}

impl Net {
    /// Makes the namespaces. If this is not possible, prints a message and returns None.
    pub fn new() -> Option<Self> {
        // The name contains `benchtest` and not `bench`, because benchmarks remove namespaces named `bench` whose process has
        // ended.
        let name = |role| format!("wt-{}-benchtest-{role}", std::process::id());
        let net = Self { client: name("client"), exit: name("exit") };
        if !ip(&format!("netns add {}", net.client)) {
            eprintln!("skipped: this needs root");
            return None;
        }
        let (client, exit) = (&net.client, &net.exit);
        for line in [
            format!("netns add {exit}"),
            format!("-n {client} link add v0 type veth peer name v0 netns {exit}"),
            format!("-n {client} address add 192.0.2.2/24 dev v0"),
            format!("-n {exit} address add 192.0.2.1/24 dev v0"),
            format!("-n {client} link set v0 up"),
            format!("-n {exit} link set v0 up"),
        ] {
            assert!(ip(&line), "ip {line}");
        }
        Some(net)
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for name in [&self.client, &self.exit] {
            if Path::new("/run/netns").join(name).exists() {
                ip(&format!("netns delete {name}"));
            }
        }
    }
}

fn ip(line: &str) -> bool {
    Command::new("ip")
        .args(line.split_whitespace())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}
