//! A daemon that the kernel's OOM killer has ended leaves the same changes as after SIGKILL, and they are undone in the same way.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::process::Command;

use rustix::process::Signal;

use crate::support::daemon::Warren;
use crate::support::memory_limit::MemoryLimit;
use crate::support::{Client, Exit, ExitOptions, HostState, Net, Running, eventually, seconds};

const LIMIT: u64 = 48 * 1024 * 1024;

/// Scorecard C6.
#[test]
#[ignore = "needs a machine that lets tests limit memory; scripts/torture runs it"]
fn daemons_killed_for_want_of_memory_are_undone_by_cleanup_or_by_the_next_start_and_stop() {
    let Some(net) = Net::new() else { return };
    let memory = MemoryLimit::new("out-of-memory", LIMIT);
    let exit = Exit::init(&net, &ExitOptions::default());
    let profile = exit.enrol("laptop");
    let exit_before = HostState::of(&net.exit);

    for again in [false, true] {
        let mut daemon = exit.warren.start_within(&memory, "exit run");
        eventually(seconds(20), "the exit answers", || exit.warren.status().is_some());
        use_up(&memory, &daemon);
        daemon.wait(seconds(20));
        assert!(exit.warren.status().is_none());
        undo(&exit.warren, again, "exit run", || exit.warren.status().is_some());
        eventually(seconds(10), "no process is left", || net.exit.pids().is_empty());
        exit_before.assert_same(&HostState::of(&net.exit));
    }

    let mut exit = exit;
    exit.run();
    let locked = profile.with("kill_switch", "enabled", true);
    let client = Client::with(&net, &locked);
    let line = format!("client run {}", client.warren.config("home.toml").display());
    let is_up = || client.warren.status().is_some_and(|status| status.text("/state") == "up");
    for again in [false, true] {
        let mut daemon = client.warren.start_within(&memory, &line);
        eventually(seconds(20), "the tunnel is up", is_up);
        use_up(&memory, &daemon);
        daemon.wait(seconds(20));
        assert!(client.warren.status().is_none());
        let reached = net.client.sh(&format!("ping -c 1 -W 1 {}", Net::INTERNET_V4));
        assert!(!reached.succeeded(), "the kill switch stays closed");
        undo(&client.warren, again, &line, is_up);
        client.warren.run("cleanup").ok();
        eventually(seconds(10), "no process is left", || net.client.pids().is_empty());
        client.assert_host_unchanged();
    }
    println!("measured: 4 daemons out of memory at 48 MiB, 0 lines of difference");
    assert!(
        memory.killed() >= 8,
        "too few OOM kills; each daemon and each memory hog should be killed: {}",
        memory.killed()
    );
}

/// Undoes a killed daemon's changes: by `cleanup` or, with `again`, by starting the same daemon once more and stopping it.
fn undo(warren: &Warren<'_>, again: bool, line: &str, is_up: impl FnMut() -> bool) {
    if !again {
        warren.run("cleanup").ok();
        return;
    }
    let mut next = warren.start(line);
    eventually(seconds(20), "the next daemon is up", is_up);
    next.signal(Signal::TERM);
    assert_eq!(next.wait(seconds(20)), Some(0), "{}", next.output());
}

/// Allocates memory within the limit until the kernel has killed the daemon, and then the allocating program.
fn use_up(memory: &MemoryLimit, daemon: &Running) {
    // Makes the daemon and its children the first to be killed.
    for pid in [vec![daemon.pid()], children(daemon.pid())].concat() {
        drop(std::fs::write(format!("/proc/{pid}/oom_score_adj"), "1000"));
    }
    let mut hog = Command::new("python3");
    hog.args(["-c", "room = [bytes([1]) * 1048576 for _ in range(200)]"]);
    let ended = memory.bound(&hog).status().unwrap();
    assert!(!ended.success(), "the program got 200 MiB despite the limit");
}

fn children(pid: i32) -> Vec<i32> {
    let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}
