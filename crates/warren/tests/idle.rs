//! An unused tunnel and a client without an exit cost nearly nothing.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::time::Duration;

use crate::support::counters::packets_counted;
use crate::support::memory::rss_kib;
use crate::support::{Client, Exit, Net, Status, asked, eventually, seconds};

/// For row R3 of the scorecard (docs/torture.md), run this test with `WARREN_IDLE_SECONDS=300`, and for R6 with 600. A window of
/// three keep-alives shows the same rate.
#[test]
#[ignore = "takes minutes; `scripts/torture bounds` runs it"]
fn an_idle_tunnel_and_one_without_an_exit_cost_nearly_nothing() {
    let Some(net) = Net::new() else { return };
    let lasting = seconds(asked("WARREN_IDLE_SECONDS").unwrap_or(25));
    let exit = Exit::start(&net);
    let lonely_host = net.second_client();
    // The idle client is behind a NAT that forgets UDP flows after half a minute.
    net.router
        .sh(
            "nft 'table ip n { chain c { type nat hook postrouting priority 100; ip saddr 192.0.2.2 udp dport 443 masquerade; }; \
             chain f { type filter hook forward priority 0; iifname \"to-exit\" ip daddr 192.0.2.2 ct state new drop; }; }'; \
             sysctl -qw net.netfilter.nf_conntrack_udp_timeout=30 net.netfilter.nf_conntrack_udp_timeout_stream=30",
        )
        .ok();
    let idle = Client::with(&net, &exit.enrol("idle"));
    let lonely = Client::on(&lonely_host, &exit.enrol("lonely"));
    idle.up();
    let mut lonely_daemon = lonely.run("info");
    let idle_address = idle.inner_addresses().0.as_str().unwrap().split('/').next().unwrap().to_owned();
    // Blocks only the path of the client without an exit.
    net.router
        .sh(
            "nft 'table inet away { chain c { type filter hook forward priority 0; iifname \"to-second\" drop; \
             oifname \"to-second\" drop; }; }'",
        )
        .ok();
    count_carrier(&net);
    let said = lonely_daemon.output();
    // Waits until MTU discovery has ended and hosts no longer send the packets that a new link causes.
    std::thread::sleep(seconds(10));
    let before = Usage::of(&net, &idle.status());

    std::thread::sleep(lasting);

    let used = Usage::of(&net, &idle.status()).since(&before, lasting);
    // Pings the client, which has sent nothing but keep-alives for the whole time.
    let inbound = net.exit.sh(&format!("ping -c 3 -i 0.2 -W 3 {idle_address}"));
    let log = lonely_daemon.output();
    let lines = log.lines().count() - said.lines().count();
    let bytes = log.len() - said.len();
    println!(
        "measured: {lasting:?} idle: {:.2} % of a core, {:.2} wake-ups and {:.3} packets a second and connection in both directions, then a ping from \
         the exit is answered: {}; without an exit: {lines} lines of log, {bytes} bytes",
        used.cpu * 100.0,
        used.wakeups,
        used.packets,
        inbound.succeeded()
    );
    assert!(inbound.succeeded(), "{}", inbound.stdout);
    assert!(used.cpu <= 0.005, "{}", used.cpu);
    assert!(used.wakeups <= 2.0, "{}", used.wakeups);
    assert!(used.packets > 0.0 && used.packets <= 0.1, "{}", used.packets);
    assert!(lines as u64 <= lasting.as_secs().max(10), "{log}");
    assert!(bytes <= 1 << 20, "{bytes} bytes");
    assert!(lonely_daemon.is_running());
    net.router.sh("nft delete table inet away").ok();
    eventually(seconds(60), "it is up again", || lonely.status().text("/state") == "up");
    lonely_daemon.signal(rustix::process::Signal::TERM);
    lonely_daemon.wait(seconds(10));
    idle.down();
}

/// Scorecard R4.
#[test]
fn an_idle_client_and_its_exit_are_small() {
    const CLIENT_KIB: u64 = 22 * 1024;
    const EXIT_KIB: u64 = 25 * 1024;
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("idle"));
    let daemon = client.run("info");
    net.client.sh(&format!("ping -c 3 -i 0.2 -W 3 {}", Net::INTERNET_V4)).ok();
    let (client_kib, exit_kib) = (rss_kib(daemon.pid()), rss_kib(exit.daemon().pid()));
    println!("measured: the client has {client_kib} KiB, the exit {exit_kib} KiB");
    assert!(client_kib <= CLIENT_KIB, "{client_kib}");
    assert!(exit_kib <= EXIT_KIB, "{exit_kib}");
}

/// Counts the QUIC packets to and from the net's client on the router.
fn count_carrier(net: &Net) {
    let both = "iifname \"to-client\" udp dport 443 counter; oifname \"to-client\" udp sport 443 counter;";
    let chain = format!("type filter hook forward priority -300; {both}");
    net.router.sh(&format!("nft 'table inet carrier {{ chain c {{ {chain} }}; }}'")).ok();
}

/// The resources that a client has used so far. [`Usage::since`] returns the use per second.
struct Usage {
    cpu: f64,
    /// Wake-ups of the process, divided by the number of connections.
    wakeups: f64,
    /// Carrier packets in both directions, divided by the number of connections.
    packets: f64,
}

impl Usage {
    fn of(net: &Net, status: &Status) -> Self {
        let connections = status.list("/connections").len() as f64;
        let pid = status.number("/pid");
        let switches: u64 = std::fs::read_dir(format!("/proc/{pid}/task"))
            .unwrap()
            .map(|task| {
                let text = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
                let line =
                    text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
                line.trim().parse::<u64>().unwrap()
            })
            .sum();
        let packets: u64 = packets_counted(&net.router.sh("nft list table inet carrier").ok()).iter().sum();
        Self {
            cpu: status.0.pointer("/process/cpu_seconds").unwrap().as_f64().unwrap(),
            wakeups: switches as f64 / connections,
            packets: packets as f64 / connections,
        }
    }

    fn since(&self, before: &Self, time: Duration) -> Self {
        let each_second = |after: f64, before: f64| (after - before) / time.as_secs_f64();
        Self {
            cpu: each_second(self.cpu, before.cpu),
            wakeups: each_second(self.wakeups, before.wakeups),
            packets: each_second(self.packets, before.packets),
        }
    }
}
