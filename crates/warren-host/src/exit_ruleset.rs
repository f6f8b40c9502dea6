//! The text of the exit's firewall: what clients may reach, and whose address they get on the way.

use std::iter;
use std::ops::RangeInclusive;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::Family;
use crate::exit_plan::{Egress, ExitHost};
use crate::ruleset_text::chain;

/// The chains of the exit's table, one statement per line, for the gateways of the pools in use.
pub(crate) fn ruleset(host: &ExitHost, ipv4: Option<Ipv4Net>, ipv6: Option<Ipv6Net>) -> String {
    let ipv4 = ipv4.map(|gateway| Pool { is_translated: host.nat_ipv4, ..Pool::ipv4(gateway) });
    let ipv6 = ipv6.map(|gateway| Pool { is_translated: host.nat_ipv6, ..Pool::ipv6(gateway) });
    let mut pools: Vec<Pool> = ipv4.into_iter().chain(ipv6).collect();
    for pool in &mut pools {
        pool.granted = host.prefixes.iter().copied().filter(|prefix| pool.holds(prefix)).collect();
    }
    let mut text: String = pools.iter().map(Pool::flows_set).collect();
    chain(&mut text, "input", "type filter hook input priority filter; policy accept;", &input(host, &pools));
    chain(&mut text, "forward", "type filter hook forward priority filter; policy accept;", &forward(host));
    chain(&mut text, "from_clients", "", &from_clients(host, &pools));
    chain(&mut text, "new_flows", "", &new_flows(&pools));
    chain(&mut text, "to_clients", "", &to_clients());
    pools.retain(|pool| pool.is_translated);
    if !pools.is_empty() {
        let header = "type nat hook postrouting priority srcnat; policy accept;";
        chain(&mut text, "postrouting", header, &postrouting(host, &pools));
    }
    text
}

/// The source ports that NAT may use: the largest part of [`NAT_PORTS`] that holds none of `listen_ports`.
pub(crate) fn nat_ports(listen_ports: &[u16]) -> RangeInclusive<u16> {
    let mut taken: Vec<u16> = listen_ports.iter().copied().filter(|port| NAT_PORTS.contains(port)).collect();
    taken.sort_unstable();
    let mut best = NAT_PORTS;
    let mut longest = 0;
    let mut start = *NAT_PORTS.start();
    for end in taken.into_iter().chain([*NAT_PORTS.end() + 1]) {
        let length = end.saturating_sub(start);
        if length > longest {
            longest = length;
            best = start..=end - 1;
        }
        start = end + 1;
    }
    best
}

/// What the rules say of one IP version's pool.
struct Pool {
    /// The keyword of nft that selects the IP version and its addresses.
    family: &'static str,
    network: IpNet,
    /// The networks behind clients, each as it was granted.
    granted: Vec<IpNet>,
    gateway: String,
    /// nft's name for the type of its addresses.
    address: &'static str,
    echo: &'static str,
    not_internet: &'static [&'static str],
    /// Whether what leaves for the internet gets this host's address.
    is_translated: bool,
}

impl Pool {
    fn ipv4(gateway: Ipv4Net) -> Self {
        Self {
            family: "ip",
            network: gateway.trunc().into(),
            granted: Vec::new(),
            gateway: gateway.addr().to_string(),
            address: "ipv4_addr",
            echo: "icmp type echo-request",
            not_internet: NOT_INTERNET_IPV4,
            is_translated: true,
        }
    }

    fn ipv6(gateway: Ipv6Net) -> Self {
        Self {
            family: "ip6",
            network: gateway.trunc().into(),
            granted: Vec::new(),
            gateway: gateway.addr().to_string(),
            address: "ipv6_addr",
            echo: "icmpv6 type echo-request",
            not_internet: NOT_INTERNET_IPV6,
            is_translated: true,
        }
    }

    /// Whose flows are counted, by source address.
    fn flows_set(&self) -> String {
        let Self { family, address, .. } = self;
        format!("set flows_{family} {{\n\ttype {address}\n\tsize 65535\n\tflags dynamic\n}}\n")
    }

    /// Drops what would be one flow too many: of a client's own address, or of all addresses of a network behind one together, which
    /// are as many as it likes.
    fn too_many_flows(&self) -> Vec<String> {
        let Self { family, network, granted, .. } = self;
        let over = format!("ct count over {MOST_FLOWS}");
        let own =
            format!("{family} saddr {network} add @flows_{family} {{ {family} saddr {over} }} counter drop");
        let behind = granted.iter().map(|prefix| format!("{family} saddr {prefix} {over} counter drop"));
        iter::once(own).chain(behind).collect()
    }

    fn holds(&self, network: &IpNet) -> bool {
        Family::of(&self.network) == Family::of(network)
    }

    /// Selects what clients and hosts behind them send.
    fn sources(&self) -> Vec<String> {
        let networks = iter::once(self.network).chain(IpNet::aggregate(&self.granted));
        networks.map(|network| format!("{} saddr {network}", self.family)).collect()
    }
}

/// Of this host, clients reach the gateway's echo alone, and nobody else reaches the gateway: whoever asks for an inner address
/// from outside wants to learn of it (CVE-2019-14899).
fn input(host: &ExitHost, pools: &[Pool]) -> Vec<String> {
    let device = &host.device;
    let mut rules = vec!["ct state established,related accept".into()];
    for Pool { family, gateway, .. } in pools {
        rules.push(format!("iifname != {{ \"lo\", \"{device}\" }} {family} daddr {gateway} counter drop"));
    }
    rules.push(format!("iifname != \"{device}\" accept"));
    rules.push(COUNT_FLOWS.into());
    for Pool { family, gateway, echo, .. } in pools {
        rules.push(format!("{family} daddr {gateway} {echo} accept"));
    }
    rules.push("counter drop".into());
    rules
}

/// Only what comes from or goes to the TUN is looked at.
fn forward(host: &ExitHost) -> Vec<String> {
    let device = &host.device;
    vec![format!("iifname \"{device}\" jump from_clients"), format!("oifname \"{device}\" jump to_clients")]
}

fn from_clients(host: &ExitHost, pools: &[Pool]) -> Vec<String> {
    let device = &host.device;
    let mut rules = Vec::new();
    if host.isolation {
        // Also flows that began before.
        rules.push(format!("oifname \"{device}\" counter drop"));
    }
    rules.push("ct state established,related accept".into());
    rules.push(COUNT_FLOWS.into());
    if !host.isolation {
        rules.push(format!("oifname \"{device}\" accept"));
    }
    rules.push("ct state invalid counter drop".into());
    for pool in pools {
        let allow: Vec<String> = host
            .allow
            .iter()
            .filter(|network| pool.holds(network))
            .map(|network| network.trunc().to_string())
            .collect();
        let family = pool.family;
        rules.extend(allow.iter().map(|network| format!("{family} daddr {network} accept")));
        rules.push(format!("{family} daddr {{ {} }} counter drop", pool.not_internet.join(", ")));
    }
    if let Egress::Device(egress) = &host.interface {
        rules.push(format!("oifname != \"{egress}\" counter drop"));
    }
    rules.extend(pools.iter().flat_map(Pool::sources).map(|source| format!("{source} accept")));
    rules.push("counter drop".into());
    rules
}

fn new_flows(pools: &[Pool]) -> Vec<String> {
    pools.iter().flat_map(Pool::too_many_flows).collect()
}

/// Nothing reaches a client that did not ask for it.
fn to_clients() -> Vec<String> {
    vec!["ct state established,related accept".into(), "counter drop".into()]
}

fn postrouting(host: &ExitHost, pools: &[Pool]) -> Vec<String> {
    let out = match &host.interface {
        Egress::Auto => format!("oifname != \"{}\"", host.device),
        Egress::Device(egress) => format!("oifname \"{egress}\""),
    };
    let ports = nat_ports(&host.listen_ports);
    let (first, last) = (ports.start(), ports.end());
    let mut rules = Vec::new();
    for source in pools.iter().flat_map(Pool::sources) {
        let from_clients = format!("{out} {source}");
        rules.push(format!("{from_clients} meta l4proto {{ tcp, udp }} masquerade to :{first}-{last}"));
        rules.push(format!("{from_clients} masquerade"));
    }
    rules
}

/// Whatever a client's new flow is for, before anything accepts it.
const COUNT_FLOWS: &str = "ct state new jump new_flows";

/// Flows that a client's address may have at a time, and a network behind a client: connection tracking and NAT's ports are there for
/// all.
const MOST_FLOWS: u32 = 4_096;

/// Ports above those of services and below those that Linux keeps for nobody (its own ephemeral range ends here).
const NAT_PORTS: RangeInclusive<u16> = 20_000..=60_999;

/// This host, private networks (RFC 1918), carrier-grade NAT (RFC 6598), link-local with the clouds' metadata service
/// (RFC 3927), multicast and reserved (RFC 6890).
const NOT_INTERNET_IPV4: &[&str] = &[
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "224.0.0.0/3",
];

/// This host, IPv4 in disguise, unique local (RFC 4193), link-local, old site-local and multicast.
const NOT_INTERNET_IPV6: &[&str] =
    &["::/127", "::ffff:0:0/96", "64:ff9b:1::/48", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DeviceName;

    #[test]
    fn ruleset_reads_as_expected() {
        let text =
            ruleset(&host(), Some("10.66.0.1/16".parse().unwrap()), Some("fd66:6666::1/64".parse().unwrap()));

        assert_eq!(
            text,
            "set flows_ip {\n\
             \ttype ipv4_addr\n\
             \tsize 65535\n\
             \tflags dynamic\n\
             }\n\
             set flows_ip6 {\n\
             \ttype ipv6_addr\n\
             \tsize 65535\n\
             \tflags dynamic\n\
             }\n\
             chain input {\n\
             \ttype filter hook input priority filter; policy accept;\n\
             \tct state established,related accept\n\
             \tiifname != { \"lo\", \"warren-exit\" } ip daddr 10.66.0.1 counter drop\n\
             \tiifname != { \"lo\", \"warren-exit\" } ip6 daddr fd66:6666::1 counter drop\n\
             \tiifname != \"warren-exit\" accept\n\
             \tct state new jump new_flows\n\
             \tip daddr 10.66.0.1 icmp type echo-request accept\n\
             \tip6 daddr fd66:6666::1 icmpv6 type echo-request accept\n\
             \tcounter drop\n\
             }\n\
             chain forward {\n\
             \ttype filter hook forward priority filter; policy accept;\n\
             \tiifname \"warren-exit\" jump from_clients\n\
             \toifname \"warren-exit\" jump to_clients\n\
             }\n\
             chain from_clients {\n\
             \toifname \"warren-exit\" counter drop\n\
             \tct state established,related accept\n\
             \tct state new jump new_flows\n\
             \tct state invalid counter drop\n\
             \tip daddr 192.168.7.0/24 accept\n\
             \tip daddr { 0.0.0.0/8, 10.0.0.0/8, 100.64.0.0/10, 127.0.0.0/8, 169.254.0.0/16, 172.16.0.0/12, \
             192.168.0.0/16, 224.0.0.0/3 } counter drop\n\
             \tip6 daddr { ::/127, ::ffff:0:0/96, 64:ff9b:1::/48, fc00::/7, fe80::/10, fec0::/10, ff00::/8 } counter drop\n\
             \tip saddr 10.66.0.0/16 accept\n\
             \tip6 saddr fd66:6666::/64 accept\n\
             \tcounter drop\n\
             }\n\
             chain new_flows {\n\
             \tip saddr 10.66.0.0/16 add @flows_ip { ip saddr ct count over 4096 } counter drop\n\
             \tip6 saddr fd66:6666::/64 add @flows_ip6 { ip6 saddr ct count over 4096 } counter drop\n\
             }\n\
             chain to_clients {\n\
             \tct state established,related accept\n\
             \tcounter drop\n\
             }\n\
             chain postrouting {\n\
             \ttype nat hook postrouting priority srcnat; policy accept;\n\
             \toifname != \"warren-exit\" ip saddr 10.66.0.0/16 meta l4proto { tcp, udp } masquerade to :20000-60999\n\
             \toifname != \"warren-exit\" ip saddr 10.66.0.0/16 masquerade\n\
             \toifname != \"warren-exit\" ip6 saddr fd66:6666::/64 meta l4proto { tcp, udp } masquerade to :20000-60999\n\
             \toifname != \"warren-exit\" ip6 saddr fd66:6666::/64 masquerade\n\
             }\n"
        );
    }

    #[test]
    fn named_egress_takes_the_nat_and_keeps_the_rest_from_leaving_elsewhere() {
        let host = ExitHost { interface: Egress::Device(DeviceName::new("ens3").unwrap()), ..host() };

        let text = ruleset(&host, Some("10.66.0.1/16".parse().unwrap()), None);

        assert!(
            text.contains("\toifname != \"ens3\" counter drop\n\tip saddr 10.66.0.0/16 accept\n"),
            "{text}"
        );
        assert!(text.contains("\toifname \"ens3\" ip saddr 10.66.0.0/16 masquerade\n"), "{text}");
    }

    #[test]
    fn without_nat_there_is_no_nat_chain() {
        let text =
            ruleset(&ExitHost { nat_ipv4: false, ..host() }, Some("10.66.0.1/16".parse().unwrap()), None);

        assert!(!text.contains("masquerade"), "{text}");
    }

    #[test]
    fn routed_prefix_leaves_with_its_own_addresses_beside_a_translated_one() {
        let gateways = ("10.66.0.1/16".parse().ok(), "2001:db8:66::1/64".parse().ok());

        let text = ruleset(&ExitHost { nat_ipv6: false, ..host() }, gateways.0, gateways.1);

        assert!(text.contains("ip saddr 10.66.0.0/16 masquerade\n"), "{text}");
        assert!(text.contains("\tip6 saddr 2001:db8:66::/64 accept\n"), "{text}");
        assert!(!text.contains("ip6 saddr 2001:db8:66::/64 m"), "{text}");
    }

    #[test]
    fn hosts_behind_clients_may_send_what_clients_may() {
        let prefixes = ["192.168.8.0/24", "fd08::/64"].map(|prefix| prefix.parse().unwrap()).to_vec();

        let text = ruleset(&ExitHost { prefixes, ..host() }, Some("10.66.0.1/16".parse().unwrap()), None);

        assert!(
            text.contains("\tip saddr 10.66.0.0/16 accept\n\tip saddr 192.168.8.0/24 accept\n"),
            "{text}"
        );
        assert!(text.contains("oifname != \"warren-exit\" ip saddr 192.168.8.0/24 masquerade\n"), "{text}");
        assert!(!text.contains("fd08"), "there is no pool of that version: {text}");
    }

    #[test]
    fn addresses_of_a_network_behind_a_client_have_flows_together_also_beside_that_of_another_client() {
        let prefixes =
            ["192.168.8.0/24", "192.168.9.0/24", "fd08::/64"].map(|prefix| prefix.parse().unwrap());
        let gateways = ("10.66.0.1/16".parse().ok(), "fd66:6666::1/64".parse().ok());

        let text = ruleset(&ExitHost { prefixes: prefixes.to_vec(), ..host() }, gateways.0, gateways.1);

        for prefix in ["ip saddr 192.168.8.0/24", "ip saddr 192.168.9.0/24", "ip6 saddr fd08::/64"] {
            assert!(text.contains(&format!("\t{prefix} ct count over 4096 counter drop\n")), "{text}");
        }
        assert!(text.contains("\tip saddr 192.168.8.0/23 accept\n"), "both are let through at once: {text}");
    }

    #[test]
    fn without_isolation_clients_reach_each_other_with_as_many_flows_as_they_have_elsewhere() {
        let text =
            ruleset(&ExitHost { isolation: false, ..host() }, Some("10.66.0.1/16".parse().unwrap()), None);

        assert!(text.contains("\tct state new jump new_flows\n\toifname \"warren-exit\" accept\n"), "{text}");
    }

    #[test]
    fn nat_ports_never_hold_a_listen_port() {
        assert_eq!(nat_ports(&[]), 20_000..=60_999);
        assert_eq!(nat_ports(&[443, 65_535]), 20_000..=60_999);
        assert_eq!(nat_ports(&[51_820]), 20_000..=51_819);
        assert_eq!(nat_ports(&[30_000, 40_000, 30_000]), 40_001..=60_999);
        assert_eq!(nat_ports(&[20_000, 60_999]), 20_001..=60_998);
    }

    fn host() -> ExitHost {
        ExitHost {
            device: DeviceName::new("warren-exit").unwrap(),
            mtu: 1380,
            ipv4: None,
            ipv6: None,
            nat_ipv4: true,
            nat_ipv6: true,
            interface: Egress::Auto,
            listen_ports: vec![443],
            allow: vec!["192.168.7.9/24".parse().unwrap()],
            prefixes: Vec::new(),
            isolation: true,
            router_advertisements: Vec::new(),
        }
    }
}
