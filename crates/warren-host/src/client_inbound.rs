//! Decides which packets a client's host accepts from its tunnel, and routes the answers back into the tunnel.
//!
//! Connections to the inner addresses are refused, except to ports that the profile allows. With a split tunnel, the main routes
//! would send the answers to visitors (the hosts that connect through the tunnel) outside. So another routing table sends every
//! packet from an inner address back through the tunnel.

use std::net::IpAddr;

use crate::client_facts::ClientPlanFacts;
use crate::forwarded_ports::{Ports, merged};
use crate::kill_switch::InboundProtocol;
use crate::routing_tables;
use crate::ruleset_text::chain;
use crate::{CARRIER_MARK, DeviceName, Family, FirewallMark, Route, RouteKind, Rule, Step};

/// The routes for answers to visitors, for each IP version that the tunnel does not carry as a whole. [`rules`] makes
/// the rules that lead to these routes.
pub(crate) fn routes(host: &ClientPlanFacts) -> Vec<Step> {
    let route = |destination, device: Option<&DeviceName>, kind, metric| {
        Step::Route(Route { destination, device: device.cloned(), table: table(host.slot), kind, metric })
    };
    let mut steps = Vec::new();
    for (family, _) in split(host) {
        let everything = everything(family);
        // Like the backup of the tunnel's own routes, this route discards packets if somebody deletes the device.
        steps.extend(
            host.void.iter().map(|void| route(everything, Some(void), RouteKind::Unicast, VOID_METRIC)),
        );
        steps.push(route(everything, Some(&host.device), RouteKind::Unicast, 0));
        let guests = host.guests.iter().map(|guest| guest.network);
        let beside = guests.chain(host.prefixes.iter().copied()).map(|network| network.trunc());
        let mut beside: Vec<_> = beside.filter(|network| Family::of(network) == family).collect();
        beside.sort_unstable();
        beside.dedup();
        steps.extend(beside.into_iter().map(|network| route(network, None, RouteKind::Throw, 0)));
    }
    steps
}

/// Sends packets from the inner addresses, and marked answers of containers, to [`routes`].
pub(crate) fn rules(host: &ClientPlanFacts) -> Vec<Step> {
    let [priority, ..] = host.band.priorities(host.slot);
    let rule = |family, fwmark, from| {
        Step::Rule(Rule {
            family,
            priority,
            fwmark,
            invert: false,
            table: table(host.slot),
            suppress_prefix_length: None,
            from,
            iif: None,
        })
    };
    let of_family = |(family, address)| {
        [rule(family, None, Some(address)), rule(family, Some(FirewallMark::exactly(mark(host))), None)]
    };
    split(host).into_iter().flat_map(of_family).collect()
}

/// The chains and sets for packets that come out of the tunnel.
pub(crate) fn chains(text: &mut String, host: &ClientPlanFacts) {
    let visited =
        allowed(host, InboundProtocol::Udp).and_then(|ports| (!split(host).is_empty()).then_some(ports));
    let split = split(host);
    if visited.is_some() {
        for (family, _) in &split {
            let (name, address) = (visitors(*family), address_type(*family));
            text.push_str(&format!(
                "set {name} {{\n\ttype {address} . inet_service . inet_service\n\tsize 65535\n\tflags dynamic, timeout\n\ttimeout {VISIT}s\n}}\n"
            ));
        }
        // The chain runs before connection tracking, because connection tracking recognises a reply by its address. Its type
        // `route` repeats the routing decision for the changed address.
        let answered = |(family, address): &(Family, IpAddr)| {
            let (keyword, set) = (family.keyword(), visitors(*family));
            format!(
                "{keyword} saddr != {address} {keyword} daddr . udp dport . udp sport @{set} {keyword} saddr set {address}"
            )
        };
        let header = "type route hook output priority raw; policy accept;";
        chain(text, "answers", header, &split.iter().map(answered).collect::<Vec<_>>());
    }
    chain(text, "from_tunnel", "", &from_tunnel(host, visited.as_deref()));
}

/// Sends packets that came out of the tunnel to an inner address to the chains of [`chains`].
pub(crate) fn arrivals(host: &ClientPlanFacts) -> impl Iterator<Item = String> {
    inner(host).map(|(family, address)| {
        format!("iifname \"{}\" {} daddr {address} jump from_tunnel", host.device, family.keyword())
    })
}

/// Marks the containers' answers to visitors from the tunnel.
pub(crate) fn forwarded_answers(host: &ClientPlanFacts) -> Option<String> {
    let mark = mark(host);
    (!split(host).is_empty()).then(|| format!("ct direction reply ct mark {mark:#x} meta mark set {mark:#x}"))
}

/// Accepts only a bare SYN as the beginning of a TCP connection, because conntrack treats the first packet that it sees of an
/// older connection as new.
fn from_tunnel(host: &ClientPlanFacts, visited: Option<&str>) -> Vec<String> {
    let mut rules = vec![
        "ct state established,related accept".to_owned(),
        "meta l4proto { icmp, icmpv6 } accept".to_owned(),
        "tcp flags & (fin | syn | rst | ack) != syn accept".to_owned(),
    ];
    let mark = if split(host).is_empty() { String::new() } else { format!("ct mark set {:#x} ", mark(host)) };
    for (family, _) in split(host).iter().filter(|_| visited.is_some()) {
        let (keyword, set, ports) = (family.keyword(), visitors(*family), visited.unwrap_or_default());
        // Packets of known connections also renew the visitor's entry, because answers are recognised by this entry.
        rules.insert(
            0,
            format!("meta nfproto {} udp dport {{ {ports} }} update @{set} {{ {keyword} saddr . udp sport . udp dport }}", version(*family)),
        );
    }
    for protocol in [InboundProtocol::Tcp, InboundProtocol::Udp] {
        rules.extend(
            allowed(host, protocol).map(|ports| format!("{protocol} dport {{ {ports} }} {mark}accept")),
        );
    }
    rules.push("counter drop".to_owned());
    rules
}

/// Returns the allowed ports of a protocol as elements of a set. `None` if no port is allowed.
fn allowed(host: &ClientPlanFacts, protocol: InboundProtocol) -> Option<String> {
    let ports: Vec<Ports> =
        host.allowed_forwards.iter().copied().filter(|ports| ports.protocol == protocol).collect();
    let ports: Vec<String> = merged(ports).iter().map(ToString::to_string).collect();
    (!ports.is_empty()).then(|| ports.join(", "))
}

/// The inner address of each IP version that the tunnel carries only in part. Empty if no ports are allowed.
fn split(host: &ClientPlanFacts) -> Vec<(Family, IpAddr)> {
    let is_whole = |family| host.include.iter().any(|network| *network == everything(family));
    inner(host).filter(|(family, _)| !host.allowed_forwards.is_empty() && !is_whole(*family)).collect()
}

fn inner(host: &ClientPlanFacts) -> impl Iterator<Item = (Family, IpAddr)> {
    host.addresses().map(|network| (Family::of(&network), network.addr()))
}

fn everything(family: Family) -> ipnet::IpNet {
    match family {
        Family::Ipv4 => ipnet::Ipv4Net::default().into(),
        Family::Ipv6 => ipnet::Ipv6Net::default().into(),
    }
}

fn version(family: Family) -> &'static str {
    match family {
        Family::Ipv4 => "ipv4",
        Family::Ipv6 => "ipv6",
    }
}

fn address_type(family: Family) -> &'static str {
    match family {
        Family::Ipv4 => "ipv4_addr",
        Family::Ipv6 => "ipv6_addr",
    }
}

/// Names the set of peers that have sent a packet to an allowed UDP port.
fn visitors(family: Family) -> &'static str {
    match family {
        Family::Ipv4 => "visitors",
        Family::Ipv6 => "visitors6",
    }
}

/// The mark of answers to visitors, different for each tunnel of the host.
fn mark(host: &ClientPlanFacts) -> u32 {
    CARRIER_MARK | ANSWER_BIT | u32::from(host.slot) << SLOT_SHIFT
}

/// The routing table of answers to visitors.
fn table(slot: u8) -> u32 {
    routing_tables::ANSWERS + u32::from(slot)
}

const ANSWER_BIT: u32 = 0x2_0000;
const SLOT_SHIFT: u32 = 20;
/// The metric of routes that are used only once the device is gone. It is higher than the kernel's default metric, which for IPv6
/// is 1024 (IP6_RT_PRIO_USER of `linux/ipv6_route.h`).
pub(crate) const VOID_METRIC: u32 = 0x5761;
/// How many seconds a visitor is remembered after its last packet. This is at least as long as conntrack remembers a
/// UDP flow with answers (`nf_conntrack_udp_timeout_stream`).
const VISIT: u16 = 180;

#[cfg(test)]
mod tests;
