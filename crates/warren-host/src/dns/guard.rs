//! Keeping names inside a full tunnel, whoever asks.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::Step;

/// Whether all names are to stay inside: the tunnel is a full one, and leads to every one of the `servers` that it sets.
pub fn needs_guard(include: &[IpNet], servers: &[IpAddr]) -> bool {
    let is_full = include.iter().any(|network| network.prefix_len() == 0);
    let leads_there = |server: &IpAddr| include.iter().any(|network| network.contains(server));
    is_full && !servers.is_empty() && servers.iter().all(leads_there)
}

/// A firewall table that refuses queries which would leave outside a tunnel: of programs that bind to another device, as
/// systemd-resolved does for a link with domains of its own, and to a resolver on the local network while that stays
/// reachable (`lan`). What is marked as the carrier is let out, and so is what goes to any TUN device.
///
/// Without `lan` multicast queries are refused too. The table goes with the daemon, because the tunnel does.
pub fn guard(profile: &str, mark: u32, lan: bool) -> Step {
    let ports = if lan { "53, 853" } else { "53, 853, 5353, 5355" };
    let ruleset = format!(
        "chain output {{\n\
         \ttype filter hook output priority filter; policy accept;\n\
         \tmeta mark {mark:#x} accept\n\
         \toif \"lo\" accept\n\
         \tmeta oifkind \"tun\" accept\n\
         \tmeta l4proto {{ tcp, udp }} th dport {{ {ports} }} reject with icmpx admin-prohibited\n\
         }}\n"
    );
    let table = format!("warren_{profile}_dns");
    Step::Nftables { table, ruleset, owned: true }
}
