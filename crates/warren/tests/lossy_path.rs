//! Lossy paths: losses do not change the path's MTU. Without congestion control, all datagrams arrive that the path does not
//! lose.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::time::{Duration, Instant};

use crate::support::cores::Core;
use crate::support::flows::{Flood, echo_sized, flood};
use crate::support::trains::{capacity, offer};
use crate::support::{Client, Exit, Net, Profile, asked, eventually, seconds};

/// Mbit/s that a busy test machine carries easily, in packets of the TUN's MTU.
const OFFERED: u64 = 40;
/// Payload bytes of a packet of the TUN's MTU.
const LENGTH: u16 = 1_352;
/// Percentage of lost datagrams.
const LOSSES: [u64; 4] = [0, 5, 13, 15];

#[test]
fn random_loss_leaves_the_mtu_alone_and_takes_only_its_share() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let profile = exit.enrol("laptop").with("transport", "congestion", "off");
    let client = Client::with(&net, &profile);
    client.up();
    single_datagrams(&net);
    wide(&client, &exit);
    for percent in LOSSES {
        net.filter(&lose(percent));

        let Flood { sent, received } = flood(&net, OFFERED, LENGTH.into(), seconds(3));

        let expected = sent * (100 - percent) / 100;
        assert!(received * 10 >= expected * 9, "{percent} %: {received} of {sent} arrived");
        assert!(percent == 0 || received < sent, "{percent} %: no datagram was lost");
    }
    for status in [client.status(), exit.status()] {
        assert!(status.each("mtu").iter().all(|mtu| *mtu > 1400), "{:?}", status.each("mtu"));
        assert_eq!(status.sum("black_holes"), 0);
        assert_eq!(
            status.drop("carrier", "too_large") + status.number("/transport_drops/transport_too_large"),
            0
        );
    }

    // The control: the same checks notice a path that really shrank.
    net.narrow_path_silently(1300);
    flood(&net, OFFERED, LENGTH.into(), seconds(1));
    eventually(seconds(10), "the narrow path is noticed", || {
        client.status().sum("black_holes") > 0 && client.status().each("mtu").iter().any(|mtu| *mtu < 1300)
    });
}

#[test]
fn a_path_that_shrank_in_silence_while_nobody_spoke_is_known_soon_after_somebody_does() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();
    wide(&client, &exit);

    net.narrow_path_silently(1400);

    // Each echo request uses another port, so that every connection carries at least one.
    eventually(seconds(25), "both sides know the narrow path", || {
        echo_sized(&net.client, Net::INTERNET_V4, 1_352);
        let known = |mtus: Vec<u64>| mtus.iter().all(|mtu| (1340..=1372).contains(mtu));
        known(client.status().each("mtu")) && known(exit.status().each("mtu"))
    });
}

/// For row F2 of the scorecard (docs/torture.md), run this test with `WARREN_LOSS_SECONDS=60` and
/// `WARREN_CONTROLLERS=off,cubic,bbr3`. The load is 60 % of what the tunnel carries through the same rules without loss. No rate
/// or queue is emulated. The limit is the core that both ends share, because they send each datagram in a separate system call in
/// this test. The sender runs on the other core, as in L7.
#[test]
#[ignore = "takes minutes; `scripts/torture loss` runs it"]
fn no_loss_for_however_long_costs_the_mtu_whatever_the_controller() {
    let Some(net) = Net::new() else { return };
    let lasting = asked("WARREN_LOSS_SECONDS").unwrap_or(3);
    let mut exit = Exit::start(&net);
    let profile = exit.enrol("laptop");
    single_datagrams(&net);
    let [tunnels, sender] = Core::two();
    tunnels.take_process(exit.daemon().pid());
    for controller in asked("WARREN_CONTROLLERS").unwrap_or("off".to_owned()).split(',') {
        let client = up_with(&net, &exit, &profile, controller);
        tunnels.take_process(i32::try_from(client.status().number("/pid")).unwrap());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                sender.take_this_thread();
                lose_of_60_percent(&net, controller, lasting);
            });
        });
        net.unfilter();
        bursts_beyond(&net);
        for status in [client.status(), exit.status()] {
            let mtus = status.each("mtu");
            assert!(mtus.iter().all(|mtu| *mtu > 1400), "{controller}: {mtus:?}");
            assert_eq!(status.sum("black_holes"), 0, "{controller}");
            let transport = status.number("/transport_drops/transport_too_large");
            assert_eq!(status.drop("carrier", "too_large") + transport, 0, "{controller}");
        }
        client.down();
    }
}

/// Offers 60 % of the capacity at each loss rate, in full-size packets.
fn lose_of_60_percent(net: &Net, controller: &str, lasting: u64) {
    net.filter(&lose(0));
    let offered = capacity(net, LENGTH.into()) * 6 / 10;
    let mut arrived = Vec::new();
    for percent in LOSSES {
        net.filter(&lose(percent));
        let due = offered * lasting;
        let Flood { received, .. } = offer(net, offered, LENGTH.into(), seconds(lasting));
        arrived.push(format!("{:.1} % at {percent} %", received as f64 * 100.0 / due as f64));
        // Only without a controller must all other packets arrive, because controllers slow down on loss.
        if controller == "off" {
            assert!(received * 1000 >= due * (100 - percent) * 9, "{percent} %: {received} of {due}");
        }
    }
    let megabits = offered * (u64::from(LENGTH) + 28) * 8 / 1_000_000;
    println!(
        "measured: {controller}: of {megabits} Mbit/s, 60 % of the capacity, arrived {}",
        arrived.join(", ")
    );
}

/// Measures which congestion controller of the carrier suits TCP inside the tunnel. The test only asserts that each run has a
/// result.
#[test]
#[ignore = "a measurement; `scripts/torture loss` runs it"]
fn what_a_tcp_flow_inside_carries_by_controller_and_loss() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let profile = exit.enrol("laptop");
    let _server = net.internet.iperf3(5201);
    single_datagrams(&net);
    for controller in ["off", "cubic", "bbr3"] {
        let client = up_with(&net, &exit, &profile, controller);
        for inner in ["cubic", "bbr"] {
            let mut carried = Vec::new();
            for percent in LOSSES {
                net.filter(&lose(percent));
                carried.push(format!("{:.1} at {percent} %", inner_tcp(&client, inner)));
            }
            println!("measured: {inner} inside {controller}, Mbit/s: {}", carried.join(", "));
        }
        net.unfilter();
        client.down();
    }
}

/// Scorecard F1.
#[test]
#[ignore = "takes a minute; `scripts/torture loss` runs it"]
fn ten_megabytes_arrive_whole_whatever_the_loss_and_never_stand_still() {
    const BYTES: u64 = 10_000_000;
    const WINDOW: Duration = seconds(30);
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    single_datagrams(&net);
    let page = format!("http://{}/bytes/{BYTES}", Net::INTERNET_V4);
    let whole = net.internet.host.sh(&format!("curl --silent {page} | sha256sum")).ok();
    net.internet.host.sh("sysctl -qw net.ipv4.tcp_no_metrics_save=1").ok();
    client.up();
    let mut measured = Vec::new();

    // At 20 % loss in both directions, Cubic stalls for minutes with or without a tunnel.
    for (percent, inner) in [(1, "cubic"), (5, "cubic"), (10, "cubic"), (20, "bbr")] {
        let route = format!("ip route replace default via 203.0.113.1 congctl {inner}");
        net.internet.host.sh(&route).ok();
        net.filter(&lose(percent));
        let start = Instant::now();
        let file = client.warren.state("download");
        let mut download = net.client.start(&[
            "curl",
            "--silent",
            "--max-time",
            "150",
            "--output",
            file.to_str().unwrap(),
            &page,
        ]);
        let mut sizes = vec![(start, 0)];
        while download.is_running() {
            std::thread::sleep(Duration::from_millis(200));
            sizes.push((Instant::now(), file.metadata().map_or(0, |data| data.len())));
        }
        let took = start.elapsed();
        let sum = client.sh(&format!("sha256sum < {}", file.display()));
        assert_eq!(sum, whole, "{percent} %");
        // `least` is the smallest number of bytes that arrived in any half minute.
        let least = sizes.iter().filter_map(|(from, size)| {
            sizes.iter().find(|(at, _)| *at >= *from + WINDOW).map(|(_, later)| later - size)
        });
        let least = least.min();
        assert!(least.is_none_or(|bytes| bytes >= 10 * 1024 * WINDOW.as_secs()), "{percent} %: {least:?}");
        measured.push(format!("{:.1} s at {percent} % ({inner})", took.as_secs_f64()));
        std::fs::remove_file(file).unwrap();
    }

    net.unfilter();
    let status = client.status();
    println!("measured: {BYTES} bytes arrived complete in {}", measured.join(", "));
    assert_eq!((status.number("/totals/connections_ended"), status.number("/reconnects")), (0, 0));
    client.down();
}

/// Brings both sides up with a congestion controller, and waits until they know the path MTU.
fn up_with<'net>(net: &'net Net, exit: &Exit<'_>, profile: &Profile, controller: &str) -> Client<'net> {
    let client = Client::with(net, &profile.clone().with("transport", "congestion", controller));
    exit.warren.run(&format!("set congestion {controller}")).ok();
    client.up();
    wide(&client, exit);
    client
}

/// Mbit/s of a TCP flow inside the tunnel over eight seconds. A stuck flow counts as zero.
fn inner_tcp(client: &Client<'_>, controller: &str) -> f64 {
    let line = format!("timeout 20 iperf3 -c {} -C {controller} -t 8 -J || true", Net::INTERNET_V4);
    let output: serde_json::Value = serde_json::from_str(&client.sh(&line)).unwrap_or_default();
    output.pointer("/end/sum_received/bits_per_second").and_then(serde_json::Value::as_f64).unwrap_or(0.0)
        / 1e6
}

/// Three bursts of three seconds at twice the rate of the client's uplink.
fn bursts_beyond(net: &Net) {
    net.client.sh("tc qdisc add dev eth0 root tbf rate 20mbit burst 32kb latency 20ms").ok();
    for _ in 0..3 {
        flood(net, OFFERED, LENGTH.into(), seconds(3));
    }
    net.client.sh("tc qdisc del dev eth0 root").ok();
}

fn wide(client: &Client<'_>, exit: &Exit<'_>) {
    eventually(seconds(10), "both sides know the wide path", || {
        client.status().each("mtu").into_iter().chain(exit.status().each("mtu")).all(|mtu| mtu > 1400)
    });
}

/// Turns off batches of datagrams. The router would pass or drop a batch as one packet.
fn single_datagrams(net: &Net) {
    for host in [&net.client, &net.exit] {
        host.sh("ethtool -K eth0 tx-udp-segmentation off").ok();
    }
}

fn lose(percent: u64) -> String {
    format!(
        "udp dport 443 numgen random mod 100 < {percent} drop; udp sport 443 numgen random mod 100 < {percent} drop;"
    )
}
