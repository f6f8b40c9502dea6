//! `warren up --dry-run` prints what `up` does, and changes nothing.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use toml::Value;

use crate::support::{self, Client, Exit, ExitOptions, Net};

#[test]
fn dry_run_prints_what_up_does_and_changes_nothing() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::init(&net, &ExitOptions::default());
    exit.configure(|config| config.with("dns", "servers", Value::Array(vec![Net::INTERNET_V4.into()])));
    exit.run();
    net.client.sh("sysctl -qw net.ipv4.conf.eth0.rp_filter=1").ok();
    let client = Client::with(&net, &exit.enrol("laptop").with("tun", "mtu", 1300));
    let before = support::HostState::of(&net.client);
    let files = client.warren.files();

    let printed = client.warren.run("up home --dry-run").ok();

    println!("{printed}");
    before.assert_same(&support::HostState::of(&net.client));
    assert_eq!(files, client.warren.files(), "no file is created");
    assert!(net.client.pids().is_empty(), "no process is started");

    client.up();
    let (ipv4, ipv6) = client.inner_addresses();
    let said = printed
        .replace("192.0.2.2", address(&ipv4))
        .replace("2001:db8::2", address(&ipv6))
        .replace("nameserver 192.0.2.1", &format!("nameserver {}", Net::INTERNET_V4));
    let lines: Vec<&str> = said.lines().collect();
    let is_said = |line: &str| assert!(lines.contains(&line), "{line:?} is not in\n{said}");
    // Everything that is now on the host was in the output of the dry run.
    for address in client.sh("ip -o address show dev warren0 scope global | awk '{print $4}'").lines() {
        let with_prefix = if address.contains('/') { address.to_owned() } else { format!("{address}/32") };
        is_said(&format!("ip address add {with_prefix} dev warren0"));
    }
    for (version, all) in [("-4", "0.0.0.0/0"), ("-6", "::/0")] {
        for route in client.sh(&format!("ip -N {version} route show table all proto 87")).lines() {
            let after = |word: &str| route.split(word).nth(1).unwrap().split(' ').next().unwrap();
            let (device, table) = (after("dev "), after("table "));
            // A route of type `throw` keeps the link's own network outside. `-N` prints RTN_THROW of `linux/rtnetlink.h` as the
            // number 9.
            if let Some(network) = route.strip_prefix("9 ").map(|rest| rest.split(' ').next().unwrap()) {
                is_said(&format!("ip {version} route add throw {network} table {table} proto 87"));
                continue;
            }
            let metric = if device == "warren-void0" { " metric 22369" } else { "" };
            is_said(&format!("ip {version} route add {all} dev {device} table {table} proto 87{metric}"));
        }
        for rule in client.sh(&format!("ip -N {version} rule show | grep fwmark")).lines() {
            let (priority, table) = (rule.split(':').next().unwrap(), rule.split("lookup ").nth(1).unwrap());
            let table = table.split(' ').next().unwrap();
            is_said(&format!(
                "ip {version} rule add priority {priority} not fwmark 0x5761 lookup {table} protocol 87"
            ));
        }
    }
    let table = client.sh("nft --stateless list table inet warren-dns_home");
    let squeezed = |text: &str| text.split_whitespace().collect::<String>();
    for rule in table.lines().filter(|line| line.contains("meta") || line.contains("dport")) {
        let rule = rule.trim().replace("0x00005", "0x5");
        println!("{rule}");
        assert!(squeezed(&said).contains(&squeezed(&rule)), "{rule} is not in\n{said}");
    }
    is_said("sysctl -w net.ipv4.conf.eth0.rp_filter=2");
    for line in client.sh("grep ^nameserver /etc/resolv.conf").lines() {
        is_said(line);
    }
    assert!(said.contains("mtu 1300"), "{said}");
    client.down();
}

/// An inner address without its prefix length.
fn address(lease: &serde_json::Value) -> &str {
    lease.as_str().unwrap().split('/').next().unwrap()
}
