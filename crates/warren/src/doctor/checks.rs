//! Evaluates the facts. Each check is a function of only the facts and does not access the host.

mod of_exit;

use std::time::Duration;

use warren_host::kill_switch::Standing;

use super::facts::{ClosedKillSwitch, Facts, KnownExit, RuleInFront, TunnelTrouble};
use super::finding::{Finding, Repair};
use crate::lost_kill_switch;

/// The first kernel whose TUN accepts UDP super-packets (USO).
const WITH_USO: (u32, u32) = (6, 2);
/// The first kernel with UDP receive offload.
const WITH_UDP_GRO: (u32, u32) = (5, 0);
/// The start of 2024, in seconds since 1970. A clock that shows an earlier time is wrong, because this program is newer.
const EARLIEST: u64 = 1_704_067_200;
/// With socket buffers below this size, bursts are lost. Between this size and the one that Warren requests, no difference was
/// measured (`bench/LOG.md`).
const SMALL_BUFFERS: usize = 1024 * 1024;
/// Maximum number of bytes that QUIC and the tunnel add to an inner packet.
const MOST_OVERHEAD: u16 = 45;
/// The UDP payload that is needed to carry an inner packet of the usual MTU without fragmentation.
const WHOLE_PACKETS: u16 = 1380 + MOST_OVERHEAD;
/// On a path with a longer round-trip time, path MTU discovery may not be finished when the doctor looks at its result.
const LONG_PATH: Duration = Duration::from_millis(100);
/// A core that takes longer than this to wake up, in microseconds, delays the first packet of each burst noticeably.
const LONG_WAKE_UP: u64 = 150;

/// Every check that applies to this host.
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
    findings.extend(facts.daemons.closed.iter().filter_map(kill_switch));
    findings.extend(facts.exits.iter().map(|exit| exit_of_profile(exit, facts)));
    findings.extend(sandbox(facts));
    findings.extend(socket_buffers(facts));
    findings.extend(udp_offload(facts));
    findings.extend(facts.daemons.troubles.iter().map(tunnel));
    findings.extend(rules(facts));
    findings.extend(mtu(facts));
    findings.extend(queue_discipline(facts));
    findings.extend(idle_states(facts));
    findings.extend(facts.exit.iter().flat_map(|exit| of_exit::all(facts, exit)));
    findings
}

fn configuration(facts: &Facts) -> Finding {
    const CHECK: &str = "configuration";
    if !facts.files.broken.is_empty() {
        let why = "a daemon does not start with a file that has an error";
        return Finding::problem(
            CHECK,
            facts.files.broken.join("; "),
            why,
            "correct each place that is named",
        );
    }
    if !facts.files.unreadable.is_empty() {
        let what = format!("this user may not read {}", facts.files.unreadable.join(", "));
        let why = "files that were not read were not checked, and neither were the exits that they name";
        return Finding::advice(CHECK, what, why, "run `warren doctor` as root");
    }
    if !facts.files.without_effect.is_empty() {
        let why = "the setting in the file does nothing";
        return Finding::advice(CHECK, facts.files.without_effect.join("; "), why, "remove it from the file");
    }
    match (facts.exit.is_some(), facts.files.has_profiles) {
        (false, false) => Finding::advice(
            CHECK,
            "there is neither an exit nor a profile on this host",
            "there is nothing to run",
            "run: warren join INVITE, or warren exit init --endpoint HOST",
        ),
        _ => Finding::good(CHECK, "every file is valid"),
    }
}

fn remains(facts: &Facts) -> Finding {
    const CHECK: &str = "remains";
    if facts.daemons.killed.is_empty() {
        return Finding::good(CHECK, "no killed daemon left anything behind");
    }
    let names = facts.daemons.killed.join(", ");
    let why = "leftover routes and firewall rules of a daemon block traffic";
    let fix = "run: warren cleanup, or start the daemon again";
    Finding::problem(CHECK, format!("{names} was killed and left changes on this host"), why, fix)
}

/// Reports a kill switch that is closed although no daemon runs, which may be intended, or one that should be closed but is not
/// in force.
fn kill_switch(closed: &ClosedKillSwitch) -> Option<Finding> {
    const CHECK: &str = "kill switch";
    let ClosedKillSwitch { profile: name, is_running, standing } = closed;
    let lost = match standing {
        Ok(Standing::Open) => return None,
        // While the daemon runs, a closed kill switch is normal.
        Ok(Standing::Closed) if *is_running => return None,
        Ok(Standing::Closed) => {
            let found = format!("the kill switch of {name} is closed, and {name} is not up");
            let why = "nothing leaves this host outside a tunnel, as the profile or a command asked for";
            let fix = format!("run: warren up {name} to connect, or warren down {name} to open it");
            return Some(Finding::advice(CHECK, found, why, fix));
        }
        Ok(lost @ (Standing::Gone | Standing::Changed)) => lost_kill_switch::describe(*lost, name),
        Err(error) => {
            let found = format!("cannot tell whether the kill switch of {name} is closed: {error}");
            return Some(Finding::problem(
                CHECK,
                found,
                LEAKS,
                "follow that message, and run the doctor again",
            ));
        }
    };
    let found = format!("{name} asked for a kill switch, but {lost}");
    // For a running daemon, no repair is offered, because the daemon itself recreates the table. Something prevents it from doing
    // so.
    if *is_running {
        let fix = format!("find out why its daemon does not close it again: warren status {name}");
        return Some(Finding::problem(CHECK, found, LEAKS, fix));
    }
    let fix = format!(
        "run: warren client close {name}. Another `nft flush ruleset` opens it again unless warren-lockdown@{name} runs"
    );
    Some(Finding::problem(CHECK, found, LEAKS, fix).with(Repair::CloseKillSwitch { profile: name.clone() }))
}

const LEAKS: &str = "traffic that must stay in the tunnel may leave this host outside it";

fn exit_of_profile(known: &KnownExit, facts: &Facts) -> Finding {
    const CHECK: &str = "exit";
    let KnownExit { profile, endpoint, answer } = known;
    let answer = match answer {
        Ok(answer) => answer,
        // If a kill switch is closed, the failed probe is not reported, because another profile's kill switch may have dropped
        // it.
        Err(_) if !facts.daemons.closed.is_empty() => {
            let names: Vec<&str> =
                facts.daemons.closed.iter().map(|closed| closed.profile.as_str()).collect();
            let found = format!(
                "cannot check whether the exit {endpoint} of {profile} answers, because the kill switch of {} is closed",
                names.join(" and of ")
            );
            let why = "a closed kill switch lets out only packets to exits of its own profile";
            return Finding::advice(CHECK, found, why, "run the doctor again while it is open");
        }
        Err(error) => {
            let found = format!("the exit {endpoint} of {profile} does not answer: {error}");
            let why = "without an exit there is no tunnel";
            let fix = "check that the exit runs with the key in the profile, and that UDP to its port passes every firewall on the path";
            return Finding::problem(CHECK, found, why, fix);
        }
    };
    let milliseconds = answer.round_trip.as_secs_f64() * 1e3;
    let found = format!(
        "the exit {endpoint} of {profile} answers at {} after {milliseconds:.1} ms; the path carries {} bytes of UDP payload",
        answer.remote, answer.mtu
    );
    // On a long path, path MTU discovery may not have finished, so its value is not evaluated.
    if answer.mtu >= WHOLE_PACKETS || answer.round_trip > LONG_PATH {
        return Finding::good(CHECK, found);
    }
    let why = "packets of the usual inner MTU, 1380 bytes, travel in two pieces, which costs CPU time and increases loss";
    // IPv6 needs 1,280 bytes (RFC 8200 section 5). The subtraction cannot underflow, because a QUIC path carries at least 1,200
    // bytes.
    let fix = format!("set mtu = {} in [tun] of the profile", (answer.mtu - MOST_OVERHEAD).max(1280));
    Finding::advice(CHECK, found, why, fix)
}

fn tunnel(trouble: &TunnelTrouble) -> Finding {
    let TunnelTrouble { profile, sentence } = trouble;
    // A message consists of the problem, `; `, and the advice.
    let (found, fix) = sentence.split_once("; ").unwrap_or((sentence.as_str(), "see `warren status`"));
    Finding::problem(
        "tunnel",
        format!("{profile}: {found}"),
        "traffic or DNS does not take the path that the profile asks for",
        fix,
    )
}

fn rules(facts: &Facts) -> Vec<Finding> {
    const CHECK: &str = "rules";
    let finding = |in_front: &RuleInFront| {
        let RuleInFront { profile, rule, remedy, is_first } = in_front;
        if *is_first {
            let why =
                "the kernel applies it first, and no priority in front of it is free for Warren's rules";
            return Finding::problem(CHECK, format!("for {profile}, {rule}"), why, remedy.as_str());
        }
        let why = "Warren puts its own rules in front of it, so it has no effect on traffic for the tunnel";
        let fix = format!("nothing to do if you want that; otherwise {remedy}");
        Finding::advice(CHECK, format!("for {profile}, {rule}"), why, fix)
    };
    if facts.files.has_profiles && facts.rules_in_front.is_empty() {
        return vec![Finding::good(CHECK, "no policy rule of another program bypasses a tunnel")];
    }
    facts.rules_in_front.iter().map(finding).collect()
}

fn kernel(facts: &Facts) -> Finding {
    const CHECK: &str = "kernel";
    let Some(version) = facts.kernel.version else { return Finding::good(CHECK, "its version is unknown") };
    let found = format!("Linux {}.{}", version.0, version.1);
    // The older feature is checked first, because a kernel that lacks it also lacks the newer one.
    if version < WITH_UDP_GRO {
        let why = "without UDP receive offload (Linux 5.0), each datagram takes a system call";
        return Finding::advice(CHECK, found, why, "install a newer kernel; 6.2 or newer has everything");
    }
    if version < WITH_USO {
        let why = "without UDP segmentation in the TUN (Linux 6.2), each UDP packet of a program takes a system call";
        return Finding::advice(CHECK, found, why, "install Linux 6.2 or newer");
    }
    Finding::good(CHECK, format!("{found}, with every offload that Warren uses"))
}

fn sandbox(facts: &Facts) -> Option<Finding> {
    const CHECK: &str = "sandbox";
    if facts.kernel.has_landlock? {
        return Some(Finding::good(CHECK, "this kernel restricts daemons to their own files (landlock)"));
    }
    let why = "an attacker who takes over a daemon could read files that are not its own";
    let fix = "boot Linux 5.13 or newer with landlock in the kernel's lsm= list";
    Some(Finding::advice(CHECK, "this kernel has no landlock", why, fix))
}

fn tun(facts: &Facts) -> Finding {
    const CHECK: &str = "tun";
    if facts.kernel.has_tun {
        return Finding::good(CHECK, "/dev/net/tun exists");
    }
    let why = "a tunnel needs a TUN device";
    let fix = "run: modprobe tun; in a container, give it the device /dev/net/tun";
    Finding::problem(CHECK, "/dev/net/tun is missing", why, fix).with(Repair::run(&["modprobe", "tun"]))
}

fn firewall(facts: &Facts) -> Finding {
    const CHECK: &str = "nft";
    if facts.kernel.has_nft {
        return Finding::good(CHECK, "nft is installed");
    }
    let found = "nft is not installed";
    let why = "NAT, the kill switch and the guard against DNS leaks are nftables rules";
    let fix = "install nftables";
    // A client works without nft, but with less protection. An exit needs nft for NAT.
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
    if facts.clock.seconds < EARLIEST {
        return Finding::problem(CHECK, "the clock is years behind", why, fix).with(set());
    }
    match facts.clock.is_synchronised {
        Some(false) => Finding::advice(CHECK, "the clock is not synchronised", why, fix).with(set()),
        Some(true) => Finding::good(CHECK, "synchronised"),
        None => Finding::good(CHECK, "plausible; cannot tell whether it is synchronised"),
    }
}

fn resolver(facts: &Facts) -> Finding {
    const CHECK: &str = "resolver";
    if facts.network.resolvers.is_empty() {
        let why = "names of exits cannot be resolved";
        return Finding::problem(
            CHECK,
            "/etc/resolv.conf lists no resolver",
            why,
            "add one there: nameserver 9.9.9.9",
        );
    }
    let list: Vec<String> = facts.network.resolvers.iter().map(ToString::to_string).collect();
    Finding::good(CHECK, list.join(", "))
}

fn mtu(facts: &Facts) -> Option<Finding> {
    const CHECK: &str = "mtu";
    let egress = facts.network.egress.as_ref()?;
    let mtu = egress.mtu?;
    let found = format!("{} has an MTU of {mtu}", egress.device);
    Some(match mtu {
        // QUIC needs a UDP payload of 1,200 bytes (RFC 9000 section 14), and IPv6 needs packets of 1,280 bytes (RFC 8200 section
        // 5).
        ..1_280 => {
            let why = "QUIC needs packets of 1280 bytes";
            Finding::problem(CHECK, found, why, format!("run: ip link set {} mtu 1500", egress.device))
        }
        1_280..1_500 => {
            let why =
                "full-size inner packets travel as two datagrams each, or ICMP and MSS keep them smaller";
            Finding::advice(
                CHECK,
                found,
                why,
                "raise it if the network allows that; Warren also works as it is",
            )
        }
        _ => Finding::good(CHECK, found),
    })
}

fn socket_buffers(facts: &Facts) -> Option<Finding> {
    const CHECK: &str = "socket buffers";
    // Outside containers, root may exceed the limits, so a smaller buffer means that this is a container.
    let least = facts.sockets.buffers.map(|(receive, send)| receive.min(send))?;
    let found = format!("a UDP socket gets {} KiB", least / 1024);
    if least >= SMALL_BUFFERS {
        return Some(Finding::good(CHECK, found));
    }
    let why = "while a core is busy, a burst that does not fit into the buffer is lost; between 1 MiB and 8 MiB no clear difference was \
               measured in a tunnel";
    let fix = "run on the host, outside the container: sysctl -w net.core.rmem_max=8388608 net.core.wmem_max=8388608";
    Some(Finding::advice(CHECK, found, why, fix))
}

fn udp_offload(facts: &Facts) -> Option<Finding> {
    const CHECK: &str = "udp offload";
    let offload = facts.sockets.offload?;
    let lacking = match (offload.gso, offload.gro) {
        (true, true) => {
            return Some(Finding::good(CHECK, "one system call sends or receives many datagrams"));
        }
        (false, true) => "sends only one datagram per system call (no GSO)",
        (true, false) => "receives only one datagram per system call (no GRO)",
        (false, false) => "sends and receives only one datagram per system call (no GSO, no GRO)",
    };
    let why = "each send costs CPU time: with 40 datagrams a send, a GB took 0.65 to 0.73 of the CPU time that it took with 10";
    let fix =
        "install Linux 5.0 or newer, and make sure that no container or sandbox intercepts system calls";
    Some(Finding::advice(CHECK, format!("this kernel {lacking}"), why, fix))
}

fn queue_discipline(facts: &Facts) -> Option<Finding> {
    const CHECK: &str = "qdisc";
    let egress = facts.network.egress.as_ref()?;
    let qdisc = egress.qdisc.as_deref()?;
    // Only pfifo_fast, an old default, is reported. Any other queue discipline may have been chosen for a reason.
    if qdisc != "pfifo_fast" {
        return Some(Finding::good(CHECK, format!("{} has {qdisc}", egress.device)));
    }
    let why = "with one long queue, everything waits behind the largest flow";
    let fix =
        format!("run: tc qdisc replace dev {} root fq, and sysctl net.core.default_qdisc=fq", egress.device);
    let finding = Finding::advice(CHECK, format!("{} has pfifo_fast", egress.device), why, fix);
    // The sysctl setting affects only devices that come up later, so tc is used to change this device.
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
    // In a virtual machine, the hypervisor decides about idle states.
    let (name, latency) = facts.cores.deepest_idle.as_ref().filter(|_| !facts.cores.is_virtual)?;
    let found = format!("cores enter {name}, which takes {latency} µs to leave");
    if *latency <= LONG_WAKE_UP {
        return Some(Finding::good(CHECK, found));
    }
    let why = "the first packet after a pause waits for its core to wake up";
    let fix = "boot with intel_idle.max_cstate=1 or processor.max_cstate=1 if round-trip time matters more than power";
    Some(Finding::advice(CHECK, found, why, fix))
}

#[cfg(test)]
mod tests;
