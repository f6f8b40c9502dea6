//! An exit that assigns a client an address that is in use on the client's side.
#![allow(clippy::unwrap_used, reason = "test code")]

use std::net::Ipv4Addr;

use warren_quic::key::PrivateKey;

use crate::support::lying_exit::{Answers, LyingExit};
use crate::support::{Client, Exit, ExitOptions, Net, Profile, Running, eventually, seconds};

/// The router, which is the client's gateway to all other hosts.
const GATEWAY: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// An address in the client's network.
const RESOLVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 53);
/// Unused addresses in the client's own network.
const FREE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 50);
const ALSO_FREE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 51);

#[test]
fn no_exit_gives_away_the_address_of_the_host_its_gateway_or_the_exits_own() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::init(&net, &ExitOptions::default());
    let key = PrivateKey::generate().unwrap();
    let profile = exit.enrol("laptop").with_exit("public_key", key.public().to_string());
    // A second address of the host, which no route uses.
    net.client.sh("ip address add 192.0.2.9/32 dev lo").ok();
    std::fs::write(net.client.etc().join("resolv.conf"), format!("nameserver {RESOLVER}\n")).unwrap();
    let client = Client::with(&net, &profile);
    let own: Ipv4Addr = Net::CLIENT_V4.parse().unwrap();
    let carrier: Ipv4Addr = Net::EXIT_V4.parse().unwrap();
    let neighbour = |address: Ipv4Addr| Ipv4Addr::from(u32::from(address) ^ 64);

    for (lease, gateway, says) in [
        (
            GATEWAY,
            FREE,
            "192.0.2.1 as this client's inner address, which is the address of this host's gateway",
        ),
        (own, FREE, "192.0.2.2 as this client's inner address, which is an address of this host already"),
        (Ipv4Addr::new(192, 0, 2, 9), FREE, "which is an address of this host already"),
        (carrier, neighbour(carrier), "which is the exit's address outside the tunnel"),
        (
            RESOLVER,
            FREE,
            "192.0.2.53 as this client's inner address, which is the address of this host's resolver",
        ),
        (FREE, GATEWAY, "192.0.2.1 as the exit's inner address, which is the address of this host's gateway"),
    ] {
        let liar = LyingExit::answering(&net, key.clone(), Answers::with_lease(lease, gateway));
        let refused = client.warren.run("up home --timeout 3s");
        drop(liar);
        assert!(refused.code.is_some_and(|code| code != 0), "{lease}: {refused:?}");
        assert!(refused.stderr.contains(says), "{says:?} is not in: {refused:?}");
        client.warren.run("down home");
        client.sh(&format!("ping -c 1 -W 5 {}", Net::INTERNET_V4));
        client.assert_host_unchanged();
    }

    // The control: unused addresses are accepted, even in the client's own network.
    let _exit = LyingExit::answering(&net, key, Answers::with_lease(FREE, ALSO_FREE));
    client.up();
    client.down();
    client.assert_host_unchanged();
}

#[test]
fn an_exit_that_falls_silent_cannot_have_kept_its_client_from_the_next_one() {
    let Some(net) = Net::new() else { return };
    let next_host = net.second_client();
    let next_address: Ipv4Addr = "192.0.3.2".parse().unwrap();
    let first = Exit::init(&net, &ExitOptions::default());
    let mut next = Exit::init_on(&next_host, &ExitOptions::second());
    next.run();
    let key = PrivateKey::generate().unwrap();
    let profile = first.enrol("laptop").with_exit("public_key", key.public().to_string());
    let public = first.warren.public_key(profile.value("client", "private_key"));
    let client = Client::with(&net, &profile.with_failover_to(&next.enrol_key("laptop", &public)));
    let way = || client.sh(&format!("ip route get {next_address} mark 0x5761"));
    let is_on_the_next = || {
        let status = client.status();
        status.text("/exit/endpoint") == "192.0.3.2:443" && status.text("/state") == "up"
    };

    let answers = Answers::with_lease(next_address, Ipv4Addr::new(192, 0, 3, 77));
    let liar = LyingExit::answering(&net, key.clone(), answers);
    let refused = client.warren.run("up home --timeout 3s");
    assert!(refused.stderr.contains("which is the address of an exit of the profile"), "{refused:?}");
    assert!(!way().contains("local"), "{}", way());
    let _daemon = start(&client);
    says(&client, "which is the address of an exit of the profile");
    assert!(!way().contains("local"), "{}", way());
    drop(liar);
    eventually(seconds(40), "the client is on the next exit", is_on_the_next);
    client.down();

    // The control: with an unused address the client also moves to the next exit.
    let liar = LyingExit::answering(&net, key, Answers::with_lease(FREE, ALSO_FREE));
    let _daemon = client.run("info");
    drop(liar);
    eventually(seconds(40), "the client is on the next exit", is_on_the_next);
    client.down();
}

#[test]
fn a_lease_that_comes_to_be_somebody_s_is_given_up() {
    let Some(net) = Net::new() else { return };
    let (exit, key, profile) = lying_profile(&net);
    let client = Client::with(&net, &profile);
    let liar = || LyingExit::answering(&net, key.clone(), Answers::with_lease(LATE, LATE_EXIT));
    let resolver = |address: &str| {
        std::fs::write(net.client.etc().join("resolv.conf"), format!("nameserver {address}\n")).unwrap();
        // Makes a change of which the daemon is notified.
        client.sh("ip link add news type veth peer name other-news && ip link delete news");
    };
    let has_lease = || client.sh("ip -o address show").contains(&LATE.to_string());
    let one = liar();
    client.up();
    // The control: another resolver is no obstacle, and neither is a network without the assigned address.
    resolver("192.0.2.53");
    client.sh("ip link add lan type veth peer name far && ip address add 10.98.0.57/24 dev lan && ip link set lan up && ip link set far up");
    std::thread::sleep(seconds(2));
    assert_eq!((client.status().text("/state"), client.status().number("/reconnects")), ("up", 0));
    assert!(has_lease());

    resolver(&LATE.to_string());
    says(&client, "which is the address of this host's resolver");
    assert!(!has_lease());
    assert!(!client.warren.host.sh(&format!("ping -c 1 -W 1 {}", Net::INTERNET_V4)).succeeded());
    resolver("203.0.113.2");
    eventually(seconds(40), "the client is up again", || client.status().text("/state") == "up");
    assert!(has_lease());

    // Moves the client to another LAN, whose gateway is the only route to the exit.
    drop(one);
    client.sh("ip address add 10.99.0.57/24 dev lan");
    let gateway = format!("ip route replace 10.97.0.0/16 via {LATE} dev lan");
    eventually(seconds(20), "the route through the gateway can be added", || {
        client.warren.host.sh(&gateway).succeeded()
    });
    let _other = liar();
    says(&client, "which is the address of this host's gateway");
    client.sh("ip route delete 10.97.0.0/16");
    eventually(seconds(40), "the client is up again", || client.status().text("/state") == "up");
    client.sh("ip link delete lan");
    drop(exit);
    client.down();
}

/// An address that is unused at first.
const LATE: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 9);
const LATE_EXIT: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);

/// Returns an exit, a key, and a profile that pins this key, with which a test can act as a lying exit.
fn lying_profile(net: &Net) -> (Exit<'_>, PrivateKey, Profile) {
    let exit = Exit::init(net, &ExitOptions::default());
    let key = PrivateKey::generate().unwrap();
    let profile = exit.enrol("laptop").with_exit("public_key", key.public().to_string());
    (exit, key, profile)
}

/// Starts the daemon as a boot does.
fn start(client: &Client<'_>) -> Running {
    let daemon = client.warren.start(&format!("client run {}", client.warren.config("home.toml").display()));
    eventually(seconds(10), "the client answers", || client.warren.status().is_some());
    daemon
}

#[track_caller]
fn says(client: &Client<'_>, sentence: &str) {
    eventually(seconds(20), sentence, || {
        let status = client.status();
        status
            .0
            .pointer("/last_error")
            .and_then(|said| said.as_str())
            .is_some_and(|said| said.contains(sentence))
    });
}
