//! `[on_demand]`: the tunnel rests on trusted networks, and is up elsewhere.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use rustix::process::Signal;

use crate::support::counters::packets_of_one;
use crate::support::{Client, Exit, LeakCounter, Net, Profile, Running, eventually, seconds};

const ADDRESS: &str = "curl -sS --max-time 20 http://203.0.113.2/address";
const HOME: &str = "02:00:00:00:00:01";
const HOTEL: &str = "02:00:00:00:00:02";

#[test]
fn tunnel_is_down_at_home_and_up_elsewhere_and_the_user_has_the_last_word() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    join(&net, HOME);
    let client = Client::with(&net, &exit.enrol("laptop"));
    // The output of `warren network` can be used as a setting of a profile.
    let printed = client.warren.run("network home").ok();
    let setting =
        printed.lines().find_map(|line| line.strip_prefix("trusted = [\"")?.strip_suffix("\"]")).unwrap();
    assert_eq!(setting, format!("home 192.0.2.0/24 {HOME}"), "{printed}");
    let profile = at_home(exit.enrol("other"));
    client.warren.write("home.toml", 0o600, &profile.text());
    assert!(client.warren.run("network").ok().contains("the profile home trusts this network as home"));

    let mut daemon = start(&client);
    wait_for(&client, "resting");
    assert_eq!(client.status().text("/resting"), "home");
    let shown = client.warren.run("status home").ok();
    assert!(shown.contains("home: resting on the trusted network home for"), "{shown}");
    assert_eq!(client.sh(ADDRESS), Net::CLIENT_V4);
    client.assert_host_unchanged();

    join(&net, HOTEL);
    wait_for(&client, "up");
    assert_eq!(client.sh(ADDRESS), Net::EXIT_V4, "another router, the same addresses");
    assert_eq!(client.status().0["kill_switch"], false, "nobody asked for one");
    join(&net, HOME);
    wait_for(&client, "resting");
    assert_eq!(client.sh(ADDRESS), Net::CLIENT_V4);

    let up = client.warren.run("up home").ok();
    assert!(up.starts_with("connected to home"), "{up}");
    std::thread::sleep(seconds(8));
    assert_eq!(client.status().text("/state"), "up", "until the network changes");
    join(&net, HOTEL);
    std::thread::sleep(seconds(1));
    assert_eq!(client.status().text("/state"), "up");
    join(&net, HOME);
    wait_for(&client, "resting");

    // If the host changes quickly between networks, the tunnel stays up.
    for _ in 0..3 {
        join(&net, HOTEL);
        std::thread::sleep(seconds(1));
        join(&net, HOME);
        std::thread::sleep(seconds(1));
        assert_ne!(client.status().text("/state"), "resting", "home was not steady");
    }
    client.warren.run("down home").ok();
    assert!(!daemon.is_running() || daemon.wait(seconds(5)).is_some());

    // `up` connects even on a trusted network.
    let up = client.warren.run("up home").ok();
    assert!(up.starts_with("connected to home"), "{up}");
    client.warren.run("down home").ok();
}

#[test]
fn nothing_leaves_on_a_foreign_network_while_the_exit_is_awaited() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    join(&net, HOME);
    let client = Client::with(&net, &at_home(exit.enrol("laptop")));
    let _daemon = start(&client);
    wait_for(&client, "resting");
    let hook = "type filter hook ingress device to-client priority -450;";
    let rules = format!(
        "ip daddr {} counter name seen; ip6 daddr {} counter name seen;",
        Net::INTERNET_V4,
        Net::INTERNET_V6
    );
    net.router
        .sh(&format!(
            "nft 'table netdev seen {{ counter seen {{ }}; chain received {{ {hook} {rules} }}; }}'"
        ))
        .ok();
    let seen = || packets_of_one(&net.router.sh("nft list counter netdev seen seen").ok());
    let attempt = || {
        let line = "ping -c 5 -i 0.2 -W 1 203.0.113.2; ping -c 5 -i 0.2 -W 1 2001:db8:3::2; curl -sS --max-time 2 http://203.0.113.2/";
        net.client.sh(line)
    };
    attempt();
    let at_home = seen();
    assert!(at_home >= 10, "the control");

    net.black_hole();
    join(&net, HOTEL);
    wait_for(&client, "connecting");
    assert_eq!(client.status().0["kill_switch"], false, "the routes alone hold it back");
    let before = seen();
    println!("measured: {} packets left before the tunnel's routes were in place", before - at_home);
    attempt();
    assert_eq!(seen(), before, "while the exit does not answer");
    // `warren portal` can reach a login page although these routes block the tunnel's traffic.
    if net.client.own_cgroups().is_some() {
        let page = client.warren.run(&format!("portal home -- {ADDRESS}"));
        assert_eq!(page.stdout.trim_end(), Net::CLIENT_V4, "{page:?}");
    }
    net.unfilter();
    wait_for(&client, "up");
    assert_eq!(client.sh(ADDRESS), Net::EXIT_V4);
    client.warren.run("down home").ok();
}

#[test]
fn kill_switch_opens_at_home_only_if_the_profile_says_so_and_is_closed_elsewhere() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    join(&net, HOME);
    let guarded = at_home(exit.enrol("laptop")).with("kill_switch", "enabled", true);
    let client = Client::with(&net, &guarded);
    let refused = client.warren.run("up home");
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("trusted_opens_kill_switch = true"), "{refused:?}");

    let opens = guarded.with("on_demand", "trusted_opens_kill_switch", true);
    client.warren.write("home.toml", 0o600, &opens.text());
    let leaks = LeakCounter::start(&net);
    let _daemon = start(&client);
    wait_for(&client, "resting");
    leaks.assert_all("at home");
    assert_eq!(client.status().0["kill_switch"], false);

    net.black_hole();
    join(&net, HOTEL);
    wait_for(&client, "connecting");
    leaks.assert_none("elsewhere, connecting");
    net.unfilter();
    wait_for(&client, "up");
    leaks.assert_none("elsewhere, up");
    assert_eq!(client.sh(ADDRESS), Net::EXIT_V4);
    join(&net, HOME);
    wait_for(&client, "resting");
    leaks.assert_all("at home again");

    // A kill switch that was closed by a command stays closed on the trusted network.
    client.warren.run("down home").ok();
    client.warren.write("home.toml", 0o600, &at_home(exit.enrol("third")).text());
    client.warren.run("client close home").ok();
    let _daemon = start(&client);
    wait_for(&client, "up");
    let warned = client.warren.run("status home").ok();
    assert!(warned.contains("trusted_opens_kill_switch"), "{warned}");
    client.warren.run("down home").ok();
}

#[test]
fn tunnel_whose_traffic_cannot_be_blocked_does_not_connect_and_says_why() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    join(&net, HOME);
    let client = Client::with(&net, &at_home(exit.enrol("laptop")).with("tun", "name", "tunnel7"));
    let _daemon = start(&client);
    wait_for(&client, "resting");
    net.client.sh("ip link add tunnel7 type veth peer name beside7").ok();

    join(&net, HOTEL);
    wait_for(&client, "error");
    let shown = client.warren.run("status home").stdout;
    assert!(shown.contains("cannot block the tunnel's traffic") && shown.contains("tunnel7"), "{shown}");
    for _ in 0..30 {
        assert_eq!(client.status().text("/state"), "error", "until the cause is gone");
        std::thread::sleep(seconds(1) / 10);
    }
    assert!(exit.status().list("/sessions").is_empty(), "it does not connect");
    join(&net, HOME);
    wait_for(&client, "resting");

    join(&net, HOTEL);
    wait_for(&client, "error");
    net.client.sh("ip link delete tunnel7").ok();
    wait_for(&client, "up");
    assert_eq!(client.sh(ADDRESS), Net::EXIT_V4);
}

#[test]
fn kill_switch_that_was_opened_at_home_is_closed_elsewhere_although_the_daemon_was_killed() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    join(&net, HOME);
    // The profile has no kill switch of its own. A command closes it.
    let opens = at_home(exit.enrol("laptop")).with("on_demand", "trusted_opens_kill_switch", true);
    let client = Client::with(&net, &opens);
    client.warren.run("client close home").ok();
    let leaks = LeakCounter::start(&net);
    leaks.assert_none("closed by a command");
    let mut daemon = start(&client);
    wait_for(&client, "resting");
    leaks.assert_all("at home");

    daemon.signal(Signal::KILL);
    daemon.wait(seconds(5));
    let mut daemon = start(&client);
    wait_for(&client, "resting");
    leaks.assert_all("at home, with another daemon");
    net.black_hole();
    join(&net, HOTEL);
    wait_for(&client, "connecting");
    leaks.assert_none("elsewhere, connecting");
    assert_eq!(client.status().0["kill_switch"], true);

    // A daemon that starts elsewhere closes it too.
    net.unfilter();
    join(&net, HOME);
    wait_for(&client, "resting");
    daemon.signal(Signal::KILL);
    daemon.wait(seconds(5));
    net.black_hole();
    join(&net, HOTEL);
    let _daemon = start(&client);
    wait_for(&client, "connecting");
    leaks.assert_none("elsewhere, after a start");

    // As a control, a person who opens it has the last word.
    net.unfilter();
    join(&net, HOME);
    wait_for(&client, "resting");
    client.warren.run("down home").ok();
    let _daemon = start(&client);
    wait_for(&client, "resting");
    join(&net, HOTEL);
    wait_for(&client, "up");
    assert_eq!(client.status().0["kill_switch"], false);
    client.warren.run("down home").ok();
}

fn at_home(profile: Profile) -> Profile {
    profile.with("on_demand", "trusted", vec![format!("home 192.0.2.0/24 {HOME}")])
}

/// Starts the daemon as a service manager does at boot, without `up`.
fn start(client: &Client<'_>) -> Running {
    client.warren.start(&format!("client run {}", client.warren.config("home.toml").display()))
}

#[track_caller]
fn wait_for(client: &Client<'_>, state: &str) {
    eventually(seconds(60), state, || {
        client.warren.status().is_some_and(|status| status.text("/state") == state)
    });
}

/// Moves the client's host to another network with the same addresses and another router.
fn join(net: &Net, router: &str) {
    net.client.sh("ip link set eth0 down").ok();
    net.router.sh(&format!("ip link set dev to-client address {router}")).ok();
    let addresses = "ip link set eth0 up; ip address replace 2001:db8:1::2/64 dev eth0 nodad; \
                     ip route replace default via 192.0.2.1; ip -6 route replace default via 2001:db8:1::1";
    net.client.sh(addresses).ok();
}
