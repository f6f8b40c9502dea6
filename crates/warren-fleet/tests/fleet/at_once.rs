//! Commands that run at the same time.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Output;
use std::time::Duration;

use warren_config::storage::LockFile;

use crate::commands::Secure;
use crate::number_key;
use crate::support::etcd::Store;
use crate::support::{fleet_at_once, fleet_fails, fleet_ok, my_turn, wait_for};

const BUSY: &str = "another command is changing this exit's fleet";

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

#[test]
fn two_joins_on_one_host_end_with_one_exit_that_reaches_the_store() {
    let fleet = Secure::start();
    for round in 0..4 {
        // Two rounds with one ticket, and two rounds with two tickets.
        let names = [format!("b{round}"), format!("c{round}")];
        let first = fleet.ticket(&names[0]);
        let second = if round < 2 { first.clone() } else { fleet.ticket(&names[1]) };
        let at = fleet.directory.path().join(format!("host{round}"));
        let outputs = fleet_at_once(&[(&at, vec!["join", first.trim()]), (&at, vec!["join", second.trim()])]);
        for refused in outputs.iter().filter(|output| !output.status.success()) {
            let why = said(refused);
            // The slower command may also start after the faster one has ended.
            assert!(why.contains(BUSY) || why.contains("belongs to a fleet already"), "{why}");
        }
        let joined = outputs.iter().filter(|output| output.status.success()).count();
        assert!(joined == 1 || (round < 2 && joined == 2), "round {round}: {joined}");
        assert!(fleet_ok(&at, &["status"]).contains("has joined"), "it reaches the store");
        assert!(!at.join("config/fleet.toml.joining").exists());
    }
}

#[test]
fn a_command_waits_for_nobody_and_leaves_the_files_of_another_one_alone() {
    let fleet = Secure::start();
    let at = fleet.directory.path().join("b");
    let ticket = fleet.ticket("b");
    std::fs::create_dir_all(at.join("runtime")).unwrap();
    let lock = LockFile::acquire(&at.join("runtime/fleet.lock"), Duration::ZERO).unwrap().unwrap();
    for arguments in
        [&["join", ticket.trim()][..], &["leave"], &["init", "--exit", "b", "--store", "https://b"]]
    {
        let why = fleet_fails(&at, arguments);
        assert!(why.contains(BUSY) && why.contains("fleet.lock"), "{why}");
    }
    assert!(!at.join("config").exists());
    // The control: nobody has the lock.
    drop(lock);
    fleet_ok(&at, &["join", ticket.trim()]);
}

#[test]
fn of_two_links_of_one_exit_the_second_one_ends_with_a_sentence() {
    let mut fleet = Secure::start();
    let a = fleet.first.directory.clone();
    let why = fleet_fails(&a, &["run"]);
    assert!(why.contains("another `warren fleet run` serves this exit already"), "{why}");
    assert_eq!(
        fleet.first.log().matches("connected to the exit").count(),
        1,
        "the first link keeps its exit"
    );
    // The control: a link that was killed is no obstacle.
    fleet.first.stop_link("KILL");
    fleet.first.start_link();
    wait_for("the next link serves the exit", Duration::from_secs(10), || {
        fleet.first.log().contains("connected to the exit").then_some(())
    });
}

/// Writes a `clients.toml` with many clients.
fn clients(directory: &Path, name: &str, from: usize) -> String {
    let mut text = String::new();
    for number in from..from + 1500 {
        let key = number_key(number);
        writeln!(
            text,
            "[[client]]\nname = \"{name}{number}\"\npublic_key = \"{key}\"\ncreated = \"2026-01-01T00:00:00Z\""
        )
        .unwrap();
    }
    std::fs::create_dir_all(directory).unwrap();
    std::fs::write(directory.join("clients.toml"), text).unwrap();
    directory.join("clients.toml").display().to_string()
}

#[test]
fn of_two_hosts_that_begin_a_fleet_with_one_name_one_wins_and_the_other_is_told() {
    let _turn = my_turn();
    let store = Store::start();
    let directory = tempfile::tempdir().unwrap();
    let urls = store.urls();
    for round in 0..3 {
        let hosts = ["x", "y"].map(|host| directory.path().join(format!("{host}{round}")));
        let files = [clients(&hosts[0], "x", 0), clients(&hosts[1], "y", 1500)];
        let fleet = format!("fleet{round}");
        let begin = |clients| {
            let arguments =
                ["init", "--fleet", &fleet, "--exit", "a", "--pool", "10.0.0.0/16", "--store", &urls];
            [&arguments[..], &["--clients", clients]].concat()
        };
        let outputs = fleet_at_once(&[(&hosts[0], begin(&files[0])), (&hosts[1], begin(&files[1]))]);
        let all = outputs.iter().map(said).collect::<Vec<_>>();
        let won = outputs.iter().position(|output| output.status.success());
        let winner = won.unwrap_or_else(|| panic!("nobody has begun it: {all:?}"));
        let loser = 1 - winner;
        assert!(!outputs[loser].status.success(), "both have begun it: {all:?}");
        let why = &all[loser];
        assert!(
            why.contains("another host has just begun this fleet") || why.contains("has a fleet"),
            "{why}"
        );
        assert!(!why.contains("PublicKey") && why.lines().count() == 1, "{why}");
        let is_there = |host: &Path| host.join("config/fleet.toml").exists();
        assert!(is_there(&hosts[winner]) && !is_there(&hosts[loser]));
        let rows =
            store.etcdctl_ok(&["get", "--prefix", &format!("/warren/{fleet}/cl/"), "--print-value-only"]);
        let of = |name: &str| rows.matches(&format!("\"name\":\"{name}")).count();
        let counts = [of("x"), of("y")];
        assert_eq!((counts[winner], counts[loser]), (1500, 0), "{counts:?}");
        assert!(!store.etcdctl_ok(&["get", &format!("/warren/{fleet}/beginning")]).contains("beginning"));
    }
}
