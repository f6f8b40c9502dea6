//! Changing a running exit and its clients: other clients notice nothing.

use rustix::process::Signal;
use warren_quic::key::PrivateKey;

use crate::support::{self, Client, Exit, Net, Profile, eventually, seconds};

#[test]
fn reload_takes_over_what_changed_and_loses_no_packet_of_others() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();
    let gone = net.second_client();
    let phone = exit.enrol("phone");
    let removed = Client::on(&gone, &phone);
    removed.up();
    let mut ping = client.warren.host.start(&["ping", "-i", "0.01", "-c", "600", Net::INTERNET_V4]);
    ping.wait_for_output("icmp_seq=10 ");
    let added = PrivateKey::generate().unwrap();
    let table_before = net.exit.sh("nft list table inet warren_exit").ok();

    exit.configure(|config| {
        config.with("clients", "isolation", false).with("dns", "servers", vec!["9.9.9.9"]).with(
            "access",
            "allow",
            vec!["192.168.77.0/24", "203.0.113.0/24"],
        )
    });
    exit.edit_clients(|clients| {
        clients.retain(|client| client["name"].as_str() != Some("phone"));
        let entry = format!(
            "name = \"tablet\"\npublic_key = \"{}\"\ncreated = \"2026-01-01T00:00:00Z\"",
            added.public()
        );
        clients.push(entry.parse::<toml::Table>().unwrap().into());
    });
    let beside = exit.warren.run("exit client rename laptop desk");
    assert!(beside.stderr.contains("run `warren reload exit` first"), "{beside:?}");
    let reloaded = exit.warren.run("reload").ok();

    assert_eq!(
        reloaded,
        "Reloaded exit: isolation in [clients], allow in [access], servers in [dns], the clients have changed."
    );
    assert_ne!(net.exit.sh("nft list table inet warren_exit").ok(), table_before);
    let list = exit.warren.run("exit client list").ok();
    assert!(list.contains("laptop") && !list.contains("phone"), "{list}");
    eventually(seconds(5), "the removed client is refused", || removed.status().text("/state") == "refused");
    let tablet = phone.with("client", "private_key", added.to_base64().as_str());
    removed.warren.write("home.toml", 0o600, &tablet.text());
    let other_key = removed.warren.run("up home");
    assert!(
        other_key.code == Some(1) && other_key.stderr.contains("the private key changed"),
        "{other_key:?}"
    );
    removed.down();
    removed.up();
    removed.down();

    // A signal has the same effect.
    exit.edit_clients(|clients| {
        let laptop = clients.iter_mut().find(|client| client["name"].as_str() == Some("laptop"));
        laptop.unwrap()["name"] = "desk".into();
    });
    support::signal(i32::try_from(exit.status().number("/pid")).unwrap(), Signal::HUP);
    eventually(seconds(5), "the client has its new name", || {
        exit.status().text("/sessions/0/name") == "desk"
    });

    // Invalid values, and changes that need a restart, change nothing and are reported.
    for (section, key, value) in [("nat", "enabled", "maybe"), ("addresses", "ipv4", "10.99.0.0/16")] {
        let good = std::fs::read_to_string(exit.warren.config("exit.toml")).unwrap();
        exit.configure(|config| config.with(section, key, value));
        let refused = exit.warren.run("reload exit");
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert!(refused.stderr.contains("exit.toml"), "{refused:?}");
        assert!(refused.stderr.contains(exit.status().text("/reload_error")), "{refused:?}");
        std::fs::write(exit.warren.config("exit.toml"), good).unwrap();
    }
    let file = exit.warren.state("exit/clients.toml");
    std::fs::write(&file, "").unwrap();
    let refused = exit.warren.run("reload exit");
    assert!(refused.stderr.contains("clients.toml names no client; remove it"), "{refused:?}");
    std::fs::remove_file(&file).unwrap();
    exit.configure(|config| config.with("transport", "max_transmit_segments", 10));
    exit.warren.run("reload exit").ok();
    assert_eq!(exit.status().number("/transport/max_transmit_segments"), 10);
    let profile = std::fs::read_to_string(client.warren.config("home.toml")).unwrap();
    let retuned = Profile::parse(&profile).with("transport", "congestion", "bbr3");
    client.warren.write("home.toml", 0o600, &retuned.text());
    let reloaded = client.warren.run("reload home").ok();
    assert_eq!(reloaded, "Reloaded home: congestion in [transport] has changed.");
    assert_eq!(client.warren.run("reload home").ok(), "Reloaded home: no setting has changed.");
    assert_eq!(client.status().text("/transport/congestion"), "bbr3");
    client.warren.write("home.toml", 0o600, &retuned.with("transport", "connections", 2).text());
    let refused = client.warren.run("reload home");
    assert!(
        refused.stderr.contains("connections in [transport] changed, which needs `warren down`"),
        "{refused:?}"
    );

    ping.wait(seconds(30));
    assert!(ping.output().contains("600 received, 0% packet loss"), "{}", ping.output());
}

#[test]
fn a_reload_that_the_firewall_does_not_follow_says_that_it_is_in_force_and_clients_are_told() {
    let Some(net) = Net::new() else { return };
    let files = net.exit.own_files();
    files.program("nft", FAILING);
    let fails = |what: &str| std::fs::write(files.run().join("nft-fails"), what).unwrap();
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();
    let resolvers = || client.sh("cat /etc/resolv.conf");
    let table = || net.exit.sh("/usr/sbin/nft list table inet warren_exit").ok();

    fails("192.168.77.0");
    exit.configure(|config| {
        config.with("dns", "servers", vec!["9.9.9.9"]).with("access", "allow", vec!["192.168.77.0/24"])
    });
    let half = exit.warren.run("reload exit");

    assert_eq!(half.code, Some(1), "{half:?}");
    assert!(half.stderr.contains("is in force, but routes and firewall did not follow"), "{half:?}");
    assert!(half.stderr.contains(exit.status().text("/reload_error")), "{half:?}");
    eventually(seconds(5), "the client has the new resolver", || resolvers().contains("9.9.9.9"));
    assert!(!table().contains("192.168.77.0"));
    fails("nothing");
    eventually(seconds(10), "the firewall follows by itself", || table().contains("192.168.77.0"));
    exit.warren.run("reload exit").ok();
    client.down();
}

/// An nft that refuses rulesets with the text in `/run/nft-fails`. The daemon has it include a ruleset from an inherited file.
const FAILING: &str = r#"#!/bin/sh
while IFS= read -r line; do
  what=$(cat /run/nft-fails 2>/dev/null)
  file=${line#include \"}
  if [ "$file" != "$line" ] && grep -q "${what:-nothing}" "${file%\"}"; then line='no nft command'; fi
  printf '%s\n' "$line"
done | /usr/sbin/nft "$@"
"#;

#[test]
fn a_client_follows_its_profile_without_another_connection_and_goes_back_to_what_was() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let profile = exit.enrol("laptop");
    let client = Client::with(&net, &profile);
    client.up();
    let session = client.status().number("/session/id");
    let routes = || client.sh("ip -4 route show table 22369; ip -4 rule");
    let reload = |profile: &Profile| {
        client.warren.write("home.toml", 0o600, &profile.text());
        client.warren.run("reload home")
    };
    let mut ping = client.warren.host.start(&["ping", "-i", "0.05", "-c", "60", Net::INTERNET_V4]);
    ping.wait_for_output("icmp_seq=5 ");

    let split = profile.clone().with("routes", "include", vec!["203.0.113.0/24"]);
    let split = split.with("dns", "servers", vec!["203.0.113.2"]);
    reload(&split).ok();
    assert!(
        routes().contains("203.0.113.0/24 dev warren0") && !routes().contains("default dev"),
        "{}",
        routes()
    );
    assert!(client.sh("cat /etc/resolv.conf").contains("nameserver 203.0.113.2"));
    ping.wait(seconds(30));
    assert!(ping.output().contains("60 received, 0% packet loss"), "{}", ping.output());

    let closed = profile.clone().with("kill_switch", "enabled", true);
    reload(&closed).ok();
    assert!(routes().contains("default dev warren0"), "{}", routes());
    assert!(client.status().0["kill_switch"].as_bool().unwrap());
    client.sh(&format!("ping -c 2 -i 0.2 -W 5 {}", Net::INTERNET_V4));
    let open = reload(&profile);
    assert!(open.stderr.contains("enabled in [kill_switch] changed"), "{open:?}");
    assert!(client.status().0["kill_switch"].as_bool().unwrap());

    assert_eq!((client.status().number("/session/id"), client.status().number("/reconnects")), (session, 0));
    client.down();
}

#[test]
fn client_is_renamed_disabled_enabled_and_moved_while_the_exit_runs_or_not() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();

    exit.warren.run("exit client rename laptop desk").ok();
    assert_eq!(exit.status().text("/sessions/0/name"), "desk");
    exit.warren.run("exit client set desk --ipv4 10.66.7.7").ok();
    eventually(seconds(10), "the client has its new address", || {
        client.warren.status().is_some_and(|status| {
            status.0.pointer("/session/ipv4").and_then(|address| address.as_str()) == Some("10.66.7.7/16")
                && status.text("/state") == "up"
        })
    });
    client.sh(&format!("ping -c 1 -W 5 {}", Net::INTERNET_V4));

    exit.warren.run("exit client disable desk").ok();
    eventually(seconds(5), "a disabled client is refused", || client.status().text("/state") == "refused");
    assert_eq!(client.warren.run("up home").code, Some(4));
    exit.stop(Signal::TERM);
    exit.warren.run("exit client enable desk").ok();
    exit.warren.run("exit client rename desk laptop").ok();
    exit.warren.run("exit client set laptop --ipv4 10.66.7.8 --no-prefixes").ok();
    assert_eq!(exit.warren.run("exit client set nobody --ipv4 auto").code, Some(1));
    exit.run();
    client.up();
    assert_eq!(client.inner_addresses().0, "10.66.7.8/16");
    client.down();
}

#[test]
fn draining_sends_clients_away_and_stops_the_exit() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();
    let addresses = client.inner_addresses();

    // The client's profile has only one exit, so the command asks a person first.
    let unasked = exit.warren.run("exit drain");
    assert_eq!(unasked.code, Some(2), "{unasked:?}");
    assert!(unasked.stderr.contains("1 of 1 connected clients has nowhere to go: laptop."), "{unasked:?}");
    assert!(unasked.stderr.contains("add --yes"), "{unasked:?}");
    let mut terminal = exit.warren.on_terminal("exit drain");
    terminal.wait_for("the question", |lines| lines.iter().any(|line| line.contains("Drain anyway?")));
    terminal.press("n\r");
    assert_eq!(terminal.exit_code(), Some(1));
    assert_eq!(exit.status().number("/clients/connected"), 1, "nothing was changed");

    let drained = exit.warren.run("exit drain --timeout 20s --yes");
    assert!(drained.succeeded() && drained.stderr.contains("laptop"), "{drained:?}");

    assert_eq!(exit.daemon().wait(seconds(5)), Some(0));
    assert_eq!(exit.warren.run("exit drain").code, Some(3));
    eventually(seconds(5), "the client knows why", || {
        client.warren.status().is_some_and(|status| status.text("/state") == "reconnecting")
    });
    exit.run();
    eventually(seconds(20), "the client comes back", || client.status().text("/state") == "up");
    assert_eq!(client.inner_addresses(), addresses);
    client.down();
}
