//! Keeps the DNS queries of all programs inside a full tunnel.

use std::net::IpAddr;

use ipnet::IpNet;

use super::{DnsFacts, Servers, is_full};
use crate::{
    DEVICE_GROUP, DeviceName, Family, GuestNetwork, Step, TableFamily, portal::PORTAL_MARK,
    ruleset_text::elements,
};

/// Whether all DNS queries must stay inside the tunnel. This is the case in a full tunnel, unless its profile does not set
/// resolvers or lists a resolver outside the tunnel. `exclude` must be the profile's own list, so that neither an exit nor a LAN
/// can change the result.
pub fn needs_guard(include: &[IpNet], exclude: &[IpNet], wanted: &Servers) -> bool {
    let leads_there = |server: &IpAddr| DnsFacts::leads_to(include, exclude, *server);
    is_full(include)
        && match wanted {
            Servers::Exit => true,
            Servers::Listed(listed) => !listed.is_empty() && listed.iter().all(leads_there),
        }
}

/// Returns the listed resolvers that the profile's own networks route into the tunnel, and that `lan` would keep outside.
///
/// This matters because the operator of a LAN chooses the LAN's networks, and could choose one that contains a resolver's
/// address.
pub fn claimed(include: &[IpNet], exclude: &[IpNet], lan: &[IpNet], wanted: &Servers) -> Vec<IpAddr> {
    let Servers::Listed(listed) = wanted else { return Vec::new() };
    let all = [exclude, lan].concat();
    let is_claimed = |server: &&IpAddr| {
        DnsFacts::leads_to(include, exclude, **server) && !DnsFacts::leads_to(include, &all, **server)
    };
    listed.iter().filter(is_claimed).copied().collect()
}

pub use crate::table_names::guard_table;

/// Makes the step for a firewall table that rejects DNS queries that would leave outside a tunnel.
///
/// Some programs send such queries because they bind to another device, for example systemd-resolved for a link with its own
/// domains. Others query a resolver on the local network while the LAN stays reachable (`lan`). The table filters the queries of
/// this host and those that it forwards for containers.
///
/// The table accepts packets with the carrier's mark or a portal's mark ([`crate::portal`]), packets into or out of a Warren
/// tunnel, and packets to containers on this host.
///
/// Without `lan`, multicast queries are rejected too. The kernel deletes the table when the daemon ends, as it deletes the
/// tunnel.
pub fn guard(profile: &str, mark: u32, lan: bool, guests: &[GuestNetwork]) -> Step {
    let ports = if lan { "53, 853" } else { "53, 853, 5353, 5355" };
    let mut devices: Vec<&DeviceName> = guests.iter().map(|guest| &guest.device).collect();
    devices.sort_unstable();
    devices.dedup();
    let to_guests: String = devices.iter().map(|device| format!("\toifname \"{device}\" accept\n")).collect();
    // Answers to packets from outside have the carrier's mark too, but a different connection mark. Without a check of the
    // connection mark, one forged packet from a resolver's address would let any program query that resolver.
    //
    // In this hook, the output device of such packets is still the tunnel. The chain runs before that of a kill switch, which
    // gives the carrier another mark.
    let ruleset = format!(
        "chain carrier {{\n\
         \tct mark {mark:#x} meta l4proto {{ tcp, udp }} th dport {{ {ports} }} reject with icmpx admin-prohibited\n\
         \tct mark {mark:#x} return\n\
         \taccept\n\
         }}\n\
         chain output {{\n\
         \ttype filter hook output priority filter - 20; policy accept;\n\
         \tmeta mark {mark:#x} jump carrier\n\
         \tmeta mark {PORTAL_MARK:#x} accept\n\
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
    Step::Nftables { family: TableFamily::Inet, table: guard_table(profile), ruleset, owned: true }
}

/// Makes the step for a firewall table that rejects only DNS queries to the LAN. It is for a tunnel without a [`guard`] whose LAN
/// stays reachable by default, without an explicit setting in the profile.
///
/// `exclude` is the profile's own list. Queries to resolvers in these networks stay allowed. `mark` and `guests` are
/// as in [`guard`].
pub fn guard_lan(
    profile: &str,
    mark: u32,
    lan: &[IpNet],
    exclude: &[IpNet],
    guests: &[GuestNetwork],
) -> Step {
    let lan: Vec<IpNet> = lan
        .iter()
        .filter(|network| !guests.iter().any(|guest| guest.network == **network))
        .copied()
        .collect();
    let mut queries = String::new();
    for (family, keyword) in [(Family::Ipv4, "ip"), (Family::Ipv6, "ip6")] {
        if let Some(exclude) = elements(exclude, family) {
            queries.push_str(&format!("\t{keyword} daddr {{ {exclude} }} return\n"));
        }
        if let Some(lan) = elements(&lan, family) {
            queries.push_str(&format!(
                "\t{keyword} daddr {{ {lan} }} meta l4proto {{ tcp, udp }} th dport {{ 53, 853 }} reject with icmpx admin-prohibited\n"
            ));
        }
    }
    // As in `guard`, the connection mark distinguishes the carrier's packets from answers with the same packet mark.
    let ruleset = format!(
        "chain carrier {{\n\tct mark {mark:#x} return\n\taccept\n}}\n\
         chain queries {{\n{queries}}}\n\
         chain output {{\n\
         \ttype filter hook output priority filter - 20; policy accept;\n\
         \tmeta mark {mark:#x} jump carrier\n\
         \tmeta mark {PORTAL_MARK:#x} accept\n\
         \tmeta oifgroup {DEVICE_GROUP} accept\n\
         \tjump queries\n\
         }}\n\
         chain forward {{\n\
         \ttype filter hook forward priority filter - 20; policy accept;\n\
         \tmeta oifgroup {DEVICE_GROUP} accept\n\
         \tmeta iifgroup {DEVICE_GROUP} accept\n\
         \tjump queries\n\
         }}\n"
    );
    Step::Nftables { family: TableFamily::Inet, table: guard_table(profile), ruleset, owned: true }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_tunnel_is_one_however_it_is_written() {
        let server = |address: &str| Servers::Listed(vec![address.parse().unwrap()]);
        let halves = networks(&["0.0.0.0/1", "128.0.0.0/1", "::/1", "8000::/1"]);
        assert!(needs_guard(&halves, &[], &server("203.0.113.2")));
        assert!(needs_guard(&halves[2..], &[], &server("2001:db8::53")));
        assert!(!needs_guard(&halves[1..2], &[], &server("203.0.113.2")));
        assert!(!needs_guard(&halves, &[], &Servers::Listed(Vec::new())));
        assert!(!needs_guard(&halves[1..2], &[], &Servers::Exit));

        let one_inside = networks(&["0.0.0.0/0", "::/0", "203.0.113.2/32"]);
        let exclude = networks(&["203.0.113.0/24"]);
        assert!(needs_guard(&one_inside, &exclude, &server("203.0.113.2")));
        assert!(!needs_guard(&one_inside, &exclude, &server("203.0.113.3")));
        assert!(needs_guard(&one_inside, &exclude, &Servers::Exit), "whatever the exit names");
    }

    #[test]
    fn lan_claims_listed_resolvers_of_the_tunnel_and_no_others() {
        let listed = Servers::Listed(vec!["10.77.0.53".parse().unwrap(), "9.9.9.9".parse().unwrap()]);
        let (full, lan) = (networks(&["0.0.0.0/0"]), networks(&["10.0.0.0/8"]));
        let resolver = vec!["10.77.0.53".parse::<IpAddr>().unwrap()];

        assert_eq!(claimed(&full, &[], &lan, &listed), resolver);
        assert_eq!(
            claimed(&networks(&["10.77.0.0/16"]), &[], &networks(&["10.77.0.0/24"]), &listed),
            resolver
        );
        assert!(claimed(&full, &[], &networks(&["192.168.1.0/24"]), &listed).is_empty());
        assert!(
            claimed(&full, &networks(&["10.77.0.53/32"]), &lan, &listed).is_empty(),
            "the profile's own wish"
        );
        assert!(claimed(&networks(&["0.0.0.0/0", "10.77.0.53/32"]), &[], &lan, &listed).is_empty());
        assert!(claimed(&full, &[], &lan, &Servers::Exit).is_empty());
    }

    fn networks(networks: &[&str]) -> Vec<IpNet> {
        networks.iter().map(|network| network.parse().unwrap()).collect()
    }
}
