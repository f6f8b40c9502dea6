//! Clocks that are wrong or jump. Sessions and handshakes depend neither on the time of day nor on the time since boot.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::time::{SystemTime, UNIX_EPOCH};

use rustix::process::Signal;

use crate::support::{Client, Exit, Net, Preload, eventually, flows, seconds};

const DAY: i64 = 24 * 60 * 60;

#[test]
fn a_wall_clock_that_jumps_ends_no_session_and_keeps_none_from_beginning() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    let directory = tempfile::Builder::new().prefix("wt-").tempdir().unwrap();
    let clock = directory.path().join("offset");
    let wall_clock = Preload::build("wall_clock");
    let set_clock = |offset: i64| std::fs::write(&clock, offset.to_string()).unwrap();
    let offset = format!("WALL_CLOCK={}", clock.display());
    let under = ["env", &wall_clock.variable, &offset];
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let jumps = [400 * DAY, -3 * DAY, -i64::try_from(now.as_secs()).unwrap()];
    set_clock(jumps[2]);
    assert_eq!(
        client.sh(&format!("{} date +%Y", under.join(" "))),
        "1970",
        "the program sees the shifted clock"
    );

    set_clock(0);
    let _daemon = client.run_under(&under, "info");
    let longest_gap = || {
        let asking = flows::answers(&net.client, seconds(5));
        for jump in jumps {
            std::thread::sleep(seconds(1));
            set_clock(jump);
        }
        flows::longest_gap(&asking.join().unwrap())
    };
    // On a busy machine, a process may be delayed this long once, so there are three tries. If the clock had an effect, all three
    // would fail.
    let gap = (0..3).map(|_| longest_gap()).find(|gap| *gap <= seconds(1));
    let gap = gap.expect("three jumps of the wall clock stalled the tunnel for over a second, three times");
    println!(
        "measured: F13: during three jumps of the wall clock, echoes every 20 ms paused for {gap:.0?} at most; no connection was replaced"
    );
    assert_eq!(client.status().number("/totals/connections_ended"), 0);

    for jump in jumps {
        set_clock(jump);
        reconnect(&net, &mut exit, &client, &format!("the wall clock {jump} s off"));
    }
    client.down();
}

#[test]
fn a_machine_that_has_run_for_long_is_no_different() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    let under =
        ["unshare", "--time", "--fork", "--kill-child", "--monotonic", "1000000", "--boottime", "1000000"];
    let uptime = client.sh(&format!("{} cat /proc/uptime", under.join(" ")));
    assert!(uptime.split('.').next().unwrap().parse::<u64>().unwrap() > 1_000_000, "{uptime}");

    let _daemon = client.run_under(&under, "info");
    client.sh("ping -c 3 -i 0.2 -W 2 203.0.113.2");
    reconnect(&net, &mut exit, &client, "1,000,000 s since boot");
    client.down();
}

/// Restarts the exit as a new process, and waits until the client has found it.
fn reconnect(net: &Net, exit: &mut Exit<'_>, client: &Client<'_>, clock: &str) {
    let session = client.status().number("/session/id");
    exit.stop(Signal::KILL);
    exit.run();
    let took = eventually(seconds(30), "the client has reconnected", || {
        net.client.sh("ping -c 1 -W 1 203.0.113.2");
        let status = client.status();
        status.number("/session/id") != session && status.text("/state") == "up"
    });
    println!("measured: F13: with {clock}, reconnected {took:.1?} after the exit ran again");
    client.sh("ping -c 3 -i 0.2 -W 2 203.0.113.2");
}
