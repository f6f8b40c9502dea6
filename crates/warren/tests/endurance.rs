//! Tests of long faults that a tunnel survives. `scripts/torture` runs them for as long as the scorecard says, and the test suite
//! for a shorter time.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::{Attempts, Client, Exit, LeakCounter, Net, asked, eventually, seconds};

/// For row F6 of the scorecard (docs/torture.md), run this test with `WARREN_BLACK_HOLES=2,2,2,2,2,2,20,120`, the seconds of each
/// black hole.
#[test]
#[ignore = "takes minutes; `scripts/torture holes` runs it"]
fn flow_survives_black_holes() {
    let Some(net) = Net::new() else { return };
    let holes: Option<String> = asked("WARREN_BLACK_HOLES");
    let is_long = holes.is_some();
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();
    let _server = net.internet.iperf3(5202);
    let mut measured = Vec::new();

    for hole in holes.as_deref().unwrap_or("2").split(',').map(|hole| seconds(hole.parse().unwrap())) {
        let load = format!("{}", hole.as_secs() + 4);
        let mut flow =
            net.client.start(&["iperf3", "-c", Net::INTERNET_V4, "-p", "5202", "-b", "1M", "-t", &load]);
        std::thread::sleep(seconds(2));
        let ended = client.status().number("/totals/connections_ended");
        net.black_hole();
        std::thread::sleep(hole);
        net.unfilter();
        let passes = || net.client.sh("ping -c 1 -W 0.2 203.0.113.2").succeeded();
        let back = eventually(seconds(60), "traffic is back", passes);
        println!("{hole:?}: back {back:.1?} after the path");
        measured.push(format!("{}: {back:.1?}", hole.as_secs()));
        // Only after short black holes must the flow survive, because TCP doubles its timeout at each retransmission and gives up
        // in longer ones.
        if hole <= seconds(20) {
            assert_eq!(flow.wait(seconds(60)), Some(0), "the flow survives: {}", flow.output());
            assert_eq!(
                client.status().number("/totals/connections_ended"),
                ended,
                "no connection was replaced"
            );
        } else {
            drop(flow);
        }
        let bound = if hole <= seconds(2) {
            1
        } else if hole <= seconds(20) {
            2
        } else {
            5
        };
        assert!(!is_long || back <= seconds(bound), "{hole:?}: back {back:?} after the path");
    }
    println!("measured: back after the path, by seconds of the hole: {}", measured.join(", "));
    client.down();
}

/// For row K7 of the scorecard (docs/torture.md), run this test with `WARREN_LOCKDOWN_SECONDS=60`.
#[test]
#[ignore = "takes a minute; `scripts/torture lockdown` runs it"]
fn nothing_leaves_a_locked_host_while_daemons_come_and_go() {
    let Some(net) = Net::new() else { return };
    let lasting = asked("WARREN_LOCKDOWN_SECONDS").unwrap_or(3);
    let mut exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop").with("kill_switch", "enabled", true));
    let leaks = LeakCounter::start(&net);
    leaks.assert_all("open");
    client.warren.run("client close home").ok();
    let before = leaks.leaked();
    let start = Instant::now();
    let attempts = Attempts::start(&net.client, u16::try_from(lasting).unwrap().into());
    let mut turns = 0;

    while start.elapsed() < seconds(lasting) {
        client.up();
        std::thread::sleep(Duration::from_millis(300));
        match turns % 3 {
            0 => client.signal(Signal::KILL),
            1 => client.signal(Signal::TERM),
            _ => {
                exit.stop(Signal::TERM);
                exit.run();
                client.signal(Signal::KILL);
            }
        }
        eventually(seconds(10), "the daemon has ended", || client.warren.status().is_none());
        turns += 1;
    }

    let attempts = attempts.end();
    let leaked = leaks.leaked() - before;
    println!(
        "measured: {attempts} attempts to leave in {lasting} s and {turns} starts and ends, {leaked} leaked"
    );
    assert!(attempts > 80, "{attempts} attempts");
    assert_eq!(leaked, 0, "out of {attempts} attempts");
    client.warren.run("cleanup").ok();
    client.assert_host_unchanged();
    leaks.assert_all("the kill switch is open again");
}
