//! Connecting and disconnecting leaves nothing behind, however often it happens.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::time::{Duration, Instant};

use toml::Value;

use crate::support::{Client, Exit, ExitOptions, HostState, Net, Status, asked};

/// For row L2 of the scorecard (docs/torture.md), run this test with `WARREN_CYCLES=500`. The test suite runs only a few cycles.
#[test]
fn cycles_leave_both_hosts_and_the_exit_as_they_were() {
    let Some(net) = Net::new() else { return };
    let asked_cycles = asked("WARREN_CYCLES");
    let cycles: u32 = asked_cycles.unwrap_or(12);
    let mut exit = Exit::init(&net, &ExitOptions::default());
    exit.configure(|config| config.with("dns", "servers", Value::Array(vec![Net::INTERNET_V4.into()])));
    exit.run();
    let client = Client::with(&net, &exit.enrol("laptop"));
    // The first sessions are not measured, because they fill caches and pools.
    for _ in 0..3 {
        client.up();
        client.warren.run("down home").ok();
    }
    let (client_host, exit_host) = (HostState::of(&net.client), HostState::of(&net.exit));
    let files = client.warren.files();
    let before = Process::of(&exit.status());

    let mut spent = Duration::ZERO;
    for _ in 0..cycles {
        let start = Instant::now();
        client.up();
        client.warren.run("down home").ok();
        spent += start.elapsed();
    }

    let after = Process::of(&exit.status());
    let mean = spent / cycles;
    println!(
        "measured: {cycles} cycles, {mean:?} each; the exit used {before:?} before and {after:?} afterwards"
    );
    client_host.assert_same(&HostState::of(&net.client));
    exit_host.assert_same(&HostState::of(&net.exit));
    assert!(net.client.pids().is_empty(), "no process is left");
    assert_eq!(files, client.warren.files(), "no file is left");
    assert_eq!((before.descriptors, before.threads), (after.descriptors, after.threads));
    // After only a few cycles, pages that the allocator has not yet returned matter more.
    let slack_kib = if asked_cycles.is_some() { 0 } else { 512 };
    assert!(after.memory_kib <= before.memory_kib * 11 / 10 + slack_kib, "memory: {before:?}, {after:?}");
    if asked_cycles.is_some() {
        assert!(mean <= Duration::from_millis(500), "{mean:?}");
    }
}

/// What the exit's process uses.
#[derive(Debug)]
struct Process {
    descriptors: u64,
    threads: u64,
    memory_kib: u64,
}

impl Process {
    fn of(status: &Status) -> Self {
        let number = |name: &str| status.number(&format!("/process/{name}"));
        Self { descriptors: number("fds"), threads: number("threads"), memory_kib: number("rss_kib") }
    }
}
