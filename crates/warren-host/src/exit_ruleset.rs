//! The text of the exit's firewall: what clients may reach, and whose address they get on the way.

use std::iter;
use std::ops::RangeInclusive;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::exit_plan::{self, Egress, ExitHost};
use crate::ruleset_text::chain;
use crate::special_purpose::{internet_within, is_special, not_internet};
use crate::{DeviceName, Family};

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
    chain(
        &mut text,
        "forward",
        "type filter hook forward priority filter; policy accept;",
        &forward(host, &pools),
    );
    chain(&mut text, "from_clients", "", &from_clients(host, &pools));
    chain(&mut text, "new_flows", "", &new_flows(&pools));
    chain(&mut text, "to_clients", "", &to_clients());
    chain(&mut text, "from_neighbours", "", &from_neighbours());
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
            is_translated: true,
        }
    }

    /// Whose flows are counted, by source address.
    fn flows_set(&self) -> String {
        let Self { family, address, .. } = self;
        format!("set flows_{family} {{\n\ttype {address}\n\tsize 65535\n\tflags dynamic\n}}\n")
    }

    /// Drops what would be one flow too many: of a client's own address, or of all addresses of a network behind one together, which
    /// are as many as it likes. An address that found no place among those that are counted has no flows.
    fn too_many_flows(&self) -> Vec<String> {
        let Self { family, network, granted, .. } = self;
        let over = format!("ct count over {MOST_FLOWS}");
        let own =
            format!("{family} saddr {network} add @flows_{family} {{ {family} saddr {over} }} counter drop");
        let uncounted = format!("{family} saddr {network} {family} saddr != @flows_{family} counter drop");
        let behind = granted.iter().map(|prefix| format!("{family} saddr {prefix} {over} counter drop"));
        [own, uncounted].into_iter().chain(behind).collect()
    }

    /// Drops what is for neither the internet nor what the operator allows.
    fn refused(&self, host: &ExitHost) -> Vec<String> {
        let family = self.family;
        let version = Family::of(&self.network);
        let allow = host.allow.iter().filter(|network| self.holds(network)).map(IpNet::trunc);
        let mut rules: Vec<String> =
            allow.map(|network| format!("{family} daddr {network} accept")).collect();
        let on_link: Vec<IpNet> = host.surroundings.links.iter().map(|link| link.network).collect();
        let on_link: Vec<IpNet> = IpNet::aggregate(&on_link)
            .into_iter()
            .filter(|network| self.holds(network) && !is_special(network))
            .collect();
        let is_refused = |resolver: &IpNet| {
            is_special(resolver) || on_link.iter().any(|network| network.contains(resolver))
        };
        let resolvers = host.resolvers.iter().map(|resolver| IpNet::from(*resolver));
        rules.extend(resolvers.filter(|resolver| self.holds(resolver) && is_refused(resolver)).map(
            |resolver| {
                format!("{family} daddr {} meta l4proto {{ tcp, udp }} th dport 53 accept", resolver.addr())
            },
        ));
        rules.push(format!(
            "{family} daddr != {{ {} }} {family} daddr {{ {} }} counter drop",
            internet_within(version).join(", "),
            not_internet(version).join(", ")
        ));
        if !on_link.is_empty() {
            rules.push(format!("{family} daddr {{ {} }} counter drop", listed(&on_link)));
        }
        rules
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
/// from outside wants to learn of it (CVE-2019-14899), and whoever asks with one has this host send the answer to a client.
fn input(host: &ExitHost, pools: &[Pool]) -> Vec<String> {
    let device = &host.device;
    let mut rules = vec!["ct state established,related accept".into()];
    for Pool { family, gateway, network, .. } in pools {
        let elsewhere = format!("iifname != {{ \"lo\", \"{device}\" }} {family}");
        rules.push(format!("{elsewhere} daddr {gateway} counter drop"));
        rules.push(format!("{elsewhere} saddr {network} counter drop"));
    }
    rules.push(format!("iifname != \"{device}\" accept"));
    rules.push(COUNT_FLOWS.into());
    for Pool { family, gateway, echo, .. } in pools {
        rules.push(format!("{family} daddr {gateway} {echo} accept"));
    }
    rules.push("counter drop".into());
    rules
}

/// What comes from the TUN or goes to it, and what only passes because the exit has this host forward at all.
fn forward(host: &ExitHost, pools: &[Pool]) -> Vec<String> {
    let device = &host.device;
    let mut rules = vec![format!("iifname \"{device}\" jump from_clients")];
    // Clients' addresses come from the TUN alone.
    rules.extend(pools.iter().flat_map(Pool::sources).map(|source| format!("{source} counter drop")));
    rules.push(format!("oifname \"{device}\" jump to_clients"));
    let devices = own_ipv4(host);
    if host.ipv4.is_some() && !devices.is_empty() {
        rules.push(format!("meta nfproto ipv4 iifname {{ {} }} jump from_neighbours", quoted(&devices)));
    }
    if let Some(others) = host.surroundings.forwarding.ipv6_others.as_ref().filter(|_| host.ipv6.is_some()) {
        let except =
            if others.is_empty() { String::new() } else { format!("iifname != {{ {} }} ", quoted(others)) };
        rules.push(format!("meta nfproto ipv6 {except}jump from_neighbours"));
    }
    rules
}

/// The devices that forward IPv4 for clients alone.
pub(crate) fn own_ipv4(host: &ExitHost) -> Vec<DeviceName> {
    let forwarding = &host.surroundings.forwarding;
    let mut devices = exit_plan::ways_out(host);
    devices.retain(|device| forwarding.ipv4_off.contains(device));
    devices.extend(forwarding.ipv4_own.iter().cloned());
    devices.sort_unstable();
    devices
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
    rules.extend(pools.iter().flat_map(|pool| pool.refused(host)));
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

/// Neighbours that nobody has enrolled get nothing forwarded, but answers, and what this host's own rules send elsewhere: a
/// container's published port.
fn from_neighbours() -> Vec<String> {
    ["ct state established,related accept", "ct status dnat accept", "counter drop"].map(Into::into).into()
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

fn listed(networks: &[IpNet]) -> String {
    networks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn quoted(devices: &[DeviceName]) -> String {
    devices.iter().map(|device| format!("\"{device}\"")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Forwarding, OnLink, Surroundings};

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
             \tiifname != { \"lo\", \"warren-exit\" } ip saddr 10.66.0.0/16 counter drop\n\
             \tiifname != { \"lo\", \"warren-exit\" } ip6 daddr fd66:6666::1 counter drop\n\
             \tiifname != { \"lo\", \"warren-exit\" } ip6 saddr fd66:6666::/64 counter drop\n\
             \tiifname != \"warren-exit\" accept\n\
             \tct state new jump new_flows\n\
             \tip daddr 10.66.0.1 icmp type echo-request accept\n\
             \tip6 daddr fd66:6666::1 icmpv6 type echo-request accept\n\
             \tcounter drop\n\
             }\n\
             chain forward {\n\
             \ttype filter hook forward priority filter; policy accept;\n\
             \tiifname \"warren-exit\" jump from_clients\n\
             \tip saddr 10.66.0.0/16 counter drop\n\
             \tip6 saddr fd66:6666::/64 counter drop\n\
             \toifname \"warren-exit\" jump to_clients\n\
             \tmeta nfproto ipv4 iifname { \"ens3\" } jump from_neighbours\n\
             \tmeta nfproto ipv6 jump from_neighbours\n\
             }\n\
             chain from_clients {\n\
             \toifname \"warren-exit\" counter drop\n\
             \tct state established,related accept\n\
             \tct state new jump new_flows\n\
             \tct state invalid counter drop\n\
             \tip daddr 192.168.7.0/24 accept\n\
             \tip daddr != { 192.0.0.9/32, 192.0.0.10/32 } ip daddr { 0.0.0.0/8, 10.0.0.0/8, 100.64.0.0/10, 127.0.0.0/8, \
             168.63.129.16/32, 169.254.0.0/16, 172.16.0.0/12, 192.0.0.0/24, 192.0.2.0/24, 192.88.99.0/24, 192.168.0.0/16, \
             198.18.0.0/15, 198.51.100.0/24, 203.0.113.0/24, 224.0.0.0/3 } counter drop\n\
             \tip6 daddr != { 2001:1::1/128, 2001:1::2/128, 2001:1::3/128, 2001:3::/32, 2001:4:112::/48, 2001:20::/28, \
             2001:30::/28 } ip6 daddr { ::/3, 2001::/23, 2001:db8::/32, 2002::/16, 3fff::/20, 4000::/2, 8000::/1 } counter drop\n\
             \tip saddr 10.66.0.0/16 accept\n\
             \tip6 saddr fd66:6666::/64 accept\n\
             \tcounter drop\n\
             }\n\
             chain new_flows {\n\
             \tip saddr 10.66.0.0/16 add @flows_ip { ip saddr ct count over 4096 } counter drop\n\
             \tip saddr 10.66.0.0/16 ip saddr != @flows_ip counter drop\n\
             \tip6 saddr fd66:6666::/64 add @flows_ip6 { ip6 saddr ct count over 4096 } counter drop\n\
             \tip6 saddr fd66:6666::/64 ip6 saddr != @flows_ip6 counter drop\n\
             }\n\
             chain to_clients {\n\
             \tct state established,related accept\n\
             \tcounter drop\n\
             }\n\
             chain from_neighbours {\n\
             \tct state established,related accept\n\
             \tct status dnat accept\n\
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

    #[test]
    fn networks_on_the_hosts_links_are_refused_unless_they_are_refused_anyway_or_allowed() {
        let links = ["198.41.0.0/24", "198.41.1.0/24", "192.168.9.0/24", "2a01:4f8::/64", "fe80::/64"];
        let surroundings = surroundings(&links, Some(Vec::new()));
        let gateways = ("10.66.0.1/16".parse().ok(), "fd66:6666::1/64".parse().ok());
        let allow = vec!["2a01:4f8::5/128".parse().unwrap()];

        let text = ruleset(&ExitHost { surroundings, allow, ..host() }, gateways.0, gateways.1);

        assert!(text.contains("\tip daddr { 198.41.0.0/23 } counter drop\n"), "{text}");
        assert!(text.contains("\tip6 daddr { 2a01:4f8::/64 } counter drop\n"), "{text}");
        let [allowed, refused] =
            ["2a01:4f8::5/128 accept", "{ 2a01:4f8::/64 }"].map(|part| text.find(part).unwrap());
        assert!(allowed < refused, "{text}");
        assert!(!text.contains("192.168.9.0") && !text.contains("fe80"), "{text}");
    }

    #[test]
    fn clients_may_ask_the_resolvers_that_they_are_told_of_wherever_these_are_and_nothing_else_there() {
        let resolvers =
            ["9.9.9.9", "10.0.0.53", "198.41.0.53", "fd00::53"].map(|resolver| resolver.parse().unwrap());
        let surroundings = surroundings(&["198.41.0.0/24"], Some(Vec::new()));

        let host = ExitHost { surroundings, resolvers: resolvers.to_vec(), ..host() };
        let text = ruleset(&host, "10.66.0.1/16".parse().ok(), None);

        for resolver in ["10.0.0.53", "198.41.0.53"] {
            let rule = format!("\tip daddr {resolver} meta l4proto {{ tcp, udp }} th dport 53 accept\n");
            assert!(text.contains(&rule), "{text}");
        }
        assert!(!text.contains("9.9.9.9"), "it is the internet's: {text}");
        assert!(!text.contains("fd00::53"), "there is no pool of that version: {text}");
    }

    #[test]
    fn what_others_forward_is_not_looked_at() {
        let gateways = ("10.66.0.1/16".parse().ok(), "fd66:6666::1/64".parse().ok());
        let with = |surroundings| ruleset(&ExitHost { surroundings, ..host() }, gateways.0, gateways.1);

        // Both versions, before the exit or since.
        let others = Surroundings { forwarding: Forwarding::default(), ..surroundings(&[], None) };
        let text = with(others);
        assert!(!text.contains("jump from_neighbours"), "{text}");
        assert!(
            text.contains("\tip saddr 10.66.0.0/16 counter drop\n"),
            "clients' addresses are theirs: {text}"
        );

        let text = with(surroundings(&[], Some(vec![DeviceName::new("br0").unwrap()])));
        assert!(text.contains("\tmeta nfproto ipv6 iifname != { \"br0\" } jump from_neighbours\n"), "{text}");
    }

    fn surroundings(links: &[&str], ipv6_others: Option<Vec<DeviceName>>) -> Surroundings {
        let device = DeviceName::new("ens3").unwrap();
        let link = |network: &&str| OnLink { device: device.clone(), network: network.parse().unwrap() };
        Surroundings {
            links: links.iter().map(link).collect(),
            routers: vec![device.clone()],
            forwarding: Forwarding { ipv4_off: vec![device.clone()], ipv4_own: Vec::new(), ipv6_others },
        }
    }

    fn host() -> ExitHost {
        ExitHost {
            device: DeviceName::new("warren-exit").unwrap(),
            mtu: 1380,
            ipv4: "10.66.0.0/16".parse().ok(),
            ipv6: "fd66:6666::/64".parse().ok(),
            nat_ipv4: true,
            nat_ipv6: true,
            interface: Egress::Auto,
            listen_ports: vec![443],
            allow: vec!["192.168.7.9/24".parse().unwrap()],
            prefixes: Vec::new(),
            isolation: true,
            resolvers: Vec::new(),
            surroundings: surroundings(&[], Some(Vec::new())),
            router_advertisements: Vec::new(),
        }
    }
}
