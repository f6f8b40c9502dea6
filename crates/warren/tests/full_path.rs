//! A congested path: how flows share it, and how a small flow fares on it.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use serde_json::Value;

use crate::support::{Client, Exit, Net, seconds};

/// The bottleneck's rate, and the length of its queue.
const MEGABITS: u32 = 50;
const QUEUE_MS: f64 = 50.0;

/// Scorecard L3.
#[test]
#[ignore = "a measurement; `scripts/torture flows` runs it"]
fn four_five_and_fifty_flows_share_the_tunnel() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();
    let _server = net.internet.iperf3(5201);
    let mut measured = Vec::new();
    for (version, internet) in [(4, Net::INTERNET_V4), (6, Net::INTERNET_V6)] {
        for flows in [4, 5, 50] {
            let load = client.sh(&format!("timeout 30 iperf3 -{version} -c {internet} -P {flows} -t 3 -J"));

            let rates = rates(&load);
            assert_eq!(rates.len(), flows);
            assert!(rates.iter().all(|rate| *rate > 0.0), "IPv{version}, {flows}: {rates:?}");
            let fairness = jain(&rates);
            measured.push(format!(
                "{flows} over IPv{version} {:.0} Mbit/s, Jain {fairness:.2}",
                rates.iter().sum::<f64>() / 1e6
            ));
            assert!(flows < 50 || fairness >= 0.8, "IPv{version}, {flows}: {fairness}");
        }
    }
    println!("measured: {}", measured.join("; "));
}

/// Scorecard L5.
#[test]
#[ignore = "a measurement; `scripts/torture flows` runs it"]
fn a_ping_gets_through_a_slow_path_that_is_full_both_ways() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();
    let _server = net.internet.iperf3(5201);
    let base = ping(&client, 50);
    for host in [&net.client, &net.exit] {
        // Makes the bottleneck count datagrams instead of batches.
        host.sh("ethtool -K eth0 tx-udp-segmentation off").ok();
    }
    for (host, device) in [(&net.client, "eth0"), (&net.router, "to-client")] {
        let queue = format!("rate {MEGABITS}mbit burst 64kb latency {QUEUE_MS}ms");
        host.sh(&format!("tc qdisc add dev {device} root tbf {queue}")).ok();
    }
    let load = ["iperf3", "-c", Net::INTERNET_V4, "-P", "4", "--bidir", "-t", "20", "-J"];
    let mut load = net.client.start(&load);
    std::thread::sleep(seconds(6));

    let loaded = ping(&client, 500);

    let p99 = loaded[loaded.len() * 99 / 100];
    let bound = base[base.len() / 2] + QUEUE_MS + 20.0;
    assert_eq!(load.wait(seconds(40)), Some(0), "{}", load.output());
    for direction in ["sum_received", "sum_received_bidir_reverse"] {
        let load: Value = serde_json::from_str(&load.output()).unwrap();
        let rate = load["end"][direction]["bits_per_second"].as_f64().unwrap();
        assert!(rate > f64::from(MEGABITS) * 1e6 / 2.0, "{direction}: {rate}");
    }
    println!(
        "measured: {MEGABITS} Mbit/s with a queue of {QUEUE_MS} ms: {} of 500 answered, median {:.1} ms, p99 {p99:.1} of {bound:.1} ms, slowest {:.1} ms",
        loaded.len(),
        loaded[loaded.len() / 2],
        loaded[loaded.len() - 1]
    );
    assert!(p99 <= bound, "{p99} ms");
    assert!(loaded[loaded.len() - 1] <= 200.0, "{:?}", loaded.last());
    // Some pings may be lost, because the bottleneck drops all packets for which its queue has no room.
    assert!(loaded.len() >= 475, "{}", loaded.len());
}

/// The throughput of each flow of an iperf3 run, in bits per second.
fn rates(output: &str) -> Vec<f64> {
    let output: Value = serde_json::from_str(output).unwrap();
    let streams = output.pointer("/end/streams").unwrap().as_array().unwrap();
    let rate = |stream: &Value| stream.pointer("/receiver/bits_per_second")?.as_f64();
    streams.iter().map(|stream| rate(stream).unwrap()).collect()
}

/// Jain's fairness index: 1 if all flows have the same rate, 1/n if one flow has the whole rate.
fn jain(rates: &[f64]) -> f64 {
    let sum: f64 = rates.iter().sum();
    let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
    sum * sum / (squares * rates.len() as f64)
}

/// Pings the internet host. Returns the response times in milliseconds, sorted.
fn ping(client: &Client<'_>, count: u32) -> Vec<f64> {
    let output = client.sh(&format!("ping -n -i 0.02 -W 1 -c {count} {} || true", Net::INTERNET_V4));
    let took = |line: &str| line.split_once("time=")?.1.split_whitespace().next()?.parse().ok();
    let mut times: Vec<f64> = output.lines().filter_map(took).collect();
    times.sort_by(f64::total_cmp);
    assert!(!times.is_empty(), "{output}");
    times
}
