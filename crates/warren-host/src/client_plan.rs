//! The changes that a client needs on its host.
//!
//! The tunnel's routes are in a routing table of their own. For unmarked packets, the kernel looks up this table before `main`,
//! so no route that a network pushes takes precedence over the tunnel's. The carrier's packets are marked, so the tunnel's routes
//! do not apply to them. Two rules per IP version keep several tunnels apart: the kernel looks up all tunnels' specific routes
//! first, then all tunnels' default routes.

use ipnet::IpNet;

pub use crate::client_facts::{ClientFirewall, ClientPlanFacts};
use crate::client_inbound::VOID_METRIC;
pub use crate::table_names::firewall_table;
use crate::{
    DeviceName, Family, FirewallMark, GuestNetwork, Plan, Route, RouteKind, Rule, Step, TableFamily,
    client_inbound, client_ruleset, routing_tables, ruleset_text, sysctl,
};

/// The routing table of the tunnel in `slot`.
pub fn table(slot: u8) -> u32 {
    routing_tables::TUNNELS + u32::from(slot)
}

/// Computes a client's plan: first the firewall and the device, then the routes, and last the rules that make the kernel use
/// these routes.
pub fn client(host: &ClientPlanFacts) -> Plan {
    let mut steps = Vec::new();
    let ipv4 = networks(host, Family::Ipv4, host.ipv4.is_some());
    let ipv6 = networks(host, Family::Ipv6, host.ipv6.is_some());
    steps.extend(host.strict_reverse_path.iter().map(loose_reverse_path));
    if host.ipv4.is_none() && !ipv4.is_empty() {
        steps.push(reverse_path_by_mark());
    }
    steps.extend(forwarding(host));
    steps.extend(host.firewall.iter().map(|firewall| Step::Nftables {
        family: TableFamily::Inet,
        table: firewall.table.clone(),
        ruleset: client_ruleset::ruleset(host, &firewall.listening),
        owned: false,
    }));
    if let (Some(firewall), Some(address)) = (&host.firewall, host.ipv4) {
        let ruleset = ruleset_text::arp(address);
        let (family, table) = (TableFamily::Arp, firewall.table.clone());
        steps.push(Step::Nftables { family, table, ruleset, owned: false });
    }
    steps.extend(host.addresses().map(|address| Step::Address { device: host.device.clone(), address }));
    // The kernel refuses a route to a device that is down, so both devices are brought up before their routes are added.
    for device in host.void.iter().chain([&host.device]) {
        let group = Some(crate::DEVICE_GROUP);
        steps.push(Step::LinkUp { device: device.clone(), mtu: host.mtu, group });
    }
    steps.extend(ipv4.iter().flat_map(|network| routes(host, *network, host.ipv4.is_some())));
    steps.extend(ipv6.iter().flat_map(|network| routes(host, *network, host.ipv6.is_some())));
    for (family, included) in [(Family::Ipv4, &ipv4), (Family::Ipv6, &ipv6)] {
        steps.extend(excluded(host, family, included).into_iter().map(|network| throw(host, network)));
        steps.extend(taken_guests(host, family, included).map(|guest| to_guests(host, guest)));
    }
    steps.extend(client_inbound::routes(host));
    // The rules come last. Until then, no rule looks up the table, so no packet is routed by an incomplete table.
    steps.extend(rules(host, Family::Ipv4, &ipv4));
    steps.extend(rules(host, Family::Ipv6, &ipv6));
    steps.extend(client_inbound::rules(host));
    Plan { steps }
}

/// Returns the included networks of one family, each once.
///
/// Without a lease, all routes are unreachable, so a default route makes the others superfluous. They are left out because the
/// rule for specific routes cannot skip an unreachable default route.
fn networks(host: &ClientPlanFacts, family: Family, leased: bool) -> Vec<IpNet> {
    let mut networks: Vec<IpNet> = Vec::new();
    if family == Family::Ipv6 && !host.kernel_has_ipv6 {
        return networks;
    }
    for network in host.include.iter().map(IpNet::trunc) {
        if Family::of(&network) == family && !networks.contains(&network) {
            networks.push(network);
        }
    }
    if !leased && networks.iter().any(is_default) {
        networks.retain(is_default);
    }
    networks
}

/// The excluded networks of one family, each once. Leaves out the guests' networks, and networks that `include` lists exactly.
fn excluded(host: &ClientPlanFacts, family: Family, included: &[IpNet]) -> Vec<IpNet> {
    let mut networks: Vec<IpNet> = Vec::new();
    let outside = host.exclude.iter().chain(&host.prefixes).map(IpNet::trunc);
    for network in outside.filter(|network| Family::of(network) == family) {
        let is_guests = host.guests.iter().any(|guest| guest.network == network);
        let is_known = is_guests || included.contains(&network) || networks.contains(&network);
        if !included.is_empty() && !is_known {
            networks.push(network);
        }
    }
    networks
}

/// The guests' networks that the tunnel's routes would capture.
fn taken_guests<'h>(
    host: &'h ClientPlanFacts,
    family: Family,
    included: &[IpNet],
) -> impl Iterator<Item = &'h GuestNetwork> {
    host.guests.iter().filter(move |GuestNetwork { network, .. }| {
        Family::of(network) == family
            && included.iter().any(|include| include.contains(network))
            && !included.contains(network)
    })
}

/// Makes a route to the guests' device. Looking up the main table instead would not be safe, because a LAN can add a route to the
/// same addresses there.
fn to_guests(host: &ClientPlanFacts, guest: &GuestNetwork) -> Step {
    Step::Route(Route {
        destination: guest.network,
        device: Some(guest.device.clone()),
        table: table(host.slot),
        kind: RouteKind::Guests,
        metric: 0,
    })
}

fn throw(host: &ClientPlanFacts, destination: IpNet) -> Step {
    Step::Route(Route {
        destination,
        device: None,
        table: table(host.slot),
        kind: RouteKind::Throw,
        metric: 0,
    })
}

/// The routes to one destination. The backup route through `void` is added first, so it is removed last.
fn routes(host: &ClientPlanFacts, destination: IpNet, leased: bool) -> Vec<Step> {
    let table = table(host.slot);
    if !leased {
        let kind = RouteKind::Unreachable;
        return vec![Step::Route(Route { destination, device: None, table, kind, metric: 0 })];
    }
    let through = |device: &DeviceName, metric| {
        let device = Some(device.clone());
        Step::Route(Route { destination, device, table, kind: RouteKind::Unicast, metric })
    };
    // This route's metric is higher, so the kernel uses it only once the route to `device` is gone.
    let into_void = host.void.as_ref().map(|void| through(void, VOID_METRIC));
    into_void.into_iter().chain([through(&host.device, 0)]).collect()
}

fn rules(host: &ClientPlanFacts, family: Family, networks: &[IpNet]) -> Vec<Step> {
    let [arrived, specific, default] = host.band.priorities(host.slot);
    let rule = |priority, suppress_prefix_length| {
        Step::Rule(Rule {
            family,
            priority,
            fwmark: Some(FirewallMark::exactly(host.mark)),
            invert: true,
            table: table(host.slot),
            suppress_prefix_length,
            from: None,
            iif: None,
        })
    };
    let has_specific = networks.iter().any(|network| !is_default(network));
    let has_default = networks.iter().any(is_default);
    let mut rules = Vec::new();
    if has_specific || has_default {
        // Packets that come out of the tunnel and are forwarded, for instance to a container, must not be routed back into the
        // tunnel.
        rules.push(Step::Rule(Rule {
            family,
            priority: arrived,
            fwmark: None,
            invert: false,
            table: routing_tables::MAIN,
            suppress_prefix_length: None,
            from: None,
            iif: Some(host.device.clone()),
        }));
    }
    if has_specific {
        // With prefix length 0 suppressed, this rule ignores the table's default route. The last rule uses that route.
        rules.push(rule(specific, Some(0)));
    }
    if has_default {
        rules.push(rule(default, None));
    }
    rules
}

fn is_default(network: &IpNet) -> bool {
    network.prefix_len() == 0
}

/// The settings that make this host forward packets to and from the networks behind it.
fn forwarding(host: &ClientPlanFacts) -> Vec<Step> {
    let has = |family| host.prefixes.iter().any(|prefix| Family::of(prefix) == family);
    let mut steps = Vec::new();
    if has(Family::Ipv6) && host.ipv6.is_some() {
        let others = host.router_advertisements.iter().filter(|device| **device != host.device);
        // With `accept_ra` = 2 instead of 1, a device accepts advertisements even while the host forwards. So this must be set
        // before forwarding.
        steps.extend(others.map(|device| set(&sysctl::device_key("ipv6", device, "accept_ra"), "2")));
        steps.push(set("net.ipv6.conf.all.forwarding", "1"));
    }
    if has(Family::Ipv4) && host.ipv4.is_some() {
        steps.push(set("net.ipv4.ip_forward", "1"));
    }
    steps
}

fn set(key: &str, value: &str) -> Step {
    Step::Sysctl { key: key.into(), value: value.into() }
}

fn loose_reverse_path(device: &DeviceName) -> Step {
    set(&sysctl::device_key("ipv4", device, "rp_filter"), "2")
}

/// If the tunnel's IPv4 route is of type `unreachable`, even loose reverse path filtering finds no route back to the exit. With
/// this setting, the check uses the packet's mark, and so finds the carrier's route.
fn reverse_path_by_mark() -> Step {
    set("net.ipv4.conf.all.src_valid_mark", "1")
}

#[cfg(test)]
pub(crate) mod tests;
