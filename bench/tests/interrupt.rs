//! After Ctrl-C, no processes, namespaces or sockets of a run are left.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod support;

use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use support::{bench, children, eventually, is_root, runs};

#[test]
fn interrupted_comparison_ends_what_it_started() {
    let mut command = bench("ab --metric x");
    command.args([
        "--a-command",
        "sleep 61; echo '{\"x\": 1}'",
        "--b-command",
        "sleep 61; echo '{\"x\": 1}'",
    ]);
    let mut running = started(&mut command);
    let mut family = Vec::new();
    eventually("the shell and its sleep run", || {
        let shells = children(running.id());
        family = shells.iter().flat_map(|&shell| [vec![shell], children(shell)].concat()).collect();
        family.len() >= 2
    });

    interrupt(&running);

    assert!(!running.wait().unwrap().success());
    assert!(family.iter().all(|&pid| !runs(pid)), "{family:?}");
}

#[test]
fn interrupted_measurement_ends_the_exit() {
    let (mut running, exits) = measurement();

    interrupt(&running);

    assert!(!running.wait().unwrap().success());
    assert!(exits.iter().all(|&pid| !runs(pid)), "{exits:?}");
}

#[test]
fn killed_measurement_takes_the_exit_with_it() {
    let (mut running, exits) = measurement();

    running.kill().unwrap();
    running.wait().unwrap();

    eventually("the exit is gone", || exits.iter().all(|&pid| !runs(pid)));
}

#[test]
fn interrupted_copier_removes_its_namespaces() {
    if !is_root() {
        return;
    }
    let mut running = started(&mut bench("copier"));
    let prefix = format!("wt-{}-bench-", running.id());
    eventually("both namespaces exist", || namespaces(&prefix) == 2);

    interrupt(&running);

    running.wait().unwrap();
    assert_eq!(namespaces(&prefix), 0);
}

#[test]
fn interrupted_wire_removes_its_namespaces_and_its_socket() {
    if !is_root() {
        return;
    }
    let name = format!("interrupt-{}", std::process::id());
    let socket = format!("/run/warren-bench/wire-{name}.sock");
    let mut running = started(bench("wire --both delay=5ms --name").arg(&name));
    let prefix = format!("wt-{}-bench-", running.id());
    eventually("the wire takes requests", || std::path::Path::new(&socket).exists());
    assert_eq!(namespaces(&prefix), 2);
    assert!(bench("wire set").args([&name, "up", "loss=1%"]).status().unwrap().success());

    interrupt(&running);

    assert!(running.wait().unwrap().success());
    assert_eq!(namespaces(&prefix), 0);
    assert!(!std::path::Path::new(&socket).exists());
}

#[test]
fn next_copier_removes_what_a_killed_one_left() {
    if !is_root() {
        return;
    }
    let mut killed = started(&mut bench("copier"));
    let prefix = format!("wt-{}-bench-", killed.id());
    eventually("both namespaces exist", || namespaces(&prefix) == 2);
    killed.kill().unwrap();
    killed.wait().unwrap();
    // A process that is killed with SIGKILL cannot remove its namespaces, so they must still exist.
    assert_eq!(namespaces(&prefix), 2);

    assert!(
        bench("copier --seconds 0").stderr(Stdio::null()).stdout(Stdio::null()).status().unwrap().success()
    );

    assert_eq!(namespaces(&prefix), 0);
}

/// Starts a measurement, and returns its process and the process IDs of its exits.
fn measurement() -> (Child, Vec<u32>) {
    let running = started(&mut bench("quic --seconds 60"));
    let mut exits = Vec::new();
    eventually("the exit runs", || {
        exits = children(running.id());
        !exits.is_empty()
    });
    (running, exits)
}

fn started(command: &mut Command) -> Child {
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn interrupt(child: &Child) {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
}

fn namespaces(prefix: &str) -> usize {
    let Ok(entries) = std::fs::read_dir("/run/netns") else { return 0 };
    entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix)).count()
}
