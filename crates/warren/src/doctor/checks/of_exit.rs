//! Checks for a host with an exit.

use ipnet::IpNet;

use super::super::facts::{ExitFacts, Facts};
use super::super::finding::{Finding, Repair};
use warren_exit::other_firewalls::InTheWay;

/// The smallest good size of the connection tracking table. On an exit, a smaller table fills up soon.
const CONNTRACK: u64 = 65_536;

/// Every check of the exit.
pub(super) fn all(facts: &Facts, exit: &ExitFacts) -> Vec<Finding> {
    let mut findings = vec![
        port(exit),
        addresses(facts, exit),
        forwarding(facts, exit),
        nat(facts, exit),
        other_firewalls(exit),
        published_ports(exit),
        clients_resolvers(exit),
    ];
    findings.extend(ipv6(exit));
    findings.extend(path_mtu(facts));
    findings.extend(tun_offload(facts));
    findings.extend(receive_offload(facts));
    findings.extend(connection_tracking(facts));
    findings
}

fn port(exit: &ExitFacts) -> Finding {
    const CHECK: &str = "port";
    let list = |ports: &[u16]| ports.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    if !exit.is_running && !exit.ports_in_use.is_empty() {
        let found = format!(
            "the exit is not running, and another program uses UDP port {}",
            list(&exit.ports_in_use)
        );
        let why = "the exit cannot listen on it";
        return Finding::problem(
            CHECK,
            found,
            why,
            "stop that program (ss -lunp), or change listen in exit.toml",
        );
    }
    // The kernel's list of ports does not show which program uses them. While the exit runs, they are assumed to be the exit's.
    if exit.is_running && exit.ports_in_use.len() < exit.ports.len() {
        let why = "clients cannot reach it";
        let found = format!("the exit runs, but does not listen on all of UDP {}", list(&exit.ports));
        return Finding::problem(CHECK, found, why, "restart the exit: systemctl restart warren-exit");
    }
    let found = if exit.is_running {
        format!(
            "the exit listens on UDP {}; only a client can tell whether it is reachable",
            list(&exit.ports)
        )
    } else {
        format!("the exit is not running; UDP {} is free for it", list(&exit.ports))
    };
    Finding::good(CHECK, found)
}

fn addresses(facts: &Facts, exit: &ExitFacts) -> Finding {
    const CHECK: &str = "addresses";
    // The addresses and routes of a running exit are inside its pools. So only a route or address whose network is larger than a
    // pool and contains it belongs to another network.
    let is_others = |network: &IpNet, pool: &IpNet| {
        if exit.is_running {
            network.contains(pool) && network != pool
        } else {
            network.contains(pool) || pool.contains(network)
        }
    };
    let clash = exit.pools.iter().find_map(|pool| {
        facts.network.networks.iter().find(|network| is_others(network, pool)).map(|network| (pool, network))
    });
    let Some((pool, network)) = clash else {
        return Finding::good(CHECK, "nothing else on this host uses the inner prefixes");
    };
    let why = "packets for clients would go to that network, or packets for that network to clients";
    let fix = "choose another prefix in [addresses] of exit.toml, and restart the exit";
    Finding::problem(
        CHECK,
        format!("the inner prefix {pool} overlaps {network}, which this host uses"),
        why,
        fix,
    )
}

fn forwarding(facts: &Facts, exit: &ExitFacts) -> Finding {
    const CHECK: &str = "forwarding";
    if !exit.is_running {
        return Finding::good(CHECK, "the exit turns it on for its clients when it starts");
    }
    let has = |version: fn(&IpNet) -> bool| exit.pools.iter().any(version);
    let ipv4_is_off = has(|pool| pool.addr().is_ipv4()) && facts.network.forwarding_ipv4 == Some(false);
    let ipv6_is_off = has(|pool| pool.addr().is_ipv6()) && facts.network.forwarding_ipv6 == Some(false);
    if ipv4_is_off || ipv6_is_off {
        let found = "the exit runs, but something has turned forwarding off";
        let why = "clients are connected but have no internet";
        // `--fix` makes no repair, because it would turn forwarding on for the whole host, and so also for others than clients.
        let fix = "the exit turns it on again within seconds. Find out what turns it off (sysctl.d, another firewall). If it stays off, \
                   restart the exit: systemctl restart warren-exit";
        return Finding::problem(CHECK, found, why, fix);
    }
    if facts.network.forwarding_for_all.is_empty() {
        return Finding::good(CHECK, "on, only for clients");
    }
    let found = format!(
        "on, also for other hosts that send packets here, because {} is on; turn that off unless containers or a LAN need it",
        facts.network.forwarding_for_all.join(" and ")
    );
    Finding::good(CHECK, found)
}

fn nat(facts: &Facts, exit: &ExitFacts) -> Finding {
    const CHECK: &str = "nat";
    let why =
        "clients are connected but have no internet: answers to their inner addresses cannot be routed back";
    let list = |pools: &[&IpNet]| pools.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ");
    // A public prefix that is routed to this host needs no NAT. A private prefix does, because the internet has no route to it.
    let private: Vec<&IpNet> = exit.untranslated.iter().filter(|pool| is_private(pool)).collect();
    if !private.is_empty() {
        let found = format!("off, as exit.toml says, but {} is private", list(&private));
        let fix = "write enabled = true in [nat] of exit.toml, without ipv6 = false, and run: warren reload exit; or make sure that another router translates";
        return Finding::advice(CHECK, found, why, fix);
    }
    if exit.untranslated.len() == exit.pools.len() {
        return Finding::good(CHECK, "off, as exit.toml says; the inner prefixes are routed");
    }
    let Some(egress) = &facts.network.egress else {
        let fix = "give this host a default route: ip route add default via ROUTER";
        return Finding::problem(CHECK, "this host has no default route, so nothing leaves", why, fix);
    };
    match (exit.is_running, exit.translates) {
        (true, Some(false)) => {
            let found = "the exit runs, but its nftables table does not translate";
            Finding::problem(CHECK, found, why, "restart the exit: systemctl restart warren-exit")
        }
        // `translates` is `None` if the rules could not be read. In that case nothing is reported.
        (true, _) => Finding::good(CHECK, format!("clients get the address of {}", egress.device)),
        (false, _) => Finding::good(CHECK, "the exit turns it on when it starts"),
    }
}

/// Whether a network is not routed on the internet (RFC 1918, RFC 6598, RFC 4193).
fn is_private(network: &IpNet) -> bool {
    let address = network.addr();
    let is_within = |network: &str| network.parse().is_ok_and(|network: IpNet| network.contains(&address));
    ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"].into_iter().any(is_within)
}

fn path_mtu(facts: &Facts) -> Option<Finding> {
    const CHECK: &str = "path mtu";
    let egress = facts.network.egress.as_ref()?;
    let path = facts.network.path?;
    if path.carries >= path.asked {
        let found = format!("packets of {} bytes reach {}", path.carries, path.to);
        return Some(Finding::good(CHECK, found));
    }
    let device = &egress.device;
    let found = format!(
        "the path to {} carries {} bytes, but {device} sends up to {}",
        path.to, path.carries, path.asked
    );
    let why =
        "larger packets are lost where a router on the path does not report them, and clients' pages hang";
    let fix = format!(
        "run: ip link set {device} mtu {}, and write it where the link is configured; or let the network carry {}",
        path.carries, path.asked
    );
    Some(Finding::advice(CHECK, found, why, fix))
}

fn tun_offload(facts: &Facts) -> Option<Finding> {
    const CHECK: &str = "tun offload";
    let is_on = |name: &str| facts.network.tun_features.get(name).copied();
    // To the kernel, packets that the exit reads from the TUN are transmitted packets, so the `tx` features matter.
    let (tcp, udp) = (is_on("tx-tcp-segmentation")?, is_on("tx-udp-segmentation")?);
    let lacking = match (tcp, udp) {
        (true, true) => return Some(Finding::good(CHECK, "the TUN takes super-packets of TCP and UDP")),
        (true, false) => "the TUN takes no super-packets of UDP (USO)",
        (false, _) => "the TUN takes no super-packets",
    };
    let why = "packets then pass one by one; with super-packets, a GB took 0.49 to 0.59 of the CPU time for TCP, and 0.67 to 0.72 for UDP";
    let fix = "install Linux 6.2 or newer, and remove tun_offload = false from exit.toml";
    Some(Finding::advice(CHECK, lacking, why, fix))
}

fn other_firewalls(exit: &ExitFacts) -> Finding {
    const CHECK: &str = "other firewalls";
    if exit.in_the_way.is_empty() {
        return Finding::good(CHECK, "none blocks the exit or its clients");
    }
    let list = |of: &dyn Fn(&InTheWay) -> String| exit.in_the_way.iter().map(of).collect::<Vec<_>>();
    let why = "every chain must accept a packet: clients cannot reach the exit, or are connected but have no internet";
    let fix = list(&|chain| chain.fix(&exit.ports)).join(". And ");
    Finding::problem(CHECK, list(&InTheWay::found).join("; "), why, fix)
}

fn published_ports(exit: &ExitFacts) -> Finding {
    const CHECK: &str = "published ports";
    if exit.unread_ports.is_empty() {
        return Finding::good(CHECK, "Warren can determine every port that this host's NAT publishes");
    }
    let found = format!(
        "this host's NAT publishes ports that Warren cannot determine: {}",
        exit.unread_ports.join(", ")
    );
    let why = "NAT may give such a port to a client, which then gets packets that are meant for the published service";
    let fix =
        "publish single ports or small ranges, by nftables or iptables-nft, and below 20000 or above 60999";
    Finding::advice(CHECK, found, why, fix)
}

fn ipv6(exit: &ExitFacts) -> Option<Finding> {
    const CHECK: &str = "ipv6";
    if exit.takes_ipv6 || !exit.pools.iter().any(|pool| pool.addr().is_ipv6()) {
        return None;
    }
    let found = "IPv6 is switched off on this host, but exit.toml has an inner IPv6 prefix";
    let fix = "set net.ipv6.conf.all.disable_ipv6 and net.ipv6.conf.default.disable_ipv6 to 0, or remove ipv6 from [addresses] in exit.toml";
    Some(Finding::problem(CHECK, found, "the exit does not start", fix))
}

fn receive_offload(facts: &Facts) -> Option<Finding> {
    const CHECK: &str = "udp offload of the link";
    let egress = facts.network.egress.as_ref()?;
    let forwards = egress.features.get("rx-udp-gro-forwarding").copied()?;
    // With `rx-gro-list`, the kernel chains packets in a list instead of merging them.
    let lists = egress.features.get("rx-gro-list").copied().unwrap_or(false);
    if forwards && !lists {
        return Some(Finding::good(CHECK, format!("{} merges forwarded UDP packets", egress.device)));
    }
    let switches = ["-K", &egress.device, "rx-udp-gro-forwarding", "on", "rx-gro-list", "off"];
    let why = "UDP packets from the internet to clients are forwarded one by one, which costs CPU time";
    let fix = format!("run at boot: ethtool {}", switches.join(" "));
    let command: Vec<&str> = ["ethtool"].into_iter().chain(switches).collect();
    let found = format!("{} does not merge forwarded UDP packets", egress.device);
    Some(Finding::advice(CHECK, found, why, fix).with(Repair::run(&command)))
}

fn connection_tracking(facts: &Facts) -> Option<Finding> {
    const CHECK: &str = "connection tracking";
    const KEY: &str = "net.netfilter.nf_conntrack_max";
    let (count, max) = facts.network.conntrack?;
    let found = format!("{count} of {max} connections are tracked");
    let why = "NAT tracks every flow of every client, and new flows are dropped once the table is full";
    // The proposed size is at least four times the smallest good size, and at least twice the current size.
    let larger = (2 * max).max(4 * CONNTRACK);
    let fix = format!("run: sysctl -w {KEY}={larger}");
    let set = Repair::sysctl(KEY, larger);
    // The table is more than 80 % full.
    Some(if count.saturating_mul(10) > max.saturating_mul(8) {
        Finding::problem(CHECK, found, why, fix).with(set)
    } else if max < CONNTRACK {
        Finding::advice(CHECK, found, why, fix).with(set)
    } else {
        Finding::good(CHECK, found)
    })
}

fn clients_resolvers(exit: &ExitFacts) -> Finding {
    const CHECK: &str = "clients' resolvers";
    if !exit.resolvers.is_empty() {
        return Finding::good(CHECK, "exit.toml lists some");
    }
    let why =
        "clients keep using their own network's resolvers, which may be unreachable through a full tunnel";
    let fix = "write servers = [\"9.9.9.9\"] in [dns] of exit.toml, and run: warren reload exit";
    Finding::advice(CHECK, "exit.toml lists no resolver for clients", why, fix)
}
