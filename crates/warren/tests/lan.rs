//! The local network beside a tunnel. A new profile keeps it reachable while there is no kill switch, but uses neither
//! its resolvers nor the routes that it pushes.
//!
//! ```text
//!   client 192.168.77.2 ----- 192.168.77.1 router: a LAN with a resolver, which also claims 10.88.0.0/16
//! ```
#![allow(clippy::unwrap_used, reason = "test code")]

use toml::Value;

use crate::dns::{CountsQueries as _, ask_every_way, local_resolver};
use crate::support::{Client, Exit, LeakCounter, Net, Profile, eventually, seconds};

#[test]
fn lan_of_a_new_profile_is_reached_without_its_resolvers_and_without_routes_that_it_pushes() {
    let Some(net) = Net::new() else { return };
    let _local = local_resolver(&net);
    let exit = Exit::start(&net);
    join_lan(&net);
    let new = exit.enrol("laptop");
    assert_eq!(new.value("routes", "lan"), "auto");
    // A DHCP server's classless routes (option 121) lead to its own router.
    net.client
        .sh("ip route add 10.88.0.0/16 via 192.168.77.1; ip route add 203.0.113.0/25 via 192.168.77.1")
        .ok();
    assert!(is_reached(&net, "10.88.0.1") && is_reached(&net, LAN), "the control: without a tunnel");
    let leaks = LeakCounter::start(&net);
    ask_every_way(&net.client, LAN);
    let asked = net.client_queries();
    assert!(asked.udp >= 3 && asked.tcp >= 1, "the control: queries to the LAN are seen, {asked:?}");

    let client = Client::with(&net, &new);
    client.up();
    assert!(is_reached(&net, LAN));
    for pushed in ["10.88.0.1", Net::INTERNET_V4] {
        assert!(way(&net, pushed).contains("dev warren0"), "{}", way(&net, pushed));
    }
    let before = leaks.leaked();
    assert!(!is_reached(&net, "10.88.0.1"), "the exit knows no such network");
    assert!(is_reached(&net, Net::INTERNET_V4), "through the tunnel");
    ask_every_way(&net.client, LAN);
    assert_eq!(net.client_queries(), asked, "no query left to the LAN");
    assert_eq!(leaks.leaked(), before, "nothing left by a pushed route");
    client.down();
}

#[test]
fn lan_is_closed_by_false_by_an_earlier_profile_and_by_a_kill_switch_and_opened_by_true() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    join_lan(&net);
    let new = exit.enrol("laptop");
    let client = Client::with(&net, &new);
    let reload = |profile: &Profile| {
        client.warren.write("home.toml", 0o600, &profile.text());
        client.warren.run("reload home").ok();
    };

    client.up();
    assert!(is_reached(&net, LAN));
    reload(&new.clone().with("routes", "lan", false));
    assert!(!is_reached(&net, LAN), "lan = false closes it");
    reload(&new.clone().without("routes", "lan"));
    assert!(!is_reached(&net, LAN), "a profile of an earlier version does not say");
    reload(&new);
    assert!(is_reached(&net, LAN));
    reload(&new.clone().with("kill_switch", "enabled", true));
    assert!(!is_reached(&net, LAN), "the profile's kill switch closes it");
    client.down();

    client.warren.write("home.toml", 0o600, &new.text());
    client.warren.run("up home --kill-switch").ok();
    assert!(!is_reached(&net, LAN), "a kill switch by command closes it");
    reload(&new.with("routes", "lan", true));
    eventually(seconds(10), "lan = true opens it all the same", || is_reached(&net, LAN));
    client.down();
}

#[test]
fn queries_to_the_lan_are_refused_even_where_the_profile_leaves_resolvers_alone() {
    let Some(net) = Net::new() else { return };
    let _local = local_resolver(&net);
    let exit = Exit::start(&net);
    join_lan(&net);
    let container = net.container_behind_client();
    let alone = exit.enrol("laptop").with("dns", "servers", Value::Array(Vec::new()));
    let ask = || {
        ask_every_way(&net.client, LAN);
        container.sh(&format!("dig +tries=1 +time=1 @{LAN} www.router.test")).stdout
    };
    let client = Client::with(&net, &alone);

    client.up();
    let before = net.client_queries();
    let said = ask();
    assert_eq!(net.client_queries(), before, "{said}");
    assert!(is_reached(&net, LAN));
    client.warren.write("home.toml", 0o600, &alone.clone().with("routes", "lan", true).text());
    client.warren.run("reload home").ok();
    ask();
    assert!(
        net.client_queries().udp > before.udp,
        "the control: a profile that asks for the LAN has its resolvers"
    );
    // If a profile excludes the LAN's resolver from the tunnel, the resolver can also be used.
    let excluded = alone.with("routes", "exclude", vec!["192.168.77.1/32"]);
    client.warren.write("home.toml", 0o600, &excluded.text());
    client.warren.run("reload home").ok();
    let before = net.client_queries();
    ask();
    assert!(net.client_queries().udp > before.udp);
    client.down();
}

#[test]
fn lan_that_claims_a_private_network_of_the_tunnel_does_not_get_its_traffic() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    net.client.sh("ip address add 10.20.5.2/24 dev eth0").ok();
    let open = exit.enrol("laptop");
    let client = Client::with(&net, &open);
    client.up();
    assert!(way(&net, "10.20.5.1").contains("dev eth0"), "the control: {}", way(&net, "10.20.5.1"));

    for include in [vec!["0.0.0.0/0", "10.20.0.0/16"], vec!["10.0.0.0/8"]] {
        let profile = open.clone().with("routes", "include", include);
        client.warren.write("home.toml", 0o600, &profile.text());
        client.warren.run("reload home").ok();
        assert!(way(&net, "10.20.5.1").contains("dev warren0"), "{}", way(&net, "10.20.5.1"));
    }
    client.down();
}

/// The router's address on the LAN.
const LAN: &str = "192.168.77.1";

/// Puts client and router on a private network. The router also has an address in a network behind it.
fn join_lan(net: &Net) {
    net.router.sh(&format!("ip address add {LAN}/24 dev to-client; ip address add 10.88.0.1/32 dev lo")).ok();
    net.client.sh("ip address add 192.168.77.2/24 dev eth0").ok();
}

fn is_reached(net: &Net, address: &str) -> bool {
    net.client.sh(&format!("ping -c 1 -W 1 {address}")).succeeded()
}

fn way(net: &Net, address: &str) -> String {
    net.client.sh(&format!("ip route get {address}")).stdout
}
