//! What a packet costs an exit in instructions, whatever the number of its workers, connections and sessions.
//!
//! Valgrind counts the instructions of the daemon, which no other load on the machine changes. It does not count the kernel's.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use warren_quic::key::PrivateKey;

use crate::support::crowd::{Crowd, Habits, LISTENING, SENDING, exit_with};
use crate::support::preload::Preload;
use crate::support::{Exit, Net, eventually, seconds};

/// Hosts of clients. Each has a network namespace of its own.
const HOSTS: usize = 4;

/// Packets that a session sends at once, bytes in each, and how often: the same for each exit, so that batches are as large and an
/// acknowledgement is for as many packets.
const BURST: usize = 16;
const PAYLOAD: usize = 1_200;
const EVERY: Duration = Duration::from_millis(800);

/// How long instructions are counted.
const COUNTED: Duration = seconds(20);

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

/// The first is what the others are compared with.
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
#[ignore = "takes minutes; `scripts/torture instructions --release` runs it"]
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

/// Instructions of the daemon for each inner packet that crosses it, either way. What it costs idle is subtracted.
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
    let habits = Habits { connections: case.connections, burst: BURST, payload: PAYLOAD, every: EVERY };
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
    let all = |phase| crowds.iter().for_each(|crowd| crowd.shared.phase.store(phase, SeqCst));
    // The paths' MTUs are found, and the code is warm.
    all(SENDING);
    std::thread::sleep(seconds(8));
    all(LISTENING);
    std::thread::sleep(seconds(2));

    let passed = |exit: &Exit<'_>| {
        let status = exit.status();
        status.number("/totals/tun_read_packets") + status.number("/totals/tun_written_packets")
    };
    let before = passed(&exit);
    counts.take();
    std::thread::sleep(COUNTED);
    let idle = counts.take();
    all(SENDING);
    std::thread::sleep(COUNTED);
    all(LISTENING);
    std::thread::sleep(seconds(2));
    let busy = counts.take();
    let packets = passed(&exit) - before;
    crowds.into_iter().for_each(Crowd::end);
    assert!(packets > 2_000, "{case:?}: only {packets} packets crossed the exit");
    let idle = idle * (COUNTED + seconds(2)).as_secs_f64() / COUNTED.as_secs_f64();
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

    /// Instructions since the last call.
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
