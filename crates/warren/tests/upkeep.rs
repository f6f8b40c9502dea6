//! Others undo what the client has made on its host: it is made again, and what is theirs is left alone.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::collections::BTreeSet;

use crate::support::{Attempts, Client, Exit, HostState, LeakCounter, Net, eventually, seconds};

#[test]
fn what_others_undo_is_made_again_and_nothing_leaves_meanwhile() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    net.client.sh("ip rule add priority 6018 fwmark 0x99 lookup 99; ip route add 10.1.0.0/16 via 192.0.2.1 table 99").ok();
    net.client.sh("nft 'table inet mine { chain in { type filter hook input priority 0; }; }'").ok();
    let before = HostState::of(&net.client);
    let client = Client::with(&net, &exit.enrol("laptop").with("kill_switch", "enabled", true));
    let leaks = LeakCounter::start(&net);
    client.up();
    let state = || STATE.iter().flat_map(|part| lines(&net.client.sh(part).stdout)).collect::<BTreeSet<_>>();
    let standing = state();

    let leaked = leaks.leaked();
    let attempts = Attempts::start(&net.client, 6.0);
    for change in [
        "ip -4 rule delete priority 6017",
        "ip -6 rule delete priority 6017",
        "ip -4 rule delete priority 5505",
        "ip -4 route flush table 22369",
        "ip -6 route flush table 22369",
        "ip -4 route replace default via 192.0.2.1 table 22369",
        "ip address flush dev warren0",
        "ip link set warren0 down",
        "ip link set warren0 group 0",
        "nft delete table inet warren_home",
    ] {
        client.sh(change);
        let took = eventually(seconds(10), change, || state() == standing);
        println!("{change}: {} ms", took.as_millis());
    }
    attempts.end();
    assert_eq!(leaks.leaked(), leaked);

    for change in [
        "nft delete table inet warren-kill-switch_home",
        "nft flush chain inet warren-kill-switch_home output",
        "nft insert rule inet warren-kill-switch_home output accept",
    ] {
        client.sh(change);
        let took = eventually(seconds(10), change, || state() == standing);
        println!("{change}: {} ms", took.as_millis());
    }
    leaks.assert_none("everything was made again");
    assert_eq!(client.sh("curl -sS --max-time 20 http://203.0.113.2/address"), Net::EXIT_V4);

    let idle = ticks(&client);
    std::thread::sleep(seconds(2));
    // Of a hundred a second.
    assert!(ticks(&client) - idle < 20, "it works without a reason");
    client.down();
    before.assert_same(&HostState::of(&net.client));
}

#[test]
fn a_foreign_device_of_the_same_name_is_left_alone() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();

    client.sh(
        "ip link delete warren0 && ip tuntap add warren0 mode tun && ip address add 10.9.9.9/32 dev warren0",
    );

    eventually(seconds(10), "the daemon ends", || net.client.pids().is_empty());
    let device = client.sh("ip -o address show dev warren0");
    assert!(device.contains("10.9.9.9") && device.lines().count() == 1, "{device}");
    client.sh("ip link delete warren0");
    client.assert_host_unchanged();
}

fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::trim_end).map(str::to_owned).collect()
}

/// Processor time that the daemon has used, in hundredths of a second.
fn ticks(client: &Client<'_>) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", client.status().number("/pid"))).unwrap();
    let fields: Vec<_> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields.iter().skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}

const STATE: [&str; 8] = [
    "ip -4 rule",
    "ip -6 rule",
    "ip -4 route show table 22369",
    "ip -6 route show table 22369",
    "ip -o address show dev warren0",
    "ip -o link show dev warren0",
    "nft -s list table inet warren_home",
    "nft -s list table inet warren-kill-switch_home",
];
