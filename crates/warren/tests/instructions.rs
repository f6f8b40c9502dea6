//! Measures how many instructions an exit needs for a packet, with different numbers of workers, connections and sessions.
//!
//! Valgrind counts the daemon's instructions, but not the kernel's. Other load on the machine does not change the count.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use rustix::process::Signal;
use warren_quic::key::PrivateKey;

use crate::support::crowd::{Crowd, Habits, LISTENING, SENDING, exit_with};
use crate::support::preload::Preload;
use crate::support::{Exit, Net, eventually, seconds, signal};

/// Hosts of clients. Each has a network namespace of its own.
const HOSTS: usize = 4;

/// The number of packets that a session sends at once, and the bytes in each. They are the same in all cases, so that batches and
/// acknowledgements cover equally many packets.
const BURST: usize = 16;
const PAYLOAD: usize = 1_200;

/// The number of bursts of each session that are counted, and the number of bursts before them. During the earlier bursts, MTU
/// discovery ends and windows grow.
const BURSTS: u32 = 16;
const FIRST_BURSTS: u32 = 8;

/// How long the exit is stopped while every session sends a burst, and how long it then has to handle the bursts.
const SENDING_TAKES: Duration = Duration::from_millis(300);
const SERVING_TAKES: Duration = Duration::from_millis(1_200);

/// One exit, and how many clients it has.
#[derive(Clone, Copy, Debug)]
struct Case {
    workers: usize,
    connections: usize,
    sessions: usize,
}

const fn case(workers: usize, connections: usize, sessions: usize) -> Case {
    Case { workers, connections, sessions }
}

/// All cases are compared with the first one.
const CASES: [Case; 7] = [
    case(1, 1, 4),
    case(2, 1, 4),
    case(4, 1, 4),
    case(1, 4, 4),
    case(4, 4, 4),
    case(1, 1, 64),
    case(4, 4, 64),
];

#[test]
#[ignore = "takes ten minutes, and needs valgrind; run it by name"]
fn a_packet_costs_an_exit_as_much_with_more_workers_connections_and_sessions() {
    let counts = CASES.map(|case| (case, instructions_of_a_packet(case)));
    let (_, first) = counts[0];
    for (Case { workers, connections, sessions }, count) in counts {
        println!(
            "measured: {workers} workers, {sessions} sessions of {connections} connections: {count:.0} instructions a packet, x{:.2}",
            count / first
        );
    }
    for (case, count) in counts {
        assert!(count <= 1.25 * first, "{case:?}: {count:.0} instructions a packet instead of {first:.0}");
    }
}

/// Returns the daemon's instructions for each inner packet, in either direction, without those of an idle daemon.
fn instructions_of_a_packet(case: Case) -> f64 {
    let net = Net::new().unwrap();
    let keys: Vec<PrivateKey> = (0..case.sessions).map(|_| PrivateKey::generate().unwrap()).collect();
    let mut exit = exit_with(&net, &keys);
    exit.configure(|config| config.with("transport", "workers", i64::try_from(case.workers).unwrap()));
    let directory = tempfile::Builder::new().prefix("wt-").tempdir().unwrap();
    let counts = Counts { directory: directory.path().to_owned(), taken: 0, pid: String::new() };
    let self_exe = Preload::build("self_exe");
    exit.run_under(&[
        "env",
        // The sandbox forbids what valgrind does.
        "WARREN_SANDBOX=off",
        &self_exe.variable,
        concat!("PROGRAM=", env!("CARGO_BIN_EXE_warren")),
        "valgrind",
        "--quiet",
        "--tool=callgrind",
        &format!("--callgrind-out-file={}", counts.file(0).display()),
    ]);
    let counts = &mut Counts { pid: exit.daemon().pid().to_string(), ..counts };
    let exit_key = exit.status().text("/public_key").parse().unwrap();
    // The interval is so long that each client sends only one burst when sending is turned on.
    let habits =
        Habits { connections: case.connections, burst: BURST, payload: PAYLOAD, every: 2 * SENDING_TAKES };
    let hosts = net.clients_beside(u8::try_from(HOSTS).unwrap());
    let mut keys = keys.into_iter();
    let crowds: Vec<Crowd> = hosts
        .iter()
        .map(|host| Crowd::with(host, keys.by_ref().take(case.sessions / HOSTS).collect(), exit_key, habits))
        .collect();
    let attached = || crowds.iter().map(|crowd| crowd.shared.attached.load(SeqCst)).sum::<usize>();
    eventually(seconds(120), "every client has all of its connections", || {
        attached() == case.sessions * case.connections
    });
    let pid = exit.daemon().pid();
    let send = |bursts: u32| {
        for _ in 0..bursts {
            // The exit is stopped until all bursts are in its sockets, so that it handles whole batches, no matter how busy the
            // machine is.
            signal(pid, Signal::STOP);
            crowds.iter().for_each(|crowd| crowd.shared.phase.store(SENDING, SeqCst));
            std::thread::sleep(SENDING_TAKES);
            crowds.iter().for_each(|crowd| crowd.shared.phase.store(LISTENING, SeqCst));
            signal(pid, Signal::CONT);
            std::thread::sleep(SERVING_TAKES);
        }
    };
    send(FIRST_BURSTS);

    let passed = |exit: &Exit<'_>| {
        let status = exit.status();
        status.number("/totals/tun_read_packets") + status.number("/totals/tun_written_packets")
    };
    let before = passed(&exit);
    counts.take();
    std::thread::sleep((SENDING_TAKES + SERVING_TAKES) * BURSTS);
    let idle = counts.take();
    send(BURSTS);
    let busy = counts.take();
    let packets = passed(&exit) - before;
    crowds.into_iter().for_each(Crowd::end);
    assert!(packets > 1_000, "{case:?}: only {packets} packets crossed the exit");
    println!("{case:?}: {packets} packets, {busy:.3e} instructions, {idle:.3e} of them idle");
    (busy - idle) / packets as f64
}

/// The counters of a daemon under callgrind.
struct Counts {
    directory: PathBuf,
    taken: u32,
    pid: String,
}

impl Counts {
    /// The file of a dump. Callgrind adds the number.
    fn file(&self, number: u32) -> PathBuf {
        let name = if number == 0 { "count".into() } else { format!("count.{number}") };
        self.directory.join(name)
    }

    /// Returns the number of instructions since the last call.
    fn take(&mut self) -> f64 {
        self.taken += 1;
        let dumped = Command::new("callgrind_control").args(["--dump", &self.pid]).output().unwrap();
        assert!(dumped.status.success(), "{dumped:?}");
        let file = self.file(self.taken);
        let mut total = None;
        eventually(seconds(30), "callgrind has written its counters", || {
            total = total_of(&file);
            total.is_some()
        });
        total.unwrap()
    }
}

/// The instructions in one of callgrind's files, once it is complete.
fn total_of(file: &Path) -> Option<f64> {
    let text = std::fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| line.strip_prefix("totals: "))?.trim().parse().ok()
}
