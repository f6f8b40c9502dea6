//! The text of a portal's table.

use std::net::IpAddr;

use crate::exec_groups::LEVEL;
use crate::ruleset_text::chain;

/// The mark of packets that a portal lets out. Kill switches accept it only for these ports, and drop a packet that already has
/// it when it is sent.
pub const PORTAL_MARK: u32 = 0x5766;

/// The packets that a portal lets out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortalRules {
    /// The path of the browser's cgroup in nft's syntax.
    pub group: String,
    /// The user whose browser it is.
    pub user: u32,
    /// The network's resolvers. The first of each IP version is asked.
    pub resolvers: Vec<IpAddr>,
    /// The portal's time in seconds. After it, the kernel lets nothing out.
    pub seconds: u16,
}

/// The sets and chains of the table, one statement per line.
pub(super) fn ruleset(rules: &PortalRules) -> String {
    let mut text = String::new();
    for (name, ports) in [("web", &[80, 443][..]), ("names", &[53][..])] {
        let elements: Vec<String> =
            ports.iter().map(|port| format!("{port} timeout {}s", rules.seconds)).collect();
        // The kernel itself removes the ports from the set after the timeout, so this works even if no process is left to do it.
        text += &format!(
            "set {name} {{\n\ttype inet_service\n\tflags timeout\n\telements = {{ {} }}\n}}\n",
            elements.join(", ")
        );
    }
    let mut add =
        |name: &str, header: &str, statements: &[String]| chain(&mut text, name, header, statements);
    add("browser", "", &browser(rules));
    // Runs after the kill switches' chain that drops forged marks, and before every chain that reads the mark.
    let marking = "type route hook output priority mangle - 15; policy accept;";
    add("marking", marking, &[format!("socket cgroupv2 level {LEVEL} \"{}\" goto browser", rules.group)]);
    // -100 is the priority `dstnat`. nft does not accept that word in this hook.
    add("resolver", "type nat hook output priority -100; policy accept;", &resolver(rules));
    add("queries", "type filter hook output priority filter - 30; policy accept;", &queries(rules));
    // Packets are masqueraded, because the kernel may have chosen the tunnel's address as their source before they were marked.
    let source = format!("meta mark {PORTAL_MARK:#x} oifname != \"lo\" masquerade");
    add("source", "type nat hook postrouting priority srcnat; policy accept;", &[source]);
    text
}

/// Marks the packets that may leave. This applies to every packet and not only to a connection's first one, so connections stop
/// at the end of the portal's time too.
fn browser(rules: &PortalRules) -> Vec<String> {
    vec![
        format!("meta skuid != {} return", rules.user),
        // Packets to services on this host stay on this host, except for DNS queries.
        "oifname != \"lo\" tcp dport @web meta mark set ".to_owned() + &format!("{PORTAL_MARK:#x}"),
        format!("meta l4proto {{ tcp, udp }} th dport @names meta mark set {PORTAL_MARK:#x}"),
    ]
}

/// Redirects queries to the network's resolver, whichever resolver the browser asks.
fn resolver(rules: &PortalRules) -> Vec<String> {
    of_families(rules)
        .filter_map(|(family, protocol, server)| {
            Some(format!("{} dnat {family} to {}", query(protocol), server?))
        })
        .collect()
}

/// Refuses queries to any other destination.
fn queries(rules: &PortalRules) -> Vec<String> {
    let refused = "reject with icmpx admin-prohibited";
    of_families(rules)
        .map(|(family, protocol, server)| match server {
            Some(server) => format!("{} {family} daddr != {server} {refused}", query(protocol)),
            None => format!("{} {refused}", query(protocol)),
        })
        .collect()
}

fn query(protocol: &str) -> String {
    format!("meta mark {PORTAL_MARK:#x} meta nfproto {protocol} meta l4proto {{ tcp, udp }} th dport 53")
}

/// The IP versions, each with its first resolver.
fn of_families(rules: &PortalRules) -> impl Iterator<Item = (&'static str, &'static str, Option<&IpAddr>)> {
    let first = |is_its: fn(&IpAddr) -> bool| rules.resolvers.iter().find(|server| is_its(server));
    [("ip", "ipv4", first(IpAddr::is_ipv4)), ("ip6", "ipv6", first(IpAddr::is_ipv6))].into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{OwnTables, Ruleset};

    #[test]
    fn only_the_users_web_and_queries_to_the_networks_resolver_are_marked_and_for_a_time() {
        let rules = PortalRules {
            group: "warren_portal.slice/warren_portal-home.slice".into(),
            user: 1000,
            resolvers: vec!["192.0.2.1".parse().unwrap(), "192.0.2.3".parse().unwrap()],
            seconds: 300,
        };

        let text = ruleset(&rules);

        assert_eq!(
            text,
            "set web {\n\ttype inet_service\n\tflags timeout\n\telements = { 80 timeout 300s, 443 timeout 300s }\n}\n\
             set names {\n\ttype inet_service\n\tflags timeout\n\telements = { 53 timeout 300s }\n}\n\
             chain browser {\n\
             \tmeta skuid != 1000 return\n\
             \toifname != \"lo\" tcp dport @web meta mark set 0x5766\n\
             \tmeta l4proto { tcp, udp } th dport @names meta mark set 0x5766\n\
             }\n\
             chain marking {\n\
             \ttype route hook output priority mangle - 15; policy accept;\n\
             \tsocket cgroupv2 level 2 \"warren_portal.slice/warren_portal-home.slice\" goto browser\n\
             }\n\
             chain resolver {\n\
             \ttype nat hook output priority -100; policy accept;\n\
             \tmeta mark 0x5766 meta nfproto ipv4 meta l4proto { tcp, udp } th dport 53 dnat ip to 192.0.2.1\n\
             }\n\
             chain queries {\n\
             \ttype filter hook output priority filter - 30; policy accept;\n\
             \tmeta mark 0x5766 meta nfproto ipv4 meta l4proto { tcp, udp } th dport 53 ip daddr != 192.0.2.1 reject with icmpx admin-prohibited\n\
             \tmeta mark 0x5766 meta nfproto ipv6 meta l4proto { tcp, udp } th dport 53 reject with icmpx admin-prohibited\n\
             }\n\
             chain source {\n\
             \ttype nat hook postrouting priority srcnat; policy accept;\n\
             \tmeta mark 0x5766 oifname != \"lo\" masquerade\n\
             }\n"
        );
        let table = format!(
            "create table inet warren-portal_home {{\n\tflags owner;\n}}\ntable inet warren-portal_home {{\n{text}}}\n"
        );
        Ruleset::parse(&table, &OwnTables::of_profile("home")).unwrap();
    }
}
