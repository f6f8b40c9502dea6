//! The text of a client's firewall.
//!
//! Answers to inbound connections take the way by which the connection came. Hosts outside the tunnel cannot use the inner
//! addresses. Hosts that come through the tunnel reach only allowed ports. Packets that are forwarded into the tunnel get an
//! inner address. No packet with an inner address leaves outside the tunnel.

use ipnet::IpNet;

use crate::{
    CARRIER_BIT, DEVICE_GROUP,
    client_facts::ClientPlanFacts,
    client_inbound,
    ruleset_text::{by_version, chain},
};

/// The chains of a client's table, one statement per line, for ports on which TCP listens.
pub(crate) fn ruleset(host: &ClientPlanFacts, listening: &[u16]) -> String {
    let mut text = String::new();
    // Priority `raw` is before conntrack, so a dropped probe leaves no entry there.
    chain(&mut text, "outside", "type filter hook prerouting priority raw; policy accept;", &outside(host));
    // Runs after conntrack, because the rules read its marks, and before the routing decision, which reads the packet's mark.
    let mangle = "type filter hook prerouting priority mangle; policy accept;";
    client_inbound::chains(&mut text, host);
    chain(&mut text, "prerouting", mangle, &prerouting(host, listening));
    // Runs before any table marks an answer: the next table would mistake that mark for the carrier's.
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
            // This host's own packets to the address arrive by `lo`, from a local address.
            format!("meta iifgroup != {DEVICE_GROUP} {family} daddr {address} fib saddr type != local counter drop")
        })
        .collect()
}

/// Marks connections that come from outside any tunnel to this host or to its guests' own addresses. Also marks the replies that
/// this host forwards for the guests.
fn prerouting(host: &ClientPlanFacts, listening: &[u16]) -> Vec<String> {
    let mark = host.mark;
    // Only a bare SYN proves that a connection began outside. Conntrack treats the first packet that it sees of
    // an older session as new, even if the session began here.
    let new = "ct state new ct mark 0 fib daddr type local";
    let mut rules: Vec<String> = client_inbound::arrivals(host).collect();
    rules.extend([
        format!("meta iifgroup {DEVICE_GROUP} accept"),
        "iifname \"lo\" accept".into(),
        format!("{new} tcp flags & (syn | ack) == syn ct mark set {mark:#x}"),
        format!("{new} meta l4proto != tcp ct mark set {mark:#x}"),
    ]);
    // This matches a session that is older than this table but was already tracked.
    let older = "ct state established ct direction original ct mark 0";
    rules.push(format!("{older} fib daddr type local ct mark set {mark:#x}"));
    for (family, guests) in guests(host) {
        rules.push(format!("{older} {family} daddr {{ {guests} }} ct mark set {mark:#x}"));
        let new = format!("ct state new ct mark 0 {family} daddr {{ {guests} }}");
        rules.push(format!("{new} tcp flags & (syn | ack) == syn ct mark set {mark:#x}"));
        rules.push(format!("{new} meta l4proto != tcp ct mark set {mark:#x}"));
    }
    // This matches a session that began before connections were tracked. If a connection began on this host,
    // its port here is not a listening port.
    rules.extend(set(listening).map(|ports| format!("{new} tcp dport {{ {ports} }} ct mark set {mark:#x}")));
    rules.push(format!("ct direction reply ct mark {mark:#x} meta mark set {mark:#x}"));
    rules.extend(client_inbound::forwarded_answers(host));
    // Packets from an exit get the mark too, so the reverse path check looks past the tunnel's routes.
    rules.push(format!("ct mark {:#x} meta mark set {mark:#x}", carrier(host)));
    rules
}

/// The connection mark of carriers. Connections from outside have `host.mark` as their connection mark, the same mark
/// that packets carry.
fn carrier(host: &ClientPlanFacts) -> u32 {
    host.mark | CARRIER_BIT
}

/// Marks the answers of marked connections, so they are routed as if there were no tunnel.
fn output(host: &ClientPlanFacts, listening: &[u16]) -> Vec<String> {
    let mark = host.mark;
    // Matches an answer that is about to enter the tunnel and belongs to a connection that conntrack does not know
    // yet. It comes from a listening port, so the connection began outside.
    let older = set(listening).map(|ports| {
        format!(
            "ct state new ct mark 0 tcp sport {{ {ports} }} tcp flags & (syn | ack) != syn meta oifgroup {DEVICE_GROUP} \
             ct mark set {mark:#x}"
        )
    });
    let answers = format!("ct mark {mark:#x} meta mark 0 meta mark set {mark:#x}");
    older.into_iter().chain([answers]).collect()
}

/// Masquerades packets into the tunnel. The exit accepts them only from the inner addresses and from the networks
/// behind this host that it routes here.
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

/// No packet with an inner address leaves outside, even after the daemon was killed. Connections outlive their tunnel,
/// and connection tracking continues to translate their packets.
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
