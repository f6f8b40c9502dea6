//! Repair end to end: lost datagrams are sent again and put in order. On a path without loss, repair costs nothing.
//!
//! The tests compare counts, which hardly depend on the machine's speed.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::time::Instant;

use rustix::process::Signal;

use crate::bad_wire::{datagrams_one_by_one, table};
use crate::support::flows::{Flood, echo_numbered, echo_sized, flood};
use crate::support::memory::rss_kib;
use crate::support::{Client, Exit, Namespace, Net, Profile, Status, eventually, seconds};

/// Mbit/s and bytes of the UDP streams.
const OFFERED: u64 = 16;
const LENGTH: usize = 1_200;
const DOWNLOAD: u64 = 6_000_000;

#[test]
fn a_stream_loses_little_of_what_the_path_loses_unless_a_side_does_not_repair() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::start(&net);
    let profile = exit.enrol("laptop");
    datagrams_one_by_one(&net);

    let repaired = stream(&net, &exit, &profile);
    let old_client = stream(&net, &exit, &without_repair(profile.clone()));
    exit.stop(Signal::TERM);
    exit.configure(without_repair);
    exit.run();
    let old_exit = stream(&net, &exit, &profile);

    println!(
        "measured: at 3 % loss a stream lost {:.2} %; without repair at the client {:.2} %, at the exit {:.2} %",
        repaired.lost_percent, old_client.lost_percent, old_exit.lost_percent
    );
    assert!(repaired.lost_percent < 0.5);
    assert!(repaired.repairs_sent >= 50 && repaired.counted > 0);
    for old in [old_client, old_exit] {
        assert!((1.5..5.0).contains(&old.lost_percent), "{old:?}");
        assert_eq!(
            (old.repairs_sent, old.counted),
            (0, 0),
            "datagrams are repaired for a side that has repair off"
        );
    }
}

#[test]
fn tcp_over_a_lossy_path_comes_in_order() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let profile = exit.enrol("laptop");
    datagrams_one_by_one(&net);
    let page = format!("http://{}/bytes/{DOWNLOAD}", Net::INTERNET_V4);
    let whole = net.internet.host.sh(&format!("curl --silent {page} | sha256sum")).ok();
    let download = |profile: &Profile| {
        let client = Client::with(&net, profile);
        client.up();
        wide(&client, &exit);
        net.filter(&lose(10));
        let before = out_of_order(&net.client);
        assert_eq!(client.sh(&format!("curl --silent --max-time 60 {page} | sha256sum")), whole);
        let queued = out_of_order(&net.client) - before;
        net.unfilter();
        let status = client.status();
        client.down();
        (queued, repair_sum(&status, "filled"), repair_sum(&status, "late"))
    };

    let (queued, filled, late) = download(&profile);
    let (queued_without, filled_without, _) = download(&without_repair(profile));

    println!(
        "measured: {DOWNLOAD} bytes at 1 % loss: {filled} holes were filled, {late} came late, the kernel put {queued} in order; without \
         repair {queued_without}"
    );
    assert!(filled >= 10, "{filled} were filled");
    assert!(late * 10 <= filled, "{late} late, {filled} filled");
    // Without repair, the receiver's kernel has to queue the segments after each loss.
    assert_eq!(filled_without, 0);
    assert!(queued_without >= 20 && queued * 4 <= queued_without, "{queued}, without {queued_without}");
}

#[test]
fn a_queue_that_is_full_drops_no_more_because_of_repair() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let profile = exit.enrol("laptop");
    let _server = net.internet.iperf3(5201);
    datagrams_one_by_one(&net);
    let upload = |profile: &Profile| {
        let client = Client::with(&net, profile);
        client.up();
        wide(&client, &exit);
        net.client.sh("tc qdisc add dev eth0 root tbf rate 20mbit burst 16kb latency 30ms").ok();
        client.sh(&format!("timeout 30 iperf3 -c {} -P 2 -t 6", Net::INTERNET_V4));
        let counted = net.client.sh("tc -s qdisc show dev eth0").ok();
        net.client.sh("tc qdisc del dev eth0 root").ok();
        client.down();
        let number = |before: &str| -> f64 {
            let rest = counted.split_once(before).unwrap().1.trim_start();
            rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
        };
        number("dropped") / number("bytes")
    };

    let with = upload(&profile);
    let without = upload(&without_repair(profile));

    println!(
        "measured: dropped of the full queue's packets {:.2} %, without repair {:.2} %",
        with * 100.0,
        without * 100.0
    );
    // The tolerance is for a busy machine, because only few packets are dropped at all.
    assert!(with <= 2.0 * without + 0.02, "{with} with repair, {without} without");
}

#[test]
fn what_is_only_late_is_not_repaired() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    datagrams_one_by_one(&net);
    // With `tx` offload off, each datagram has a complete checksum, which late.py needs to forward it through a raw socket.
    net.client.sh("ethtool -K eth0 tx off").ok();
    client.up();
    wide(&client, &exit);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/late.py");
    // Delays datagrams by 30 ms, and a tenth of them by 5 ms more.
    let mut sending_on = net.router.start(&["python3", "-u", script, "to-client", "dport", "26", "30"]);
    sending_on.wait_for_output("listening");
    net.router.sh(&table("late", "ingress", "to-client", "udp dport 443 drop")).ok();

    let Flood { sent, received } = flood(&net, 6, LENGTH, seconds(5));

    let status = exit.status();
    let repeated = repair_sum(&status, "repeated");
    let repairs = client.status().number("/totals/repairs_sent");
    println!("measured: {received} of {sent} came, {repairs} were sent again, {repeated} needlessly");
    assert!(sending_on.is_running(), "{}", sending_on.output());
    assert!(received * 200 > sent * 199, "{received} of {sent}");
    assert!(repeated * 100 < sent, "{repeated} needless repairs");
    drop(sending_on);
    net.router.sh("nft delete table netdev late").ok();
    client.down();
}

#[test]
fn a_black_out_leaves_no_memory_behind_and_traffic_goes_on() {
    /// How much more memory a daemon may have than before.
    const BOUND_KIB: u64 = 2_048;
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::start(&net);
    let exit_pid = exit.daemon().pid();
    let client = Client::with(&net, &exit.enrol("laptop"));
    let daemon = client.run("info");
    datagrams_one_by_one(&net);
    wide(&client, &exit);
    let pids = [daemon.pid(), exit_pid];
    let memory = || pids.map(rss_kib);
    net.filter(&lose(10));
    // The load is run twice, so that all buffers have reached their full size before memory is compared.
    for _ in 0..2 {
        flood(&net, OFFERED, LENGTH, seconds(2));
        client
            .sh(&format!("curl --silent --max-time 60 http://{}/bytes/{DOWNLOAD} | wc -c", Net::INTERNET_V4));
    }
    let before = memory();

    let mut peak = before;
    let Flood { sent, received } = std::thread::scope(|scope| {
        let load = scope.spawn(|| flood(&net, OFFERED, LENGTH, seconds(8)));
        std::thread::sleep(seconds(1));
        net.black_hole();
        let start = Instant::now();
        while start.elapsed() < seconds(5) {
            peak = [0, 1].map(|which| memory()[which].max(peak[which]));
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        net.unfilter();
        load.join().unwrap()
    });

    assert!(received > 0 && received < sent);
    assert!(
        (0..20).any(|_| echo_sized(&net.client, Net::INTERNET_V4, 100)),
        "no traffic after the black-out"
    );
    let is_back = || memory().iter().zip(before).all(|(now, before)| *now <= before + BOUND_KIB);
    let back = eventually(seconds(20), "the memory is back", is_back);
    println!(
        "measured: KiB {before:?} before, {peak:?} in a black-out of 5 s, {:?} after {back:.1?}",
        memory()
    );
    assert_eq!(client.status().number("/totals/connections_ended"), 0);
    drop(daemon);
}

/// The counts of a UDP stream from the client over a path that loses 3 % each way.
#[derive(Debug)]
struct Streamed {
    /// Of the packets that the client sent into the tunnel, the percentage that was lost.
    lost_percent: f64,
    /// Datagrams that both sides sent again.
    repairs_sent: u64,
    /// The sum of both sides' counters of numbered datagrams.
    counted: u64,
}

fn stream(net: &Net, exit: &Exit<'_>, profile: &Profile) -> Streamed {
    let client = Client::with(net, profile);
    client.up();
    wide(&client, exit);
    let repairs = || [client.status(), exit.status()].map(|status| status.number("/totals/repairs_sent"));
    let before: u64 = repairs().iter().sum();
    net.filter(&lose(30));
    flood(net, OFFERED, LENGTH, seconds(3));
    echo_numbered(&net.client, 200);
    net.unfilter();
    let statuses = [client.status(), exit.status()];
    let repairs_sent = repairs().iter().sum::<u64>() - before;
    let counters = ["repaired", "given_up", "filled", "missing", "late", "repeated"];
    let counted = |status| counters.map(|field| repair_sum(status, field)).iter().sum::<u64>();
    let counted = statuses.iter().map(counted).sum();
    // Packets are counted inside the tunnel, because on a busy machine the sockets of sender and receiver may lose packets too.
    let (out, into) = (statuses[0].sum("packets_out"), statuses[1].sum("packets_in"));
    let lost_percent = out.saturating_sub(into) as f64 * 100.0 / out as f64;
    client.down();
    Streamed { lost_percent, repairs_sent, counted }
}

/// Sums one repair counter over all connections of the client or the exit.
fn repair_sum(status: &Status, field: &str) -> u64 {
    let of =
        |connection: &serde_json::Value| connection.pointer(&format!("/repair/{field}")).unwrap().as_u64();
    status.list("/connections").iter().map(|connection| of(connection).unwrap()).sum()
}

fn without_repair(profile: Profile) -> Profile {
    profile.with("transport", "repair", false)
}

/// Waits until both sides know the path's MTU, so that no more probes are sent.
fn wide(client: &Client<'_>, exit: &Exit<'_>) {
    eventually(seconds(10), "both sides know the wide path", || {
        client.status().each("mtu").into_iter().chain(exit.status().each("mtu")).all(|mtu| mtu > 1400)
    });
}

/// The number of TCP segments that a host's kernel received out of order.
fn out_of_order(host: &Namespace) -> u64 {
    let text = host.sh("cat /proc/net/netstat").ok();
    let lines: Vec<Vec<&str>> = text
        .lines()
        .filter(|line| line.starts_with("TcpExt:"))
        .map(|line| line.split_whitespace().collect())
        .collect();
    let [names, numbers] = &lines[..] else { panic!("{text}") };
    let place = names.iter().position(|name| *name == "TCPOFOQueue").unwrap();
    numbers.get(place).unwrap().parse().unwrap()
}

/// Rules that drop this many of a thousand datagrams each way.
fn lose(per_mille: u32) -> String {
    let rule = format!("numgen random mod 1000 < {per_mille} drop");
    format!("udp dport 443 {rule}; udp sport 443 {rule};")
}
