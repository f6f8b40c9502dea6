//! Translates the settings of a WireGuard client's file into those of a profile.

use std::fmt::{Display, Write as _};
use std::net::IpAddr;
use std::path::Path;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::wireguard::{WireGuardClient, push_new};
use warren_config::{ConfigError, domain_of};

/// The sections of a profile that come from the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Translated {
    /// The sections as text.
    pub(super) settings: String,
    /// The other settings of the file, and what happens to them.
    pub(super) notes: Vec<String>,
}

/// Translates a file.
///
/// # Errors
/// When no network would go through the tunnel, or a domain is not in ASCII.
pub(super) fn translate(file: &Path, client: &WireGuardClient) -> Result<Translated, ConfigError> {
    let mut notes = Vec::new();
    if client.allowed.is_empty() {
        let sentence =
            "no [Peer] has AllowedIPs, so nothing would go through the tunnel; name a client's file";
        return Err(ConfigError::of_file(file, sentence));
    }
    let (include, exclude) = networks(client, &mut notes);
    let is_full = include.iter().any(|network| network.prefix_len() == 0);
    // With wg-quick, routes in the main table take precedence over the tunnel's default route, so the LAN stays reachable. The
    // profile gets the same behaviour.
    let mut settings = format!(
        "[routes]\ninclude = {}\nexclude = {}\nlan = \"auto\"   # private networks on this machine's links stay reachable while there is \
         no kill switch\n",
        list(&include),
        list(&exclude)
    );
    let section = resolvers(client, is_full, &mut notes);
    settings.push_str(&section.map_err(|wrong| ConfigError::of_file(file, format!("DNS {wrong}")))?);
    let blocks_all_else = blocks_all_else(client);
    if blocks_all_else {
        settings.push_str("\n[kill_switch]\nenabled = true\n");
        notes.push("the commands that reject traffic outside the tunnel have become a kill switch; see `warren up --dry-run`".to_owned());
    }
    commands(client, blocks_all_else, &mut notes);
    others(client, &mut notes);
    Ok(Translated { settings, notes })
}

/// Returns the networks to include and to exclude. WireGuard has no exclusions, so a file lists all other networks instead.
fn networks(client: &WireGuardClient, notes: &mut Vec<String>) -> (Vec<IpNet>, Vec<IpNet>) {
    let (mut include, mut exclude) = (Vec::new(), Vec::new());
    for everything in [IpNet::V4(Ipv4Net::default()), IpNet::V6(Ipv6Net::default())] {
        let is_v4 = matches!(everything, IpNet::V4(_));
        let of_version: Vec<IpNet> = client
            .allowed
            .iter()
            .filter(|network| matches!(network, IpNet::V4(_)) == is_v4)
            .copied()
            .collect();
        let allowed = IpNet::aggregate(&of_version);
        let rest = left_out(everything, &allowed).filter(|_| is_most(&allowed));
        match rest {
            Some(rest) => {
                include.push(everything);
                exclude.extend(rest);
            }
            None => include.extend(allowed),
        }
    }
    let is_endpoint =
        |network: &IpNet| client.endpoints.iter().any(|endpoint| IpNet::from(*endpoint) == *network);
    if exclude.iter().any(is_endpoint) {
        notes.push("the WireGuard server's address was left out, because Warren recognises its own traffic by a mark".to_owned());
    }
    exclude.retain(|network| !is_endpoint(network));
    if include.iter().any(|network| network.prefix_len() == 0)
        && !include.contains(&IpNet::V6(Ipv6Net::default()))
        && !include.iter().any(|network| matches!(network, IpNet::V6(_)))
    {
        notes.push("IPv6 stays outside the tunnel, as AllowedIPs has no IPv6; add \"::/0\" to include to change that".to_owned());
    }
    (include, exclude)
}

/// Whether networks without overlaps are at least half of their IP version.
fn is_most(networks: &[IpNet]) -> bool {
    networks.iter().map(|network| 0.5_f64.powi(i32::from(network.prefix_len()))).sum::<f64>() >= 0.5
}

/// Returns the part of `within` that `networks` leave out. `None` if that takes more than [`MOST_EXCLUDED`] networks.
fn left_out(within: IpNet, networks: &[IpNet]) -> Option<Vec<IpNet>> {
    let (mut rest, mut left) = (vec![within], Vec::new());
    while let Some(next) = rest.pop() {
        if networks.iter().any(|network| network.contains(&next)) {
            continue;
        }
        if networks.iter().any(|network| next.contains(network)) {
            rest.extend(next.subnets(next.prefix_len() + 1).ok()?);
            continue;
        }
        left.push(next);
        if left.len() > MOST_EXCLUDED {
            return None;
        }
    }
    left.sort_unstable();
    Some(left)
}

/// Maximum number of excluded networks. If more are needed, the profile includes the networks as the file lists them.
const MOST_EXCLUDED: usize = 64;

/// Returns the `[dns]` section. Empty if the exit's resolvers are used. The error continues after `DNS`.
fn resolvers(client: &WireGuardClient, is_full: bool, notes: &mut Vec<String>) -> Result<String, String> {
    let (own, listed): (Vec<IpAddr>, Vec<IpAddr>) =
        client.resolvers.iter().partition(|resolver| is_servers_own(client, **resolver));
    for resolver in &own {
        notes.push(format!(
            "the resolver {resolver} is the WireGuard server's own, so the exit's resolvers are used instead; if {resolver} is reached through \
             the exit, list it in servers of [dns]"
        ));
    }
    let mut section = String::new();
    // Writing to a string cannot fail.
    if !listed.is_empty() {
        let _ = writeln!(section, "servers = {}", list(&listed));
    }
    match (client.domains.as_slice(), is_full) {
        ([], _) => {}
        (_, false) if client.asks_for_all => {}
        (domains, true) => notes.push(format!(
            "the search domains {} were left out: in a full tunnel, programs have to use full names",
            domains.join(", ")
        )),
        (domains, false) => {
            let mut once: Vec<String> = Vec::new();
            for domain in domains {
                push_new(&mut once, domain_of(domain)?);
            }
            let _ = writeln!(
                section,
                "domains = {}   # only names below them are looked up through the tunnel",
                list(&once)
            );
        }
    }
    if client.resolvers.is_empty() && is_full {
        notes.push("the file has no DNS, so the exit's resolvers are used; servers = [] in [dns] leaves this machine's alone".to_owned());
    }
    Ok(if section.is_empty() { section } else { format!("\n[dns]\n{section}") })
}

/// Whether a resolver is on the WireGuard server, that is, in the network of the client's inner addresses. Many files list only
/// these addresses, without their network.
fn is_servers_own(client: &WireGuardClient, resolver: IpAddr) -> bool {
    client.addresses.iter().any(|address| {
        let usual = if resolver.is_ipv4() { 24 } else { 64 };
        let prefix = address.prefix_len().min(usual);
        IpNet::new(address.addr(), prefix).is_ok_and(|network| network.trunc().contains(&resolver))
    })
}

/// Whether the commands contain a kill switch like the example in wg-quick(8), which rejects or drops packets that leave by
/// another device.
fn blocks_all_else(client: &WireGuardClient) -> bool {
    client.commands.iter().any(|(key, command)| {
        let is_up = matches!(*key, "PreUp" | "PostUp");
        let has = |word: &str| command.contains(word);
        is_up && has("OUTPUT") && has("! -o %i") && (has("REJECT") || has("DROP"))
    })
}

/// Adds a note for each command that is not imported.
fn commands(client: &WireGuardClient, blocks_all_else: bool, notes: &mut Vec<String>) {
    let mut keys: Vec<&str> = Vec::new();
    for (key, command) in &client.commands {
        let is_kill_switch = blocks_all_else && command.contains("! -o %i");
        if !is_kill_switch && !keys.contains(key) {
            keys.push(key);
        }
    }
    if !keys.is_empty() {
        notes.push(format!(
            "the commands of {} are not imported; ExecStartPost and ExecStopPost in a drop-in of warren@.service can run commands",
            keys.join(", ")
        ));
    }
}

/// Adds notes that say what happens to the other keys.
fn others(client: &WireGuardClient, notes: &mut Vec<String>) {
    for (key, said) in OTHERS {
        if client.others.contains(&key) {
            notes.push(format!("{key} is not imported: {said}"));
        }
    }
    if client.peers > 1 {
        notes.push(
            "the file has several peers; the networks of all of them now go through one exit".to_owned(),
        );
    }
}

/// Keys of the file that the profile does not contain. PrivateKey, Address, PublicKey and Endpoint are not listed, because every
/// profile has their counterparts.
const OTHERS: [(&str, &str); 5] = [
    ("MTU", "the exit sets the MTU; to use another one, set mtu in [tun]"),
    ("Table", "Warren has a routing table of its own"),
    ("FwMark", "Warren has a mark of its own"),
    ("PresharedKey", "every key exchange is already safe from quantum computers"),
    ("ListenPort", "a client takes any free port"),
];

/// A list in TOML of networks, addresses or domains, whose text needs no escapes.
fn list(items: &[impl Display]) -> String {
    let items: Vec<String> = items.iter().map(|item| format!("\"{item}\"")).collect();
    format!("[{}]", items.join(", "))
}

#[cfg(test)]
mod tests {
    use super::super::wireguard::parse;
    use super::*;

    fn translated(text: &str) -> Translated {
        let path = Path::new("wg0.conf");
        translate(path, &parse(path, text).unwrap()).unwrap()
    }

    fn noted(translated: &Translated, words: &str) -> bool {
        translated.notes.iter().any(|note| note.contains(words))
    }

    #[test]
    fn full_tunnel_with_a_public_resolver_becomes_one() {
        let full = translated(
            "[Interface]\nAddress = 10.8.0.2/24\nDNS = 9.9.9.9\n[Peer]\nAllowedIPs = 0.0.0.0/1, 128.0.0.0/1, ::/0\n",
        );
        assert!(full.settings.contains("include = [\"0.0.0.0/0\", \"::/0\"]\nexclude = []\n"), "{full:?}");
        assert!(full.settings.contains("[dns]\nservers = [\"9.9.9.9\"]\n"), "{full:?}");
        assert!(full.notes.is_empty() && !full.settings.contains("kill_switch"), "{full:?}");
    }

    #[test]
    fn list_of_everything_but_some_networks_becomes_exclusions() {
        let without_private = "0.0.0.0/5, 8.0.0.0/7, 11.0.0.0/8, 12.0.0.0/6, 16.0.0.0/4, 32.0.0.0/3, 64.0.0.0/2, 128.0.0.0/3, \
            160.0.0.0/5, 168.0.0.0/6, 172.0.0.0/12, 172.32.0.0/11, 172.64.0.0/10, 172.128.0.0/9, 173.0.0.0/8, 174.0.0.0/7, \
            176.0.0.0/4, 192.0.0.0/9, 192.128.0.0/11, 192.160.0.0/13, 192.169.0.0/16, 192.170.0.0/15, 192.172.0.0/14, \
            192.176.0.0/12, 192.192.0.0/10, 193.0.0.0/8, 194.0.0.0/7, 196.0.0.0/6, 200.0.0.0/5, 208.0.0.0/4, 224.0.0.0/3";
        let split = translated(&format!("[Peer]\nAllowedIPs = {without_private}\n"));
        assert!(split.settings.contains("include = [\"0.0.0.0/0\"]"), "{split:?}");
        assert!(
            split.settings.contains("exclude = [\"10.0.0.0/8\", \"172.16.0.0/12\", \"192.168.0.0/16\"]"),
            "{split:?}"
        );
        assert!(noted(&split, "IPv6 stays outside"), "{split:?}");
    }

    #[test]
    fn endpoint_that_is_left_out_by_address_needs_no_exclusion() {
        let left = left_out("0.0.0.0/0".parse().unwrap(), &["203.0.113.2/32".parse().unwrap()]).unwrap();
        let allowed: Vec<String> = left.iter().map(ToString::to_string).collect();
        let text = format!("[Peer]\nAllowedIPs = {}\nEndpoint = 203.0.113.2:51820\n", allowed.join(","));
        let full = translated(&text);
        assert!(full.settings.contains("exclude = []"), "{full:?}");
        assert!(noted(&full, "the WireGuard server's address was left out"), "{full:?}");
    }

    #[test]
    fn split_tunnel_keeps_its_networks_and_asks_its_resolver_for_its_domains() {
        let split = translated(
            "[Interface]\nAddress = 10.8.0.2/32\nDNS = 10.20.0.53, corp.example\n[Peer]\nAllowedIPs = 10.20.0.0/16\n",
        );
        assert!(split.settings.contains("include = [\"10.20.0.0/16\"]\nexclude = []"), "{split:?}");
        assert!(
            split.settings.contains("servers = [\"10.20.0.53\"]\ndomains = [\"corp.example\"]"),
            "{split:?}"
        );
    }

    #[test]
    fn domains_in_the_form_of_systemd_resolved_become_domains_of_a_profile() {
        let split = |dns: &str| {
            let text = format!("[Interface]\nDNS = {dns}\n[Peer]\nAllowedIPs = 10.20.0.0/16\n");
            let path = Path::new("wg0.conf");
            translate(path, &parse(path, &text).unwrap()).map(|translated| translated.settings)
        };
        for dns in ["10.20.0.53, ~corp.example", "10.20.0.53, ~corp.example, Corp.Example., 10.20.0.53"] {
            let settings = split(dns).unwrap();
            assert!(
                settings.contains("servers = [\"10.20.0.53\"]\ndomains = [\"corp.example\"]"),
                "{settings}"
            );
        }
        let all = split("10.20.0.53, ~., corp.example").unwrap();
        assert!(all.contains("servers") && !all.contains("domains"), "{all}");
        for wrong in ["b\u{fc}ro.example", "corp.example/24", "~"] {
            let error = split(&format!("10.20.0.53, {wrong}")).unwrap_err().to_string();
            assert!(error.starts_with("wg0.conf: DNS has"), "{error}");
        }
    }

    #[test]
    fn resolver_of_the_wireguard_server_gives_way_to_the_exits() {
        for address in ["10.6.0.2/24", "10.6.0.2/32"] {
            let text = format!(
                "[Interface]\nAddress = {address}\nDNS = 10.6.0.1\n[Peer]\nAllowedIPs = 0.0.0.0/0, ::/0\n"
            );
            let full = translated(&text);
            assert!(
                !full.settings.contains("[dns]") && noted(&full, "the exit's resolvers are used instead"),
                "{full:?}"
            );
        }
    }

    #[test]
    fn kill_switch_of_the_manual_becomes_one_and_other_commands_are_named() {
        let text = "[Interface]\nPostUp = iptables -I OUTPUT ! -o %i -m mark ! --mark $(wg show %i fwmark) -m addrtype ! --dst-type LOCAL -j REJECT\n\
             PreDown = iptables -D OUTPUT ! -o %i -j REJECT\nPostUp = logger up\nMTU = 1280\n[Peer]\nPresharedKey = x\nAllowedIPs = 0.0.0.0/0\n";
        let locked = translated(text);
        assert!(locked.settings.contains("[kill_switch]\nenabled = true"), "{locked:?}");
        assert!(noted(&locked, "the commands of PostUp are not imported"), "{locked:?}");
        assert!(noted(&locked, "MTU is not imported") && noted(&locked, "PresharedKey is not"), "{locked:?}");
    }

    #[test]
    fn file_without_networks_is_refused() {
        let path = Path::new("wg0.conf");
        let error = translate(path, &parse(path, "[Interface]\nAddress = 10.8.0.1\n").unwrap()).unwrap_err();
        assert!(error.to_string().contains("no [Peer] has AllowedIPs"), "{error}");
    }
}
