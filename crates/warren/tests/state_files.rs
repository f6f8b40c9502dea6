//! The file of an exit's clients when its writer is killed, when no file may grow, and when nothing can be written at all.
#![allow(clippy::indexing_slicing, clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use rustix::process::Signal;
use warren_quic::key::PrivateKey;

use crate::support::{Client, Exit, ExitOptions, Finished, HostState, Net, asked, eventually, seconds};

/// So many that a write takes a while.
const CLIENTS: usize = 2_000;
/// Scorecard C6 is `WARREN_STATE_KILLS=200`.
const KILLS: usize = 16;

#[test]
fn whoever_is_killed_while_it_writes_the_clients_leaves_the_old_ones_or_the_new() {
    let Some(net) = Net::new() else { return };
    let kills = asked("WARREN_STATE_KILLS").unwrap_or(KILLS);
    let mut exit = Exit::init(&net, &ExitOptions::default());
    exit.enrol("client-0");
    let file = exit.warren.state("exit/clients.toml");
    enrol_many(&file);
    let (mut old, mut new, mut halves) = (0, 0, 0);
    let mut name = "client-0".to_owned();

    for turn in 0..kills {
        // The command itself writes the file while no exit runs. Otherwise the exit does.
        let runs = turn % 2 == 1;
        if runs {
            exit.run();
        }
        let before = names(&file);
        let next = format!("renamed-{turn}");
        let start = Instant::now();
        exit.warren.run(&format!("exit client rename {name} {next}")).ok();
        let takes = start.elapsed();
        let renamed = names(&file);
        let back = format!("exit client rename {next} {name}");
        let mut command = exit.warren.start(&back);
        // Most of the time is the program's start; the write comes at the end.
        std::thread::sleep(takes.mul_f64(0.5 + 0.6 * random()));
        if runs {
            exit.daemon().signal(Signal::KILL)
        } else {
            command.signal(Signal::KILL)
        }
        command.wait(seconds(20));
        if runs {
            exit.daemon().wait(seconds(10));
        }
        halves += leftovers(&file);

        let after = names(&file);
        assert!(after == before || after == renamed, "kill {turn}: {} clients", after.len());
        assert_eq!(after.len(), CLIENTS);
        if after == before {
            new += 1;
        } else {
            old += 1;
            name = next;
        }
    }
    // The remains of an interrupted write do no harm, and the next write removes them.
    exit.run();
    exit.warren.run(&format!("exit client rename {name} last")).ok();
    assert!(names(&file).contains("last"));
    assert_eq!(leftovers(&file), 0);
    println!(
        "measured: {kills} kills during a write; the file old {old} times, new {new} times, torn 0; half a new one beside it {halves} times"
    );
}

#[test]
fn an_exit_that_may_write_no_larger_file_keeps_its_clients_and_carries_on() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::init(&net, &ExitOptions::default());
    let client = Client::with(&net, &exit.enrol("laptop"));
    let file = exit.warren.state("exit/clients.toml");
    enrol_many(&file);
    let limit = format!("--fsize={}", std::fs::metadata(&file).unwrap().len() - 1);
    let before = (names(&file), HostState::of(&net.exit));

    let mut daemon = exit.warren.start_under(&["prlimit", &limit], "exit run");
    eventually(seconds(10), "the exit answers", || exit.warren.status().is_some());
    let refused = exit.warren.run("exit client add phone");
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("file too large"), "{refused:?}");
    assert!(daemon.is_running(), "{}", daemon.output());
    client.up();
    client.sh(&format!("ping -c 1 -W 5 {}", Net::INTERNET_V4));
    client.down();
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait(seconds(10)), Some(0), "{}", daemon.output());

    assert_eq!(names(&file), before.0);
    assert_eq!(leftovers(&file), 0);
    wait_for_the_hold_to_go(&net);
    before.1.assert_same(&HostState::of(&net.exit));
}

#[test]
fn an_exit_whose_disk_becomes_read_only_keeps_its_clients_and_does_not_start_on_it() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::init(&net, &ExitOptions::default());
    let client = Client::with(&net, &exit.enrol("laptop"));
    let file = exit.warren.state("exit/clients.toml");
    let state = exit.warren.state("").display().to_string();
    let before = HostState::of(&net.exit);
    let read_only = format!("mount --bind {state} {state} && mount -o remount,ro,bind {state}");

    let mut daemon = exit.warren.start("exit run");
    eventually(seconds(10), "the exit answers", || exit.warren.status().is_some());
    client.up();
    client.down();
    let clients = std::fs::read_to_string(&file).unwrap();
    net.exit.sh(&format!("nsenter -t {} -m sh -c '{read_only}'", daemon.pid())).ok();
    for line in ["exit client add phone", "exit invite tablet", "exit client rename laptop desk"] {
        assert_one_sentence(&exit.warren.run(line), "read-only file system");
    }
    client.up();
    client.sh(&format!("ping -c 1 -W 5 {}", Net::INTERNET_V4));
    client.down();
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait(seconds(10)), Some(0), "{}", daemon.output());

    let then = format!("{read_only} && exec \"$@\"");
    let mut refused = exit.warren.start_under(&["sh", "-c", &then, "sh"], "exit run");
    assert_eq!(refused.wait(seconds(10)), Some(1), "{}", refused.output());
    assert!(refused.output().contains("read-only file system"), "{}", refused.output());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), clients);
    wait_for_the_hold_to_go(&net);
    before.assert_same(&HostState::of(&net.exit));
}

#[track_caller]
fn assert_one_sentence(refused: &Finished, with: &str) {
    assert_eq!((refused.code, refused.stderr.trim_end().lines().count()), (Some(1), 1), "{refused:?}");
    assert!(refused.stderr.contains(with), "{refused:?}");
}

/// What a stopped exit leaves for its successor is removed two seconds later.
fn wait_for_the_hold_to_go(net: &Net) {
    eventually(seconds(10), "nothing is held for a successor", || {
        !net.exit.sh("nft list tables").stdout.contains("warren_exit_hold")
    });
}

/// Fills the registry and keeps the clients in it.
fn enrol_many(file: &Path) {
    let mut text = std::fs::read_to_string(file).unwrap();
    for number in 1..CLIENTS {
        let key = PrivateKey::generate().unwrap().public();
        writeln!(
            text,
            "[[client]]\nname = \"client-{number}\"\npublic_key = \"{key}\"\ncreated = \"2026-01-01T00:00:00Z\""
        )
        .unwrap();
    }
    std::fs::write(file, text).unwrap();
}

/// The clients' names in the file. Fails if the file is torn.
fn names(file: &Path) -> BTreeSet<String> {
    let text = std::fs::read_to_string(file).unwrap();
    let table: toml::Table = text.parse().unwrap_or_else(|error| panic!("a torn file: {error}"));
    let clients = table["client"].as_array().unwrap();
    clients.iter().map(|client| client["name"].as_str().unwrap().to_owned()).collect()
}

/// The number of temporary files that were never renamed.
fn leftovers(file: &Path) -> usize {
    let entries = std::fs::read_dir(file.parent().unwrap()).unwrap();
    entries.filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().ends_with(".tmp")).count()
}

/// A number from 0 to 1.
fn random() -> f64 {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or(Duration::ZERO);
    f64::from(now.subsec_nanos() / 7 % 1_000) / 1_000.0
}
