//! The store of an exit's clients survives if its writer is killed, if files cannot grow, and if nothing can be written at all.
#![allow(clippy::indexing_slicing, clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use rustix::process::Signal;
use warren_quic::key::PrivateKey;

use crate::support::{
    Client, Exit, ExitOptions, Finished, HostState, Net, asked, eventually, seconds, signal,
};

/// Enough clients that a write takes a while.
const CLIENTS: usize = 2_000;
/// For row C6 of the scorecard (docs/torture.md), set `WARREN_STATE_KILLS=200`.
const KILLS: usize = 16;

#[test]
fn whoever_is_killed_while_it_writes_the_clients_leaves_the_old_ones_or_the_new() {
    let Some(net) = Net::new() else { return };
    let kills = asked("WARREN_STATE_KILLS").unwrap_or(KILLS);
    let mut exit = Exit::init(&net, &ExitOptions::default());
    exit.enrol("client-0");
    let file = exit.warren.state("exit/clients.store");
    enrol_many(&exit);
    let (mut old, mut new, mut halves) = (0, 0, 0);
    let mut name = "client-0".to_owned();

    for turn in 0..kills {
        // If no exit runs, the command itself writes the file. Otherwise the exit writes it.
        let runs = turn % 2 == 1;
        if runs {
            exit.run();
        }
        let before = names(&exit);
        let next = format!("renamed-{turn}");
        let start = Instant::now();
        exit.warren.run(&format!("exit client rename {name} {next}")).ok();
        let takes = start.elapsed();
        let renamed = names(&exit);
        let back = format!("exit client rename {next} {name}");
        let mut command = exit.warren.start(&back);
        // The kill is in the later part of the run, because the program writes only at its end.
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

        let after = names(&exit);
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
    assert!(names(&exit).contains("last"));
    assert_eq!(leftovers(&file), 0);
    println!(
        "measured: {kills} kills during a write; the file old {old} times, new {new} times, torn 0; half a new one beside it {halves} times"
    );
}

#[test]
fn a_burst_of_enrolments_loses_no_acknowledged_one_when_the_exit_is_killed() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::init(&net, &ExitOptions::default());
    let (mut acknowledged, mut refused, mut torn) = (BTreeSet::new(), 0, 0);
    for round in 0..6 {
        exit.run();
        let pid = i32::try_from(exit.status().number("/pid")).unwrap();
        let add = |worker: u32, number: u32| {
            let name = format!("burst-{round}-{worker}-{number}");
            let key = PrivateKey::generate().unwrap().public();
            let done = exit.warren.run(&format!("exit client add {name} --public-key {key}"));
            (name, done.code == Some(0))
        };
        let added: Vec<(String, bool)> = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_secs_f64(0.05 + 0.8 * random()));
                signal(pid, Signal::KILL);
            });
            let workers =
                (0..3).map(|worker| scope.spawn(move || (0..8).map(|number| add(worker, number)).collect()));
            let workers: Vec<std::thread::ScopedJoinHandle<'_, Vec<_>>> = workers.collect();
            workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
        });
        exit.daemon().wait(seconds(10));
        refused += added.iter().filter(|(_, done)| !done).count();
        acknowledged.extend(added.into_iter().filter(|(_, done)| *done).map(|(name, _)| name));
        let store = std::fs::read(exit.warren.state("exit/clients.store")).unwrap();
        torn += usize::from(!store.ends_with(b"\n"));

        let kept = names(&exit);
        assert!(acknowledged.is_subset(&kept), "lost: {:?}", acknowledged.difference(&kept));
    }
    println!(
        "measured: 6 kills in bursts: {} enrolments acknowledged, 0 of them lost, {refused} refused, {torn} torn ends",
        acknowledged.len()
    );
    assert!(acknowledged.len() > 20, "{}", acknowledged.len());
}

#[test]
fn an_exit_that_may_write_no_larger_file_keeps_its_clients_and_carries_on() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::init(&net, &ExitOptions::default());
    let client = Client::with(&net, &exit.enrol("laptop"));
    let file = exit.warren.state("exit/clients.store");
    enrol_many(&exit);
    let limit = format!("--fsize={}", std::fs::metadata(&file).unwrap().len() - 1);
    let before = (names(&exit), HostState::of(&net.exit));

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

    assert_eq!(names(&exit), before.0);
    assert_eq!(leftovers(&file), 0);
    wait_for_the_hold_to_go(&net);
    before.1.assert_same(&HostState::of(&net.exit));
}

#[test]
fn an_exit_whose_disk_becomes_read_only_keeps_its_clients_and_does_not_start_on_it() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::init(&net, &ExitOptions::default());
    let client = Client::with(&net, &exit.enrol("laptop"));
    let file = exit.warren.state("exit/clients.store");
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

/// Waits until the hold table of a stopped exit is removed, two seconds after the stop.
fn wait_for_the_hold_to_go(net: &Net) {
    eventually(seconds(10), "nothing is held for a successor", || {
        !net.exit.sh("nft list tables").stdout.contains("warren_exit_hold")
    });
}

/// Fills the registry. Clients that are already in it stay.
fn enrol_many(exit: &Exit<'_>) {
    let mut text = exit.export();
    for number in 1..CLIENTS {
        let key = PrivateKey::generate().unwrap().public();
        writeln!(
            text,
            "[[client]]\nname = \"client-{number}\"\npublic_key = \"{key}\"\ncreated = \"2026-01-01T00:00:00Z\""
        )
        .unwrap();
    }
    let file = exit.warren.write("many.toml", 0o600, &text);
    exit.warren.run(&format!("exit client import {}", file.display())).ok();
}

/// The clients' names. Fails if the store is damaged.
fn names(exit: &Exit<'_>) -> BTreeSet<String> {
    let table: toml::Table = exit.export().parse().unwrap();
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
