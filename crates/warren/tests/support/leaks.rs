//! Detects packets that leave a host but should not, by attempts to send on the host and a count of arrivals at the router.

use super::counters::packets_of_one;
use super::{Namespace, Net, Running, asked, seconds};

/// For how many seconds packets are sent in every way. For rows K1 and K2 of the scorecard (docs/torture.md), set
/// `WARREN_ATTEMPTS=2`, which makes more than a thousand attempts.
fn lasting() -> f32 {
    asked("WARREN_ATTEMPTS").unwrap_or(0.6)
}

/// The minimum number of attempts for a valid test: the scorecard's number if the test runs for the scorecard, otherwise one
/// attempt in each way.
pub fn fewest_attempts() -> usize {
    if asked::<f32>("WARREN_ATTEMPTS").is_some() { 1_000 } else { 6 * 2 * 9 }
}

/// Counts what the router receives from the client, except its carrier, ARP, neighbour discovery and group membership reports.
#[derive(Debug)]
pub struct LeakCounter<'net> {
    net: &'net Net,
}

/// A running series of attempts.
#[derive(Debug)]
pub struct Attempts(Running);

impl<'net> LeakCounter<'net> {
    pub fn start(net: &'net Net) -> Self {
        let (exit_v4, exit_v6) = (Net::EXIT_V4, Net::EXIT_V6);
        // Attempts are recognised by their source ports, because attempts to the exit's own port would otherwise count as carrier
        // packets.
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

    /// Tries for a while to send packets in every way. Returns the number of attempts, and of packets that arrived at the router.
    pub fn attempt(&self) -> (usize, usize) {
        let before = self.leaked();
        let attempts = Attempts::start(&self.net.client, lasting()).end();
        (attempts, self.leaked() - before)
    }

    /// Fails if any packet has left, or if there were too few attempts.
    #[track_caller]
    pub fn assert_none(&self, when: &str) {
        let (attempts, leaked) = self.attempt();
        assert!(attempts >= fewest_attempts(), "{attempts} attempts");
        println!("measured: {when}: 0 of {attempts}");
        assert_eq!(leaked, 0, "{leaked} packets of {attempts} attempts left while {when}");
    }

    /// Fails unless the packets of every attempt leave.
    #[track_caller]
    pub fn assert_all(&self, when: &str) {
        // Fills the neighbour cache first, because packets are dropped during neighbour discovery.
        self.net.client.sh("ping -c 1 -W 5 192.0.2.1 && ping -c 1 -W 5 2001:db8:1::1").ok();
        let (attempts, leaked) = self.attempt();
        assert!(leaked >= attempts, "{leaked} packets of {attempts} attempts left while {when}");
    }

    /// Packets that left the client and are not part of its carrier.
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
    /// Starts a program that tries to send packets in every way. Returns after its first attempt.
    pub fn start(host: &Namespace, for_seconds: f32) -> Self {
        Self::by(host.start(&Self::words(for_seconds).split(' ').collect::<Vec<_>>()))
    }

    /// The command line of the program that tries to send packets in every way for a while.
    pub fn words(for_seconds: f32) -> String {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/probe.py");
        let targets =
            [Net::INTERNET_V4, Net::INTERNET_V6, Net::EXIT_V4, Net::EXIT_V6, "192.0.2.1", "2001:db8:1::1"];
        format!("python3 -u {script} {for_seconds} {}", targets.join(" "))
    }

    /// Wraps a program that runs [`Self::words`], after waiting for its first attempt.
    pub fn by(mut program: Running) -> Self {
        program.wait_for_output(".");
        Self(program)
    }

    /// The number of attempts so far.
    pub fn made(&self) -> usize {
        self.0.output().matches('.').count()
    }

    /// Waits for the end of the attempts. Returns how many there were.
    pub fn end(mut self) -> usize {
        assert_eq!(self.0.wait(seconds(30)), Some(0), "{}", self.0.output());
        self.made()
    }
}
