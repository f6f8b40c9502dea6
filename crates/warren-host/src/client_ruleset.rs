//! The text of a client's firewall.
//!
//! Answers of inbound connections leave on the side, inside or outside the tunnel, from which the connection came. Hosts outside
//! the tunnel cannot send to the inner addresses. Hosts that connect through the tunnel reach only allowed ports. Packets that
//! are forwarded into the tunnel are translated to an inner source address. No packet with an inner address leaves outside the
//! tunnel.

use ipnet::IpNet;

use crate::{
    CARRIER_BIT, DEVICE_GROUP,
    client_facts::ClientPlanFacts,
    client_inbound,
    ruleset_text::{by_version, chain},
};

/// Returns the chains of a client's table, one statement per line. `listening` are the ports on which TCP listens.
pub(crate) fn ruleset(host: &ClientPlanFacts, listening: &[u16]) -> String {
    let mut text = String::new();
    // Priority `raw` is before conntrack, so a dropped probe creates no conntrack entry.
    chain(&mut text, "outside", "type filter hook prerouting priority raw; policy accept;", &outside(host));
    // Runs after conntrack, because the rules read connection marks, and before the routing decision, which uses the packet's
    // mark.
    let mangle = "type filter hook prerouting priority mangle; policy accept;";
    client_inbound::chains(&mut text, host);
    chain(&mut text, "prerouting", mangle, &prerouting(host, listening));
    // Runs before any tunnel's table marks an answer, because this chain would mistake the answer's mark for the carrier's.
    let first = "type filter hook output priority mangle - 5; policy accept;";
    chain(
        &mut text,
        "carrier",
        first,
        &[format!("meta mark {:#x} ct mark set {:#x}", host.mark, carrier(host))],
    );
    // The chain type `route` repeats the routing decision once a rule has set the mark.
    let route = "type route hook output priority mangle; policy accept;";
    chain(&mut text, "output", route, &output(host, listening));
    let nat = "type nat hook postrouting priority srcnat; policy accept;";
    chain(&mut text, "postrouting", nat, &postrouting(host));
    // Runs after source NAT, so that the rules see the address with which the packet leaves.
    let leaving = "type filter hook postrouting priority srcnat + 100; policy accept;";
    chain(&mut text, "leaving", leaving, &leaving_outside(host));
    text
}

/// Drops packets from the LAN to an inner address. Such a packet is an attempt to discover the address or to
/// attack a connection (CVE-2019-14899).
fn outside(host: &ClientPlanFacts) -> Vec<String> {
    inner(host)
        .map(|(family, address)| {
            // Packets that this host sends to the address arrive on `lo`, from a local address, and are not dropped.
            format!("meta iifgroup != {DEVICE_GROUP} {family} daddr {address} fib saddr type != local counter drop")
        })
        .collect()
}

/// Marks connections from outside all tunnels to this host or to its guests' own addresses. Also marks the guests' replies that
/// this host forwards.
fn prerouting(host: &ClientPlanFacts, listening: &[u16]) -> Vec<String> {
    let mark = host.mark;
    // Only a bare SYN proves that a connection began outside. Conntrack treats the first packet that it sees of an older
    // connection as new, even if this host began the connection.
    let new = "ct state new ct mark 0 fib daddr type local";
    let mut rules: Vec<String> = client_inbound::arrivals(host).collect();
    rules.extend([
        format!("meta iifgroup {DEVICE_GROUP} accept"),
        "iifname \"lo\" accept".into(),
        format!("{new} tcp flags & (syn | ack) == syn ct mark set {mark:#x}"),
        format!("{new} meta l4proto != tcp ct mark set {mark:#x}"),
    ]);
    // Matches a connection that is older than this table but that conntrack already knows.
    let older = "ct state established ct direction original ct mark 0";
    rules.push(format!("{older} fib daddr type local ct mark set {mark:#x}"));
    for (family, guests) in guests(host) {
        rules.push(format!("{older} {family} daddr {{ {guests} }} ct mark set {mark:#x}"));
        let new = format!("ct state new ct mark 0 {family} daddr {{ {guests} }}");
        rules.push(format!("{new} tcp flags & (syn | ack) == syn ct mark set {mark:#x}"));
        rules.push(format!("{new} meta l4proto != tcp ct mark set {mark:#x}"));
    }
    // Matches a connection that is older than connection tracking. A connection that this host began does not match, because its
    // local port is not a listening port.
    rules.extend(set(listening).map(|ports| format!("{new} tcp dport {{ {ports} }} ct mark set {mark:#x}")));
    rules.push(format!("ct direction reply ct mark {mark:#x} meta mark set {mark:#x}"));
    rules.extend(client_inbound::forwarded_answers(host));
    // Packets from an exit get the packet mark too, so that reverse path filtering ignores the tunnel's routes for them.
    rules.push(format!("ct mark {:#x} meta mark set {mark:#x}", carrier(host)));
    rules
}

/// Returns the connection mark of carriers. It differs from `host.mark`, which is the connection mark of connections from outside
/// and the packet mark of both.
fn carrier(host: &ClientPlanFacts) -> u32 {
    host.mark | CARRIER_BIT
}

/// Marks the answers of connections from outside, so that they are routed as if there were no tunnel.
fn output(host: &ClientPlanFacts, listening: &[u16]) -> Vec<String> {
    let mark = host.mark;
    // Matches an answer that is about to enter the tunnel, and whose connection conntrack does not know yet. The answer comes
    // from a listening port, so another host began the connection.
    let older = set(listening).map(|ports| {
        format!(
            "ct state new ct mark 0 tcp sport {{ {ports} }} tcp flags & (syn | ack) != syn meta oifgroup {DEVICE_GROUP} \
             ct mark set {mark:#x}"
        )
    });
    let answers = format!("ct mark {mark:#x} meta mark 0 meta mark set {mark:#x}");
    older.into_iter().chain([answers]).collect()
}

/// Masquerades packets into the tunnel, because the exit accepts only packets from the inner addresses and from the networks that
/// it routes to this host.
fn postrouting(host: &ClientPlanFacts) -> Vec<String> {
    inner(host)
        .map(|(family, address)| {
            let behind = by_version(&host.prefixes).find(|(version, _)| *version == family);
            let own = match behind {
                None => address,
                Some((_, networks)) => format!("{{ {address}, {networks} }}"),
            };
            format!("oifname \"{}\" {family} saddr != {own} masquerade", host.device)
        })
        .collect()
}

/// Drops packets with an inner address that would leave outside. Connections outlive their tunnel, and connection tracking
/// continues to translate their packets, even after the daemon was killed.
fn leaving_outside(host: &ClientPlanFacts) -> Vec<String> {
    let tunnels = [format!("meta oifgroup {DEVICE_GROUP} accept"), "oifname \"lo\" accept".into()];
    let drops = inner(host).map(|(family, address)| format!("{family} saddr {address} counter drop"));
    tunnels.into_iter().chain(drops).collect()
}

/// The guests' networks by IP version.
fn guests(host: &ClientPlanFacts) -> Vec<(&'static str, String)> {
    let networks: Vec<IpNet> = host.guests.iter().map(|guest| guest.network).collect();
    by_version(&networks).collect()
}

fn inner(host: &ClientPlanFacts) -> impl Iterator<Item = (&'static str, String)> {
    let ipv4 = host.ipv4.map(|address| ("ip", address.to_string()));
    let ipv6 = host.ipv6.map(|address| ("ip6", address.to_string()));
    ipv4.into_iter().chain(ipv6)
}

/// Returns the ports as elements of a set. `None` if there are no ports.
fn set(ports: &[u16]) -> Option<String> {
    let ports: Vec<String> = ports.iter().map(ToString::to_string).collect();
    (!ports.is_empty()).then(|| ports.join(", "))
}
