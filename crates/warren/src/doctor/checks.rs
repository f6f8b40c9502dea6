//! Judging the facts: a function a check, none of which asks the host anything.

use std::time::Duration;

use super::facts::{Facts, KnownExit};
use super::finding::{Finding, Repair};

/// The first kernel whose TUN takes UDP super-packets (USO).
const WITH_USO: (u32, u32) = (6, 2);
/// The first kernel with UDP receive offload.
const WITH_UDP_GRO: (u32, u32) = (5, 0);
/// Clocks before this are wrong: it is before this program was written.
const EARLIEST: u64 = 1_704_067_200;
/// A connection tracking table below this is soon full on an exit.
const CONNTRACK: u64 = 65_536;
/// What QUIC and the tunnel add to an inner packet at most, and the UDP payload that takes one of the usual MTU whole.
const MOST_OVERHEAD: u16 = 45;
const WHOLE_PACKETS: u16 = 1380 + MOST_OVERHEAD;
/// On a path this long the doctor does not wait until all that it carries is found out.
const LONG_PATH: Duration = Duration::from_millis(100);
/// A core that takes longer than this to wake delays the first packet of each burst noticeably.
const LONG_WAKE_UP: u64 = 150;

/// Every check that concerns this host.
pub(super) fn all(facts: &Facts) -> Vec<Finding> {
    let mut findings = vec![
        configuration(facts),
        remains(facts),
        kernel(facts),
        tun(facts),
        firewall(facts),
        clock(facts),
        resolver(facts),
    ];
    findings.extend(facts.exits.iter().map(exit_of_profile));
    findings.extend(sandbox(facts));
    findings.extend(mtu(facts));
    findings.extend(queue_discipline(facts));
    findings.extend(idle_states(facts));
    if facts.exit.is_some() {
        findings.extend(port(facts));
        findings.extend(addresses(facts));
        findings.extend(forwarding(facts));
        findings.extend(other_firewalls(facts));
        findings.extend(receive_offload(facts));
        findings.extend(connection_tracking(facts));
        findings.extend(clients_resolvers(facts));
    }
    findings
}

fn configuration(facts: &Facts) -> Finding {
    const CHECK: &str = "configuration";
    if !facts.broken_files.is_empty() {
        let why = "a daemon does not start with a file that it does not understand";
        return Finding::problem(CHECK, facts.broken_files.join("; "), why, "correct what is named");
    }
    if !facts.without_effect.is_empty() {
        let why = "what the file asks for does not happen";
        return Finding::advice(CHECK, facts.without_effect.join("; "), why, "take it out of the file");
    }
    match (facts.exit.is_some(), facts.has_profiles) {
        (false, false) => Finding::advice(
            CHECK,
            "there is neither an exit nor a profile on this host",
            "there is nothing to run",
            "run: warren join INVITE, or warren exit init --endpoint HOST",
        ),
        _ => Finding::good(CHECK, "every file is understood"),
    }
}

fn remains(facts: &Facts) -> Finding {
    const CHECK: &str = "remains";
    if facts.remains.is_empty() {
        return Finding::good(CHECK, "no killed daemon left anything");
    }
    let names = facts.remains.join(", ");
    let why = "routes and firewall rules of a daemon that does not run keep traffic from passing";
    let fix = "run: warren cleanup, or start what was killed";
    Finding::problem(CHECK, format!("{names} was killed and left changes on this host"), why, fix)
}

fn exit_of_profile(known: &KnownExit) -> Finding {
    const CHECK: &str = "exit";
    let KnownExit { profile, endpoint, answer } = known;
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => {
            let found = format!("the exit {endpoint} of {profile} does not answer: {error}");
            let why = "without an exit there is no tunnel";
            let fix = "see that the exit runs with the key of the profile, and that UDP to its port passes on the way";
            return Finding::problem(CHECK, found, why, fix);
        }
    };
    let milliseconds = answer.round_trip.as_secs_f64() * 1e3;
    let found = format!(
        "the exit {endpoint} of {profile} answers at {} after {milliseconds:.1} ms, over a path for {} bytes of UDP payload",
        answer.remote, answer.mtu
    );
    if answer.mtu >= WHOLE_PACKETS || answer.round_trip > LONG_PATH {
        return Finding::good(CHECK, found);
    }
    let why =
        "packets of the usual inner MTU, 1380 bytes, go in two pieces, which costs CPU time and loses more";
    let fix = format!("set mtu = {} in [tun] of the profile", (answer.mtu - MOST_OVERHEAD).max(1280));
    Finding::advice(CHECK, found, why, fix)
}

fn kernel(facts: &Facts) -> Finding {
    const CHECK: &str = "kernel";
    let Some(version) = facts.kernel else { return Finding::good(CHECK, "its version is not known") };
    let found = format!("Linux {}.{}", version.0, version.1);
    if version < WITH_UDP_GRO {
        let why = "without UDP receive offload (5.0) each datagram takes a system call";
        return Finding::advice(CHECK, found, why, "install a newer kernel; 6.2 or newer has everything");
    }
    if version < WITH_USO {
        let why =
            "without UDP segmentation in the TUN (6.2) each UDP packet of applications takes a system call";
        return Finding::advice(CHECK, found, why, "install Linux 6.2 or newer");
    }
    Finding::good(CHECK, format!("{found}, with every offload that Warren uses"))
}

fn sandbox(facts: &Facts) -> Option<Finding> {
    const CHECK: &str = "sandbox";
    if facts.has_landlock? {
        return Some(Finding::good(CHECK, "this kernel keeps daemons to their own files (landlock)"));
    }
    let why = "a daemon that was taken over could read files that are not its own";
    let fix = "boot Linux 5.13 or newer with landlock in the kernel's lsm= list";
    Some(Finding::advice(CHECK, "this kernel has no landlock", why, fix))
}

fn tun(facts: &Facts) -> Finding {
    const CHECK: &str = "tun";
    if facts.has_tun {
        return Finding::good(CHECK, "/dev/net/tun is there");
    }
    let why = "the tunnel is a TUN device";
    let fix = "run: modprobe tun; in a container, pass /dev/net/tun in";
    Finding::problem(CHECK, "/dev/net/tun is missing", why, fix).with(Repair::run(&["modprobe", "tun"]))
}

fn firewall(facts: &Facts) -> Finding {
    const CHECK: &str = "nft";
    if facts.has_nft {
        return Finding::good(CHECK, "nft is installed");
    }
    let found = "nft is not installed";
    let why = "NAT, the kill switch and the guard against DNS leaks are nftables rules";
    let fix = "install nftables";
    if facts.exit.is_some() {
        return Finding::problem(CHECK, found, why, fix);
    }
    Finding::advice(CHECK, found, why, fix)
}

fn clock(facts: &Facts) -> Finding {
    const CHECK: &str = "clock";
    let why = "invitations expire by the clock, and logs of two hosts can be compared only if both are right";
    let fix = "turn on time synchronisation: timedatectl set-ntp true";
    let set = || Repair::run(&["timedatectl", "set-ntp", "true"]);
    if facts.clock < EARLIEST {
        return Finding::problem(CHECK, "the clock is years behind", why, fix).with(set());
    }
    match facts.clock_is_synchronised {
        Some(false) => Finding::advice(CHECK, "the clock is not synchronised", why, fix).with(set()),
        Some(true) => Finding::good(CHECK, "synchronised"),
        None => Finding::good(CHECK, "plausible; nobody here says whether it is synchronised"),
    }
}

fn resolver(facts: &Facts) -> Finding {
    const CHECK: &str = "resolver";
    if facts.resolvers.is_empty() {
        let why = "an exit is found by its name";
        return Finding::problem(
            CHECK,
            "/etc/resolv.conf names no resolver",
            why,
            "name one there: nameserver 9.9.9.9",
        );
    }
    Finding::good(CHECK, facts.resolvers.join(", "))
}

fn mtu(facts: &Facts) -> Option<Finding> {
    const CHECK: &str = "mtu";
    let egress = facts.egress.as_ref()?;
    let mtu = egress.mtu?;
    let found = format!("{} has an MTU of {mtu}", egress.device);
    Some(match mtu {
        ..1_280 => {
            let why = "QUIC needs packets of 1280 bytes";
            Finding::problem(CHECK, found, why, format!("run: ip link set {} mtu 1500", egress.device))
        }
        1_280..1_500 => {
            let why = "full packets inside the tunnel travel as two datagrams each, or are kept smaller by ICMP and MSS";
            Finding::advice(
                CHECK,
                found,
                why,
                "raise it if the network allows it; Warren works with it as it is",
            )
        }
        _ => Finding::good(CHECK, found),
    })
}

fn queue_discipline(facts: &Facts) -> Option<Finding> {
    const CHECK: &str = "qdisc";
    let egress = facts.egress.as_ref()?;
    let qdisc = egress.qdisc.as_deref()?;
    if qdisc != "pfifo_fast" {
        return Some(Finding::good(CHECK, format!("{} has {qdisc}", egress.device)));
    }
    let why = "one long queue makes everything wait behind the largest flow";
    let fix =
        format!("run: tc qdisc replace dev {} root fq, and sysctl net.core.default_qdisc=fq", egress.device);
    let finding = Finding::advice(CHECK, format!("{} has pfifo_fast", egress.device), why, fix);
    Some(finding.with(Repair::sysctl("net.core.default_qdisc", "fq")).with(Repair::run(&[
        "tc",
        "qdisc",
        "replace",
        "dev",
        &egress.device,
        "root",
        "fq",
    ])))
}

fn idle_states(facts: &Facts) -> Option<Finding> {
    const CHECK: &str = "idle states";
    let (name, latency) = facts.deepest_idle.as_ref().filter(|_| !facts.is_virtual)?;
    let found = format!("cores go to {name}, which takes {latency} µs to leave");
    if *latency <= LONG_WAKE_UP {
        return Some(Finding::good(CHECK, found));
    }
    let why = "the first packet after a pause waits for its core to wake up";
    let fix = "boot with intel_idle.max_cstate=1 or processor.max_cstate=1 if round-trip time matters more than power";
    Some(Finding::advice(CHECK, found, why, fix))
}

fn port(facts: &Facts) -> Option<Finding> {
    const CHECK: &str = "port";
    let exit = facts.exit.as_ref()?;
    let list = |ports: &[u16]| ports.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    if !exit.is_running && !exit.ports_in_use.is_empty() {
        let found =
            format!("the exit does not run, and another program has UDP port {}", list(&exit.ports_in_use));
        let why = "the exit cannot listen there";
        return Some(Finding::problem(
            CHECK,
            found,
            why,
            "stop that program (ss -lunp), or change listen in exit.toml",
        ));
    }
    if exit.is_running && exit.ports_in_use.len() < exit.ports.len() {
        let why = "clients cannot reach it";
        let found = format!("the exit runs, but does not listen on every one of UDP {}", list(&exit.ports));
        return Some(Finding::problem(CHECK, found, why, "restart the exit"));
    }
    let found = if exit.is_running {
        format!(
            "the exit listens on UDP {}; whether it is reachable shows from a client alone",
            list(&exit.ports)
        )
    } else {
        format!("the exit does not run; UDP {} is free for it", list(&exit.ports))
    };
    Some(Finding::good(CHECK, found))
}

fn addresses(facts: &Facts) -> Option<Finding> {
    const CHECK: &str = "addresses";
    let exit = facts.exit.as_ref()?;
    // A running exit's own addresses and routes are in its pools.
    let is_others = |network: &ipnet::IpNet, pool: &ipnet::IpNet| {
        if exit.is_running {
            network.contains(pool) && network != pool
        } else {
            network.contains(pool) || pool.contains(network)
        }
    };
    let clash = exit.pools.iter().find_map(|pool| {
        facts.networks.iter().find(|network| is_others(network, pool)).map(|network| (pool, network))
    });
    let Some((pool, network)) = clash else {
        return Some(Finding::good(CHECK, "the inner prefixes are used by nothing else here"));
    };
    let why = "packets for clients would go to that network, or the other way round";
    let fix = "choose another prefix in [addresses] of exit.toml, and restart the exit";
    Some(Finding::problem(
        CHECK,
        format!("the inner prefix {pool} overlaps {network}, which this host uses"),
        why,
        fix,
    ))
}

fn forwarding(facts: &Facts) -> Option<Finding> {
    const CHECK: &str = "forwarding";
    let exit = facts.exit.as_ref()?;
    if !exit.is_running {
        return Some(Finding::good(CHECK, "the exit turns it on when it starts"));
    }
    let mut finding = Finding::problem(
        CHECK,
        "the exit runs, but something has turned forwarding off",
        "clients are connected but have no internet",
        "turn it on again, and find out what turns it off (sysctl.d, another firewall)",
    );
    let has = |version: fn(&ipnet::IpNet) -> bool| exit.pools.iter().any(version);
    if has(|pool| pool.addr().is_ipv4()) && facts.forwarding_ipv4 == Some(false) {
        finding = finding.with(Repair::sysctl("net.ipv4.ip_forward", 1));
    }
    if has(|pool| pool.addr().is_ipv6()) && facts.forwarding_ipv6 == Some(false) {
        finding = finding.with(Repair::sysctl("net.ipv6.conf.all.forwarding", 1));
    }
    Some(if finding.repairs.is_empty() { Finding::good(CHECK, "on") } else { finding })
}

fn other_firewalls(facts: &Facts) -> Option<Finding> {
    const CHECK: &str = "other firewalls";
    if facts.dropping_chains.is_empty() {
        return Some(Finding::good(CHECK, "none drops what is forwarded"));
    }
    let chains = facts.dropping_chains.join(" and ");
    let lines = facts.dropping_chains.iter().map(|chain| {
        format!("nft insert rule {chain} iifname warren-exit accept; nft insert rule {chain} oifname warren-exit accept")
    });
    let why = "a packet needs every chain's consent, so that clients may be connected but have no internet";
    let fix =
        format!("unless it has rules for clients already, run: {}", lines.collect::<Vec<_>>().join("; "));
    Some(Finding::advice(CHECK, format!("the chain {chains} drops what no rule of its own takes"), why, fix))
}

fn receive_offload(facts: &Facts) -> Option<Finding> {
    const CHECK: &str = "udp offload of the link";
    let egress = facts.egress.as_ref()?;
    let forwards = egress.features.get("rx-udp-gro-forwarding").copied()?;
    let lists = egress.features.get("rx-gro-list").copied().unwrap_or(false);
    if forwards && !lists {
        return Some(Finding::good(
            CHECK,
            format!("{} merges UDP packets that are forwarded", egress.device),
        ));
    }
    let switches = ["-K", &egress.device, "rx-udp-gro-forwarding", "on", "rx-gro-list", "off"];
    let why = "clients' UDP packets from the internet are forwarded one by one, which costs CPU time";
    let fix = format!("run at boot: ethtool {}", switches.join(" "));
    let command: Vec<&str> = ["ethtool"].into_iter().chain(switches).collect();
    let found = format!("{} does not merge UDP packets that are forwarded", egress.device);
    Some(Finding::advice(CHECK, found, why, fix).with(Repair::run(&command)))
}

fn connection_tracking(facts: &Facts) -> Option<Finding> {
    const CHECK: &str = "connection tracking";
    const KEY: &str = "net.netfilter.nf_conntrack_max";
    let (count, max) = facts.conntrack?;
    let found = format!("{count} of {max} connections are tracked");
    let why = "NAT tracks every flow of every client, and new flows are dropped once the table is full";
    let larger = (2 * max).max(4 * CONNTRACK);
    let fix = format!("run: sysctl -w {KEY}={larger}");
    let set = Repair::sysctl(KEY, larger);
    Some(if count.saturating_mul(10) > max.saturating_mul(8) {
        Finding::problem(CHECK, found, why, fix).with(set)
    } else if max < CONNTRACK {
        Finding::advice(CHECK, found, why, fix).with(set)
    } else {
        Finding::good(CHECK, found)
    })
}

fn clients_resolvers(facts: &Facts) -> Option<Finding> {
    const CHECK: &str = "clients' resolvers";
    if facts.exit.as_ref()?.has_resolvers {
        return Some(Finding::good(CHECK, "exit.toml names some"));
    }
    let why = "clients keep asking their own network's resolvers, which a full tunnel may not reach";
    let fix = "name some: servers = [\"9.9.9.9\"] in [dns] of exit.toml, then warren reload exit";
    Some(Finding::advice(CHECK, "exit.toml names no resolver for clients", why, fix))
}

#[cfg(test)]
mod tests;
