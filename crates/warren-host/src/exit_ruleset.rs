//! The text of the exit's firewall: which networks clients may reach, and how their addresses are translated.

mod forwards;
mod reach;

use std::collections::BTreeSet;
use std::iter;
use std::ops::RangeInclusive;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use self::forwards::{Forwards, from_forwarded, prerouting, to_forwarded};
pub use self::reach::Reach;
pub(crate) use self::reach::has_too_many_links;
use self::reach::{is_dropped, on_link};
use crate::exit_host::{Egress, ExitHost};
use crate::facts::ServicePort;
use crate::ruleset_text::chain;
use crate::special_purpose::{internet_within, not_internet};
use crate::{DeviceName, Family};

/// The chains of the exit's table, one statement per line.
pub(crate) fn ruleset(host: &ExitHost) -> String {
    let mut pools = pools(host);
    let mut text: String = pools.iter().map(Pool::flows_sets).collect();
    // The policies are `accept`, because the exit must not drop packets that the host forwards for others.
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
    text += &forwarding(host, &pools);
    pools.retain(|pool| pool.is_translated);
    if !pools.is_empty() {
        let header = "type nat hook postrouting priority srcnat; policy accept;";
        chain(&mut text, "postrouting", header, &postrouting(host, &pools));
    }
    text
}

/// The chains that let visitors reach clients' forwarded ports. Without forwards, only the chains that drop packets of removed
/// forwards' connections, because these connections stay tracked.
fn forwarding(host: &ExitHost, pools: &[Pool]) -> String {
    let forwards = Forwards::of(host);
    let mut text = String::new();
    let device = &host.device;
    let sources = || pools.iter().flat_map(Pool::sources);
    if !forwards.is_empty() {
        let spoofed = sources().map(|source| format!("iifname != \"{device}\" {source}")).collect();
        let header = "type nat hook prerouting priority dstnat; policy accept;";
        chain(&mut text, "prerouting", header, &prerouting(&forwards, spoofed));
    }
    chain(&mut text, "to_forwarded", "", &to_forwarded(&forwards));
    chain(&mut text, "from_forwarded", "", &from_forwarded(&forwards, device.as_str(), COUNT_FLOWS));
    if !forwards.is_empty() {
        // If the visitor is itself a client, its source address is translated to the exit's inner address. With its own address,
        // answers would go directly to it, which fails for a client that visits itself and bypasses isolation.
        let visits: Vec<String> = sources()
            .map(|source| format!("oifname \"{device}\" {source} ct status dnat masquerade"))
            .collect();
        chain(&mut text, "visits", "type nat hook postrouting priority srcnat; policy accept;", &visits);
    }
    text
}

fn pools(host: &ExitHost) -> Vec<Pool> {
    let ipv4 = host.ipv4.map(|gateway| Pool { is_translated: host.nat_ipv4, ..Pool::ipv4(gateway) });
    let ipv6 = host.ipv6.map(|gateway| Pool { is_translated: host.nat_ipv6, ..Pool::ipv6(gateway) });
    let mut pools: Vec<Pool> = ipv4.into_iter().chain(ipv6).collect();
    for pool in &mut pools {
        pool.granted = host.prefixes.iter().copied().filter(|prefix| pool.holds(prefix)).collect();
    }
    pools
}

/// The source ports that NAT may use: the largest part of [`NAT_PORTS`] without any of `listen_ports` and
/// `service_ports`.
///
/// If too few ports would be left for clients, only the service ports of system users are excluded, because ordinary users can
/// open any number of sockets. If too few would still be left, no service port is excluded.
pub(crate) fn nat_ports(listen_ports: &[u16], service_ports: &[ServicePort]) -> RangeInclusive<u16> {
    let all = service_ports.iter().map(|service| &service.port);
    let of_system = service_ports.iter().filter(|service| service.is_system).map(|service| &service.port);
    let without_all = free_ports(listen_ports.iter().chain(all));
    let without_system = free_ports(listen_ports.iter().chain(of_system));
    let mut free = [without_all, without_system].into_iter();
    free.find(|ports| ports.len() >= FEWEST_NAT_PORTS).unwrap_or_else(|| free_ports(listen_ports))
}

/// Whether the ports that are not in `taken` are so few that clients' flows to one server would soon use up all of them.
pub(crate) fn leaves_too_few_ports(taken: Vec<u16>) -> bool {
    free_ports(&taken).len() < FEWEST_NAT_PORTS
}

fn free_ports<'a>(taken: impl IntoIterator<Item = &'a u16>) -> RangeInclusive<u16> {
    let mut taken: Vec<u16> = taken.into_iter().copied().filter(|port| NAT_PORTS.contains(port)).collect();
    taken.sort_unstable();
    let mut best = NAT_PORTS;
    let mut longest = 0;
    let mut start = *NAT_PORTS.start();
    // One more than the last port is appended to end the last gap.
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

/// The parts of rules that depend on one IP version's pool.
struct Pool {
    /// nft's keyword for the IP version and its addresses.
    family: &'static str,
    /// The IP version in `meta nfproto`.
    version: &'static str,
    network: IpNet,
    /// The networks behind clients, as the exit has granted them.
    granted: Vec<IpNet>,
    gateway: String,
    /// nft's type of its addresses.
    address: &'static str,
    echo: &'static str,
    /// Whether the source address of packets to the internet is translated to this host's address.
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

    /// The sets that count flows: by source address, and by network behind a client, with a set for each prefix length. Counts
    /// are kept in sets, because a count in a rule itself would restart whenever the rules change.
    fn flows_sets(&self) -> String {
        let Self { family, address, .. } = self;
        let lengths: BTreeSet<u8> = self.granted.iter().map(IpNet::prefix_len).collect();
        let networks = lengths.into_iter().map(|length| format!("flows_{family}_{length}"));
        iter::once(format!("flows_{family}"))
            .chain(networks)
            // The size is limited, because packets add the elements and could otherwise fill the kernel's memory.
            .map(|name| format!("set {name} {{\n\ttype {address}\n\tsize 65535\n\tflags dynamic\n}}\n"))
            .collect()
    }

    /// Drops a new flow beyond the limit. The limit holds for a client's own address, and for a network behind a client as a
    /// whole, because its hosts may use any number of addresses. If the set is full, further addresses get no flows.
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

    /// Drops packets to destinations that are not on the internet, unless the operator has allowed them.
    fn refused(&self, host: &ExitHost) -> Vec<String> {
        let family = self.family;
        let version = Family::of(&self.network);
        let allow = host.allow.iter().filter(|network| self.holds(network)).map(IpNet::trunc);
        let mut rules: Vec<String> =
            allow.map(|network| format!("{family} daddr {network} accept")).collect();
        let on_link: Vec<IpNet> = on_link(host).into_iter().filter(|network| self.holds(network)).collect();
        // A resolver to which the rules below would drop packets stays reachable at port 53.
        let resolvers = host.resolvers.iter().map(|resolver| IpNet::from(*resolver));
        rules.extend(
            resolvers.filter(|resolver| self.holds(resolver) && is_dropped(resolver, &on_link)).map(
                |resolver| {
                    format!(
                        "{family} daddr {} meta l4proto {{ tcp, udp }} th dport 53 accept",
                        resolver.addr()
                    )
                },
            ),
        );
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

    /// Matches packets that may leave only by the chosen device: those to destinations that the operator has not allowed.
    fn not_allowed(&self, host: &ExitHost) -> String {
        let Self { family, version, .. } = self;
        let resolvers = host.resolvers.iter().map(|resolver| IpNet::from(*resolver));
        let allowed = host.allow.iter().map(IpNet::trunc).chain(resolvers);
        let allowed: Vec<IpNet> = allowed.filter(|network| self.holds(network)).collect();
        match allowed.is_empty() {
            true => format!("meta nfproto {version}"),
            false => format!("{family} daddr != {{ {} }}", listed(&IpNet::aggregate(&allowed))),
        }
    }

    fn holds(&self, network: &IpNet) -> bool {
        Family::of(&self.network) == Family::of(network)
    }

    /// The networks of clients and the networks behind clients.
    fn networks(&self) -> Vec<IpNet> {
        iter::once(self.network).chain(IpNet::aggregate(&self.granted)).collect()
    }

    /// Matches packets from clients and from hosts behind clients.
    fn sources(&self) -> Vec<String> {
        self.networks().iter().map(|network| format!("{} saddr {network}", self.family)).collect()
    }

    /// Matches packets of flows whose first packet came from (`saddr`) or went to (`daddr`) one of these networks.
    fn flows(&self, end: &str, not: &str) -> String {
        let Self { family, version, .. } = self;
        let networks = IpNet::aggregate(&self.networks());
        format!("meta nfproto {version} ct original {family} {end} {not}{{ {} }}", listed(&networks))
    }

    /// Matches packets from clients themselves.
    fn own_sources(&self) -> String {
        format!("{} saddr {}", self.family, self.network)
    }

    /// Matches packets from hosts behind clients.
    fn granted_sources(&self) -> impl Iterator<Item = String> {
        self.sources().into_iter().skip(1)
    }

    /// Matches packets from hosts on this host's links, if the link's network is part of a network behind a client. Only networks
    /// of this host's permanent addresses count, because anybody on the link can advertise others.
    fn neighbours(&self, host: &ExitHost) -> Vec<String> {
        let is_within = |network: &IpNet| self.granted.iter().any(|granted| granted.contains(network));
        let links = host.surroundings.permanent.iter().filter(|link| is_within(&link.network));
        links
            .map(|link| format!("iifname \"{}\" {} saddr {}", link.device, self.family, link.network))
            .collect()
    }
}

/// Drops packets to this host: clients may only ping the gateway's inner address, and no other host may send to that address.
///
/// A packet from outside to an inner address is an attempt to find the address (CVE-2019-14899). If a packet from
/// outside has an inner source address, this host would send the answer to a client.
fn input(host: &ExitHost, pools: &[Pool]) -> Vec<String> {
    let device = &host.device;
    // Packets from this host itself to the gateway's address arrive on `lo`.
    let elsewhere = format!("iifname != {{ \"lo\", \"{device}\" }}");
    let mut rules = vec![
        "ct state established accept".into(),
        // Related packets from the TUN, which are ICMP errors, are checked by later rules.
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
    // If this host itself is connected to a network, the network's hosts may send to this host, even if the network is part of
    // one behind a client.
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
    // Accepts only ICMP errors about flows that this host began with a client, such as those for path MTU discovery.
    rules.extend(pools.iter().map(|pool| format!("ct state related {} accept", pool.flows("daddr", ""))));
    rules.push(COUNT_FLOWS.into());
    for Pool { family, gateway, echo, .. } in pools {
        rules.push(format!("{family} daddr {gateway} {echo} accept"));
    }
    rules.push("counter drop".into());
    rules
}

/// Filters forwarded packets: those from or to the TUN, and those that the host forwards only because the exit turned forwarding
/// on.
fn forward(host: &ExitHost, pools: &[Pool]) -> Vec<String> {
    let device = &host.device;
    let mut rules = vec![format!("iifname \"{device}\" jump from_clients")];
    let to_clients = format!("oifname \"{device}\" jump to_clients");
    // Packets with clients' source addresses may arrive only on the TUN.
    let mut spoofed: Vec<String> =
        pools.iter().flat_map(Pool::sources).map(|source| format!("{source} counter drop")).collect();
    if host.isolation {
        // With isolation, no flow is between two clients. So the rules about packets to clients can come before those about
        // spoofed addresses, which saves replies a lookup.
        spoofed.insert(0, to_clients);
    } else {
        spoofed.push(to_clients);
    }
    rules.extend(spoofed);
    rules.extend(by_neighbours(host));
    rules
}

/// The chains that block neighbours' packets after an exit was killed. The exit's forwarding is then still on, but its own table
/// is gone.
pub(crate) fn without_exit(host: &ExitHost) -> String {
    let pools = pools(host);
    // While the device exists, the exit's own table exists too, and filters packets from the device.
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

/// Matches packets that are forwarded only because the exit turned forwarding on.
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
    let mut devices = host.ways_out();
    devices.retain(|device| forwarding.ipv4_off.contains(device));
    devices.extend(forwarding.ipv4_own.iter().cloned());
    devices.sort_unstable();
    devices
}

fn from_clients(host: &ExitHost, pools: &[Pool]) -> Vec<String> {
    let device = &host.device;
    let mut rules = vec!["ct status dnat jump from_forwarded".into()];
    if host.isolation {
        // This rule also drops packets of flows that began before isolation was turned on.
        rules.push(format!("oifname \"{device}\" counter drop"));
    }
    if let Egress::Device(egress) = &host.interface {
        // These rules also drop packets of flows that began when another interface was set.
        let elsewhere = format!("oifname != {{ \"{egress}\", \"{device}\" }}");
        rules.extend(pools.iter().map(|pool| format!("{elsewhere} {} counter drop", pool.not_allowed(host))));
    }
    // `related` packets, which are ICMP errors, are not accepted here, because their sender can forge the flow to which they
    // refer. They are accepted only to destinations to which new flows are accepted.
    rules.push("ct state established accept".into());
    rules.push(COUNT_FLOWS.into());
    if !host.isolation {
        rules.push(format!("oifname \"{device}\" accept"));
    }
    // NAT does not translate invalid packets, so they would leave with an inner address.
    rules.push("ct state invalid counter drop".into());
    // ICMP errors are accepted only if they are about flows of clients, and not about flows of this host or of others for whom it
    // forwards.
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

/// Accepts only two kinds of packets to clients: replies, and visitors' packets to forwarded ports.
fn to_clients() -> Vec<String> {
    let visitors = "ct status dnat ct direction original jump to_forwarded";
    [visitors, "ct state established,related accept", "counter drop"].map(Into::into).into()
}

/// For neighbours, which are not clients, accepts only two kinds of packets: replies, and packets that this host's own DNAT rules
/// redirect, such as those to a container's published port.
fn from_neighbours() -> Vec<String> {
    ["ct state established,related accept", "ct status dnat accept", "counter drop"].map(Into::into).into()
}

fn postrouting(host: &ExitHost, pools: &[Pool]) -> Vec<String> {
    let out = match &host.interface {
        Egress::Auto => format!("oifname != \"{}\"", host.device),
        Egress::Device(egress) => format!("oifname \"{egress}\""),
    };
    let ports = nat_ports(&host.taken_ports(), &host.service_ports);
    let (first, last) = (ports.start(), ports.end());
    let mut rules = Vec::new();
    for source in pools.iter().flat_map(Pool::sources) {
        let from_clients = format!("{out} {source}");
        rules.push(format!("{from_clients} meta l4proto {{ {WITH_PORTS} }} masquerade to :{first}-{last}"));
        // Protocols without ports need a rule of their own, because nft accepts a range of ports only after a match of protocols
        // that have ports.
        rules.push(format!("{from_clients} masquerade"));
    }
    rules
}

/// Counts each new flow of a client. It must come before all rules that accept packets, so that flows to any destination count.
const COUNT_FLOWS: &str = "ct state new jump new_flows";

/// Maximum number of simultaneous flows of a client's address, or of a network behind a client. It is limited because all clients
/// share the conntrack table and NAT's ports.
const MOST_FLOWS: u32 = 4_096;

/// Protocols whose ports NAT changes.
const WITH_PORTS: &str = "tcp, udp, sctp, dccp, udplite";

/// The ports that NAT may use. The range begins above most services' ports, and ends where Linux's default ephemeral range ends.
const NAT_PORTS: RangeInclusive<u16> = 20_000..=60_999;

/// Minimum number of ports for NAT. With fewer, clients' flows to one server would soon use up all of them.
const FEWEST_NAT_PORTS: usize = 4_096;

fn listed(networks: &[IpNet]) -> String {
    networks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn quoted(devices: &[DeviceName]) -> String {
    devices.iter().map(|device| format!("\"{device}\"")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
