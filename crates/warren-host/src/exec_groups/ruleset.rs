//! The text of the table that puts programs inside or outside of a tunnel.
//!
//! A packet is recognised by the cgroup of its socket, and marked. Policy routing sends marked packets to their side. The last
//! chain, after all routing, drops packets on the wrong side. A packet of a program inside may leave only by the tunnel's device,
//! and one of a program outside may not enter the tunnel.

use std::net::IpAddr;

use super::{cgroup::LEVEL, rules::ExecRules};
use crate::ruleset_text::chain;

/// The chains of the table, one statement per line.
pub(super) fn ruleset(rules: &ExecRules) -> String {
    let mut text = String::new();
    let mut add =
        |name: &str, header: &str, statements: &[String]| chain(&mut text, name, header, statements);
    let marks = rules.marks();
    // Drops packets that already have these marks, so that a program with CAP_NET_RAW cannot forge them.
    let forged = format!("meta mark {{ {:#x}, {:#x} }} counter drop", marks.inside, marks.outside);
    add("forged", "type filter hook output priority mangle - 30; policy accept;", &[forged]);
    add("local", "type filter hook prerouting priority raw; policy accept;", &local(rules));
    // Runs before the reverse path checks of other tables, which use the packet's mark.
    add("arriving", "type filter hook prerouting priority mangle + 1; policy accept;", &arriving(rules));
    add("input", "type filter hook input priority filter - 10; policy accept;", &input(rules));
    add("inside", "", &inside(rules));
    add("outside", "", &outside(rules));
    // Runs after the chains of Warren's other tables. The chain type `route` repeats the routing decision for a new mark.
    add("marking", "type route hook output priority mangle + 10; policy accept;", &marking(rules));
    // -100 is the priority `dstnat`. nft does not accept that word in this hook.
    add("names", "type nat hook output priority -100; policy accept;", &names(rules));
    add("queries", "type filter hook output priority filter - 30; policy accept;", &queries(rules));
    add("check", "type filter hook output priority security; policy accept;", &check(rules));
    // Packets are masqueraded, because the kernel chose their source addresses by the host's own routes, before they were marked.
    add("source", "type nat hook postrouting priority srcnat; policy accept;", &source(rules));
    add("guard", "", &guard(rules));
    add("leaving", "type filter hook postrouting priority srcnat - 10; policy accept;", &leaving(rules));
    text
}

fn socket(group: &str) -> String {
    format!("socket cgroupv2 level {LEVEL} \"{group}\"")
}

/// Drops packets to 127.0.0.0/8 that arrive on the TUN device. `route_localnet` makes the device accept them, which answers to
/// redirected queries need after translation. The answers themselves arrive with the inner address.
fn local(rules: &ExecRules) -> Vec<String> {
    rules.device.iter().map(|index| format!("iif {index} ip daddr 127.0.0.0/8 counter drop")).collect()
}

fn arriving(rules: &ExecRules) -> Vec<String> {
    let marks = rules.marks();
    let Some(index) = rules.device else { return Vec::new() };
    vec![
        format!("iif {index} ct mark {0:#x} meta mark set {0:#x}", marks.inside),
        format!("iif != {index} ct mark {0:#x} meta mark set {0:#x}", marks.outside),
    ]
}

/// Drops packets from outside to a program inside. Otherwise the kernel would answer some of them itself, with packets that
/// belong to no socket and so to no cgroup.
fn input(rules: &ExecRules) -> Vec<String> {
    let mut statements = vec!["iifname \"lo\" accept".into()];
    statements.extend(rules.device.iter().map(|index| format!("iif {index} accept")));
    statements.push(format!("{} counter drop", socket(&rules.inside)));
    statements
}

/// Marks the packets of programs inside, except for those to services on this host other than DNS.
fn inside(rules: &ExecRules) -> Vec<String> {
    marked(rules.marks().inside)
}

fn outside(rules: &ExecRules) -> Vec<String> {
    marked(rules.marks().outside)
}

fn marked(mark: u32) -> Vec<String> {
    vec![
        "oifname \"lo\" meta l4proto != { tcp, udp } return".into(),
        "oifname \"lo\" th dport != 53 return".into(),
        format!("ct mark set {mark:#x}"),
        format!("meta mark set {mark:#x}"),
    ]
}

fn marking(rules: &ExecRules) -> Vec<String> {
    let marks = rules.marks();
    let mut statements = vec![format!("{} goto inside", socket(&rules.inside))];
    if rules.outside_resolvers.is_some() {
        statements.push(format!("{} goto outside", socket(&rules.outside)));
    }
    // The kernel sends some packets of a connection without a socket, for example in TIME_WAIT. The following rules are only for
    // those: a packet with a socket belongs to another program, even if it has the ports of an earlier connection.
    statements.push("socket mark != 0xffffffff return".into());
    for mark in [marks.inside, marks.outside] {
        statements.push(format!("oifname != \"lo\" ct mark {mark:#x} meta mark set {mark:#x}"));
    }
    statements
}

/// Redirects a program's DNS queries to a resolver of the program's own side, whichever resolver the program asks.
fn names(rules: &ExecRules) -> Vec<String> {
    let marks = rules.marks();
    let sides = [(marks.inside, Some(&rules.resolvers)), (marks.outside, rules.outside_resolvers.as_ref())];
    let mut statements = Vec::new();
    for (mark, servers) in sides {
        for (family, protocol, is_its) in FAMILIES {
            let server = servers.into_iter().flatten().find(|server| is_its(server));
            statements.extend(server.map(|server| {
                format!(
                    "meta mark {mark:#x} meta nfproto {protocol} meta l4proto {{ tcp, udp }} th dport 53 dnat {family} to {server}"
                )
            }));
        }
    }
    statements
}

type OfFamily = (&'static str, &'static str, fn(&IpAddr) -> bool);
const FAMILIES: [OfFamily; 2] = [("ip", "ipv4", IpAddr::is_ipv4), ("ip6", "ipv6", IpAddr::is_ipv6)];

/// Refuses queries to a resolver on this host that were not redirected, because that resolver would send its own queries on the
/// host's side.
fn queries(rules: &ExecRules) -> Vec<String> {
    let marks = rules.marks();
    [marks.inside, marks.outside]
        .iter()
        .flat_map(|mark| {
            let query = format!("oifname \"lo\" meta mark {mark:#x} meta l4proto {{ tcp, udp }} th dport 53");
            [format!("{query} ct status dnat accept"), format!("{query} reject with icmpx admin-prohibited")]
        })
        .collect()
}

/// Drops packets whose mark is not the one of their program's side, because another program's table has changed it.
fn check(rules: &ExecRules) -> Vec<String> {
    let marks = rules.marks();
    let mut statements = vec![format!(
        "{} oifname != \"lo\" meta mark != {:#x} counter drop",
        socket(&rules.inside),
        marks.inside
    )];
    if rules.outside_resolvers.is_some() {
        statements.push(format!(
            "{} oifname != \"lo\" meta mark != {:#x} counter drop",
            socket(&rules.outside),
            marks.outside
        ));
    }
    statements
}

fn source(rules: &ExecRules) -> Vec<String> {
    let marks = rules.marks();
    let inside =
        rules.device.iter().map(|index| format!("meta mark {:#x} oif {index} masquerade", marks.inside));
    let outside = format!("meta mark {:#x} oifname != \"lo\" masquerade", marks.outside);
    inside.chain([outside]).collect()
}

/// Rules that let a program in the inside group send only through the loopback device and the TUN. The kernel does not reuse a
/// device index, so no other device can match after the TUN is gone.
fn guard(rules: &ExecRules) -> Vec<String> {
    let mut statements = vec!["oifname \"lo\" accept".into()];
    statements.extend(rules.device.iter().map(|index| format!("oif {index} accept")));
    statements.push("counter drop".into());
    statements
}

fn leaving(rules: &ExecRules) -> Vec<String> {
    let marks = rules.marks();
    let mut statements = vec![
        format!("meta mark {:#x} goto guard", marks.inside),
        format!("ct mark {:#x} goto guard", marks.inside),
    ];
    // A program outside never uses the tunnel.
    statements.extend(
        rules.device.iter().map(|index| format!("meta mark {:#x} oif {index} counter drop", marks.outside)),
    );
    statements
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_inside_has_one_way_out_and_none_without_a_device() {
        let mut rules = ExecRules::cut_off("warren.slice/warren-home.slice".into(), "o".into());
        let cut = ruleset(&rules);
        assert!(cut.contains("chain guard {\n\toifname \"lo\" accept\n\tcounter drop\n}\n"), "{cut}");
        assert!(!cut.contains("dnat ip") && !cut.contains("goto outside"), "{cut}");

        rules.device = Some(7);
        rules.slot = Some(2);
        rules.resolvers = vec!["10.66.0.1".parse().unwrap()];
        let up = ruleset(&rules);
        assert!(
            up.contains("chain guard {\n\toifname \"lo\" accept\n\toif 7 accept\n\tcounter drop\n}\n"),
            "{up}"
        );
        let redirected = "meta mark 0x2005762 meta nfproto ipv4 meta l4proto { tcp, udp } th dport 53 dnat ip to 10.66.0.1\n";
        assert!(up.contains(redirected), "{up}");
    }
}
