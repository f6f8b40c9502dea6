//! All tests, and the outcome of one test of one tunnel.

use std::{fmt, str::FromStr};

use serde::Serialize;

use super::{
    load::{Delivered, Iperf, Ping, Rate, Sizes, Stream, carry},
    measure::Used,
    peers::Tunnel,
    topology::Topology,
};
use crate::{
    interrupt::Interrupt,
    namespace::finished,
    stats::{float, share},
    usage::GB,
    way::{Way, Ways},
};

/// One test of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Test {
    Tcp { flows: u32, ways: Ways },
    Udp { sizes: Sizes, rate: Rate },
    IdleRtt,
}

/// Number of flows of the TCP test that also measures the round-trip time.
pub(crate) const RTT_UNDER_FLOWS: u32 = 8;

const UDP_SLOW: Rate = Rate::PacketsPerSecond(20_000.0);
/// 300 Mbit/s of 1,200-byte payloads.
const UDP_300_MBIT: Rate = Rate::PacketsPerSecond(31_250.0);

const fn tcp(flows: u32, ways: Ways) -> Test {
    Test::Tcp { flows, ways }
}

const fn udp(size: usize, rate: Rate) -> Test {
    Test::Udp { sizes: Sizes::Fixed(size), rate }
}

/// All tests, with their names and titles. The first `DEFAULT_TESTS` are the tests of a run without `--full`.
const TESTS: [(&str, Test, &str); 15] = [
    ("tcp1-up", tcp(1, Ways::Up), "TCP x1 up"),
    ("tcp1-down", tcp(1, Ways::Down), "TCP x1 down"),
    ("tcp8-up", tcp(8, Ways::Up), "TCP x8 up"),
    ("tcp8-down", tcp(8, Ways::Down), "TCP x8 down"),
    ("tcp1-both", tcp(1, Ways::Both), "TCP x1 both ways"),
    ("udp120-max", udp(120, Rate::Saturation), "UDP 120 B saturated"),
    ("udp1200-300m", udp(1_200, UDP_300_MBIT), "UDP 1200 B at 300 Mbit/s"),
    ("imix-max", Test::Udp { sizes: Sizes::Imix, rate: Rate::Saturation }, "IMIX saturated"),
    ("rtt-idle", Test::IdleRtt, "RTT idle"),
    ("tcp8-both", tcp(8, Ways::Both), "TCP x8 both ways"),
    ("tcp32-up", tcp(32, Ways::Up), "TCP x32 up"),
    ("tcp32-down", tcp(32, Ways::Down), "TCP x32 down"),
    ("tcp32-both", tcp(32, Ways::Both), "TCP x32 both ways"),
    ("udp120-20k", udp(120, UDP_SLOW), "UDP 120 B at 20 kpps"),
    ("udp1200-max", udp(1_200, Rate::Saturation), "UDP 1200 B saturated"),
];
/// Number of tests of a run without `--full`.
const DEFAULT_TESTS: usize = 9;

impl Test {
    pub(crate) fn all() -> Vec<Self> {
        TESTS.iter().map(|(_, test, _)| *test).collect()
    }

    pub(crate) fn of_default_run() -> Vec<Self> {
        TESTS.iter().take(DEFAULT_TESTS).map(|(_, test, _)| *test).collect()
    }

    pub(crate) fn title(self) -> &'static str {
        self.entry().map_or("", |(_, _, title)| title)
    }

    pub(crate) fn name(self) -> &'static str {
        self.entry().map_or("", |(name, ..)| name)
    }

    fn entry(self) -> Option<&'static (&'static str, Self, &'static str)> {
        TESTS.iter().find(|(_, test, _)| *test == self)
    }

    /// Returns whether the test measures the round-trip time.
    pub(crate) fn measures_rtt(self) -> bool {
        matches!(self, Self::IdleRtt | Self::Tcp { flows: RTT_UNDER_FLOWS, ways: Ways::Up })
    }
}

impl FromStr for Test {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let names: Vec<_> = TESTS.iter().map(|(name, ..)| *name).collect();
        let found = TESTS.iter().find(|(known, ..)| *known == name).map(|(_, test, _)| *test);
        found.ok_or_else(|| format!("there is no test {name}; tests are {}", names.join(", ")))
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The outcome of one test of one tunnel. Rates are measured at the receiver, except the offered rate.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Outcome {
    pub(crate) up_gbit_per_s: Option<f64>,
    pub(crate) down_gbit_per_s: Option<f64>,
    pub(crate) packets_per_s: Option<f64>,
    pub(crate) offered_packets_per_s: Option<f64>,
    /// The share of lost packets among those that the sender's kernel accepted.
    pub(crate) lost: Option<f64>,
    /// Received payload in GB of 10^9 bytes.
    pub(crate) gigabytes: f64,
    pub(crate) client: Used,
    pub(crate) exit: Used,
    pub(crate) rtt_ms: Vec<f64>,
}

impl Outcome {
    pub(crate) fn gbit_per_s(&self) -> Option<f64> {
        match (self.up_gbit_per_s, self.down_gbit_per_s) {
            (None, None) => None,
            (up, down) => Some(up.unwrap_or(0.0) + down.unwrap_or(0.0)),
        }
    }

    /// Returns the CPU time of both ends.
    pub(crate) fn cpu_seconds_per_gb(&self) -> Option<f64> {
        let cpu = self.client.cpu_seconds + self.exit.cpu_seconds;
        (self.gigabytes > 0.0).then(|| cpu / self.gigabytes)
    }

    pub(crate) fn context_switches_per_gb(&self) -> Option<f64> {
        let switches = self.client.context_switches + self.exit.context_switches;
        (self.gigabytes > 0.0).then(|| float(switches) / self.gigabytes)
    }

    fn received(mut self, bytes: u64) -> Self {
        self.gigabytes += float(bytes) / GB;
        self
    }
}

/// The hosts, the tunnel and the iperf3 servers of a test.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bed<'a> {
    pub(crate) topology: &'a Topology,
    pub(crate) tunnel: &'a Tunnel,
    pub(crate) iperf: &'a Iperf,
    pub(crate) interrupt: &'a Interrupt,
}

impl Bed<'_> {
    /// Runs one test.
    pub(crate) fn run(&self, test: Test, seconds: u32) -> anyhow::Result<Outcome> {
        // CPU time and the payload by which it is divided are both counted over the whole test.
        let start = self.used();
        let outcome = match test {
            Test::Tcp { flows, ways: Ways::Both } => self.both_ways(flows, seconds),
            Test::Tcp { flows, ways } => {
                let way = if ways == Ways::Up { Way::Up } else { Way::Down };
                self.tcp(flows, way, seconds, test.measures_rtt())
            }
            Test::Udp { sizes, rate } => self.udp(Stream { sizes, rate, seconds }),
            Test::IdleRtt => self.ping(seconds).map(|rtt_ms| Outcome { rtt_ms, ..Outcome::default() }),
        }?;
        let (client, exit) = self.used();
        Ok(Outcome { client: client.since(start.0), exit: exit.since(start.1), ..outcome })
    }

    fn used(&self) -> (Used, Used) {
        (Used::by(&self.tunnel.client_pids), Used::by(&self.tunnel.exit_pids))
    }

    fn tcp(&self, flows: u32, way: Way, seconds: u32, with_rtt: bool) -> anyhow::Result<Outcome> {
        let ping =
            with_rtt.then(|| Ping::start(self.topology, &self.tunnel.exit_address, seconds)).transpose()?;
        let bytes = self.iperf.carry(self.topology, flows, way, seconds, self.interrupt)?;
        let rtt_ms = ping.map(|ping| ping.finish(self.interrupt)).transpose()?.unwrap_or_default();
        Ok(Outcome { rtt_ms, ..one_way(way, bytes, seconds) }.received(bytes))
    }

    fn both_ways(&self, flows: u32, seconds: u32) -> anyhow::Result<Outcome> {
        let carry = |way| self.iperf.carry(self.topology, flows, way, seconds, self.interrupt);
        // Each direction has its own iperf3 server, so both directions can run at the same time.
        let (up, down) = std::thread::scope(|scope| {
            let up = scope.spawn(|| carry(Way::Up));
            let down = carry(Way::Down);
            (finished(up.join()), down)
        });
        let (up, down) = (up?, down?);
        let up_only = one_way(Way::Up, up, seconds);
        Ok(Outcome { down_gbit_per_s: Some(gbit_per_s(down, seconds)), ..up_only }.received(up + down))
    }

    fn udp(&self, stream: Stream) -> anyhow::Result<Outcome> {
        let Tunnel { client_address, exit_address, .. } = self.tunnel;
        let found = carry(self.topology, client_address, exit_address, stream, self.interrupt)?;
        let Delivered { sent, received, received_bytes, in_time, in_time_bytes, seconds } = found;
        // Rates count only the packets that arrived while the sender was running. For the loss, later packets count as received
        // too.
        let outcome = Outcome {
            up_gbit_per_s: Some(float(in_time_bytes) * 8.0 / GB / seconds),
            packets_per_s: Some(float(in_time) / seconds),
            offered_packets_per_s: Some(float(sent) / seconds),
            lost: Some(share(sent.saturating_sub(received), sent)),
            ..Outcome::default()
        };
        Ok(outcome.received(received_bytes))
    }

    fn ping(&self, seconds: u32) -> anyhow::Result<Vec<f64>> {
        Ping::start(self.topology, &self.tunnel.exit_address, seconds)?.finish(self.interrupt)
    }
}

fn one_way(way: Way, bytes: u64, seconds: u32) -> Outcome {
    let rate = Some(gbit_per_s(bytes, seconds));
    match way {
        Way::Up => Outcome { up_gbit_per_s: rate, ..Outcome::default() },
        Way::Down => Outcome { down_gbit_per_s: rate, ..Outcome::default() },
    }
}

fn gbit_per_s(bytes: u64, seconds: u32) -> f64 {
    float(bytes) * 8.0 / GB / f64::from(seconds.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_test_has_a_name_of_its_own_that_leads_back_to_it() {
        for test in Test::all() {
            assert_eq!(test.name().parse(), Ok(test));
        }
        let mut names: Vec<_> = Test::all().into_iter().map(Test::name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), TESTS.len());
        assert!("tcp2".parse::<Test>().unwrap_err().contains("tcp1-up"));
    }

    #[test]
    fn cost_is_that_of_both_ends_per_received_gigabyte() {
        let outcome = Outcome {
            gigabytes: 0.5,
            client: Used { cpu_seconds: 1.0, context_switches: 100 },
            exit: Used { cpu_seconds: 0.25, context_switches: 50 },
            ..Outcome::default()
        };
        assert_eq!(outcome.cpu_seconds_per_gb(), Some(2.5));
        assert_eq!(outcome.context_switches_per_gb(), Some(300.0));
        assert_eq!(Outcome::default().cpu_seconds_per_gb(), None);
    }

    #[test]
    fn both_ways_are_counted_together() {
        let outcome = Outcome { down_gbit_per_s: Some(1.0), ..one_way(Way::Up, 500_000_000, 2) };
        assert_eq!(outcome.gbit_per_s(), Some(3.0));
        assert_eq!(Outcome::default().gbit_per_s(), None);
    }
}
