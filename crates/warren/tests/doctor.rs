//! The doctor's findings on a real host, and its repairs.

use serde_json::Value;

use rustix::process::Signal;

use crate::support::{Client, Exit, ExitOptions, Finished, Net, eventually, seconds};

#[track_caller]
fn findings(answer: &Finished) -> Vec<Value> {
    serde_json::from_str(&answer.stdout).unwrap_or_else(|error| panic!("{error}: {answer:?}"))
}

#[track_caller]
fn verdict<'a>(findings: &'a [Value], check: &str) -> &'a str {
    let found = |finding: &&Value| finding.get("check").and_then(Value::as_str) == Some(check);
    let finding = findings.iter().find(found).unwrap_or_else(|| panic!("no {check} in {findings:#?}"));
    finding.get("verdict").and_then(Value::as_str).expect("a finding has a verdict")
}

#[test]
fn doctor_finds_what_keeps_a_running_exit_from_forwarding() {
    let Some(net) = Net::new() else { return };
    // Gives the host its own /etc.
    let etc = net.exit.own_files().etc();
    let mut exit = Exit::init(&net, &ExitOptions::default());
    let stopped = findings(&exit.warren.run("doctor --json"));
    assert_eq!(
        (verdict(&stopped, "forwarding"), verdict(&stopped, "port")),
        ("good", "good"),
        "{stopped:#?}"
    );
    exit.run();
    let running = exit.warren.run("doctor --json");
    for check in [
        "configuration",
        "remains",
        "tun",
        "nft",
        "port",
        "addresses",
        "forwarding",
        "nat",
        "resolver",
        "mtu",
        "path mtu",
        "tun offload",
        "udp offload",
        "socket buffers",
    ] {
        assert_eq!(verdict(&findings(&running), check), "good", "{check}: {running:?}");
    }

    net.filter("ip saddr 198.51.100.2 ip length > 1400 drop;");
    let said = exit.warren.run("doctor").stdout;
    assert!(said.contains("forwarding: on, only for clients"), "{said}");
    // A running daemon would turn forwarding on again.
    exit.daemon().signal(Signal::STOP);
    net.exit.sh("sysctl -qw net.ipv4.conf.warren-exit.forwarding=0").ok();
    net.exit.sh("nft add table ip other && nft add chain ip other f '{ type filter hook forward priority 0; policy drop; }'").ok();
    let broken = exit.warren.run("doctor --json");
    assert_eq!(broken.code, Some(1), "{broken:?}");
    let broken = findings(&broken);
    assert_eq!((verdict(&broken, "forwarding"), verdict(&broken, "other firewalls")), ("problem", "problem"));
    assert_eq!(verdict(&broken, "path mtu"), "advice", "{broken:#?}");
    net.unfilter();
    let text = exit.warren.run("doctor");
    assert!(text.stdout.starts_with("PROBLEM  forwarding: "), "{text:?}");
    assert!(text.stdout.contains("nft insert rule ip other f iifname warren-exit accept"), "{text:?}");

    // The doctor does not turn on forwarding for the whole host.
    exit.warren.run("doctor --fix");
    assert_eq!(net.exit.sh("cat /proc/sys/net/ipv4/ip_forward").ok(), "0");
    assert!(!etc.join("sysctl.d/90-warren-net.ipv4.ip_forward.conf").exists());
    exit.daemon().signal(Signal::CONT);
    eventually(seconds(10), "the exit turns forwarding on again", || {
        verdict(&findings(&exit.warren.run("doctor --json")), "forwarding") == "good"
    });
    net.exit.sh("sysctl -qw net.ipv4.ip_forward=1").ok();
    let said = exit.warren.run("doctor").stdout;
    assert!(
        said.contains("also for other hosts that send packets here, because net.ipv4.ip_forward is on"),
        "{said}"
    );

    exit.configure(|config| config.with("nat", "enabled", "maybe"));
    let broken = findings(&exit.warren.run("doctor --json"));
    assert_eq!(verdict(&broken, "configuration"), "problem");
}

/// The firewall chains that the doctor and the exit's log report do block clients, and the commands that they suggest let clients
/// through.
#[test]
fn a_firewall_that_drops_keeps_clients_out_until_the_lines_that_the_exit_names_are_run() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::init(&net, &ExitOptions::default());
    exit.run();
    let client = Client::with(&net, &exit.enrol("laptop"));
    exit.stop(Signal::TERM);
    let chain = |hook: &str, rules: &str| {
        format!(
            "chain {hook} {{ type filter hook {hook} priority 0; policy drop; ct state established,related accept; {rules} }};"
        )
    };
    // Every firewall must allow neighbour discovery.
    let input = chain("input", "meta l4proto ipv6-icmp accept;");
    net.exit.sh(&format!("nft 'table inet other {{ {input} {} }}'", chain("forward", ""))).ok();
    exit.run();
    assert!(!client.warren.run("up home --timeout 3s").succeeded());
    let said = exit.daemon().output();
    let lines = said.lines().filter(|line| line.contains("no rule accepts these")).collect::<Vec<_>>();
    assert_eq!(lines.len(), 2, "{said}");
    let found = findings(&exit.warren.run("doctor --json"));
    assert_eq!(verdict(&found, "other firewalls"), "problem", "{found:#?}");

    for line in &lines {
        let (_, run) = line.split_once("run: ").unwrap();
        let run = run.split(", and add").next().unwrap();
        net.exit.sh(run).ok();
    }

    client.up();
    client.sh(&format!("ping -c 1 -W 5 {} && ping -c 1 -W 5 {}", Net::INTERNET_V4, Net::INTERNET_V6));
    let found = findings(&exit.warren.run("doctor --json"));
    assert_eq!(verdict(&found, "other firewalls"), "good", "{found:#?}");
    client.down();
}

#[test]
fn doctor_of_a_client_knocks_at_its_exit_beside_a_tunnel_that_is_up() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();
    let session = client.status().number("/session/id");

    // On a busy machine, the exit may not answer within the time that the doctor waits, so the check is repeated.
    eventually(seconds(40), "the doctor's verdict on the exit is good", || {
        let answer = client.warren.run("doctor --json");
        verdict(&findings(&answer), "exit") == "good"
            && answer.stdout.contains("the exit 198.51.100.2:443 of home answers at")
    });
    assert_eq!((client.status().number("/session/id"), client.status().number("/reconnects")), (session, 0));
    client.down();
    exit.stop(Signal::TERM);
    assert_eq!(verdict(&findings(&client.warren.run("doctor --json")), "exit"), "problem");
}
