//! The text of the exit's firewall: what clients may reach, and whose address they get on the way.

use std::collections::BTreeSet;
use std::iter;
use std::ops::RangeInclusive;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::exit_plan::{self, Egress, ExitHost};
use crate::facts::ServicePort;
use crate::ruleset_text::chain;
use crate::special_purpose::{internet_within, is_special, not_internet};
use crate::{DeviceName, Family};

/// The chains of the exit's table, one statement per line, for the gateways of the pools in use.
pub(crate) fn ruleset(host: &ExitHost, ipv4: Option<Ipv4Net>, ipv6: Option<Ipv6Net>) -> String {
    let mut pools = pools(host, ipv4, ipv6);
    let mut text: String = pools.iter().map(Pool::flows_sets).collect();
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

fn pools(host: &ExitHost, ipv4: Option<Ipv4Net>, ipv6: Option<Ipv6Net>) -> Vec<Pool> {
    let ipv4 = ipv4.map(|gateway| Pool { is_translated: host.nat_ipv4, ..Pool::ipv4(gateway) });
    let ipv6 = ipv6.map(|gateway| Pool { is_translated: host.nat_ipv6, ..Pool::ipv6(gateway) });
    let mut pools: Vec<Pool> = ipv4.into_iter().chain(ipv6).collect();
    for pool in &mut pools {
        pool.granted = host.prefixes.iter().copied().filter(|prefix| pool.holds(prefix)).collect();
    }
    pools
}

/// The source ports that NAT may use: the largest part of [`NAT_PORTS`] that holds none of `listen_ports` and, unless that
/// leaves clients too few, none of `service_ports`, or else none of the system's among these: any user can open sockets.
pub(crate) fn nat_ports(listen_ports: &[u16], service_ports: &[ServicePort]) -> RangeInclusive<u16> {
    let all = service_ports.iter().map(|service| &service.port);
    let of_system = service_ports.iter().filter(|service| service.is_system).map(|service| &service.port);
    let without_all = free_ports(listen_ports.iter().chain(all));
    let without_system = free_ports(listen_ports.iter().chain(of_system));
    let mut free = [without_all, without_system].into_iter();
    free.find(|ports| ports.len() >= FEWEST_NAT_PORTS).unwrap_or_else(|| free_ports(listen_ports))
}

fn free_ports<'a>(taken: impl IntoIterator<Item = &'a u16>) -> RangeInclusive<u16> {
    let mut taken: Vec<u16> = taken.into_iter().copied().filter(|port| NAT_PORTS.contains(port)).collect();
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

/// The networks on the host's links that are a part of the internet. A neighbour can advertise any number: beyond
/// [`MOST_ON_LINK`], wider ones stand for them, so that clients still reach none of them.
fn on_link(host: &ExitHost) -> Vec<IpNet> {
    let mut networks = all_on_link(host);
    for length in (0..=IPV6_LENGTH).rev() {
        if networks.len() <= MOST_ON_LINK {
            break;
        }
        let widened = |network: &IpNet| {
            IpNet::new(network.addr(), network.prefix_len().min(length)).unwrap_or(*network).trunc()
        };
        networks = IpNet::aggregate(&networks.iter().map(widened).collect());
    }
    networks
}

fn all_on_link(host: &ExitHost) -> Vec<IpNet> {
    let networks: Vec<IpNet> = host.surroundings.links.iter().map(|link| link.network).collect();
    IpNet::aggregate(&networks).into_iter().filter(|network| !is_special(network)).collect()
}

/// Whether there are more networks on the host's links than its rules name.
pub(crate) fn has_too_many_links(host: &ExitHost) -> bool {
    all_on_link(host).len() > MOST_ON_LINK
}

/// What the rules say of one IP version's pool.
struct Pool {
    /// The keyword of nft that selects the IP version and its addresses.
    family: &'static str,
    /// The same, as `meta nfproto` has it.
    version: &'static str,
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
            version: "ipv4",
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
            version: "ipv6",
            network: gateway.trunc().into(),
            granted: Vec::new(),
            gateway: gateway.addr().to_string(),
            address: "ipv6_addr",
            echo: "icmpv6 type echo-request",
            is_translated: true,
        }
    }

    /// Whose flows are counted, by source address, and by network behind a client: a set for each length of prefix. A rule's own
    /// count would begin anew whenever rules change.
    fn flows_sets(&self) -> String {
        let Self { family, address, .. } = self;
        let lengths: BTreeSet<u8> = self.granted.iter().map(IpNet::prefix_len).collect();
        let networks = lengths.into_iter().map(|length| format!("flows_{family}_{length}"));
        iter::once(format!("flows_{family}"))
            .chain(networks)
            .map(|name| format!("set {name} {{\n\ttype {address}\n\tsize 65535\n\tflags dynamic\n}}\n"))
            .collect()
    }

    /// Drops what would be one flow too many: of a client's own address, or of all addresses of a network behind one together, which
    /// are as many as it likes. An address that found no place among those that are counted has no flows.
    fn too_many_flows(&self) -> Vec<String> {
        let Self { family, network, granted, .. } = self;
        let over = format!("ct count over {MOST_FLOWS}");
        let own =
            format!("{family} saddr {network} add @flows_{family} {{ {family} saddr {over} }} counter drop");
        let uncounted = format!("{family} saddr {network} {family} saddr != @flows_{family} counter drop");
        let behind = granted.iter().map(|prefix| {
            let set = format!("@flows_{family}_{}", prefix.prefix_len());
            let key = format!("{family} saddr & {}", prefix.netmask());
            format!("{family} saddr {prefix} add {set} {{ {key} {over} }} counter drop")
        });
        [own, uncounted].into_iter().chain(behind).collect()
    }

    /// Drops what is for neither the internet nor what the operator allows.
    fn refused(&self, host: &ExitHost) -> Vec<String> {
        let family = self.family;
        let version = Family::of(&self.network);
        let allow = host.allow.iter().filter(|network| self.holds(network)).map(IpNet::trunc);
        let mut rules: Vec<String> =
            allow.map(|network| format!("{family} daddr {network} accept")).collect();
        let on_link: Vec<IpNet> = on_link(host).into_iter().filter(|network| self.holds(network)).collect();
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

    /// The networks of clients and of hosts behind them.
    fn networks(&self) -> Vec<IpNet> {
        iter::once(self.network).chain(IpNet::aggregate(&self.granted)).collect()
    }

    /// Selects what clients and hosts behind them send.
    fn sources(&self) -> Vec<String> {
        self.networks().iter().map(|network| format!("{} saddr {network}", self.family)).collect()
    }

    /// Selects what belongs to flows that were begun from (`saddr`) one of these networks or to (`daddr`) one.
    fn flows(&self, end: &str, not: &str) -> String {
        let Self { family, version, .. } = self;
        let networks = IpNet::aggregate(&self.networks());
        format!("meta nfproto {version} ct original {family} {end} {not}{{ {} }}", listed(&networks))
    }

    /// Selects what clients themselves send.
    fn own_sources(&self) -> String {
        format!("{} saddr {}", self.family, self.network)
    }

    /// Selects what hosts behind clients send.
    fn granted_sources(&self) -> impl Iterator<Item = String> {
        self.sources().into_iter().skip(1)
    }

    /// Selects what hosts on this host's own links send from within a network behind a client. Only a network that somebody gave
    /// this host for good counts: an advertisement is a neighbour's word.
    fn neighbours(&self, host: &ExitHost) -> Vec<String> {
        let is_within = |network: &IpNet| self.granted.iter().any(|granted| granted.contains(network));
        let links = host.surroundings.permanent.iter().filter(|link| is_within(&link.network));
        links
            .map(|link| format!("iifname \"{}\" {} saddr {}", link.device, self.family, link.network))
            .collect()
    }
}

/// Of this host, clients reach the gateway's echo alone, and nobody else reaches the gateway: whoever asks for an inner address
/// from outside wants to learn of it (CVE-2019-14899), and whoever asks with one has this host send the answer to a client.
fn input(host: &ExitHost, pools: &[Pool]) -> Vec<String> {
    let device = &host.device;
    let elsewhere = format!("iifname != {{ \"lo\", \"{device}\" }}");
    let mut rules = vec![
        "ct state established accept".into(),
        format!("iifname != \"{device}\" ct state related accept"),
    ];
    rules.extend(
        pools
            .iter()
            .map(|Pool { family, gateway, .. }| format!("{elsewhere} {family} daddr {gateway} counter drop")),
    );
    rules.extend(
        pools.iter().map(Pool::own_sources).map(|source| format!("{elsewhere} {source} counter drop")),
    );
    // A network that the host is on itself stays its neighbours', also within one behind a client.
    rules.extend(
        pools.iter().flat_map(|pool| pool.neighbours(host)).map(|neighbours| format!("{neighbours} accept")),
    );
    rules.extend(
        pools
            .iter()
            .flat_map(Pool::granted_sources)
            .map(|source| format!("{elsewhere} {source} counter drop")),
    );
    rules.push(format!("iifname != \"{device}\" accept"));
    // Errors about what this host has begun with a client, such as those that find a path's MTU, and about nothing else.
    rules.extend(pools.iter().map(|pool| format!("ct state related {} accept", pool.flows("daddr", ""))));
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
    let to_clients = format!("oifname \"{device}\" jump to_clients");
    // Clients' addresses come from the TUN alone.
    let mut spoofed: Vec<String> =
        pools.iter().flat_map(Pool::sources).map(|source| format!("{source} counter drop")).collect();
    if host.isolation {
        // No client's flow has another client's address, so that what comes for clients need not be looked at twice.
        spoofed.insert(0, to_clients);
    } else {
        spoofed.push(to_clients);
    }
    rules.extend(spoofed);
    rules.extend(by_neighbours(host));
    rules
}

/// The chains that keep neighbours out where an exit was killed: what it turned on is on still, and its own table is gone.
pub(crate) fn without_exit(host: &ExitHost) -> String {
    let pools = pools(host, host.ipv4, host.ipv6);
    // The exit's own table looks at that, and goes when the device does.
    let mut rules = vec![format!("iifname \"{}\" accept", host.device)];
    rules.extend(pools.iter().flat_map(Pool::sources).map(|source| format!("{source} counter drop")));
    rules.extend(by_neighbours(host));
    let mut text = String::new();
    chain(
        &mut text,
        "forward_for_clients",
        "type filter hook forward priority filter + 10; policy accept;",
        &rules,
    );
    chain(&mut text, "from_neighbours", "", &from_neighbours());
    text
}

/// Selects what is forwarded only because the exit has turned that on.
fn by_neighbours(host: &ExitHost) -> Vec<String> {
    let mut rules = Vec::new();
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
    // Errors, which are related, go only where new flows may: what they are about is for the sender to say.
    rules.push("ct state established accept".into());
    rules.push(COUNT_FLOWS.into());
    if !host.isolation {
        rules.push(format!("oifname \"{device}\" accept"));
    }
    rules.push("ct state invalid counter drop".into());
    // And are about flows of clients, not about those of this host or of others that it forwards for.
    rules.extend(
        pools.iter().map(|pool| format!("ct state related {} counter drop", pool.flows("saddr", "!= "))),
    );
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
    let ports = nat_ports(&host.listen_ports, &host.service_ports);
    let (first, last) = (ports.start(), ports.end());
    let mut rules = Vec::new();
    for source in pools.iter().flat_map(Pool::sources) {
        let from_clients = format!("{out} {source}");
        rules.push(format!("{from_clients} meta l4proto {{ {WITH_PORTS} }} masquerade to :{first}-{last}"));
        rules.push(format!("{from_clients} masquerade"));
    }
    rules
}

/// Whatever a client's new flow is for, before anything accepts it.
const COUNT_FLOWS: &str = "ct state new jump new_flows";

/// Flows that a client's address may have at a time, and a network behind a client: connection tracking and NAT's ports are there for
/// all.
const MOST_FLOWS: u32 = 4_096;

/// Networks on the host's links that the rules name.
const MOST_ON_LINK: usize = 4_096;

/// Bits of an address of IPv6.
const IPV6_LENGTH: u8 = 128;

/// Protocols whose ports NAT changes.
const WITH_PORTS: &str = "tcp, udp, sctp, dccp, udplite";

/// Ports above those of services and below those that Linux keeps for nobody (its own ephemeral range ends here).
const NAT_PORTS: RangeInclusive<u16> = 20_000..=60_999;

/// With fewer, clients soon have no port left for one server.
const FEWEST_NAT_PORTS: usize = 4_096;

fn listed(networks: &[IpNet]) -> String {
    networks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn quoted(devices: &[DeviceName]) -> String {
    devices.iter().map(|device| format!("\"{device}\"")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
