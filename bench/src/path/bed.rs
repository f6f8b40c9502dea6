//! Runs one test of one tunnel over one path.

use std::{net::Ipv4Addr, time::Duration};

use anyhow::Context as _;

use super::{
    device::Device,
    flows::{Flows, Route},
    meter::{Meter, Reading},
    named::Path,
    outcome::{Figure, Outcome},
    stream::{Quality, Shape, Streams},
    test::{Congestion, Test},
};
use crate::{
    interrupt::Interrupt,
    stats::Sample,
    vpn::{load::Ping, measure::rss_mib, peers::Tunnel, topology::Topology},
    way::{Way, Ways},
    wire::Change,
};

/// Bytes of payload in a packet of the UDP test, and bytes of its IPv4 and UDP headers.
const UDP_PAYLOAD: usize = 1_200;
const UDP_HEADERS: f64 = 28.0;
/// Bytes of IPv4 and TCP headers with time stamps.
const TCP_HEADERS: f64 = 52.0;
/// There are eight streams, because one stream has too few packets to measure a small loss. The streams have different ports, so
/// a tunnel with several connections spreads them: some share a connection with the bulk flow, others do not.
const VOICE: Shape = Shape { streams: 8, payload: 200, per_second: 8.0 * 50.0 };
/// Pause after each test, so that the queues drain and closed connections end.
const REST: Duration = Duration::from_millis(500);
/// Factor for the warm-up of a test in which two flows must first converge to their shares of the path.
const FAIRNESS: u32 = 2;

/// The hosts, the tunnel, the path and the times of a test.
#[derive(Debug)]
pub(super) struct Bed<'a> {
    pub(super) topology: &'a Topology,
    pub(super) tunnel: &'a Tunnel,
    pub(super) path: &'a Path,
    pub(super) interrupt: &'a Interrupt,
    /// The duration of the measurement, and of the warm-up before it.
    pub(super) measured: Duration,
    pub(super) warm_up: Duration,
    client_address: Ipv4Addr,
    exit_address: Ipv4Addr,
    /// The tunnel's device at each end.
    client: Device,
    exit: Device,
}

impl<'a> Bed<'a> {
    pub(super) fn new(
        (topology, tunnel): (&'a Topology, &'a Tunnel),
        path: &'a Path,
        (measured, warm_up): (Duration, Duration),
        interrupt: &'a Interrupt,
    ) -> anyhow::Result<Self> {
        let address = |text: &str| text.parse::<Ipv4Addr>().context("an inner address is not IPv4");
        let (client_address, exit_address) =
            (address(&tunnel.client_address)?, address(&tunnel.exit_address)?);
        let client = Device::with_address(&topology.client, client_address, interrupt)?;
        let exit = Device::with_address(&topology.exit, exit_address, interrupt)?;
        Ok(Self {
            topology,
            tunnel,
            path,
            interrupt,
            measured,
            warm_up,
            client_address,
            exit_address,
            client,
            exit,
        })
    }

    /// Runs one test. None if the path is too slow for the test's UDP rate, or has no rate to compute it from.
    pub(super) fn run(&self, test: Test) -> anyhow::Result<Option<Outcome>> {
        // The events of an earlier test may have changed the wire.
        self.change(&self.path.settings())?;
        let outcome = match test {
            Test::Tcp { flows, congestion, way } => self.tcp(flows, congestion, way),
            Test::Udp { rate, way } => match rate.on(self.path.mbit_per_s()) {
                Some(rate) => self.udp(rate, way),
                None => return Ok(None),
            },
            Test::Voice { way } => self.voice(way),
            Test::Ping { way } => self.ping(way),
            Test::Native { way } => self.native(way),
            Test::Memory => self.memory(),
        };
        // The pause also follows a failed test, because the flows of that test must end too.
        self.interrupt.wait(Some(REST));
        self.interrupt.check()?;
        outcome.map(Some)
    }

    fn tcp(&self, flows: u32, congestion: Congestion, way: Way) -> anyhow::Result<Outcome> {
        let flows = self.bulk(flows, congestion, way)?;
        self.wait(self.warm_up)?;
        // The size of the headers divided by that of the payload, for segments of full size.
        let headers = TCP_HEADERS / f64::from(flows.segment().max(1));
        let reading = self.meter(way).measure(self.measured, &|| flows.bytes())?;
        flows.finish()?;
        self.check(&reading, way)?;
        Ok(with_cost(of_bulk(&reading), &reading, headers))
    }

    fn udp(&self, mbit_per_s: f64, way: Way) -> anyhow::Result<Outcome> {
        let payload = f64::from(u32::try_from(UDP_PAYLOAD)?);
        let shape = Shape { streams: 1, payload: UDP_PAYLOAD, per_second: mbit_per_s * 1e6 / 8.0 / payload };
        let streams = Streams::start(&self.route(), shape, way, self.interrupt)?;
        self.wait(self.warm_up)?;
        let from = streams.mark();
        // The received payload is not known until the streams end, so it is set with `with_bytes` below.
        let reading = self.meter(way).measure(self.measured, &|| 0)?;
        let to = streams.mark();
        let quality = streams.finish(from, to, self.interrupt)?;
        let reading = reading.with_bytes(quality.received * u64::try_from(UDP_PAYLOAD)?);
        self.check(&reading, way)?;
        let outcome = of_stream(&quality).with(Figure::MbitPerS, reading.mbit_per_s());
        Ok(with_cost(outcome, &reading, UDP_HEADERS / payload))
    }

    fn voice(&self, way: Way) -> anyhow::Result<Outcome> {
        let flows = self.bulk(1, Congestion::Cubic, way)?;
        let streams = Streams::start(&self.route(), VOICE, way, self.interrupt)?;
        self.wait(self.warm_up)?;
        let from = streams.mark();
        let reading = self.meter(way).measure(self.measured, &|| flows.bytes())?;
        let to = streams.mark();
        // The bulk flow continues until the last packets have arrived, so that their delay also includes the queue that the flow
        // causes.
        let quality = streams.finish(from, to, self.interrupt)?;
        flows.finish()?;
        self.check(&reading, way)?;
        Ok(of_stream(&quality).with(Figure::MbitPerS, reading.mbit_per_s()))
    }

    fn ping(&self, way: Way) -> anyhow::Result<Outcome> {
        let flows = self.bulk(1, Congestion::Cubic, way)?;
        self.wait(self.warm_up)?;
        let seconds = u32::try_from(self.measured.as_secs())?.max(1);
        let ping = Ping::start(self.topology, &self.tunnel.exit_address, seconds)?;
        let reading = self.meter(way).measure(self.measured, &|| flows.bytes())?;
        let times = ping.finish(self.interrupt)?;
        flows.finish()?;
        self.check(&reading, way)?;
        let answered = f64::from(u32::try_from(times.len())?);
        let lost = 1.0 - answered / f64::from(seconds * Ping::PER_SECOND);
        let sample = Sample::new(times.clone()).context("no echo reply came back")?;
        let outcome = Outcome { rtt_ms: times.into_iter().map(rounded).collect(), ..Outcome::default() };
        Ok(outcome
            .with(Figure::MbitPerS, reading.mbit_per_s())
            .with(Figure::LostPercent, lost * 100.0)
            .with(Figure::RttMedianMs, sample.median())
            .with(Figure::RttP99Ms, sample.quantile(0.99)))
    }

    fn native(&self, way: Way) -> anyhow::Result<Outcome> {
        let outside = Route {
            client: (&self.topology.client, Topology::CLIENT.parse()?),
            exit: (&self.topology.exit, Topology::EXIT.parse()?),
        };
        let inside = self.bulk(1, Congestion::Cubic, way)?;
        let native = Flows::start(&outside, (1, Congestion::Cubic), way, self.interrupt)?;
        self.wait(self.warm_up * FAIRNESS)?;
        let before = native.bytes();
        let reading = self.meter(way).measure(self.measured, &|| inside.bytes())?;
        let beside = reading.with_bytes(native.bytes() - before);
        inside.finish()?;
        native.finish()?;
        self.check(&reading, way)?;
        Ok(of_bulk(&reading).with(Figure::NativeMbitPerS, beside.mbit_per_s()))
    }

    /// Measures the memory use under load, before and after the path drops all frames for five seconds.
    fn memory(&self) -> anyhow::Result<Outcome> {
        const DARK: Duration = Duration::from_secs(5);
        /// Time for the retransmission of lost packets, and for the allocator to return memory to the kernel.
        const AFTER: Duration = Duration::from_secs(10);
        let way = Way::Down;
        let flows = self.bulk(8, Congestion::Cubic, way)?;
        self.wait(self.warm_up + self.measured)?;
        let (client, exit) = (rss_mib(&self.tunnel.client_pids), rss_mib(&self.tunnel.exit_pids));
        let black_out: Change = "blackout=5s".parse().map_err(|error: String| anyhow::anyhow!(error))?;
        self.change(&black_out)?;
        self.wait(DARK)?;
        let reading = self.meter(way).measure(AFTER, &|| flows.bytes())?;
        flows.finish()?;
        Ok(of_bulk(&reading)
            .with(Figure::ClientRssBeforeMib, client)
            .with(Figure::ClientRssAfterMib, rss_mib(&self.tunnel.client_pids))
            .with(Figure::ExitRssBeforeMib, exit)
            .with(Figure::ExitRssAfterMib, rss_mib(&self.tunnel.exit_pids)))
    }

    fn bulk(&self, flows: u32, congestion: Congestion, way: Way) -> anyhow::Result<Flows> {
        Flows::start(&self.route(), (flows, congestion), way, self.interrupt)
    }

    fn route(&self) -> Route<'_> {
        Route {
            client: (&self.topology.client, self.client_address),
            exit: (&self.topology.exit, self.exit_address),
        }
    }

    fn meter(&self, way: Way) -> Meter<'_> {
        let Self { topology, tunnel, path, interrupt, .. } = self;
        Meter { topology, tunnel, path, way, device: self.receiver(way), interrupt }
    }

    fn receiver(&self, way: Way) -> &Device {
        if way == Way::Up { &self.exit } else { &self.client }
    }

    fn check(&self, reading: &Reading, way: Way) -> anyhow::Result<()> {
        reading.check(&self.receiver(way).name)
    }

    fn change(&self, change: &Change) -> anyhow::Result<()> {
        let wire = self.topology.wire.as_ref().context("there is no wire between the hosts")?;
        wire.handle.change(&change.each_way(Ways::Both)).map(drop)
    }

    fn wait(&self, time: Duration) -> anyhow::Result<()> {
        self.interrupt.wait(Some(time));
        self.interrupt.check()
    }
}

fn of_bulk(reading: &Reading) -> Outcome {
    Outcome::default()
        .with(Figure::MbitPerS, reading.mbit_per_s())
        .with(Figure::LongestGapMs, reading.longest_gap.as_secs_f64() * 1e3)
}

fn of_stream(quality: &Quality) -> Outcome {
    Outcome::default()
        .with(Figure::LostPercent, quality.lost_percent)
        .with(Figure::DelayMedianMs, quality.delay_median_ms)
        .with(Figure::DelayP99Ms, quality.delay_p99_ms)
        .with(Figure::JitterMs, quality.jitter_ms)
        .with(Figure::LongestGapMs, quality.longest_gap_ms)
        .with(Figure::LatePercent, quality.late_percent)
}

fn with_cost(outcome: Outcome, reading: &Reading, headers: f64) -> Outcome {
    outcome
        .with(Figure::WireBytesPerInnerByte, reading.wire_per_inner(headers))
        .with(Figure::CpuSecondsPerGb, reading.cpu_seconds_per_gb())
        .with(Figure::QueueDropsPercent, reading.queue_drops_percent())
}

/// Rounds to microseconds, which keeps the JSON short.
fn rounded(milliseconds: f64) -> f64 {
    (milliseconds * 1e3).round() / 1e3
}
