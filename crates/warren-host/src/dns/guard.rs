//! Keeping names inside a full tunnel, whoever asks.

use std::net::IpAddr;

use ipnet::IpNet;

use super::DnsFacts;
use crate::{DEVICE_GROUP, DeviceName, GuestNetwork, Step, TableFamily, client_plan};

/// Whether a tunnel takes all of an IP version, in however many pieces that is written.
pub fn is_full(include: &[IpNet]) -> bool {
    IpNet::aggregate(&include.to_vec()).iter().any(|network| network.prefix_len() == 0)
}

/// Whether all names are to stay inside: the tunnel is a full one, and leads to every one of the `servers` that it sets.
pub fn needs_guard(include: &[IpNet], exclude: &[IpNet], servers: &[IpAddr]) -> bool {
    let leads_there = |server: &IpAddr| DnsFacts::leads_to(include, exclude, *server);
    is_full(include) && !servers.is_empty() && servers.iter().all(leads_there)
}

/// A firewall table that refuses queries which would leave outside a tunnel: of programs that bind to another device, as
/// systemd-resolved does for a link with domains of its own, and to a resolver on the local network while that stays
/// reachable (`lan`), from this host or forwarded for containers. What is marked as the carrier is let out, and so is what goes
/// into a tunnel of Warren's, comes out of one, or goes to containers on this host.
///
/// Without `lan` multicast queries are refused too. The table goes with the daemon, because the tunnel does.
pub fn guard(profile: &str, mark: u32, lan: bool, guests: &[GuestNetwork]) -> Step {
    let ports = if lan { "53, 853" } else { "53, 853, 5353, 5355" };
    let mut devices: Vec<&DeviceName> = guests.iter().map(|guest| &guest.device).collect();
    devices.sort_unstable();
    devices.dedup();
    let to_guests: String = devices.iter().map(|device| format!("\toifname \"{device}\" accept\n")).collect();
    // Before a kill switch, which gives the carrier another mark.
    let ruleset = format!(
        "chain output {{\n\
         \ttype filter hook output priority filter - 20; policy accept;\n\
         \tmeta mark {mark:#x} accept\n\
         \toif \"lo\" accept\n\
         \tmeta oifgroup {DEVICE_GROUP} accept\n\
         {to_guests}\
         \tmeta l4proto {{ tcp, udp }} th dport {{ {ports} }} reject with icmpx admin-prohibited\n\
         }}\n\
         chain forward {{\n\
         \ttype filter hook forward priority filter - 20; policy accept;\n\
         \tmeta oifgroup {DEVICE_GROUP} accept\n\
         \tmeta iifgroup {DEVICE_GROUP} accept\n\
         {to_guests}\
         \tmeta l4proto {{ tcp, udp }} th dport {{ 53, 853 }} reject with icmpx admin-prohibited\n\
         }}\n"
    );
    let table = format!("{}_dns", client_plan::firewall_table(profile));
    Step::Nftables { family: TableFamily::Inet, table, ruleset, owned: true }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_tunnel_is_one_however_it_is_written() {
        let server = |address: &str| vec![address.parse().unwrap()];
        let halves = networks(&["0.0.0.0/1", "128.0.0.0/1", "::/1", "8000::/1"]);
        assert!(needs_guard(&halves, &[], &server("203.0.113.2")));
        assert!(needs_guard(&halves[2..], &[], &server("2001:db8::53")));
        assert!(!needs_guard(&halves[1..2], &[], &server("203.0.113.2")));
        assert!(!needs_guard(&halves, &[], &[]));

        let one_inside = networks(&["0.0.0.0/0", "::/0", "203.0.113.2/32"]);
        let exclude = networks(&["203.0.113.0/24"]);
        assert!(needs_guard(&one_inside, &exclude, &server("203.0.113.2")));
        assert!(!needs_guard(&one_inside, &exclude, &server("203.0.113.3")));
    }

    fn networks(networks: &[&str]) -> Vec<IpNet> {
        networks.iter().map(|network| network.parse().unwrap()).collect()
    }
}
