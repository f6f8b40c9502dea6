//! The mark that identifies carrier packets. Every carrier socket has it before it sends.
#![allow(clippy::unwrap_used, reason = "test code")]

use rustix::process::Signal;

use crate::support::counters::packets_of_one;
use crate::support::{Client, Exit, LeakCounter, Net, Preload, eventually, seconds};

#[test]
fn nothing_of_the_carrier_is_sent_unmarked_however_its_sockets_are_replaced() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::start(&net);
    // The counters are in the output hook, before an unmarked packet is routed into the tunnel.
    let chain = "type filter hook output priority -300; udp dport 443 meta mark 0x5761 counter name marked accept; \
                 udp dport 443 counter name unmarked;";
    let table = format!(
        "table inet asked {{ counter marked {{ }}; counter unmarked {{ }}; chain sent {{ {chain} }}; }}"
    );
    net.client.sh(&format!("nft '{table}'")).ok();
    let count = |counter: &str| {
        let listed = net.client.sh(&format!("nft list counter inet asked {counter}")).ok();
        packets_of_one(&listed)
    };
    net.client.sh("echo control | timeout 1 nc -u -w 1 198.51.100.2 443 || bash -c 'echo > /dev/udp/198.51.100.2/443'").ok();
    assert!(count("unmarked") > 0, "the control: an unmarked packet is counted");
    net.client.sh("nft reset counters table inet asked").ok();
    let client = Client::with(&net, &exit.enrol("laptop").with("transport", "connections", 4));
    let passes = "ping -c 1 -W 1 203.0.113.2";
    let goes_on = |why: &str| eventually(seconds(40), why, || net.client.sh(passes).succeeded());
    client.up();
    eventually(seconds(10), "every connection is attached", || {
        client.status().list("/connections").len() == 4
    });

    let ports = || client.sh("ss -Huan | sed -n 's/.* [0-9.]*:\\([0-9]*\\) .*/\\1/p' | sort | xargs");
    let before = ports();
    net.black_hole();
    eventually(seconds(20), "the client tries other ports", || {
        net.client.sh(passes);
        client.status().text("/state") == "reconnecting" && ports() != before
    });
    net.unfilter();
    goes_on("the path is back");
    net.client.sh("ip address delete 192.0.2.2/24 dev eth0; ip address add 192.0.2.9/24 dev eth0; ip route add default via 192.0.2.1").ok();
    goes_on("the address has changed");
    exit.stop(Signal::KILL);
    eventually(seconds(40), "the client notices", || {
        net.client.sh(passes);
        client.status().text("/state") == "reconnecting"
    });
    exit.run();
    goes_on("the exit runs again");

    assert_eq!(count("unmarked"), 0);
    assert!(count("marked") > 20);
    client.warren.run("down home").ok();
}

#[test]
fn a_daemon_that_may_not_mark_its_sockets_sends_nothing_and_says_so() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    let leaks = LeakCounter::start(&net);
    let refused_mark = Preload::build("refused_mark");
    let line = format!("client run {}", client.warren.config("home.toml").display());

    let mut daemon = client.warren.start_under(&["env", &refused_mark.variable], &line);

    assert_eq!(daemon.wait(seconds(30)), Some(1), "{}", daemon.output());
    let said = daemon.output();
    assert!(said.contains("cannot mark the carrier's UDP socket: not permitted; run it as root"), "{said}");
    assert_eq!((leaks.carried(), leaks.leaked()), (0, 0), "something was sent");
    client.assert_host_unchanged();
    client.up();
    assert!(leaks.carried() > 0, "the control: an unmarked packet is counted");
    client.down();
}
