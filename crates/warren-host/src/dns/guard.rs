//! Keeping names inside a full tunnel, whoever asks.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::{DEVICE_GROUP, Step, TableFamily, client_plan};

/// Whether all names are to stay inside: the tunnel is a full one, and leads to every one of the `servers` that it sets.
pub fn needs_guard(include: &[IpNet], exclude: &[IpNet], servers: &[IpAddr]) -> bool {
    let is_full = include.iter().any(|network| network.prefix_len() == 0);
    let holds = |networks: &[IpNet], server: &IpAddr| networks.iter().any(|network| network.contains(server));
    let leads_there = |server: &IpAddr| holds(include, server) && !holds(exclude, server);
    is_full && !servers.is_empty() && servers.iter().all(leads_there)
}

/// A firewall table that refuses queries which would leave outside a tunnel: of programs that bind to another device, as
/// systemd-resolved does for a link with domains of its own, and to a resolver on the local network while that stays
/// reachable (`lan`). What is marked as the carrier is let out, and so is what goes into a tunnel of Warren's.
///
/// Without `lan` multicast queries are refused too. The table goes with the daemon, because the tunnel does.
pub fn guard(profile: &str, mark: u32, lan: bool) -> Step {
    let ports = if lan { "53, 853" } else { "53, 853, 5353, 5355" };
    // Before a kill switch, which gives the carrier another mark.
    let ruleset = format!(
        "chain output {{\n\
         \ttype filter hook output priority filter - 20; policy accept;\n\
         \tmeta mark {mark:#x} accept\n\
         \toif \"lo\" accept\n\
         \tmeta oifgroup {DEVICE_GROUP} accept\n\
         \tmeta l4proto {{ tcp, udp }} th dport {{ {ports} }} reject with icmpx admin-prohibited\n\
         }}\n"
    );
    let table = format!("{}_dns", client_plan::firewall_table(profile));
    Step::Nftables { family: TableFamily::Inet, table, ruleset, owned: true }
}
