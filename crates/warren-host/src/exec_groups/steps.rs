//! The routes and rules that programs inside and outside need: a part of a client's plan.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::rules::Marks;
use crate::{
    Family, FirewallMark, Route, RouteKind, Rule, Step, client_plan::ClientPlanFacts, routing_tables, sysctl,
};

/// Returns the steps for programs inside and outside of a tunnel. They do not affect unmarked packets.
pub fn steps(host: &ClientPlanFacts) -> Vec<Step> {
    let marks = Marks::of(host.slot);
    let mut steps = Vec::new();
    // A redirected query to a resolver on this host has a source address in 127.0.0.0/8 until it is translated after routing.
    // Without this setting, the kernel would drop it.
    let key = sysctl::device_key("ipv4", &host.device, "route_localnet");
    steps.push(Step::Sysctl { key, value: "1".into() });
    let families = [
        (Family::Ipv4, IpNet::V4(Ipv4Net::default()), host.ipv4.is_some(), true),
        (Family::Ipv6, IpNet::V6(Ipv6Net::default()), host.ipv6.is_some(), host.kernel_has_ipv6),
    ];
    for (family, destination, leased, _) in families.into_iter().filter(|(.., is_there)| *is_there) {
        let route = |device, kind, metric| {
            Step::Route(Route { destination, device, table: table(host.slot), kind, metric })
        };
        // This route is used while there is no device or no lease.
        steps.push(route(None, RouteKind::Unreachable, LAST_METRIC));
        if leased {
            steps.push(route(Some(host.device.clone()), RouteKind::Unicast, 1));
        }
        let [first, ..] = host.band.priorities(host.slot);
        let rule = |mark, table| {
            Step::Rule(Rule {
                from: None,
                family,
                priority: first,
                fwmark: Some(FirewallMark::exactly(mark)),
                invert: false,
                table,
                suppress_prefix_length: None,
                iif: None,
            })
        };
        steps.push(rule(marks.inside, table(host.slot)));
        steps.push(rule(marks.outside, routing_tables::MAIN));
    }
    steps
}

/// The routing table of programs inside the tunnel in `slot`.
fn table(slot: u8) -> u32 {
    routing_tables::EXEC + u32::from(slot)
}

/// A metric that is higher than the kernel's default.
const LAST_METRIC: u32 = 0x5761;
