//! Another program deletes or changes the kill switch's table. The tests check which commands report this and which restore the
//! table.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::time::Instant;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Attempts, Client, Exit, LeakCounter, Net, Running, eventually, seconds, signal};

const FLUSH: &str = "nft flush ruleset";
const TABLE: &str = "nft list table inet warren-kill-switch_home";
/// Makes the table let all traffic out although it still exists.
const LET_ALL_OUT: &str = "nft insert rule inet warren-kill-switch_home let_out accept";

#[test]
fn status_and_doctor_tell_that_it_is_gone_and_doctor_closes_it_again() {
    let Some(net) = Net::new() else { return };
    let client = client(&net);
    let leaks = LeakCounter::start(&net);
    let status = || client.warren.run("status home").stderr;
    let said_by_doctor = || finding(&client.warren.run("doctor --json").stdout);

    client.warren.run("client close home").ok();
    leaks.assert_none("closed");
    assert!(status().contains("its kill switch is closed"), "{}", status());
    assert_eq!(said_by_doctor().0, "advice");

    for (change, said) in
        [(FLUSH, "somebody has deleted its nftables table"), (LET_ALL_OUT, "somebody has changed")]
    {
        client.sh(change);
        leaks.assert_all(change);
        let told = status();
        assert!(told.contains(said) && told.contains("`warren client close home"), "{told}");
        assert!(!told.contains("is closed"), "{told}");
        let (verdict, found) = said_by_doctor();
        assert!(verdict == "problem" && found.contains(said), "{verdict}: {found}");

        let fixed = client.warren.run("doctor --fix --json");
        assert_eq!(finding(&fixed.stdout).0, "advice", "{fixed:?}");
        leaks.assert_none("the doctor has closed it again");
    }

    client.sh(FLUSH);
    client.down();
    leaks.assert_all("down");
    assert!(!status().contains("kill switch"), "{}", status());
}

#[test]
fn status_of_a_daemon_that_cannot_close_it_again_says_so() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop").with("kill_switch", "enabled", true));
    client.up();
    assert_eq!(client.status().0["kill_switch"], true);

    let owner = another_s_table(&client);
    eventually(seconds(10), "the status says so", || {
        let status = client.status().0;
        status["kill_switch"] == false
            && status["warnings"].to_string().contains("deleted or changed the kill switch's table")
    });
    assert!(client.warren.run("status home").stdout.contains("deleted or changed the kill switch's table"));
    assert_eq!(finding(&client.warren.run("doctor --json").stdout).0, "problem");

    drop(owner);
    eventually(seconds(5), "the daemon closes it again", || client.status().0["kill_switch"] == true);
    client.down();
}

/// Replaces the table with one that only the returned process may delete.
fn another_s_table(client: &Client<'_>) -> Running {
    let take = "import subprocess, time\n\
                nft = subprocess.Popen(['nft', '-i'], stdin=subprocess.PIPE, text=True)\n\
                nft.stdin.write('flush ruleset; add table inet warren-kill-switch_home { flags owner; }\\n')\n\
                nft.stdin.flush()\n\
                print('taken', flush=True)\n\
                time.sleep(1000)";
    let mut owner = client.warren.host.start(&["python3", "-c", take]);
    owner.wait_for_output("taken");
    owner
}

#[test]
fn watched_it_is_closed_again_whoever_deletes_or_changes_it() {
    let Some(net) = Net::new() else { return };
    let client = client(&net);
    let leaks = LeakCounter::start(&net);
    let mut guard = watch(&client);
    leaks.assert_none("closed");

    let flush_twice = format!("{FLUSH}; sleep 0.1; {FLUSH}");
    for change in [FLUSH, "nft delete table inet warren-kill-switch_home", LET_ALL_OUT, &flush_twice] {
        let attempts = Attempts::start(&net.client, 2.5);
        client.sh(change);
        let changed = Instant::now();
        eventually(seconds(2), change, || is_as_made(&client));
        println!("measured: closed again {:?} after {change}", changed.elapsed());
        let before = leaks.leaked();
        attempts.end();
        assert_eq!(leaks.leaked(), before, "after {change}");
        leaks.assert_none(change);
    }

    guard.signal(Signal::TERM);
    assert_eq!(guard.wait(seconds(5)), Some(0), "{}", guard.output());
    leaks.assert_none("the guard has ended");
    client.sh(FLUSH);
    leaks.assert_all("the table was flushed while nobody watched");
    client.down();
}

#[test]
fn beside_a_daemon_it_is_closed_again_and_after_down_it_stays_open() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop").with("kill_switch", "enabled", true));
    let leaks = LeakCounter::start(&net);
    let mut guard = watch(&client);

    client.up();
    client.sh(FLUSH);
    eventually(seconds(2), "it is closed again next to a daemon", || {
        client.warren.host.sh(TABLE).succeeded()
    });
    client.sh("curl -sS --retry 3 --retry-all-errors --max-time 20 http://203.0.113.2/address");
    leaks.assert_none("with a daemon");
    let daemon = i32::try_from(client.status().number("/pid")).unwrap();
    signal(daemon, Signal::STOP);
    client.sh(FLUSH);
    eventually(seconds(2), "it is closed again next to a hanging daemon", || {
        client.warren.host.sh(TABLE).succeeded()
    });
    leaks.assert_none("with a hanging daemon");
    signal(daemon, Signal::CONT);
    client.sh("curl -sS --retry 3 --retry-all-errors --max-time 20 http://203.0.113.2/address");
    signal(daemon, Signal::KILL);
    client.sh(FLUSH);
    eventually(seconds(2), "it is closed again after the daemon was killed", || {
        client.warren.host.sh(TABLE).succeeded()
    });
    leaks.assert_none("the daemon was killed");

    client.warren.run("up home").ok();
    client.down();
    leaks.assert_all("down");
    // The guard is notified of this change and checks the table.
    client.sh("nft add table inet other; nft delete table inet other");
    leaks.assert_all("down, after another change");
    guard.signal(Signal::KILL);
    guard.wait(seconds(5));
    let mut guard = watch(&client);
    leaks.assert_all("the guard was killed and restarted");

    guard.signal(Signal::TERM);
    assert_eq!(guard.wait(seconds(5)), Some(0), "{}", guard.output());
    let _guard = watch(&client);
    leaks.assert_none("a guard that is started again closes it");
    client.down();
}

#[test]
fn what_could_not_be_closed_at_first_is_closed_by_the_next_start() {
    let Some(net) = Net::new() else { return };
    let client = client(&net);
    let leaks = LeakCounter::start(&net);
    let owner = another_s_table(&client);
    let mut refused = client.warren.start("client close home --watch");
    assert_eq!(refused.wait(seconds(20)), Some(1), "{}", refused.output());
    assert!(refused.output().contains("cannot close the kill switch"), "{}", refused.output());
    drop(owner);
    eventually(seconds(5), "the other table is gone", || !client.warren.host.sh(TABLE).succeeded());

    let _guard = watch(&client);

    leaks.assert_none("the guard was started again");
    client.down();
}

#[test]
fn a_table_that_a_guard_makes_while_down_opens_it_goes_too() {
    let Some(net) = Net::new() else { return };
    let client = client(&net);
    client.warren.run("client close home").ok();
    client.sh(FLUSH);
    // Simulates a guard that recreates the table after `down` has listed the tables and before `down` has recorded that there
    // should be none.
    let made = client.warren.host.own_files().etc().join("made");
    client.warren.host.own_files().program("nft", &PLAYS_GUARD.replace("MADE", &made.display().to_string()));

    client.warren.run("down home").ok();

    assert!(made.exists(), "the table was made meanwhile");
    assert!(!client.warren.host.sh(TABLE).succeeded(), "the table is gone");
}

/// An nft that creates the kill switch's table as soon as the tables are listed for the first time, either by a separate run or
/// by a line to an interactive nft. The program that lists them gets the end of the list only after that.
const PLAYS_GUARD: &str = r#"#!/usr/bin/env python3
import os, subprocess, sys

NFT = "/usr/sbin/nft"

def carry_out(words):
    code = subprocess.run([NFT, *words]).returncode
    if "tables" in words and not os.path.exists("MADE"):
        open("MADE", "w").close()
        subprocess.run([NFT, "add", "table", "inet", "warren-kill-switch_home"], check=True)
    return code

if "-i" not in sys.argv:
    sys.exit(carry_out(sys.argv[1:]))
interactive = subprocess.Popen([NFT, *sys.argv[1:]], stdin=subprocess.PIPE, text=True)
for line in sys.stdin:
    if "tables" in line.split():
        carry_out(line.split())
    else:
        interactive.stdin.write(line)
        interactive.stdin.flush()
interactive.stdin.close()
"#;

/// A client whose exit is not running.
fn client(net: &Net) -> Client<'_> {
    let exit = Exit::start(net);
    Client::with(net, &exit.enrol("laptop").with("kill_switch", "enabled", true))
}

/// Starts the guard and waits until it is watching.
fn watch(client: &Client<'_>) -> Running {
    let mut guard = client.warren.start("--log info client close home --watch");
    guard.wait_for_output("the kill switch");
    guard
}

/// Whether the table exists and has no rule that lets all traffic out.
fn is_as_made(client: &Client<'_>) -> bool {
    let listed = client.warren.host.sh("nft list chain inet warren-kill-switch_home let_out");
    listed.succeeded() && !listed.stdout.lines().any(|line| line.trim() == "accept")
}

/// The doctor's verdict on the kill switch, and its explanation.
#[track_caller]
fn finding(answer: &str) -> (String, String) {
    let findings: Vec<Value> = serde_json::from_str(answer).unwrap();
    let finding = findings.iter().find(|finding| finding["check"] == "kill switch").unwrap();
    let text = |field: &str| finding[field].as_str().unwrap().to_owned();
    (text("verdict"), text("found"))
}
