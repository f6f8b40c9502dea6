//! What the doctor finds on a real host, and mends.

use serde_json::Value;

use crate::support::{Exit, ExitOptions, Finished, Net};

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
fn doctor_finds_and_mends_what_keeps_a_running_exit_from_forwarding() {
    let Some(net) = Net::new() else { return };
    // What is written below /etc stays with this host.
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
    for check in
        ["configuration", "remains", "tun", "nft", "port", "addresses", "forwarding", "resolver", "mtu"]
    {
        assert_eq!(verdict(&findings(&running), check), "good", "{running:?}");
    }

    net.exit.sh("sysctl -qw net.ipv4.ip_forward=0").ok();
    net.exit.sh("nft add table ip other && nft add chain ip other f '{ type filter hook forward priority 0; policy drop; }'").ok();
    let broken = exit.warren.run("doctor --json");
    assert_eq!(broken.code, Some(1), "{broken:?}");
    let broken = findings(&broken);
    assert_eq!((verdict(&broken, "forwarding"), verdict(&broken, "other firewalls")), ("problem", "advice"));
    let text = exit.warren.run("doctor");
    assert!(text.stdout.starts_with("PROBLEM  forwarding: "), "{text:?}");
    assert!(text.stdout.contains("nft insert rule ip other f iifname warren-exit accept"), "{text:?}");

    let fixed = exit.warren.run("doctor --fix --json");

    assert!(fixed.stderr.contains("sysctl -w net.ipv4.ip_forward=1"), "{fixed:?}");
    assert_eq!(verdict(&findings(&fixed), "forwarding"), "good");
    assert_eq!(net.exit.sh("cat /proc/sys/net/ipv4/ip_forward").ok(), "1");
    let kept = std::fs::read_to_string(etc.join("sysctl.d/90-warren-net.ipv4.ip_forward.conf")).unwrap();
    assert_eq!(kept, "net.ipv4.ip_forward = 1\n");

    exit.configure(|config| config.with("nat", "enabled", "maybe"));
    let broken = findings(&exit.warren.run("doctor --json"));
    assert_eq!(verdict(&broken, "configuration"), "problem");
}
