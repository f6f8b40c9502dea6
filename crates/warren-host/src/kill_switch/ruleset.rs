//! The text of a kill switch's table.

use std::net::SocketAddr;

use ipnet::IpNet;

use super::rules::{InboundPort, InboundProtocol, KillSwitchRules};
use crate::{
    CARRIER_BIT, CARRIER_MARK, DEVICE_GROUP, DeviceName, Family,
    portal::PORTAL_MARK,
    ruleset_text::{by_version, chain, elements},
};

/// The chains of a kill switch's table, one statement per line.
///
/// Several kill switches may be closed at once, and a packet that one table drops is lost even if another table accepts it. So
/// each kill switch first gives its own carrier's packets a mark that all kill switches accept. Each also accepts packets to the
/// TUN devices of all clients, which it recognises by their device group.
///
/// A program that may set marks itself (CAP_NET_RAW) must not be able to use this mark. So a packet that already has the mark
/// when it is sent is dropped. The daemon's queries have a secret mark until this table has recognised them.
pub(super) fn ruleset(rules: &KillSwitchRules) -> String {
    let mut text = String::new();
    // Runs before every chain that sets one of these marks, in this table and in those of other kill switches.
    let forged = "type filter hook output priority mangle - 20; policy accept;";
    chain(&mut text, "forged", forged, &forged_rules(rules));
    if let Some(queries) = queries_rules(rules) {
        // The chain type `route` repeats the routing decision after the mark was changed. With the secret mark, packets would be
        // routed into the tunnel, as with any other unknown mark.
        let hook = "type route hook output priority mangle - 10; policy accept;";
        chain(&mut text, "queries", hook, &queries);
    }
    // Runs before a client's table gives answers the carrier's mark, at priority `mangle`. So only connections of carriers get
    // this connection mark.
    let begun = "type filter hook output priority mangle - 5; policy accept;";
    chain(&mut text, "begun", begun, &[format!("meta mark {CARRIER_MARK:#x} ct mark set {CARRIED:#x}")]);
    // Runs before the `output` chains of all kill switches, which accept the mark that this chain sets.
    let carrier = "type filter hook output priority filter - 10; policy accept;";
    chain(&mut text, "carrier", carrier, &carrier_rules(rules));
    chain(&mut text, "let_out", "", &let_out(rules));
    chain(&mut text, "output", "type filter hook output priority filter; policy drop;", &output(rules));
    chain(&mut text, "forward", "type filter hook forward priority filter; policy drop;", &forward(rules));
    let postrouting = "type filter hook postrouting priority filter; policy accept;";
    chain(&mut text, "postrouting", postrouting, &postrouting_rules());
    text
}

/// Drops packets with a forged mark: [`LET_OUT`], a portal's mark, or the carrier's mark on packets to resolvers. Genuine packets
/// get these marks only in later chains.
fn forged_rules(rules: &KillSwitchRules) -> Vec<String> {
    let mut forged = vec![format!("meta mark {LET_OUT:#x} counter drop")];
    // A portal's table sets its mark after this chain.
    forged.push(format!("meta mark {PORTAL_MARK:#x} counter drop"));
    let to_resolvers = to_ends(&resolvers(rules));
    let to_resolvers = to_resolvers.map(|ends| format!("meta mark {CARRIER_MARK:#x} {ends} counter drop"));
    forged.into_iter().chain(to_resolvers).collect()
}

/// Gives the daemon's own queries the carrier's mark. Guessed marks are limited to 100 per second, so trying all marks takes more
/// than a year.
fn queries_rules(rules: &KillSwitchRules) -> Option<Vec<String>> {
    let secret = rules.query_mark?;
    let resolvers = resolvers(rules);
    let tries = to_ends(&resolvers).map(|ends| {
        format!("meta mark != 0 {ends} limit rate over 100/second burst 100 packets counter drop")
    });
    let queries = to_ends(&resolvers)
        .map(|ends| format!("meta mark {secret:#x} {ends} meta mark set {CARRIER_MARK:#x}"));
    Some(tries.chain(queries).collect())
}

/// Marks the carrier's packets as let out.
///
/// Answers to packets from outside already have the carrier's mark here, so that they bypass the tunnel's routes. These rules
/// exclude them by their connection mark. Otherwise, after one forged packet from an exit's address, any program's packets to
/// that exit would count as answers and be let out.
fn carrier_rules(rules: &KillSwitchRules) -> Vec<String> {
    let ends = [rules.carriers.as_slice(), &resolvers(rules)].concat();
    let carrier =
        to_ends(&ends).map(|ends| format!("meta mark {CARRIER_MARK:#x} {ends} meta mark set {LET_OUT:#x}"));
    // The exclusion is a separate rule, because a match on the connection mark never applies to an untracked packet.
    [format!("ct mark {CARRIER_MARK:#x} return")].into_iter().chain(carrier).collect()
}

/// Returns the resolvers to which the daemon sends queries with a secret mark, without those that are also exits.
fn resolvers(rules: &KillSwitchRules) -> Vec<SocketAddr> {
    let canonical = |end: &SocketAddr| SocketAddr::new(end.ip().to_canonical(), end.port());
    let carriers: Vec<SocketAddr> = rules.carriers.iter().map(canonical).collect();
    let resolvers = rules.resolvers.iter().filter(|_| rules.query_mark.is_some()).map(canonical);
    resolvers.filter(|resolver| !carriers.contains(resolver)).collect()
}

/// Returns a match of UDP packets to any of these endpoints, for each IP version that occurs.
fn to_ends(ends: &[SocketAddr]) -> impl Iterator<Item = String> + use<> {
    let of = |(family, wanted)| {
        let mut its: Vec<String> = ends
            .iter()
            .filter(|end| end.ip().to_canonical().is_ipv4() == wanted)
            .map(|end| format!("{} . {}", end.ip().to_canonical(), end.port()))
            .collect();
        its.sort_unstable();
        its.dedup();
        (!its.is_empty()).then(|| format!("{family} daddr . udp dport {{ {} }}", its.join(", ")))
    };
    [("ip", true), ("ip6", false)].map(of).into_iter().flatten()
}

fn let_out(rules: &KillSwitchRules) -> Vec<String> {
    // Besides link-local addresses, on-link networks are allowed, because neighbour unreachability detection sends to a
    // neighbour's own address, which may be global.
    let link_local = ["fe80::/10", "ff02::/16"].map(|network| network.parse::<IpNet>());
    let neighbours: Vec<IpNet> =
        link_local.into_iter().flatten().chain(rules.on_link.iter().copied()).collect();
    let neighbours = elements(&neighbours, Family::Ipv6).unwrap_or_default();
    let mut let_out = vec![
        "oifname \"lo\" accept".into(),
        format!("meta oifgroup {DEVICE_GROUP} accept"),
        format!("meta mark {LET_OUT:#x} accept"),
        // DHCP requests. Only root may bind the client ports.
        "ip daddr 255.255.255.255 udp sport 68 udp dport 67 accept".into(),
        "ip6 daddr { fe80::/10, ff02::1:2 } udp sport 546 udp dport 547 accept".into(),
        // Neighbour discovery (RFC 4861) on the link, and the group reports that it needs. Other destinations are not allowed,
        // because a router would forward packets to them.
        format!("icmpv6 type {{ nd-router-solicit, nd-neighbor-solicit, nd-neighbor-advert }} ip6 hoplimit 255 ip6 daddr {{ {neighbours} }} accept"),
        "icmpv6 type { mld-listener-report, mld-listener-done, mld2-listener-report } ip6 daddr ff02::/16 accept".into(),
    ];
    if rules.portal {
        // No packet has this mark unless a portal is open.
        let_out.push(format!("meta mark {PORTAL_MARK:#x} tcp dport {{ 80, 443 }} accept"));
        let_out.push(format!("meta mark {PORTAL_MARK:#x} meta l4proto {{ tcp, udp }} th dport 53 accept"));
    }
    let outside_by_exec = rules.exec.iter().filter_map(|exec| exec.outside);
    let_out.extend(outside_by_exec.map(|mark| format!("meta mark {mark:#x} accept")));
    // With a TTL of 1, no router forwards these packets, even if the host has moved to another network, where these
    // addresses are not on the link.
    let on_link = elements(&rules.on_link, Family::Ipv4);
    let_out
        .extend(on_link.map(|on_link| {
            format!("ip daddr {{ {on_link} }} udp sport 68 udp dport 67 ip ttl set 1 accept")
        }));
    let_out.extend(to_guests(rules).into_iter().map(|guests| format!("{guests} accept")));
    let_out.extend(inbound(&rules.allow_inbound));
    let_out.extend(published(rules, "reply", "ct state established"));
    let_out.extend(outside(rules));
    let_out
}

fn output(rules: &KillSwitchRules) -> Vec<String> {
    // Packets of programs inside are accepted here, because this hook still sees the device that was chosen before they were
    // marked. The last chain checks the device by which they leave.
    let inside = rules.exec.iter().map(|exec| format!("meta mark {:#x} accept", exec.inside));
    // Packets are rejected and not dropped silently, so that the sender gets an error at once. The error does not leave this
    // host.
    let rest = ["jump let_out".into(), "counter reject with icmpx admin-prohibited".into()];
    inside.chain(rest).collect()
}

/// If a chain of the output hook changes a packet's mark, the packet may be routed to another device than the output hook's
/// filters saw. This chain checks the final device.
fn postrouting_rules() -> Vec<String> {
    vec!["meta mark 0 accept".into(), "jump let_out".into(), "counter drop".into()]
}

/// Filters packets that this host forwards, for example for containers.
fn forward(rules: &KillSwitchRules) -> Vec<String> {
    let mut forward = vec![
        format!("meta oifgroup {DEVICE_GROUP} accept"),
        format!("meta iifgroup {DEVICE_GROUP} ct state established,related accept"),
    ];
    forward.extend(between_guests(rules));
    for to_guests in to_guests(rules) {
        forward.extend(published(rules, "original", &to_guests));
        // Packets from a tunnel to published ports are accepted here, because the client's own table has already filtered them.
        forward.push(format!("meta iifgroup {DEVICE_GROUP} ct status dnat {to_guests} accept"));
        // Accepts ICMP errors from outside about connections to published ports.
        forward.push(format!("ct status dnat ct direction original ct state related {to_guests} accept"));
    }
    forward.extend(published(rules, "reply", "ct state established"));
    for (version, behind) in by_version(&rules.prefixes) {
        forward.push(format!("meta iifgroup {DEVICE_GROUP} {version} daddr {{ {behind} }} accept"));
    }
    forward.extend(outside(rules));
    forward.push("counter drop".into());
    forward
}

/// Matches packets to containers and virtual machines on this host, with one match for each device and IP version.
fn to_guests(rules: &KillSwitchRules) -> Vec<String> {
    let mut matches = Vec::new();
    for device in guest_devices(rules) {
        let its = rules.guests.iter().filter(|guest| guest.device == *device);
        let networks: Vec<IpNet> = its.map(|guest| guest.network).collect();
        for (version, guests) in by_version(&networks) {
            matches.push(format!("oifname \"{device}\" {version} daddr {{ {guests} }}"));
        }
    }
    matches
}

/// Matches packets between guests: from one network to another, or within one network if bridges pass packets to the firewall.
fn between_guests(rules: &KillSwitchRules) -> Vec<String> {
    let devices: Vec<String> = guest_devices(rules).iter().map(|device| format!("\"{device}\"")).collect();
    let devices = devices.join(", ");
    to_guests(rules).into_iter().map(|guests| format!("iifname {{ {devices} }} {guests} accept")).collect()
}

fn guest_devices(rules: &KillSwitchRules) -> Vec<&DeviceName> {
    let mut devices: Vec<&DeviceName> = rules.guests.iter().map(|guest| &guest.device).collect();
    devices.sort_unstable();
    devices.dedup();
    devices
}

/// Matches one direction of connections to ports in `allow_inbound` that this host forwards to guests. The port is compared
/// before DNAT.
fn published(rules: &KillSwitchRules, direction: &str, matching: &str) -> Vec<String> {
    if rules.guests.is_empty() {
        return Vec::new();
    }
    let published = |(protocol, ports)| {
        format!(
            "meta l4proto {protocol} ct status dnat ct direction {direction} ct original proto-dst {{ {ports} }} {matching} accept"
        )
    };
    ports(&rules.allow_inbound).map(published).collect()
}

/// Accepts the answers of this host's services. For TCP, everything but a bare SYN is accepted without connection state, so a
/// connection that is older than its conntrack entry continues.
fn inbound(allowed: &[InboundPort]) -> Vec<String> {
    let answer = |(protocol, ports)| match protocol {
        InboundProtocol::Tcp => format!("tcp sport {{ {ports} }} tcp flags & (syn | ack) != syn accept"),
        InboundProtocol::Udp => {
            format!("udp sport {{ {ports} }} ct direction reply ct state established accept")
        }
    };
    ports(allowed).map(answer).collect()
}

/// The ports of each protocol that has any, as elements of a set.
fn ports(allowed: &[InboundPort]) -> impl Iterator<Item = (InboundProtocol, String)> {
    let of = |protocol| {
        let its = allowed.iter().filter(|inbound| inbound.protocol == protocol);
        let ports: Vec<String> = its.map(|inbound| inbound.port.to_string()).collect();
        (protocol, ports.join(", "))
    };
    let all = [InboundProtocol::Tcp, InboundProtocol::Udp].map(of);
    all.into_iter().filter(|(_, ports)| !ports.is_empty())
}

/// Accepts packets that the profile allows to leave outside: to the LAN, to exclusions, and to networks that a split tunnel does
/// not include.
fn outside(rules: &KillSwitchRules) -> Vec<String> {
    let mut outside = Vec::new();
    for (family, keyword, protocol) in [(Family::Ipv4, "ip", "ipv4"), (Family::Ipv6, "ip6", "ipv6")] {
        let exclude = elements(&rules.exclude, family);
        outside.extend(exclude.map(|exclude| format!("{keyword} daddr {{ {exclude} }} accept")));
        match elements(&rules.include, family) {
            // If the tunnel includes the whole IP version, only packets to exclusions may leave outside.
            Some(include) if is_default(&include) => {}
            Some(include) => outside.push(format!("{keyword} daddr != {{ {include} }} accept")),
            None => outside.push(format!("meta nfproto {protocol} accept")),
        }
    }
    if rules.lan.is_empty() {
        return outside;
    }
    // Queries are dropped before the LAN is accepted, because the LAN's resolvers would learn every name.
    outside.push("meta l4proto { tcp, udp } th dport { 53, 853 } counter drop".into());
    for (family, keyword, multicast) in
        [(Family::Ipv4, "ip", LOCAL_MULTICAST_IPV4), (Family::Ipv6, "ip6", LOCAL_MULTICAST_IPV6)]
    {
        if let Some(lan) = elements(&rules.lan, family) {
            outside.push(format!("{keyword} daddr {{ {lan}, {multicast} }} accept"));
        }
    }
    outside
}

fn is_default(elements: &str) -> bool {
    elements == "0.0.0.0/0" || elements == "::/0"
}

/// The mark of packets that a kill switch has recognised as its own carrier's. It is the carrier's mark with one more bit.
const LET_OUT: u32 = CARRIER_MARK | CARRIER_BIT;

/// The mark of connections that carry tunnels. A client's table sets the same connection mark, but a kill switch may be closed
/// while there is no client's table.
const CARRIED: u32 = CARRIER_MARK | CARRIER_BIT;

/// Multicast groups of link or site scope and the broadcast address, which are used to discover printers, for example.
const LOCAL_MULTICAST_IPV4: &str = "224.0.0.0/24, 239.255.0.0/16, 255.255.255.255";
const LOCAL_MULTICAST_IPV6: &str = "ff02::/16";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GuestNetwork;

    #[test]
    fn full_tunnel_lets_out_what_the_documentation_lists_and_nothing_else() {
        let rules = KillSwitchRules {
            include: networks(&["0.0.0.0/0", "::/0"]),
            allow_inbound: vec![
                InboundPort { protocol: InboundProtocol::Tcp, port: 22 },
                InboundPort { protocol: InboundProtocol::Udp, port: 5_000 },
            ],
            carriers: ["198.51.100.2:443", "[::ffff:192.0.2.9]:443", "[2001:db8::2]:443"]
                .map(|end| end.parse().unwrap())
                .to_vec(),
            resolvers: ["192.0.2.53:53", "192.0.2.9:443"].map(|end| end.parse().unwrap()).to_vec(),
            query_mark: Some(0x1234_5678),
            on_link: networks(&["192.0.2.0/24", "2001:db8:1::/64"]),
            ..KillSwitchRules::default()
        };

        assert_eq!(
            ruleset(&rules),
            "chain forged {\n\
             \ttype filter hook output priority mangle - 20; policy accept;\n\
             \tmeta mark 0x15761 counter drop\n\
             \tmeta mark 0x5766 counter drop\n\
             \tmeta mark 0x5761 ip daddr . udp dport { 192.0.2.53 . 53 } counter drop\n\
             }\n\
             chain queries {\n\
             \ttype route hook output priority mangle - 10; policy accept;\n\
             \tmeta mark != 0 ip daddr . udp dport { 192.0.2.53 . 53 } limit rate over 100/second burst 100 packets counter drop\n\
             \tmeta mark 0x12345678 ip daddr . udp dport { 192.0.2.53 . 53 } meta mark set 0x5761\n\
             }\n\
             chain begun {\n\
             \ttype filter hook output priority mangle - 5; policy accept;\n\
             \tmeta mark 0x5761 ct mark set 0x15761\n\
             }\n\
             chain carrier {\n\
             \ttype filter hook output priority filter - 10; policy accept;\n\
             \tct mark 0x5761 return\n\
             \tmeta mark 0x5761 ip daddr . udp dport { 192.0.2.53 . 53, 192.0.2.9 . 443, 198.51.100.2 . 443 } meta mark set 0x15761\n\
             \tmeta mark 0x5761 ip6 daddr . udp dport { 2001:db8::2 . 443 } meta mark set 0x15761\n\
             }\n\
             chain let_out {\n\
             \toifname \"lo\" accept\n\
             \tmeta oifgroup 22369 accept\n\
             \tmeta mark 0x15761 accept\n\
             \tip daddr 255.255.255.255 udp sport 68 udp dport 67 accept\n\
             \tip6 daddr { fe80::/10, ff02::1:2 } udp sport 546 udp dport 547 accept\n\
             \ticmpv6 type { nd-router-solicit, nd-neighbor-solicit, nd-neighbor-advert } ip6 hoplimit 255 ip6 daddr { 2001:db8:1::/64, fe80::/10, ff02::/16 } accept\n\
             \ticmpv6 type { mld-listener-report, mld-listener-done, mld2-listener-report } ip6 daddr ff02::/16 accept\n\
             \tip daddr { 192.0.2.0/24 } udp sport 68 udp dport 67 ip ttl set 1 accept\n\
             \ttcp sport { 22 } tcp flags & (syn | ack) != syn accept\n\
             \tudp sport { 5000 } ct direction reply ct state established accept\n\
             }\n\
             chain output {\n\
             \ttype filter hook output priority filter; policy drop;\n\
             \tjump let_out\n\
             \tcounter reject with icmpx admin-prohibited\n\
             }\n\
             chain forward {\n\
             \ttype filter hook forward priority filter; policy drop;\n\
             \tmeta oifgroup 22369 accept\n\
             \tmeta iifgroup 22369 ct state established,related accept\n\
             \tcounter drop\n\
             }\n\
             chain postrouting {\n\
             \ttype filter hook postrouting priority filter; policy accept;\n\
             \tmeta mark 0 accept\n\
             \tjump let_out\n\
             \tcounter drop\n\
             }\n"
        );
    }

    #[test]
    fn portal_gets_out_to_the_web_and_for_names_if_the_profile_lets_it() {
        let rules = KillSwitchRules { portal: true, ..KillSwitchRules::default() };
        let portals = |rules: &KillSwitchRules| -> Vec<String> {
            let_out(rules).into_iter().filter(|rule| rule.contains("0x5766")).collect()
        };
        assert_eq!(
            portals(&rules),
            [
                "meta mark 0x5766 tcp dport { 80, 443 } accept",
                "meta mark 0x5766 meta l4proto { tcp, udp } th dport 53 accept",
            ]
        );
        assert!(portals(&KillSwitchRules::default()).is_empty());
        // Without a portal, every packet with the portal's mark is forged.
        assert!(forged_rules(&KillSwitchRules::default()).contains(&"meta mark 0x5766 counter drop".into()));
    }

    #[test]
    fn networks_behind_the_host_are_reached_from_the_tunnel_and_from_nowhere_else() {
        let rules = KillSwitchRules {
            include: networks(&["0.0.0.0/0", "::/0"]),
            prefixes: networks(&["192.168.7.0/24", "fd07::/64"]),
            ..KillSwitchRules::default()
        };

        assert_eq!(
            forward(&rules),
            [
                "meta oifgroup 22369 accept",
                "meta iifgroup 22369 ct state established,related accept",
                "meta iifgroup 22369 ip daddr { 192.168.7.0/24 } accept",
                "meta iifgroup 22369 ip6 daddr { fd07::/64 } accept",
                "counter drop",
            ]
        );
    }

    #[test]
    fn guests_are_on_this_host_and_answer_from_outside_only_on_ports_that_are_allowed() {
        let guest = |device: &str, network: &str| GuestNetwork {
            device: DeviceName::new(device).unwrap(),
            network: network.parse().unwrap(),
        };
        let rules = KillSwitchRules {
            include: networks(&["0.0.0.0/0", "::/0"]),
            guests: vec![guest("br-a", "172.18.0.0/16"), guest("docker0", "fd17::/64")],
            allow_inbound: vec![InboundPort { protocol: InboundProtocol::Tcp, port: 8_080 }],
            ..KillSwitchRules::default()
        };
        let published = "meta l4proto tcp ct status dnat ct direction";
        let answers =
            format!("{published} reply ct original proto-dst {{ 8080 }} ct state established accept");

        let let_out = let_out(&rules);
        assert!(
            let_out.contains(&"oifname \"br-a\" ip daddr { 172.18.0.0/16 } accept".into()),
            "{let_out:?}"
        );
        assert!(let_out.contains(&answers), "{let_out:?}");
        let (a, docker) =
            ("oifname \"br-a\" ip daddr { 172.18.0.0/16 }", "oifname \"docker0\" ip6 daddr { fd17::/64 }");
        assert_eq!(
            forward(&rules)[2..],
            [
                format!("iifname {{ \"br-a\", \"docker0\" }} {a} accept"),
                format!("iifname {{ \"br-a\", \"docker0\" }} {docker} accept"),
                format!("{published} original ct original proto-dst {{ 8080 }} {a} accept"),
                format!("meta iifgroup 22369 ct status dnat {a} accept"),
                format!("ct status dnat ct direction original ct state related {a} accept"),
                format!("{published} original ct original proto-dst {{ 8080 }} {docker} accept"),
                format!("meta iifgroup 22369 ct status dnat {docker} accept"),
                format!("ct status dnat ct direction original ct state related {docker} accept"),
                answers,
                "counter drop".into(),
            ]
        );
    }

    #[test]
    fn lan_is_reachable_but_for_names() {
        let rules = KillSwitchRules {
            include: networks(&["0.0.0.0/1", "128.0.0.0/1", "::/0"]),
            lan: networks(&["192.168.1.0/24", "192.168.1.128/25", "fe80::/64"]),
            ..KillSwitchRules::default()
        };

        assert_eq!(
            outside(&rules),
            [
                "meta l4proto { tcp, udp } th dport { 53, 853 } counter drop",
                "ip daddr { 192.168.1.0/24, 224.0.0.0/24, 239.255.0.0/16, 255.255.255.255 } accept",
                "ip6 daddr { fe80::/64, ff02::/16 } accept",
            ]
        );
    }

    #[test]
    fn split_tunnel_keeps_its_own_networks_in_and_lets_the_rest_out() {
        let rules = KillSwitchRules {
            include: networks(&["10.0.0.0/8"]),
            exclude: networks(&["10.1.0.0/16"]),
            ..KillSwitchRules::default()
        };

        assert_eq!(
            outside(&rules),
            [
                "ip daddr { 10.1.0.0/16 } accept",
                "ip daddr != { 10.0.0.0/8 } accept",
                "meta nfproto ipv6 accept"
            ]
        );
    }

    fn networks(networks: &[&str]) -> Vec<IpNet> {
        networks.iter().map(|network| network.parse().unwrap()).collect()
    }
}
