//! The exit stops and comes back. Traffic resumes with the same inner addresses.
#![allow(clippy::indexing_slicing, clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::counters::packets_counted;
use crate::support::{Client, Exit, Net, Running, eventually, flows, seconds};

#[test]
fn after_sigterm_traffic_is_back_within_five_seconds_and_tcp_flows_live_on() {
    assert_traffic_comes_back_after(Signal::TERM);
}

#[test]
fn after_sigkill_traffic_is_back_within_five_seconds_and_tcp_flows_live_on() {
    assert_traffic_comes_back_after(Signal::KILL);
}

/// Negative control: without the hold table, a restart ends the flows of the tests above.
#[test]
fn without_the_hold_table_a_restart_ends_tcp_flows() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();
    let _server = net.internet.iperf3(5201);
    let mut load = download(&net, 10);
    eventually(seconds(10), "the load flows", || carried(&exit) > 10_000_000);

    net.exit.sh("nft delete table inet warren_exit_hold").ok();
    exit.stop(Signal::KILL);
    std::thread::sleep(seconds(1));
    exit.run();

    assert_ne!(load.wait(seconds(30)), Some(0), "{}", load.output());
}

/// Scorecard F7.
#[test]
#[ignore = "takes minutes; `scripts/torture restarts` runs it"]
fn ten_stops_and_ten_kills_cost_seconds_each_and_no_tcp_flow() {
    const EACH: usize = 10;
    const ROUND: Duration = seconds(8);
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();
    let addresses = client.inner_addresses();
    let tcp = flows::TcpFlows::open(&net, 4);
    let asking = flows::answers(&net.client, ROUND * 2 * u32::try_from(EACH).unwrap() + seconds(5));
    let mut listening = Vec::new();
    let mut alive = Vec::new();
    for ending in [[Signal::TERM; EACH], [Signal::KILL; EACH]].concat() {
        let start = Instant::now();
        exit.stop(ending);
        std::thread::sleep(Duration::from_millis(1_500));
        exit.run();
        listening.push(Instant::now());
        alive.push(tcp.alive());
        assert_eq!(client.inner_addresses(), addresses);
        std::thread::sleep(ROUND.saturating_sub(start.elapsed()));
    }

    let answers = asking.join().unwrap();
    let back = |from: &Instant| *answers.iter().find(|at| *at > from).expect("traffic came back") - *from;
    let mut took: Vec<Duration> = listening.iter().map(back).collect();
    took.sort();
    let (p95, longest) = (took[took.len() * 95 / 100 - 1], took[took.len() - 1]);
    let alive = alive.iter().filter(|flows| **flows == 4).count();
    println!(
        "measured: {} restarts, by SIGTERM and by SIGKILL: traffic is back {p95:.1?} after the exit listens in 95 of 100, {longest:.1?} \
         at most; the same addresses, and all of four TCP flows alive {alive} times",
        took.len()
    );
    assert!(p95 <= seconds(3) && longest <= seconds(5), "{took:?}");
    assert_eq!(alive, took.len());
    assert_eq!(client.status().text("/state"), "up");
    client.down();
}

fn assert_traffic_comes_back_after(ending: Signal) {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop").with("transport", "connections", 4));
    client.up();
    let addresses = client.inner_addresses();
    let untranslated = Untranslated::count(&net);
    let _server = net.internet.iperf3(5201);
    let mut load = download(&net, 15);
    let asking = flows::answers(&net.client, seconds(15));
    eventually(seconds(10), "the load flows", || carried(&exit) > 10_000_000);

    exit.stop(ending);
    let stopped = Instant::now();
    std::thread::sleep(Duration::from_millis(1_500));
    exit.run();
    let listening = Instant::now();

    let answers = asking.join().unwrap();
    let back = answers.iter().find(|at| **at > listening).expect("traffic came back");
    let took = *back - listening;
    println!("{ending:?}: back {took:?} after the exit answered");
    assert!(took < seconds(5), "the restart took {took:?}");
    assert!(answers.iter().any(|at| *at < stopped), "there was traffic before");
    assert!(
        !answers.iter().any(|at| *at > stopped && *at < stopped + seconds(1)),
        "the exit was really down"
    );
    assert_eq!(client.inner_addresses(), addresses);
    assert_eq!(client.status().text("/state"), "up");
    assert_eq!(load.wait(seconds(30)), Some(0), "the flows survive: {}", load.output());
    eventually(seconds(10), "every connection is back", || client.status().list("/connections").len() == 4);
    client.down();
    // Scorecard C3: nothing leaves the exit with an inner address, even while the daemon is stopped.
    assert_eq!(untranslated.packets(), 0);
    exit.stop(Signal::TERM);
    net.exit.sh("ip address add 10.66.9.9/32 dev lo; ping -c 1 -W 1 -I 10.66.9.9 203.0.113.2");
    assert_eq!(untranslated.packets(), 1, "negative control");
}

/// Counts packets that the router receives from the exit with an inner source address.
struct Untranslated<'net>(&'net Net);

impl<'net> Untranslated<'net> {
    fn count(net: &'net Net) -> Self {
        let rules = "ip saddr 10.66.0.0/16 counter; ip6 saddr fd66:6666::/64 counter;";
        let chain = format!("type filter hook ingress device \"to-exit\" priority 0; {rules}");
        net.router.sh(&format!("nft 'table netdev untranslated {{ chain in {{ {chain} }}; }}'")).ok();
        Self(net)
    }

    fn packets(&self) -> u64 {
        let listed = self.0.router.sh("nft list table netdev untranslated").ok();
        packets_counted(&listed).iter().sum()
    }
}

/// Four TCP flows from the internet through the tunnel. The program fails if one of them breaks.
fn download(net: &Net, seconds: u32) -> Running {
    net.client.start(&["iperf3", "-c", Net::INTERNET_V4, "-R", "-P", "4", "-t", &seconds.to_string()])
}

fn carried(exit: &Exit<'_>) -> u64 {
    exit.status().number("/totals/tun_read_bytes")
}
