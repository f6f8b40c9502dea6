//! Other programs undo the client's changes to its host. The client restores them and leaves the other programs' changes alone.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::collections::BTreeSet;
use std::time::Duration;

use rustix::process::Signal;

use crate::support::{
    Attempts, Client, Exit, HostState, LeakCounter, Net, Probing, eventually, seconds, signal,
};

/// The time within which scorecard F15 and F16 require the client to notice and restore.
const SOON: Duration = seconds(2);

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
        let took = eventually(SOON, change, || state() == standing);
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
        let took = eventually(SOON, change, || state() == standing);
        println!("{change}: {} ms", took.as_millis());
    }
    leaks.assert_none("all changes were undone");
    assert_eq!(client.sh("curl -sS --max-time 20 http://203.0.113.2/address"), Net::EXIT_V4);

    let idle = ticks(&client);
    std::thread::sleep(seconds(2));
    // A client in a busy loop would use a hundred ticks per second.
    assert!(ticks(&client) - idle < 20, "the client works without a reason");
    client.down();
    before.assert_same(&HostState::of(&net.client));
}

#[test]
fn a_device_that_is_taken_away_is_made_anew_and_the_session_kept() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(
        &net,
        &exit.enrol("laptop").with("kill_switch", "enabled", true).with("transport", "connections", 4),
    );
    let leaks = LeakCounter::start(&net);
    client.up();
    eventually(seconds(10), "every connection is attached", || {
        client.status().list("/connections").len() == 4
    });
    let index = || client.sh("cat /sys/class/net/warren0/ifindex || true");
    let passes = "ping -c 1 -W 1 203.0.113.2 && ping -c 1 -W 1 2001:db8:3::2";
    let session = client.status().number("/session/id");

    let leaked = leaks.leaked();
    let attempts = Attempts::start(&net.client, 6.0);
    for change in [
        "ip link delete warren0",
        "ip link set warren0 down; ip link set warren0 name theirs; ip link set theirs up",
        &format!("ip link set warren0 netns {}", net.internet.host.name()),
    ] {
        let before = index();
        client.sh(change);
        let took = eventually(SOON, change, || !["", &before].contains(&index().as_str()));
        println!("{change}: made anew after {} ms", took.as_millis());
        let took = eventually(seconds(10), change, || net.client.sh(passes).succeeded());
        println!("{change}: carries traffic {} ms later", took.as_millis());
    }
    attempts.end();
    assert_eq!(leaks.leaked(), leaked);

    let devices = [&net.client, &net.internet.host].map(|host| host.sh("ip -o link show type tun").stdout);
    assert!(
        devices[0].lines().count() == 2 && devices[1].is_empty(),
        "the earlier devices are gone: {devices:?}"
    );
    assert_eq!(client.status().number("/session/id"), session);
    assert_eq!(client.status().number("/totals/connections_ended"), 0);
    client.down();
}

#[test]
fn nothing_leaves_outside_while_the_device_is_away_also_without_a_kill_switch() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    let left = Probing::counter(&net);
    let passes = "ping -c 1 -W 1 203.0.113.2 && ping -c 1 -W 1 2001:db8:3::2";
    client.up();
    let is_mended = || {
        let standing = "ip -d link show warren0 && ip -d link show warren-void0 && ip -4 route show table 22369 | grep void";
        net.client.sh(standing).succeeded() && net.client.sh(passes).succeeded()
    };
    assert!(is_mended());

    let probing = Probing::start(&net.client);
    for change in [
        "ip link delete warren0",
        "ip link set warren0 down",
        "ip link set warren0 down; ip link set warren0 name theirs; ip link set theirs up",
        "ip link delete warren-void0",
        "ip -4 route delete default metric 22369 table 22369",
    ] {
        client.sh(change);
        eventually(seconds(20), change, is_mended);
    }
    // The daemon is stopped by a signal, so that it restores nothing until the test lets it continue.
    let daemon = i32::try_from(client.status().number("/pid")).unwrap();
    signal(daemon, Signal::STOP);
    client.sh("ip link delete warren0");
    std::thread::sleep(seconds(1));
    let sent = probing.end();
    println!("{} of {sent} probes left outside", left());
    assert!(sent > 100, "{sent} probes");
    assert_eq!(left(), 0);

    client.sh("ip link delete warren-void0");
    let sent = Probing::start(&net.client).for_a_while();
    assert!(left() >= sent / 2 && sent > 10, "without that device {} of {sent} leave", left());
    signal(daemon, Signal::CONT);
    eventually(seconds(20), "everything is restored", is_mended);
    client.down();
}

#[test]
fn a_foreign_device_of_the_same_name_is_left_alone_and_passed_by() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();

    client.lose_device_to_another();

    eventually(SOON, "the client uses another device name", || {
        client.status().0.pointer("/device/name").is_some_and(|name| name == "warren1")
    });
    assert_eq!(client.sh("curl -sS --max-time 20 http://203.0.113.2/address"), Net::EXIT_V4);
    assert_eq!(client.status().text("/state"), "up");
    assert_foreign_device_is_there(&client);
    client.sh("ip link delete warren0");
    client.down();
}

#[test]
fn while_a_foreign_device_has_the_name_of_the_profile_nothing_passes_and_status_says_why() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let profile = exit.enrol("laptop").with("tun", "name", "warren0");
    let client = Client::with(&net, &profile.with("routes", "exclude", vec!["192.0.2.0/24"]));
    let leaks = LeakCounter::start(&net);
    client.up();
    let ping = "ping -c 5 -i 0.05 -W 1 203.0.113.2; ping -c 5 -i 0.05 -W 1 2001:db8:3::2";

    client.lose_device_to_another();

    let took = eventually(SOON, "the state is error", || client.status().text("/state") == "error");
    println!("noticed after {} ms", took.as_millis());
    // The text is wrapped at the terminal's width.
    let shown = client.warren.run("status home").ok();
    let status = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(status.contains("error somebody has deleted or renamed the TUN device warren0"), "{shown}");
    assert!(status.contains("a network device named warren0 exists already"), "{shown}");
    assert_foreign_device_is_there(&client);
    let leaked = leaks.leaked();
    assert!(!net.client.sh(ping).succeeded());
    assert_eq!(leaks.leaked(), leaked, "packets for the tunnel left outside");
    client.sh("ping -c 1 -W 5 192.0.2.1");
    assert!(leaks.leaked() > leaked, "packets for the LAN leave and are counted");
    let idle = ticks(&client);
    std::thread::sleep(seconds(2));
    assert!(ticks(&client) - idle < 10, "the client takes more than 5 % of a core");

    client.sh("ip link delete warren0");
    eventually(seconds(10), "the tunnel is up", || client.status().text("/state") == "up");
    assert_eq!(client.sh("curl -sS --max-time 20 http://203.0.113.2/address"), Net::EXIT_V4);
    assert_eq!(client.status().number("/totals/connections_ended"), 0);
    client.down();
}

#[track_caller]
fn assert_foreign_device_is_there(client: &Client<'_>) {
    let device = client.sh("ip -o address show dev warren0");
    assert!(device.contains("10.9.9.9") && device.lines().count() == 1, "{device}");
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
