//! An attacker on the path replays a client's datagrams.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use rustix::process::Signal;

use crate::bad_wire::datagrams_one_by_one;
use crate::support::counters::packets_of_one;
use crate::support::{Client, Exit, Net, OpenMetrics, eventually, flows, seconds};

/// Scorecard B10.
#[test]
#[ignore = "takes a while; `scripts/torture forged` runs it"]
fn a_thousand_datagrams_that_are_sent_ten_times_more_bring_nothing_out_also_after_a_restart() {
    const KEPT: usize = 1_000;
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    datagrams_one_by_one(&net);
    client.up();
    let seen =
        "table inet seen { chain in { type filter hook prerouting priority raw; udp dport 5300 counter; }; }";
    net.internet.host.sh(&format!("nft '{seen}'")).ok();
    let seen = || packets_of_one(&net.internet.host.sh("nft list table inet seen").ok());
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("frames").display().to_string();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/replay.py");
    let mut keeping =
        net.router.start(&["python3", "-u", script, "keep", "to-exit", &KEPT.to_string(), &file]);
    eventually(seconds(10), "the script listens", || keeping.output().contains("listens"));

    // Payloads of this size are so large that a datagram contains only one packet.
    let flood = flows::flood(&net, 10, 1_172, seconds(3));

    assert_eq!(keeping.wait(seconds(10)), Some(0), "{}", keeping.output());
    let before = seen();
    assert!(before > KEPT as u64 && before == flood.received, "{before}, {flood:?}");
    let received = |exit: &Exit<'_>| {
        let metrics = OpenMetrics::scrape(&net);
        assert!(exit.status().number("/clients/connected") <= 1);
        metrics.samples["warren_datagrams_per_receive_sum"]
    };
    // Replays the datagrams. Returns how many reached the exit, and how many inner packets left it.
    let again = |exit: &Exit<'_>| {
        let first = received(exit);
        let mut sending = net.router.start(&["python3", script, "send", "to-exit", "10", &file]);
        assert_eq!(sending.wait(seconds(60)), Some(0), "{}", sending.output());
        std::thread::sleep(seconds(1));
        (received(exit) - first, seen() - before)
    };
    let (arrived, twice) = again(&exit);
    exit.stop(Signal::KILL);
    exit.run();
    let (arrived_after_restart, after_restart) = again(&exit);
    println!(
        "measured: {KEPT} datagrams replayed ten times: {arrived} reached the exit, and {twice} inner packets came out again; after a \
         restart {arrived_after_restart} reached the exit, and {after_restart} inner packets came out again"
    );
    for arrived in [arrived, arrived_after_restart] {
        assert!(arrived >= 10.0 * KEPT as f64 * 0.9, "{arrived}");
    }
    assert_eq!((twice, after_restart), (0, 0));
    client.down();
}
