//! Whether anything leaves a host that should not: attempts on the host, and the router's count of what arrived.

use super::counters::packets_of_one;
use super::{Namespace, Net, Running, asked, seconds};

/// How long everything is tried; scorecard K1 and K2 are `WARREN_ATTEMPTS=2`, in which there are more than a thousand attempts.
fn lasting() -> f32 {
    asked("WARREN_ATTEMPTS").unwrap_or(0.6)
}

/// Attempts without which too little was tried: as many as the scorecard asks for, where it is asked, or each way out once.
pub fn fewest_attempts() -> usize {
    if asked::<f32>("WARREN_ATTEMPTS").is_some() { 1_000 } else { 6 * 2 * 9 }
}

/// What the router receives from the client other than its carrier, ARP, neighbour discovery and group reports.
#[derive(Debug)]
pub struct LeakCounter<'net> {
    net: &'net Net,
}

/// Attempts that are being made.
#[derive(Debug)]
pub struct Attempts(Running);

impl<'net> LeakCounter<'net> {
    pub fn start(net: &'net Net) -> Self {
        let (exit_v4, exit_v6) = (Net::EXIT_V4, Net::EXIT_V6);
        // Attempts are known by their source ports, so that those at the exit's own port are not taken for the carrier.
        net.client.sh("sysctl -qw net.ipv4.ip_local_port_range='50000 60999'").ok();
        let chain = format!(
            "table netdev leaks {{
                counter leaked {{ }}
                counter carried {{ }}
                chain received {{
                    type filter hook ingress device to-client priority -500;
                    udp sport 40000-40999 counter name leaked accept
                    ip daddr {exit_v4} udp dport 443 counter name carried accept
                    ip6 daddr {exit_v6} udp dport 443 counter name carried accept
                    icmpv6 type {{ 131, 132, 133, 135, 136, 143 }} accept
                    meta protocol {{ ip, ip6 }} counter name leaked
                }}
            }}"
        );
        net.router.sh(&format!("nft '{chain}'")).ok();
        Self { net }
    }

    /// Tries every way out of the client for a while; returns how often, and how many packets the router saw.
    pub fn attempt(&self) -> (usize, usize) {
        let before = self.leaked();
        let attempts = Attempts::start(&self.net.client, lasting()).end();
        (attempts, self.leaked() - before)
    }

    /// Fails if anything got out although everything was tried.
    #[track_caller]
    pub fn assert_none(&self, when: &str) {
        let (attempts, leaked) = self.attempt();
        assert!(attempts >= fewest_attempts(), "{attempts} attempts");
        println!("measured: {when}: 0 of {attempts}");
        assert_eq!(leaked, 0, "{leaked} packets of {attempts} attempts left while {when}");
    }

    /// Fails unless everything that is tried gets out.
    #[track_caller]
    pub fn assert_all(&self, when: &str) {
        // Neighbours are found first; packets would be dropped in the meantime.
        self.net.client.sh("ping -c 1 -W 5 192.0.2.1 && ping -c 1 -W 5 2001:db8:1::1").ok();
        let (attempts, leaked) = self.attempt();
        assert!(leaked >= attempts, "{leaked} packets of {attempts} attempts left while {when}");
    }

    /// Packets that left the client and are not its carrier's.
    pub fn leaked(&self) -> usize {
        self.count("leaked")
    }

    /// Packets of the client's carrier.
    pub fn carried(&self) -> usize {
        self.count("carried")
    }

    fn count(&self, counter: &str) -> usize {
        let listed = self.net.router.sh(&format!("nft list counter netdev leaks {counter}")).ok();
        usize::try_from(packets_of_one(&listed)).unwrap()
    }
}

impl Attempts {
    /// Starts trying every way out of a host; returns when the first is tried.
    pub fn start(host: &Namespace, for_seconds: f32) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/probe.py");
        let duration = for_seconds.to_string();
        let targets =
            [Net::INTERNET_V4, Net::INTERNET_V6, Net::EXIT_V4, Net::EXIT_V6, "192.0.2.1", "2001:db8:1::1"];
        let mut program = host.start(&[&["python3", "-u", script, &duration], targets.as_slice()].concat());
        program.wait_for_output(".");
        Self(program)
    }

    /// How many there were so far.
    pub fn made(&self) -> usize {
        self.0.output().matches('.').count()
    }

    /// Waits until they have been made; returns how many there were.
    pub fn end(mut self) -> usize {
        assert_eq!(self.0.wait(seconds(30)), Some(0), "{}", self.0.output());
        self.made()
    }
}
