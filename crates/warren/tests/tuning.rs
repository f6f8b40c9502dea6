//! `warren set` takes effect at once, on running connections.
#![allow(clippy::indexing_slicing, clippy::unwrap_used, reason = "test code")]

use crate::support::{Client, Exit, Net, Status, eventually, flows, seconds};

#[test]
fn segments_per_send_follow_a_changed_cap_while_traffic_runs() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();
    let _server = net.internet.iperf3(5201);
    let _load = net.client.start(&["iperf3", "-c", Net::INTERNET_V4, "-t", "60", "-P", "4", "--bidir"]);
    eventually(seconds(10), "sends reach the first cap", || {
        [client.status(), exit.status()].iter().all(|status| largest_send(status, None) == 40)
    });

    for cap in [10, 25, 3] {
        for (warren, profile) in [(&client.warren, "home"), (&exit.warren, "exit")] {
            let status = || warren.status().expect("the daemon answers");
            let before = status().number("/transport/max_transmit_segments");
            let said = warren.run(&format!("set max_transmit_segments {cap} --profile {profile}")).ok();
            assert_eq!(said, format!("{profile}: max_transmit_segments = {cap} (was {before})"));

            let start = status();
            assert_eq!(start.number("/transport/max_transmit_segments"), cap);
            let mut largest = 0;
            eventually(seconds(10), &format!("sends of {profile} reach {cap} segments"), || {
                largest = largest_send(&status(), Some(&start));
                largest >= cap
            });
            assert_eq!(largest, cap, "{profile}");
        }
    }
}

#[test]
fn every_tunable_changes_on_a_running_tunnel_and_traffic_goes_on() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();
    let changes = [
        ("max_transmit_datagrams", "20"),
        ("receive_batches", "2"),
        ("tun_batches", "4"),
        ("congestion", "bbr3"),
        ("congestion", "off"),
    ];
    for (key, value) in changes {
        for (warren, profile) in [(&client.warren, "home"), (&exit.warren, "exit")] {
            warren.run(&format!("set {key} {value} --profile {profile}")).ok();
            let status = warren.status().expect("the daemon answers");
            assert_eq!(status.0["transport"][key].to_string().trim_matches('"'), value, "{profile}");
        }
        client.sh("curl -sS --max-time 20 http://203.0.113.2/bytes/3000000 | wc -c | grep -qx 3000000");
    }
    // An idle connection changes with its next packet.
    eventually(seconds(15), "no connection has congestion control any more", || {
        flows::unanswered(&net.client, 20_000..20_032);
        client.status().each("cwnd").iter().all(|window| *window > 1 << 32)
    });
}

#[test]
fn what_cannot_be_set_is_refused_with_a_sentence_and_changes_nothing() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let before = exit.status().0["transport"].clone();
    let refused = |line: &str| {
        let finished = exit.warren.run(line);
        (finished.code, finished.stderr)
    };

    for (line, code, sentence) in [
        ("set max_transmit_segments 0", 2, "must be a number from 1 to 128"),
        ("set congestion reno", 2, "must be adaptive, cubic, bbr3, newreno or off"),
        ("set mtu 1280", 2, "\"mtu\" cannot be changed while the daemon runs"),
        ("set tun_batches 8 --profile home", 3, "home.toml: does not exist"),
    ] {
        let (got, said) = refused(line);
        assert_eq!(got, Some(code), "{line}: {said}");
        assert!(said.contains(sentence) && said.lines().count() == 1, "{line}: {said}");
    }
    assert_eq!(exit.status().0["transport"], before);
}

/// The largest number of segments in a single send, since an earlier status or since the start.
fn largest_send(status: &Status, since: Option<&Status>) -> u64 {
    let sends = |status: &Status| -> Vec<u64> {
        let list = status.list("/occupancy/segments_per_send");
        list.iter().map(|count| count.as_u64().unwrap()).collect()
    };
    let earlier = since.map(sends);
    let grown = |index: usize, count: u64| count > earlier.as_ref().map_or(0, |earlier| earlier[index]);
    let now = sends(status);
    let largest = (0..now.len()).rev().find(|index| grown(*index, now[*index])).unwrap_or(0);
    u64::try_from(largest).unwrap()
}
