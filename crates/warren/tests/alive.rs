//! Changes of the path, of the host's network or of the exits do not end the tunnel.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::time::{Duration, Instant};

use rustix::process::Signal;
use warren_quic::settings::IDLE_TIMEOUT;

use crate::support::download::Download;
use crate::support::{Client, Exit, ExitOptions, Net, asked, eventually, flows, seconds};

#[test]
fn one_of_four_connections_that_is_swallowed_loses_its_flows_to_the_others_and_comes_back() {
    const FLOWS: std::ops::Range<u16> = 20_000..20_024;
    const OFFERED: f64 = 8e6;
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop").with("transport", "connections", 4));
    client.up();
    eventually(seconds(10), "every connection is attached", || attached(&client) == 4);
    assert_eq!(flows::unanswered(&net.client, FLOWS), 0);

    let _server = net.internet.iperf3(5201);
    let load = "iperf3 -R -P 8 -b 1M -l 2K -t 10 -i 0.5 -J -c 203.0.113.2".split(' ').collect::<Vec<_>>();
    let mut load = net.client.start(&load);
    let begun = Instant::now();
    std::thread::sleep(seconds(1));

    let port = client.sh("ss -Huan | sed -n 's/.* 0.0.0.0:\\([0-9]*\\) .*/\\1/p' | head -n 1");
    let swallowed = begun.elapsed().as_secs_f64();
    net.filter(&format!("udp sport {port} counter drop; udp dport {port} counter drop;"));

    assert!(flows::unanswered(&net.client, FLOWS) > 0, "the path of some flows is broken");
    std::thread::sleep(seconds(1));
    assert_eq!(flows::unanswered(&net.client, FLOWS), 0, "the flows have moved to other connections");
    // The connection whose packets were dropped carries packets again, from another local port.
    let carried = |client: &Client<'_>| client.status().each("packets_in");
    let before = carried(&client);
    eventually(seconds(10), "every connection carries flows", || {
        flows::unanswered(&net.client, FLOWS);
        carried(&client).iter().zip(&before).all(|(now, before)| now > before)
    });
    assert_eq!(client.status().number("/totals/connections_ended"), 0);
    // Meanwhile eight TCP flows run, some of them on the connection whose packets are dropped.
    assert_eq!(load.wait(seconds(60)), Some(0), "{}", load.output());
    let measured: serde_json::Value = serde_json::from_str(&load.output()).unwrap();
    let number = |interval: &serde_json::Value, name: &str| interval["sum"][name].as_f64().unwrap();
    let later =
        measured["intervals"].as_array().unwrap().iter().filter(|one| number(one, "start") > swallowed + 2.0);
    let (bytes, time) = later
        .fold((0.0, 0.0), |(bytes, time), one| (bytes + number(one, "bytes"), time + number(one, "seconds")));
    let carried = bytes * 8.0 / time;
    println!(
        "measured: goodput of eight flows, from 2 s after the fault on: {:.0} % of the offered load",
        carried / OFFERED * 100.0
    );
    assert!(carried >= OFFERED * 0.75 * 0.9, "{carried} bit/s");
    client.down();
}

/// For row F8 of the scorecard (docs/torture.md), run this test with `WARREN_REBINDS=12`. The rebinds are then five seconds
/// apart. The last third also changes the address.
#[test]
fn a_nat_that_gives_other_ports_and_addresses_costs_less_than_a_second() {
    let Some(net) = Net::new() else { return };
    let rebinds: Option<usize> = asked("WARREN_REBINDS");
    let (count, pause) = rebinds.map_or((3, seconds(2)), |count| (count, seconds(5)));
    let exit = Exit::start(&net);
    net.router.sh("ip address add 198.51.100.9/24 dev to-exit").ok();
    let translate = |to: &str| {
        let rule = format!("ip saddr 192.0.2.2 udp dport 443 snat to {to};");
        net.router.sh("nft 'add table ip n; delete table ip n'").ok();
        let table = format!("table ip n {{ chain c {{ type nat hook postrouting priority 100; {rule} }}; }}");
        net.router.sh(&format!("nft '{table}'")).ok();
        net.router.sh("conntrack -D -p udp --dport 443").ok()
    };
    net.router.sh("nft 'table ip n { chain c { type nat hook postrouting priority 100; ip saddr 192.0.2.2 udp dport 443 snat to 198.51.100.1:10000-10999; }; }'").ok();
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();
    // The echo must run until after the last rebind. Each rebind itself takes some time.
    let each = pause + Duration::from_millis(500);
    let asking = flows::answers(&net.client, each * u32::try_from(count).unwrap() + seconds(2));
    let tcp = flows::TcpFlows::open(&net, 4);
    let download = Download::start(&net);

    let mut last = String::new();
    for number in 0..count {
        std::thread::sleep(pause);
        // Out of three rebinds, the second changes the address. Out of many, the last third switches it back and forth.
        let other = if rebinds.is_some() { number * 3 >= count * 2 && number % 2 == 0 } else { number == 1 };
        let (address, port) = (if other { 9 } else { 1 }, 2 + number % 4);
        last = format!(":{port}");
        translate(&format!("198.51.100.{address}:{port}0000-{port}0999"));
    }

    let gap = flows::longest_gap(&asking.join().unwrap());
    let bytes = download.end();
    println!(
        "measured: {count} other ports and addresses, the longest time without an answer {gap:.1?}; {bytes} bytes downloaded \
         meanwhile, each of them right"
    );
    assert!(gap < if rebinds.is_some() { seconds(1) } else { seconds(2) }, "{gap:?}");
    assert_eq!(tcp.alive(), 4);
    let remotes = format!("{}", exit.status().0["connections"]);
    assert!(remotes.contains(&last), "the exit knows a port of the latest range: {remotes}");
    assert_eq!(client.status().number("/totals/connections_ended"), 0);
}

#[test]
fn a_client_that_moves_to_another_network_takes_its_flows_along() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();
    net.router.sh(&format!("ip link add to-roam type veth peer name eth1 netns {}", net.client.name())).ok();
    net.router.sh("ip address add 192.0.5.1/24 dev to-roam; ip link set to-roam up").ok();
    let _server = net.internet.iperf3(5201);
    let mut load = net.client.start(&["iperf3", "-c", Net::INTERNET_V4, "-R", "-t", "6"]);
    let download = Download::start(&net);
    let asking = flows::answers(&net.client, seconds(7));
    std::thread::sleep(seconds(2));

    client.sh("ip link delete eth0");
    std::thread::sleep(Duration::from_millis(200));
    client
        .sh("ip address add 192.0.5.2/24 dev eth1; ip link set eth1 up; ip route add default via 192.0.5.1 dev eth1");
    let moved = Instant::now();

    let answers = asking.join().unwrap();
    let back = *answers.iter().find(|at| **at > moved).expect("traffic came back") - moved;
    let bytes = download.end();
    println!(
        "measured: back {back:.1?} after the move; {bytes} bytes downloaded before, meanwhile and after, each of them right"
    );
    assert!(back < seconds(2), "{back:?}");
    assert_eq!(load.wait(seconds(20)), Some(0), "the load survives: {}", load.output());
    assert_eq!(client.status().number("/totals/connections_ended"), 0, "no connection was replaced");
}

/// For row F14 of the scorecard (docs/torture.md), run this test with `WARREN_FREEZES=10`. Then ten clients freeze at once, and
/// every second one resumes with another address.
#[test]
fn a_client_frozen_for_longer_than_the_idle_timeout_is_back_at_once() {
    let Some(net) = Net::new() else { return };
    let freezes = asked("WARREN_FREEZES");
    let hosts = net.clients_beside(freezes.unwrap_or(1));
    let lasting = if freezes.is_some() { seconds(60) } else { IDLE_TIMEOUT };
    let exit = Exit::start(&net);
    let clients: Vec<Client<'_>> = hosts
        .iter()
        .enumerate()
        .map(|(number, host)| Client::on(host, &exit.enrol(&format!("laptop-{number}"))))
        .collect();
    clients.iter().for_each(Client::up);
    let pids: Vec<_> = clients.iter().map(|client| client.status().number("/pid")).collect();

    clients.iter().for_each(|client| client.signal(Signal::STOP));
    let frozen = Instant::now();
    eventually(IDLE_TIMEOUT + seconds(20), "the exit has given up the clients", || {
        exit.status().list("/connections").is_empty()
    });
    std::thread::sleep(lasting.saturating_sub(frozen.elapsed()));
    for (number, client) in clients.iter().enumerate().filter(|(number, _)| number % 2 == 0) {
        let network = format!("192.0.{}", 10 + number);
        client.sh(&format!(
            "ip address delete {network}.2/24 dev eth0; ip address add {network}.77/24 dev eth0; \
             ip -4 route replace default via {network}.1 dev eth0"
        ));
    }

    let lasted = frozen.elapsed();
    let mut slowest = Duration::ZERO;
    for (client, pid) in clients.iter().zip(pids) {
        client.sh(&format!("kill -CONT {pid}"));
        let thawed = Instant::now();
        client.sh("timeout 20 sh -c 'until ping -c 1 -W 0.2 203.0.113.2; do :; done'");
        println!("back {:?} after the thaw", thawed.elapsed());
        slowest = slowest.max(thawed.elapsed());
    }
    println!(
        "measured: {0} of {0} clients answered after a freeze of at least {lasted:.0?}, the slowest {slowest:.1?} after its thaw",
        clients.len()
    );
    assert!(slowest < if freezes.is_some() { seconds(3) } else { seconds(10) }, "{slowest:?}");
}

#[test]
fn a_black_hole_of_some_seconds_ends_no_connection() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();

    net.black_hole();
    // An idle client notices the loss at its next keep-alive. A client with traffic notices it at once.
    eventually(seconds(15), "the status is reconnecting", || {
        net.client.sh("ping -c 1 -W 1 203.0.113.2");
        client.status().text("/state") == "reconnecting"
    });
    std::thread::sleep(seconds(8));
    let reason = || client.status().0["last_error"].to_string();
    eventually(seconds(15), "the status says why", || {
        reason().contains("allow UDP port 443 in the exit's firewall")
    });
    let asking = flows::answers(&net.client, seconds(5));
    net.unfilter();
    let opened = Instant::now();

    let answers = asking.join().unwrap();
    let back = *answers.first().expect("traffic came back") - opened;
    println!("back {back:?} after the path");
    assert!(back < seconds(6), "{back:?}");
    assert_eq!(client.status().text("/state"), "up");
    assert_eq!(client.status().number("/totals/connections_ended"), 0);
}

/// Scorecard F19: inner packets of both IP versions over an IPv4 carrier, over an IPv6 carrier, and over the IP version that
/// answers first.
#[test]
#[ignore = "needs three exits; `scripts/torture families` runs it"]
fn both_ip_versions_are_carried_by_each_and_by_a_name_that_has_both() {
    let mut carried = Vec::new();
    for endpoint in
        [format!("{}:443", Net::EXIT_V4), format!("[{}]:443", Net::EXIT_V6), "exit.test:443".into()]
    {
        let Some(net) = Net::new() else { return };
        let options = ExitOptions { endpoint: endpoint.clone(), ..ExitOptions::default() };
        let exit = Exit::start_with(&net, &options);
        let client = Client::with(&net, &exit.enrol("laptop"));
        client.up();
        for inner in [Net::INTERNET_V4, Net::INTERNET_V6] {
            client.sh(&format!("ping -c 3 -i 0.2 -W 2 {inner}"));
            carried.push(format!("{inner} over {endpoint}"));
        }
        client.down();
    }
    println!("measured: {} of 6: {}", carried.len(), carried.join(", "));
    assert_eq!(carried.len(), 6);
}

/// For row F19 of the scorecard (docs/torture.md), run this test with `WARREN_TAKEOVER=3` (seconds).
#[test]
fn when_one_ip_version_breaks_the_other_takes_over_within_seconds() {
    let Some(net) = Net::new() else { return };
    let exit =
        Exit::start_with(&net, &ExitOptions { endpoint: "exit.test:443".into(), ..ExitOptions::default() });
    let client = Client::with(&net, &exit.enrol("laptop").with("transport", "connections", 4));
    client.up();
    let remote = || client.status().text("/exit/address").to_owned();
    let first = remote();
    let asking = flows::answers(&net.client, seconds(13));
    std::thread::sleep(seconds(1));

    let broken = if first.contains("2001") { "ip6" } else { "ip" };
    net.filter(&format!(
        "meta protocol {broken} udp dport 443 drop; meta protocol {broken} udp sport 443 drop;"
    ));

    let gap = flows::longest_gap(&asking.join().unwrap());
    println!("measured: the other version takes over after {gap:.1?}");
    let most = asked("WARREN_TAKEOVER").unwrap_or(8);
    assert!(gap < seconds(most), "{gap:?}");
    assert_ne!(first.contains("2001"), remote().contains("2001"), "{first} and {}", remote());
    eventually(seconds(10), "every connection has moved to the other version", || attached(&client) == 4);
    client.down();
}

#[test]
fn another_exit_takes_over_and_the_first_is_returned_to() {
    let Some(net) = Net::new() else { return };
    let other_host = net.second_client();
    let mut first = Exit::start(&net);
    let mut second = Exit::init_on(&other_host, &ExitOptions::second());
    second.run();
    let profile = first.enrol("laptop");
    let public = first.warren.public_key(profile.value("client", "private_key"));
    let client = Client::with(&net, &profile.with_failover_to(&second.enrol_key("laptop", &public)));
    client.up();
    let endpoint = || client.status().text("/exit/endpoint").to_owned();
    assert_eq!(endpoint(), "198.51.100.2:443");

    first.stop(Signal::TERM);
    let stopped = Instant::now();
    eventually(seconds(10), "the client is on the other exit", || {
        endpoint() == "192.0.3.2:443" && client.status().text("/state") == "up"
    });
    println!("on the other exit {:?} after the first stopped", stopped.elapsed());
    client.sh("ping -c 1 -W 5 203.0.113.2");
    first.run();
    let running = Instant::now();
    eventually(seconds(40), "the client is back on the first exit", || {
        endpoint() == "198.51.100.2:443" && client.status().text("/state") == "up"
    });
    println!("back on the first {:?} after it runs", running.elapsed());
    assert!(running.elapsed() > seconds(5), "the client does not return at the first sign of life");
    client.sh("ping -c 1 -W 5 203.0.113.2");
    client.down();
}

fn attached(client: &Client<'_>) -> usize {
    client.status().list("/connections").iter().filter(|connection| connection["index"].is_u64()).count()
}
