//! ECN inside the tunnel: if the tunnel's own queue is too long, packets of flows that support ECN are marked, and other flows
//! lose packets.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use crate::support::{Client, Exit, Family, Namespace, Net, Status};

#[test]
fn flows_that_support_ecn_are_marked_where_others_lose_packets() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    // There is only one connection. Several connections would have several queues, in which packets on a slow link would also be
    // dropped because they waited too long.
    let profile = exit.enrol("laptop").with("transport", "connections", 1);
    let client = Client::with(&net, &profile);
    client.up();
    let _server = net.internet.iperf3(5201);
    for host in [&net.client, &net.exit] {
        host.sh("tc qdisc add dev eth0 root tbf rate 20mbit burst 16kb latency 50ms").ok();
    }
    for (family, is_up) in [(Family::V4, true), (Family::V6, false)] {
        let (sender, receiver) =
            if is_up { (client.status(), &net.internet.host) } else { (exit.status(), &net.client) };
        let transfer = |is_ecn: bool, before: &Status| {
            let transferred = transfer(&client, family, is_up, is_ecn, receiver);
            let after = if is_up { client.status() } else { exit.status() };
            let count = |of: &dyn Fn(&Status) -> u64| of(&after) - of(before);
            let marked = count(&|status| status.number("/totals/marked_packets"));
            let dropped = count(&|status| status.drop("carrier", "queue_delay"));
            (transferred, marked, dropped, after)
        };

        let (mut before, mut left) = (sender, 3);
        // The transfer is repeated, because on a busy machine the queue may stay too short for a mark.
        let (seen, marked, dropped, status) = loop {
            let outcome = transfer(true, &before);
            left -= 1;
            if outcome.1 > 0 || left == 0 {
                break outcome;
            }
            before = outcome.3;
        };
        let (seen_without, marked_without, dropped_without, _) = transfer(false, &status);

        println!(
            "measured: {family:?}: {marked} marked, {dropped} dropped, {seen:?}; without ECN {marked_without} marked, {dropped_without} \
             dropped, {seen_without:?}"
        );
        // Marked packets arrive with their marks and valid checksums, except for a few that the slow link drops.
        assert!(marked > 0 && seen.marked * 2 >= marked && seen.marked <= marked);
        assert_eq!(seen.invalid, 0);
        // A few drops remain, because retransmitted packets do not support ECN (RFC 3168 section 6.1.5).
        assert!(dropped * 3 <= dropped_without);
        // The control: the same flows without ECN.
        assert_eq!((marked_without, seen_without.marked), (0, 0));
        assert!(dropped_without > 0);
    }
    for host in [&net.client, &net.exit] {
        host.sh("tc qdisc del dev eth0 root").ok();
    }
    client.down();
}

/// Counts of the receiver's kernel for a transfer.
#[derive(Debug)]
struct Seen {
    /// Packets that were marked as congested.
    marked: u64,
    /// Packets with an invalid header.
    invalid: u64,
}

fn transfer(client: &Client<'_>, family: Family, is_up: bool, is_ecn: bool, receiver: &Namespace) -> Seen {
    let address = match family {
        Family::V4 => Net::INTERNET_V4,
        Family::V6 => Net::INTERNET_V6,
    };
    let direction = if is_up { "" } else { "--reverse" };
    client.sh(&format!("sysctl -qw net.ipv4.tcp_ecn={}", u8::from(is_ecn)));
    let seen = || Seen {
        marked: counter(receiver, "IpExt", "InCEPkts") + counter6(receiver, "Ip6InCEPkts"),
        invalid: counter(receiver, "Ip", "InHdrErrors") + counter(receiver, "Tcp", "InCsumErrors"),
    };
    let before = seen();
    client.sh(&format!(
        "timeout 30 iperf3 --client {address} {direction} --congestion cubic --parallel 4 --time 6"
    ));
    let after = seen();
    Seen { marked: after.marked - before.marked, invalid: after.invalid - before.invalid }
}

/// A counter of a host's kernel.
fn counter(host: &Namespace, table: &str, name: &str) -> u64 {
    let text = host.sh("cat /proc/net/snmp /proc/net/netstat").ok();
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(table)?.strip_prefix(": "));
    let (names, numbers) = (lines.next().unwrap(), lines.next().unwrap());
    let place = names.split(' ').position(|other| other == name).unwrap();
    numbers.split(' ').nth(place).unwrap().parse().unwrap()
}

/// An IPv6 counter of a host's kernel.
fn counter6(host: &Namespace, name: &str) -> u64 {
    let text = host.sh("cat /proc/net/snmp6").ok();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim().parse().unwrap()
}
