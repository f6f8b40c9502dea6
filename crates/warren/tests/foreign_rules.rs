//! Other programs' policy rules in front of Warren's. No traffic bypasses the tunnel unless the status reports this.
#![allow(clippy::print_stdout, reason = "test code")]

use std::time::Instant;

use crate::support::{Attempts, Client, Exit, LeakCounter, Net, eventually, seconds};

const ASKED: &str = "curl -sS --max-time 20 http://203.0.113.2/address";

#[test]
fn rules_that_were_there_before_are_passed_and_left_alone() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    net.client.sh("ip rule add priority 100 lookup main && ip -6 rule add priority 6017 lookup main").ok();
    let client = Client::with(&net, &exit.enrol("laptop"));

    let dry_run = client.warren.run("up home --dry-run");
    let doctor = client.warren.run("doctor");
    client.up();

    for (version, rule) in [("IPv4", "100"), ("IPv6", "6017")] {
        let said =
            format!("the {version} policy rule `{rule}: from all lookup main` of another program leads");
        assert!(dry_run.stderr.contains(&said) && doctor.stdout.contains(&said), "{dry_run:?} {doctor:?}");
    }
    assert!(dry_run.stdout.contains("ip -4 rule add priority 29 not fwmark 0x5761"), "{dry_run:?}");
    assert_eq!(client.sh(ASKED), Net::EXIT_V4);
    assert_eq!(client.sh("curl -sS --max-time 20 http://[2001:db8:3::2]/address"), Net::EXIT_V6);
    assert!(client.sh("ip rule").contains("100:\tfrom all lookup main"));
    assert_eq!(client.status().text("/state"), "up");
    client.down();
}

#[test]
fn what_cannot_be_passed_is_an_error_and_the_kill_switch_holds() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop").with("kill_switch", "enabled", true));
    let leaks = LeakCounter::start(&net);
    client.up();
    let leaked = leaks.leaked();

    client.sh("ip rule add priority 1 lookup main");

    let took = eventually(seconds(10), "the state is error", || client.status().text("/state") == "error");
    println!("noticed after {} ms", took.as_millis());
    let shown = client.warren.run("status home").ok();
    let status = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        status.contains("the IPv4 policy rule `1: from all lookup main` of another program leads"),
        "{shown}"
    );
    assert!(status.contains("delete it with `ip -4 rule delete priority 1`"), "{shown}");
    Attempts::start(&net.client, 1.0).end();
    assert_eq!(leaks.leaked(), leaked, "nothing gets past the kill switch");

    let before_mending = Instant::now();
    client.sh("ip rule delete priority 1");
    eventually(seconds(10), "the tunnel is up", || client.status().text("/state") == "up");
    let up_for = client.status().0["since_seconds"].as_f64().unwrap();
    assert!(
        up_for <= before_mending.elapsed().as_secs_f64(),
        "the tunnel was in error until then, so it cannot have been up for {up_for} s"
    );
    assert_eq!(client.sh(ASKED), Net::EXIT_V4);
    client.down();

    client.sh("ip rule add priority 1 lookup main");
    let refused = client.warren.run("up home");
    assert!(
        refused.code == Some(1) && refused.stderr.contains("`ip -4 rule delete priority 1`"),
        "{refused:?}"
    );
    client.sh("ip rule delete priority 1");
    client.assert_host_unchanged();
}

#[test]
fn a_later_rule_with_a_default_route_of_its_own_is_passed() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    // A default route that leads nowhere, and a route to the exit's network.
    let routes = [
        "ip link add aside type veth peer name beyond",
        "ip link set aside up && ip link set beyond up",
        "ip address add 192.0.9.1/24 dev aside",
        "ip route add default via 192.0.9.2 dev aside table 77",
        "ip route add 198.51.100.0/24 via 192.0.2.1 dev eth0 table 77",
    ];
    net.client.sh(&routes.join(" && ")).ok();
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();

    client.sh("ip rule add priority 100 lookup 77");

    eventually(seconds(20), "everything goes through the tunnel again", || {
        net.client.sh("curl -sS --max-time 2 http://203.0.113.2/address").stdout.trim() == Net::EXIT_V4
    });
    assert_eq!(client.status().text("/state"), "up");
    client.sh("ip rule delete priority 100");
    client.down();
}
