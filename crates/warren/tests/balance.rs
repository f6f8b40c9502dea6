//! A minute of load: nothing is lost but what is counted.

use std::time::Duration;

use crate::support::{Client, Exit, Net, Status, eventually, seconds};

#[test]
fn after_a_minute_under_eight_flows_both_ways_every_packet_is_accounted_for() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    let mut daemon = client.run("info");
    let _server = net.internet.iperf3(5201);
    let session = client.status().number("/session/id");

    let load = client.sh("timeout 85 iperf3 -c 203.0.113.2 -P 8 --bidir -t 60 -J");

    let load: serde_json::Value = serde_json::from_str(&load).unwrap();
    for direction in ["sum_received", "sum_received_bidir_reverse"] {
        assert!(
            load["end"][direction]["bytes"].as_u64() > Some(0),
            "{direction}: {:#}",
            load["end"][direction]
        );
    }
    let (inside, outside) = drained(&client, &exit);
    assert_eq!(inside.number("/session/id"), session);
    assert_eq!(inside.number("/reconnects"), 0);
    for (role, status) in [("client", &inside), ("exit", &outside)] {
        assert_eq!(status.number("/totals/connections_ended"), 0, "{role}");
        assert_balanced(role, status);
    }
    assert_wire_only_loses(&inside, &outside);
    for (role, output) in [("client", daemon.output()), ("exit", exit.daemon().output())] {
        let complaints: Vec<_> =
            output.lines().filter(|line| line.contains("WARN") || line.contains("ERROR")).collect();
        assert!(complaints.is_empty(), "{role}: {complaints:#?}");
    }
    daemon.signal(rustix::process::Signal::TERM);
    assert_eq!(daemon.wait(seconds(10)), Some(0));
    client.assert_host_unchanged();
}

#[test]
fn what_the_wire_loses_is_sent_less_received_and_the_rest_still_balances() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();
    net.filter(
        "udp dport 443 numgen random mod 100 < 2 counter drop; udp sport 443 numgen random mod 100 < 2 drop;",
    );
    let _server = net.internet.iperf3(5201);

    // iperf3 opens a UDP stream with one datagram, and never begins when that is the one that is lost.
    client.sh("for try in 1 2 3 4 5; do timeout 12 iperf3 -c 203.0.113.2 -u -b 50M -l 1300 -t 5 --bidir && exit; sleep 1; done; exit 1");

    net.unfilter();
    let (inside, outside) = drained(&client, &exit);
    assert_balanced("client", &inside);
    assert_balanced("exit", &outside);
    assert_wire_only_loses(&inside, &outside);
    let lost =
        inside.number("/totals/quic_datagrams_sent") - outside.number("/totals/quic_datagrams_received");
    assert!(lost > 20, "2 % of the datagrams should be lost, and {lost} were");
}

/// Waits until nothing moves and nothing is queued on both sides.
fn drained(client: &Client<'_>, exit: &Exit<'_>) -> (Status, Status) {
    let mut last = (0, 0);
    eventually(seconds(30), "both sides drain", || {
        std::thread::sleep(Duration::from_millis(1_200));
        let counts = (moved(&client.status()), moved(&exit.status()));
        std::mem::replace(&mut last, counts) == counts
    });
    (client.status(), exit.status())
}

fn moved(status: &Status) -> u64 {
    let total = |name: &str| status.number(&format!("/totals/{name}"));
    assert!(total("queued_packets") < 1_000_000, "the queue is bounded");
    let waiting = total("queued_packets") + total("assemblies_pending");
    total("tun_read_packets") + total("carrier_received_datagrams") + waiting * 1_000_000_000
}

/// Each packet that came in went out or is a counted drop.
#[track_caller]
fn assert_balanced(role: &str, status: &Status) {
    let total = |name: &str| status.number(&format!("/totals/{name}"));
    assert_eq!(total("queued_packets") + total("assemblies_pending"), 0, "{role} is drained");
    assert_eq!(
        total("tun_read_packets"),
        total("carrier_sent_packets") + status.drops("carrier"),
        "{role}: packets to the carrier, {:#}",
        status.0
    );
    // Of these no packet was made that could be counted as received.
    let before_a_packet: u64 = ["bad_datagram", "bad_fragment", "fragment_timeout"]
        .iter()
        .map(|reason| status.drop("tun", reason))
        .sum();
    assert_eq!(
        total("carrier_received_packets"),
        total("tun_written_packets") + status.drops("tun") - before_a_packet,
        "{role}: packets from the carrier, {:#}",
        status.0
    );
    let transport = |reason: &str| status.number(&format!("/transport_drops/{reason}"));
    assert_eq!(
        total("carrier_sent_datagrams"),
        total("quic_datagrams_sent")
            + transport("transport_full")
            + transport("transport_too_large")
            + transport("connection_lost"),
        "{role}: datagrams given to QUIC"
    );
    assert_eq!(
        total("carrier_received_datagrams") + transport("receive_buffer_full"),
        total("quic_datagrams_received"),
        "{role}: datagrams taken from QUIC"
    );
    assert_eq!(
        transport("transport_full") + transport("transport_too_large"),
        0,
        "{role}: noq drops nothing itself"
    );
}

/// Nothing appears on the wire that was not sent.
#[track_caller]
fn assert_wire_only_loses(one: &Status, other: &Status) {
    for (sender, receiver) in [(one, other), (other, one)] {
        let sent = sender.number("/totals/quic_datagrams_sent");
        let received = receiver.number("/totals/quic_datagrams_received");
        assert!(sent >= received, "{received} datagrams were received of {sent}");
    }
}
