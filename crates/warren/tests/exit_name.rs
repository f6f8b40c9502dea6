//! The exit's host name: what happens to the tunnel when the lookup fails, or returns another address.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use rustix::process::Signal;

use crate::support::counters::packets_of_one;
use crate::support::{Client, Exit, ExitOptions, Net, Running, eventually, seconds};

#[test]
fn the_last_good_address_does_while_the_name_is_unknown_and_a_new_one_is_taken() {
    let Some(net) = Net::new() else { return };
    let mut exit =
        Exit::start_with(&net, &ExitOptions { endpoint: "exit.test:443".into(), ..ExitOptions::default() });
    // Counts queries outside the tunnel without a mark. Only the daemon's own queries, which are marked, may leave there.
    net.client.sh("nft 'table inet asked { counter outside { }; chain sent { type filter hook postrouting priority 300; \
                   oifname eth0 meta mark and 0xffff != 0x5761 meta l4proto { tcp, udp } th dport { 53, 853 } counter name outside; }; }'").ok();
    let outside = || asked(&net, "outside");
    assert!(net.client.sh("dig +short +time=5 exit.test").ok().contains(Net::EXIT_V4));
    let before = outside();
    assert!(before > 0, "the counter sees an unmarked query");
    let client = Client::with(&net, &exit.enrol("laptop").with("kill_switch", "enabled", true));
    client.up();
    let returns = |why: &str, exit: &mut Exit<'_>, meanwhile: &dyn Fn()| {
        let session = client.status().number("/session/id");
        exit.stop(Signal::KILL);
        meanwhile();
        exit.run();
        let took = eventually(seconds(40), why, || {
            net.client.sh("ping -c 1 -W 1 203.0.113.2");
            let status = client.status();
            status.number("/session/id") != session && status.text("/state") == "up"
        });
        println!("{why}: up {took:?} after the exit was there again");
        client.sh("ping -c 3 -i 0.2 -W 2 203.0.113.2");
    };

    net.filter("udp dport 53 drop;");
    returns("the resolver is silent", &mut exit, &|| {});
    net.unfilter();

    let no_name = answer_with(&net, &[]);
    returns("the name does not exist", &mut exit, &|| {});
    drop(no_name);

    let _other = answer_with(&net, &["198.51.100.77"]);
    returns("the name means another address", &mut exit, &|| {
        net.exit
            .sh("ip address delete 198.51.100.2/24 dev eth0; ip address add 198.51.100.77/24 dev eth0")
            .ok();
        net.exit
            .sh("ip -6 address delete 2001:db8:2::2/64 dev eth0; ip route replace default via 198.51.100.1")
            .ok();
    });
    assert_eq!(client.status().text("/exit/address"), "198.51.100.77:443");
    assert_eq!(outside(), before, "an unmarked query left outside the tunnel");
}

#[test]
fn no_query_for_an_exit_s_name_leaves_outside_the_tunnel_while_it_is_up() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    // Nothing answers at this address.
    let nowhere = answer_with(&net, &["198.51.100.99"]);
    let second = exit.enrol("laptop").with("kill_switch", "enabled", true);
    let both = second.clone().with_exit("endpoint", "first.test:443").with_failover_to(&second);
    net.client.sh("nft 'table inet asked { counter outside { }; counter inside { }; chain sent { \
                   type filter hook postrouting priority 300; meta l4proto != { tcp, udp } accept; th dport != { 53, 853 } accept; \
                   oifname eth0 counter name outside; oifname != { eth0, lo } counter name inside; }; }'").ok();
    let counters = || (asked(&net, "outside"), asked(&net, "inside"));
    let client = Client::with(&net, &both);

    client.up();
    std::thread::sleep(seconds(2));
    let (outside, inside) = counters();
    assert!(outside > 0, "the control: the name is looked up before the tunnel is up");
    // The client asks every five seconds whether the first exit is back.
    std::thread::sleep(seconds(12));
    let later = counters();
    assert_eq!(later.0, outside, "while the tunnel is up");
    assert!(later.1 > inside, "the name is looked up through the tunnel");

    drop(nowhere);
    let _there = answer_with(&net, &[Net::EXIT_V4]);
    eventually(seconds(60), "the client returns to the first exit", || {
        client.status().text("/exit/endpoint") == "first.test:443"
    });
    client.down();
}

#[test]
fn a_resolver_on_this_host_that_the_kill_switch_shuts_in_is_named_with_the_way_out() {
    let Some(net) = Net::new() else { return };
    let exit =
        Exit::start_with(&net, &ExitOptions { endpoint: "exit.test:443".into(), ..ExitOptions::default() });
    std::fs::write(net.client.etc().join("resolv.conf"), "nameserver 127.0.0.1\n").unwrap();
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.warren.run("client close home").ok();

    let mut daemon = client.warren.start("--log info client run home");

    daemon.wait_for_output(
        "where the closed kill switch blocks its queries: set the exit's address as endpoint",
    );
    client.warren.run("down home").ok();
    client.assert_host_unchanged();
}

/// The number of queries that a counter of the client's table `asked` has counted.
fn asked(net: &Net, counter: &str) -> u64 {
    packets_of_one(&net.client.sh(&format!("nft list counter inet asked {counter}")).ok())
}

/// Makes the internet host's resolver answer with other addresses.
pub(crate) fn answer_with(net: &Net, addresses: &[&str]) -> Running {
    net.internet.host.sh("conntrack -F 2>/dev/null || true").ok();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/name_server.py");
    let mut server = net.internet.host.start(&[&["python3", "-u", script, "5353"], addresses].concat());
    server.wait_for_output("ready");
    net.internet
        .host
        .sh("nft 'table inet other_resolver; delete table inet other_resolver; \
                          table inet other_resolver { chain c { type nat hook prerouting priority -100; \
                          udp dport 53 redirect to :5353; }; }'")
        .ok();
    server
}
