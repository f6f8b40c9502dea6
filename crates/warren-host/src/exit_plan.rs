//! The changes that an exit needs on its host. The firewall is set up before forwarding, and forwarding before the device is
//! brought up.

use ipnet::IpNet;

use crate::{
    DeviceName, Plan, Route, RouteKind, Step, TableFamily, exit_ruleset, facts::ServicePort, ruleset_text,
    sysctl,
};

pub use crate::exit_host::{Egress, ExitHost};
pub use crate::exit_ruleset::Reach;
pub use crate::table_names::EXIT_TABLE as TABLE;

/// The rules of an exit's nftables table, identical to those in the exit's plan.
pub fn ruleset(host: &ExitHost) -> String {
    exit_ruleset::ruleset(host)
}

/// Whether NAT may use one of `ports` as a source port of clients' traffic.
pub fn gives_away(host: &ExitHost, ports: &[ServicePort]) -> bool {
    let given = exit_ruleset::nat_ports(&host.taken_ports(), &host.service_ports);
    ports.iter().any(|service| given.contains(&service.port))
}

/// Whether these ports leave too few of this host's ports for clients' own flows.
pub fn leaves_too_few_ports(listen_ports: &[u16], forwarded: impl Iterator<Item = u16>) -> bool {
    exit_ruleset::leaves_too_few_ports(listen_ports.iter().copied().chain(forwarded).collect())
}

/// Whether this host has more networks on its links than the rules can list. In that case the rules block wider networks that
/// contain them.
pub fn has_too_many_links(host: &ExitHost) -> bool {
    exit_ruleset::has_too_many_links(host)
}

/// Whether this host also forwards for others, because somebody else turned forwarding on.
pub fn forwards_for_others(host: &ExitHost) -> bool {
    let ipv4 = host.ipv4.is_some() && exit_ruleset::own_ipv4(host).is_empty() && !host.ways_out().is_empty();
    ipv4 || (host.ipv6.is_some() && host.surroundings.forwarding.ipv6_others.is_none())
}

/// The routes to networks behind clients. They are a separate plan because clients come and go. The routes are in the host's main
/// table and lead to the device. If the host already has its own route to the same network, that route takes precedence.
pub fn prefix_routes(host: &ExitHost) -> Plan {
    let route = |destination: &IpNet| {
        Step::Route(Route {
            destination: *destination,
            device: Some(host.device.clone()),
            table: MAIN_TABLE,
            kind: RouteKind::Unicast,
            metric: PREFIX_METRIC,
        })
    };
    Plan { steps: host.prefixes.iter().filter(|prefix| host.has_pool(prefix)).map(route).collect() }
}

/// Computes an exit's plan, without [`prefix_routes`].
pub fn exit(host: &ExitHost) -> Plan {
    let mut steps = vec![Step::Nftables {
        family: TableFamily::Inet,
        table: TABLE.into(),
        ruleset: ruleset(host),
        owned: true,
    }];
    if host.ipv6.is_some() {
        let others = host.router_advertisements.iter().filter(|device| **device != host.device);
        // These settings come before forwarding, because otherwise a device would ignore router advertisements as soon as it
        // forwards.
        steps.extend(others.map(keep_router_advertisements));
        steps.push(Step::ForwardIpv6);
    }
    if host.ipv4.is_some() {
        steps.extend(host.ways_out().iter().chain([&host.device]).map(forward_ipv4));
    }
    if let Some(gateway) = host.ipv4 {
        let ruleset = ruleset_text::arp(gateway.addr());
        steps.push(Step::Nftables { family: TableFamily::Arp, table: TABLE.into(), ruleset, owned: true });
    }
    for address in host.ipv4.map(IpNet::V4).into_iter().chain(host.ipv6.map(IpNet::V6)) {
        steps.push(Step::Address { device: host.device.clone(), address });
    }
    steps.push(Step::LinkUp { device: host.device.clone(), mtu: host.mtu, group: None });
    Plan { steps }
}

fn keep_router_advertisements(device: &DeviceName) -> Step {
    Step::Sysctl { key: sysctl::device_key("ipv6", device, "accept_ra"), value: "2".into() }
}

/// RT_TABLE_MAIN of `linux/rtnetlink.h`.
const MAIN_TABLE: u32 = 254;
/// A metric that is higher than that of any route that a person or a DHCP client adds without choosing a metric.
const PREFIX_METRIC: u32 = 0x5761;

/// Turns on forwarding for one device. The exit does not change the setting for all devices ([`crate::Forwarding`]).
fn forward_ipv4(device: &DeviceName) -> Step {
    Step::Sysctl { key: sysctl::device_key("ipv4", device, "forwarding"), value: "1".into() }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::Surroundings;

    #[test]
    fn firewall_comes_before_forwarding_and_advertisements_are_kept_first() {
        let plan = exit(&host());
        let rest: String = plan.steps.iter().skip(1).map(|step| format!("{step}\n")).collect();

        assert!(matches!(plan.steps.first(), Some(Step::Nftables { owned: true, .. })));
        assert_eq!(
            rest,
            "sysctl -w net.ipv6.conf.ens3.accept_ra=2\n\
             sysctl -w net.ipv6.conf.all.forwarding=1\n\
             sysctl -w net.ipv4.conf.ens3.forwarding=1\n\
             sysctl -w net.ipv4.conf.warren-exit.forwarding=1\n\
             nft -f - <<'END'\n\
             table arp warren_exit {\n\
             \tflags owner;\n\
             \tchain input {\n\
             \t\ttype filter hook input priority filter; policy accept;\n\
             \t\tarp daddr ip 10.66.0.1 counter drop\n\
             \t}\n\
             }\n\
             END\n\
             ip address add 10.66.0.1/16 dev warren-exit\n\
             ip address add fd66:6666::1/64 dev warren-exit\n\
             ip link set warren-exit mtu 1380 addrgenmode none up\n"
        );
    }

    #[test]
    fn networks_behind_clients_are_routed_where_there_is_a_pool_of_their_version() {
        let prefixes = ["192.168.7.0/24", "fd07::/64"].map(|prefix| prefix.parse().unwrap()).to_vec();

        let routes = prefix_routes(&ExitHost { prefixes, ipv6: None, ..host() }).to_string();

        assert_eq!(
            routes,
            "ip -4 route add 192.168.7.0/24 dev warren-exit table 254 proto 87 metric 22369\n"
        );
    }

    #[test]
    fn family_without_a_pool_is_left_alone() {
        let plan = exit(&ExitHost { ipv6: None, ..host() }).to_string();

        assert!(!plan.contains("net.ipv6.conf.all.forwarding"), "{plan}");
        assert!(!plan.contains("accept_ra"), "{plan}");
        assert!(!plan.contains("fd66"), "{plan}");
    }

    /// An exit with both IP versions and NAT.
    pub(crate) fn host() -> ExitHost {
        ExitHost {
            device: DeviceName::new("warren-exit").unwrap(),
            mtu: 1380,
            ipv4: Some("10.66.0.1/16".parse().unwrap()),
            ipv6: Some("fd66:6666::1/64".parse().unwrap()),
            nat_ipv4: true,
            nat_ipv6: true,
            interface: Egress::Auto,
            listen_ports: vec![443],
            service_ports: Vec::new(),
            allow: Vec::new(),
            prefixes: Vec::new(),
            forwards: Vec::new(),
            isolation: true,
            resolvers: Vec::new(),
            surroundings: Surroundings {
                routers: vec![DeviceName::new("ens3").unwrap()],
                ..Surroundings::default()
            },
            router_advertisements: ["ens3", "warren-exit"]
                .map(|name| DeviceName::new(name).unwrap())
                .to_vec(),
        }
    }
}
