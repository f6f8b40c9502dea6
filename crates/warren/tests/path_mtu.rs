//! Narrow paths: a packet of 1,280 bytes, the minimum for IPv6, passes wherever QUIC itself does.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::time::{Duration, Instant};

use crate::support::flows::echo_sized;
use crate::support::{Client, Exit, ExitOptions, Family, Net, eventually, seconds};

#[test]
fn packets_of_1280_bytes_pass_a_path_of_1228_under_ipv4() {
    assert_narrow_path_passes(Family::V4, 1228);
}

#[test]
fn packets_of_1280_bytes_pass_a_path_of_1300_under_ipv4() {
    assert_narrow_path_passes(Family::V4, 1300);
}

#[test]
fn packets_of_1280_bytes_pass_a_path_of_1280_under_ipv6() {
    assert_narrow_path_passes(Family::V6, 1280);
}

#[test]
fn packets_of_1280_bytes_pass_a_path_of_1300_under_ipv6() {
    assert_narrow_path_passes(Family::V6, 1300);
}

#[test]
fn a_path_that_becomes_narrow_under_traffic_carries_packets_again() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();
    let _server = net.internet.iperf3(5201);
    let _load = net.client.start(&["iperf3", "-c", Net::INTERNET_V4, "-P", "16", "--bidir", "-t", "60"]);
    eventually(seconds(10), "both sides know the wide path", || {
        client.status().each("mtu").into_iter().chain(exit.status().each("mtu")).all(|mtu| mtu > 1400)
    });

    net.narrow_path_silently(1228);

    // This usually takes three to nine seconds. Eight probes must be lost, and on a busy machine each takes up to two seconds.
    eventually(seconds(45), "packets of 1280 bytes pass again", || {
        ping(&net, Family::V4, 1280) && ping(&net, Family::V6, 1280)
    });
    let moved = |client: &Client<'_>| client.status().number("/totals/tun_written_bytes");
    let before = moved(&client);
    eventually(seconds(30), "TCP moves again", || moved(&client) > before + 1_000_000);
    assert_eq!(client.status().number("/reconnects"), 0, "the session survives");
}

#[test]
#[ignore = "takes half a minute; `scripts/torture holes` runs it"]
fn a_download_goes_on_within_seconds_each_time_the_path_shrinks_in_silence() {
    const BYTES: u64 = 60_000_000;
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    let fetch = format!("curl -sS --max-time 80 http://203.0.113.2/bytes/{BYTES}");
    let right = net.exit.sh(&format!("{fetch} | sha256sum")).ok();
    client.up();
    let directory = tempfile::Builder::new().prefix("wt-").tempdir().unwrap();
    let file = directory.path().join("download");
    net.router.sh("tc qdisc add dev to-client root tbf rate 20mbit burst 64kb latency 50ms").ok();
    let mut download = net.client.start(&["sh", "-c", &format!("{fetch} > {}", file.display())]);
    let arrived = || std::fs::metadata(&file).map_or(0, |file| file.len());
    let (start, mut size, mut grew, mut longest) = (Instant::now(), 0, Instant::now(), Duration::ZERO);
    let mut steps = [(4, Some(1400)), (12, Some(1300)), (20, None)].into_iter().peekable();

    while download.is_running() {
        if let Some((_, mtu)) = steps.next_if(|(at, _)| start.elapsed() > seconds(*at)) {
            match mtu {
                Some(mtu) => net.narrow_path_silently(mtu),
                None => net.unfilter(),
            }
        }
        if arrived() > size {
            (size, grew) = (arrived(), Instant::now());
        }
        longest = longest.max(grew.elapsed());
        std::thread::sleep(Duration::from_millis(50));
    }

    println!(
        "measured: stood still for {:.1} s at most; {:.0} s in all",
        longest.as_secs_f64(),
        start.elapsed().as_secs_f64()
    );
    assert!(steps.peek().is_none(), "the transfer ended too soon");
    assert!(longest < seconds(10), "{longest:?}");
    assert_eq!(client.sh(&format!("sha256sum < {}", file.display())), right);
    assert_eq!(client.status().number("/reconnects"), 0, "the session survives");
    client.down();
}

/// The rest of scorecard F11.
#[test]
#[ignore = "takes eleven minutes; `scripts/torture holes --release` runs it"]
fn a_path_that_is_wide_again_is_known_within_eleven_minutes_on_an_idle_tunnel() {
    const WITHIN: Duration = seconds(650);
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();
    let all = |holds: &dyn Fn(u64) -> bool| {
        client.status().each("mtu").into_iter().chain(exit.status().each("mtu")).all(holds)
    };
    eventually(seconds(10), "both sides know the wide path", || all(&|mtu| mtu > 1400));
    net.narrow_path_silently(1300);
    eventually(seconds(60), "the narrow path is known", || {
        echo_sized(&net.client, Net::INTERNET_V4, 1_352);
        all(&|mtu| mtu <= 1272)
    });
    // An exit probes only after its client has sent something.
    eventually(seconds(60), "the MTU search on the narrow path has finished", || {
        all(&|mtu| (1240..=1272).contains(&mtu))
    });

    net.unfilter();
    let restored = Instant::now();
    while !all(&|mtu| mtu > 1400) {
        assert!(restored.elapsed() < WITHIN, "{:?}", client.status().each("mtu"));
        std::thread::sleep(seconds(1));
    }

    println!(
        "measured: wide again on every connection, both ways, {:.0?} after the path",
        restored.elapsed()
    );
    assert_eq!(client.status().number("/totals/connections_ended"), 0);
    let fragments = client.status().number("/totals/fragments_sent");
    assert!(echo_sized(&net.client, Net::INTERNET_V4, 1_352));
    assert_eq!(
        client.status().number("/totals/fragments_sent"),
        fragments,
        "packets are no longer fragmented"
    );
    client.down();
}

fn assert_narrow_path_passes(outer: Family, mtu: u16) {
    let Some(net) = Net::new() else { return };
    net.narrow_path(mtu);
    let endpoint = match outer {
        Family::V4 => format!("{}:443", Net::EXIT_V4),
        Family::V6 => format!("[{}]:443", Net::EXIT_V6),
    };
    let exit = Exit::start_with(&net, &ExitOptions { endpoint, ..ExitOptions::default() });
    let client = Client::with(&net, &exit.enrol("laptop"));
    let remote = if outer == Family::V4 { Net::EXIT_V4 } else { Net::EXIT_V6 };
    let whole = |bytes: u16| {
        let headers = if outer == Family::V4 { 28 } else { 48 };
        net.client.sh(&format!("ping -M do -c 1 -W 1 -s {} {remote}", bytes - headers)).succeeded()
    };
    assert!(whole(mtu) && !whole(mtu + 1), "the path is not as narrow as configured");

    client.up();

    for inner in [Family::V4, Family::V6] {
        for bytes in [1280, 1228, 1229, 1380] {
            assert!(ping(&net, inner, bytes), "{bytes} bytes of {inner:?} over a path of {mtu}");
        }
    }
    client.sh("curl -sS --max-time 30 -o /dev/null http://203.0.113.2/bytes/2000000");
    assert!(client.status().number("/totals/fragments_sent") > 0 || mtu > 1320);
    assert!(exit.status().number("/totals/fragments_sent") > 0 || mtu > 1320);
}

/// Whether one echo request, `bytes` bytes long including the inner IP header, is answered without fragmentation in either
/// direction.
fn ping(net: &Net, family: Family, bytes: u16) -> bool {
    let (version, headers, address) = match family {
        Family::V4 => (4, 28, Net::INTERNET_V4),
        Family::V6 => (6, 48, Net::INTERNET_V6),
    };
    net.client.sh(&format!("ping -{version} -M do -c 1 -W 2 -s {} {address}", bytes - headers)).succeeded()
}
