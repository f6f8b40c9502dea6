//! The exit's operator changes resolvers and routes. Connected clients follow, as far as their profiles allow it.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use toml::Value;
use warren_quic::key::PrivateKey;
use warren_session::UPDATES;
use warren_session::message::{Message, Network, Update, Welcome, encode};

use crate::support::lying_exit::{Answers, LyingExit};
use crate::support::{Client, Exit, Namespace, Net, Probing, Profile, eventually, seconds};

#[test]
fn other_resolvers_reach_connected_clients_and_leave_the_profile_s_own_alone() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    exit.configure(|config| with_resolvers(config, &["203.0.113.2"]));
    exit.warren.run("reload exit").ok();
    let other_host = net.second_client();
    net.client.sh("echo nameserver 192.0.2.1 > /etc/resolv.conf").ok();
    other_host.sh("echo nameserver 192.0.3.1 > /etc/resolv.conf").ok();
    let profile = exit.enrol("laptop").with("kill_switch", "enabled", true);
    let client = Client::with(&net, &profile);
    let own = exit.enrol("phone").with("dns", "servers", Value::Array(vec!["203.0.113.9".into()]));
    let with_own = Client::on(&other_host, &own);
    let left = Probing::counter(&net);
    client.up();
    with_own.up();
    assert_eq!(resolvers(&net.client), ["203.0.113.2"]);
    let session = client.status().number("/session/id");

    let probing = Probing::start(&net.client);
    let mut ping = net.client.start(&["ping", "-i", "0.01", "-c", "400", Net::INTERNET_V4]);
    ping.wait_for_output("icmp_seq=10 ");
    exit.configure(|config| with_resolvers(config, &["203.0.113.3", "2001:db8:3::3"]));
    exit.warren.run("reload exit").ok();

    eventually(seconds(10), "the client asks the new resolvers", || {
        resolvers(&net.client) == ["203.0.113.3", "2001:db8:3::3"]
    });
    assert_eq!(resolvers(&other_host), ["203.0.113.9"], "the profile wins");
    // With a kill switch, no packet leaves outside while the host is being changed.
    exit.configure(|config| with_resolvers(config, &[]));
    exit.warren.run("reload exit").ok();
    eventually(seconds(10), "the exit names none", || resolvers(&net.client) == ["192.0.2.1"]);
    exit.configure(|config| with_resolvers(config, &["203.0.113.2"]));
    exit.warren.run("reload exit").ok();
    eventually(seconds(10), "the exit names one again", || resolvers(&net.client) == ["203.0.113.2"]);

    assert_eq!(ping.wait(seconds(20)), Some(0));
    assert!(ping.output().contains(" 0% packet loss"), "{}", ping.output());
    let sent = probing.end();
    assert_eq!((left(), sent > 20), (0, true), "{sent} probes");
    let status = client.status();
    assert_eq!((status.number("/reconnects"), status.number("/session/id")), (0, session));
    let log = client.warren.run("logs home").ok();
    assert!(log.contains("the exit names other resolvers: 203.0.113.3, 2001:db8:3::3"), "{log}");
    with_own.down();
    client.warren.run("down home").ok();

    // The control: without a tunnel the counter sees the probes.
    let sent = { Probing::start(&net.client) }.for_a_while();
    assert!(left() >= sent / 2 && sent > 10, "{} of {sent}", left());
}

#[test]
fn a_profile_that_leaves_its_networks_to_the_exit_follows_them_and_another_does_not() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    allow(&exit, &["198.18.0.0/15"]);
    let other_host = net.second_client();
    let profile = exit.enrol("laptop").with("routes", "include", "exit");
    let client = Client::with(&net, &profile);
    let listed = exit.enrol("phone").with("routes", "include", Value::Array(vec!["203.0.113.128/25".into()]));
    let with_own = Client::on(&other_host, &listed);
    client.up();
    with_own.up();
    assert!(!is_inside(&net.client, Net::INTERNET_V4), "the exit does not name this network yet");
    assert!(is_inside(&net.client, "198.18.5.5"));

    allow(&exit, &["203.0.113.0/28", "2001:db8:3::/64"]);

    eventually(seconds(10), "the new networks are in the tunnel", || {
        is_inside(&net.client, Net::INTERNET_V4) && is_inside(&net.client, Net::INTERNET_V6)
    });
    client.sh(&format!(
        "ping -c 2 -i 0.2 -W 5 {} && ping -c 2 -i 0.2 -W 5 {}",
        Net::INTERNET_V4,
        Net::INTERNET_V6
    ));
    assert!(!is_inside(&net.client, "198.51.100.77"), "nothing else is");
    assert!(!is_inside(&other_host, Net::INTERNET_V4), "the profile wins");
    assert!(is_inside(&other_host, "203.0.113.200"));
    assert_eq!(client.status().number("/reconnects"), 0);
    client.warren.run("reload home").ok();
    assert!(is_inside(&net.client, Net::INTERNET_V4), "a reload leaves what the exit has named");
    // A session that begins later has the same networks.
    client.down();
    client.up();
    assert!(is_inside(&net.client, Net::INTERNET_V4));

    allow(&exit, &["198.18.0.0/15"]);

    eventually(seconds(10), "the networks are outside again", || !is_inside(&net.client, Net::INTERNET_V4));
    let closed = client.warren.run("up home --kill-switch");
    assert!(!closed.succeeded(), "{closed:?}");
    client.down();
    let closed = profile.with("kill_switch", "enabled", true);
    client.warren.write("home.toml", 0o600, &closed.text());
    let refused = client.warren.run("up home");
    assert!(refused.code == Some(1) && refused.stderr.contains("list them in include"), "{refused:?}");
    with_own.down();
}

#[test]
fn an_exit_changes_nothing_with_an_update_that_no_client_can_use() {
    let Some(net) = Net::new() else { return };
    net.client.sh("echo nameserver 192.0.2.1 > /etc/resolv.conf").ok();
    let loopback = Update { number: 1, dns: vec![vec![127, 0, 0, 1]], ..Update::default() };
    let host_bits = Network { address: vec![10, 0, 0, 1], prefix_length: 8 };
    let no_network = Update { number: 1, routes: vec![host_bits], ..Update::default() };
    let no_key = Update { number: 1, exit_keys: vec![vec![0; 32]], ..Update::default() };
    for (lie, what) in [(loopback, "DNS servers"), (no_network, "routes"), (no_key, "the exit's keys")] {
        told(&net, UPDATES, lie, |client| {
            let log = client.warren.run("logs home").ok();
            log.contains("one that cannot be used") && log.contains(what)
        });
    }
    // The controls: a client applies a valid update, but only if both sides have negotiated updates.
    let sound = Update { number: 1, dns: vec![vec![203, 0, 113, 2]], ..Update::default() };
    told(&net, UPDATES, sound.clone(), |_| resolvers(&net.client) == ["203.0.113.2"]);
    told(&net, 0, sound, |client| client.warren.run("logs home").ok().contains("a message out of order"));
}

/// Connects to an exit that sends one false update, and waits for the consequence.
fn told(net: &Net, features: u64, lie: Update, consequence: impl Fn(&Client<'_>) -> bool) {
    let (key, own) = (PrivateKey::generate().unwrap(), PrivateKey::generate().unwrap());
    let profile = Profile::parse(&format!(
        "[client]\nprivate_key = \"{}\"\n[[exit]]\nendpoint = \"{}:443\"\npublic_key = \"{}\"\n[transport]\nconnections = 1\n",
        own.to_base64().as_str(),
        Net::EXIT_V4,
        key.public()
    ));
    let client = Client::with(net, &profile);
    let honest = Answers::default();
    let welcome = Welcome { features, ..honest.welcome };
    let exit = LyingExit::lying(net, key, Answers { welcome, ..honest }, encode(&Message::Update(lie)));
    client.up();
    exit.lie(seconds(10));
    eventually(seconds(10), "the client has reacted", || consequence(&client));
    client.down();
    assert_eq!(resolvers(&net.client), ["192.0.2.1"]);
}

fn with_resolvers(config: Profile, servers: &[&str]) -> Profile {
    config.with("dns", "servers", Value::Array(servers.iter().map(|server| (*server).into()).collect()))
}

#[test]
fn a_host_without_nft_connects_even_if_only_the_exit_knows_the_networks() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    allow(&exit, &["198.18.0.0/15"]);
    let client = Client::with(&net, &exit.enrol("laptop").with("routes", "include", "exit"));
    let without_nft = ["unshare", "-m", "sh", "-c", "mount -t tmpfs none /usr/sbin && exec \"$@\"", "sh"];

    let mut up = client.warren.start_under(&without_nft, "up home");

    assert_eq!(up.wait(seconds(60)), Some(0), "{}", up.output());
    assert!(up.output().contains("nft is missing"), "{}", up.output());
    assert!(is_inside(&net.client, "198.18.5.5"));
    client.down();
}

/// Changes the networks that clients may reach beside the internet.
fn allow(exit: &Exit<'_>, networks: &[&str]) {
    let networks = Value::Array(networks.iter().map(|network| (*network).into()).collect());
    exit.configure(|config| config.with("access", "allow", networks));
    exit.warren.run("reload exit").ok();
}

/// The resolvers that the host's programs ask.
fn resolvers(host: &Namespace) -> Vec<String> {
    let text = host.sh("cat /etc/resolv.conf").ok();
    text.lines().filter_map(|line| line.strip_prefix("nameserver ")).map(str::to_owned).collect()
}

/// Whether the route to an address leads into a tunnel.
fn is_inside(host: &Namespace, address: &str) -> bool {
    host.sh(&format!("ip route get {address}")).ok().contains("dev warren0")
}
