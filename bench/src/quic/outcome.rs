//! The result of a run of `quic`, computed from both sides' counters before and after the measurement.

use std::fmt;

use serde::Serialize;

use super::{
    histogram,
    options::{Mode, Options},
    side::SideOutcome,
    snapshot::Snapshot,
};
use crate::{
    report::{self, Machine, Table, number, number_or_dash},
    stats::{Sample, float, share},
    way::Ways,
};

/// The client's and the exit's counters: at the start and end of the measurement, and after the last datagrams arrived.
pub(super) struct Run {
    pub(super) start: (Snapshot, Snapshot),
    pub(super) end: (Snapshot, Snapshot),
    pub(super) settled: (Snapshot, Snapshot),
}

/// The result. The figures that `ab` reads are top-level keys of the JSON.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Outcome {
    benchmark: &'static str,
    /// The commit of this repository's tree.
    commit: String,
    /// Received payload per second, by the receiver's count and clock. With `--direction both`, the sum of both directions.
    goodput_mbit_per_s: f64,
    /// QUIC datagrams received per second. In stream mode, UDP datagrams received per second.
    packets_per_s: f64,
    #[serde(flatten)]
    cost: Cost,
    #[serde(flatten)]
    acknowledgements: Acknowledgements,
    /// QUIC packets that the senders declared lost (RFC 9002).
    packets_lost: u64,
    /// Datagrams that the senders' connections accepted but that did not reach the other side's application, over the whole run.
    /// None in stream mode.
    datagrams_missing: Option<u64>,
    rtt_ms: Option<Rtt>,
    client: SideOutcome,
    exit: SideOutcome,
    options: Options,
    machine: Machine,
}

/// CPU time of the two processes. With `--direction both`, each process sends and receives, so only the sum is given.
#[derive(Clone, Copy, Debug, Serialize)]
struct Cost {
    /// Per cent of one core.
    sender_cpu_percent: Option<f64>,
    receiver_cpu_percent: Option<f64>,
    sender_cpu_seconds_per_gb: Option<f64>,
    receiver_cpu_seconds_per_gb: Option<f64>,
    /// The sum of both sides.
    cpu_seconds_per_gb: Option<f64>,
}

/// The number of acknowledgements, relative to the number of UDP datagrams of the senders.
#[derive(Clone, Copy, Debug, Serialize)]
struct Acknowledgements {
    /// ACK frames for each UDP datagram of the senders.
    acks_per_data_packet: Option<f64>,
    /// UDP datagrams that the receiver sent for each UDP datagram of the sender. A receiver that sends no payload sends only
    /// acknowledgements.
    ack_only_per_data_packet: Option<f64>,
}

/// The sender's smoothed round-trip time, sampled every 10 ms.
#[derive(Clone, Copy, Debug, Serialize)]
struct Rtt {
    min: f64,
    median: f64,
    p99: f64,
}

impl Outcome {
    pub(super) fn new(options: &Options, run: &Run) -> Self {
        let delivered = |start: &Snapshot, end: &Snapshot| end.delivered.since(&start.delivered);
        let at_client = delivered(&run.start.0, &run.end.0);
        let at_exit = delivered(&run.start.1, &run.end.1);
        let carried = float(at_client.bytes + at_exit.bytes);
        // Each side's CPU time is divided by the payload of both directions, so that the sum of both figures is the cost of a GB.
        let client = SideOutcome::new(&run.start.0, &run.end.0, carried);
        let exit = SideOutcome::new(&run.start.1, &run.end.1, carried);
        let direction = options.direction;
        let [to_client, to_exit] = match options.mode {
            Mode::Datagrams => [at_client.datagrams, at_exit.datagrams],
            // A side that only sends payload receives only acknowledgements, so its received datagrams do not count.
            Mode::Stream => [
                if direction.is_down() { client.totals.udp_datagrams_received } else { 0 },
                if direction.is_up() { exit.totals.udp_datagrams_received } else { 0 },
            ],
        };
        let rate = |count: u64, side: &SideOutcome| float(count) / side.usage.seconds;
        // With `--direction both`, the client's samples are used.
        let sender = if direction.is_up() { &run.end.0 } else { &run.end.1 };
        Self {
            benchmark: "quic",
            commit: report::commit(),
            goodput_mbit_per_s: (rate(at_client.bytes, &client) + rate(at_exit.bytes, &exit)) * 8e-6,
            packets_per_s: rate(to_client, &client) + rate(to_exit, &exit),
            cost: Cost::of(direction, &client, &exit),
            acknowledgements: Acknowledgements::of(direction, &client, &exit),
            packets_lost: client.totals.packets_lost + exit.totals.packets_lost,
            datagrams_missing: (options.mode == Mode::Datagrams).then(|| run.datagrams_missing()),
            rtt_ms: Rtt::of(&sender.rtt_samples),
            client,
            exit,
            options: options.clone(),
            machine: Machine::here(),
        }
    }

    fn totals_table(&self) -> Table {
        let mut table = Table::new(["both sides", "value"]);
        let rtt = self.rtt_ms.map_or_else(
            || "-".to_owned(),
            |rtt| format!("{} / {} / {}", number(rtt.min), number(rtt.median), number(rtt.p99)),
        );
        for (name, value) in [
            ("goodput at the receiver, Mbit/s", number(self.goodput_mbit_per_s)),
            ("packets per second received", number(self.packets_per_s)),
            ("CPU seconds per GB, both sides", number_or_dash(self.cost.cpu_seconds_per_gb)),
            ("ACK frames per data packet", number_or_dash(self.acknowledgements.acks_per_data_packet)),
            (
                "ACK-only packets per data packet",
                number_or_dash(self.acknowledgements.ack_only_per_data_packet),
            ),
            ("QUIC packets lost", self.packets_lost.to_string()),
            (
                "datagrams taken and not delivered",
                self.datagrams_missing.map_or_else(|| "-".to_owned(), |missing| missing.to_string()),
            ),
            ("smoothed RTT min / median / p99, ms", rtt),
        ] {
            table.row([name.to_owned(), value]);
        }
        table
    }

    fn names(&self) -> (&'static str, &'static str) {
        match self.options.direction {
            Ways::Up => ("client (sends)", "exit (receives)"),
            Ways::Down => ("client (receives)", "exit (sends)"),
            Ways::Both => ("client", "exit"),
        }
    }

    fn sides_table(&self) -> Table {
        let (client, exit) = self.names();
        let mut table = Table::new(["side", client, exit]);
        for ((name, client), (_, exit)) in self.client.rows().into_iter().zip(self.exit.rows()) {
            table.row([name.to_owned(), client, exit]);
        }
        table
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { machine, commit, .. } = self;
        let batches = histogram::table(&self.client.sockets, &self.exit.sockets);
        write!(f, "{machine}, {commit}\n{}\n{}\n{batches}", self.totals_table(), self.sides_table())
    }
}

impl Run {
    fn datagrams_missing(&self) -> u64 {
        let (client, exit) = &self.settled;
        let accepted = client.accepted.datagrams + exit.accepted.datagrams;
        accepted.saturating_sub(client.delivered.datagrams + exit.delivered.datagrams)
    }
}

impl Cost {
    fn of(direction: Ways, client: &SideOutcome, exit: &SideOutcome) -> Self {
        let (sender, receiver) = match direction {
            Ways::Up => (Some(client), Some(exit)),
            Ways::Down => (Some(exit), Some(client)),
            Ways::Both => (None, None),
        };
        Self {
            sender_cpu_percent: sender.map(|side| side.cpu_percent),
            receiver_cpu_percent: receiver.map(|side| side.cpu_percent),
            sender_cpu_seconds_per_gb: sender.and_then(|side| side.cpu_seconds_per_gb),
            receiver_cpu_seconds_per_gb: receiver.and_then(|side| side.cpu_seconds_per_gb),
            cpu_seconds_per_gb: client.cpu_seconds_per_gb.zip(exit.cpu_seconds_per_gb).map(|(a, b)| a + b),
        }
    }
}

impl Acknowledgements {
    fn of(direction: Ways, client: &SideOutcome, exit: &SideOutcome) -> Self {
        let (client, exit) = (&client.totals, &exit.totals);
        let (data_packets, acks, ack_only) = match direction {
            Ways::Up => (client.udp_datagrams_sent, exit.acks_sent, Some(exit.udp_datagrams_sent)),
            Ways::Down => (exit.udp_datagrams_sent, client.acks_sent, Some(client.udp_datagrams_sent)),
            // Here, datagrams carry both payload and acknowledgements, so datagrams with only acknowledgements cannot be counted.
            Ways::Both => {
                (client.udp_datagrams_sent + exit.udp_datagrams_sent, client.acks_sent + exit.acks_sent, None)
            }
        };
        let per_data_packet = |count| (data_packets > 0).then(|| share(count, data_packets));
        Self {
            acks_per_data_packet: per_data_packet(acks),
            ack_only_per_data_packet: ack_only.and_then(per_data_packet),
        }
    }
}

impl Rtt {
    fn of(micros: &[u32]) -> Option<Self> {
        let sample = Sample::new(micros.iter().map(|&micros| f64::from(micros) / 1e3).collect())?;
        Some(Self { min: sample.quantile(0.0), median: sample.median(), p99: sample.quantile(0.99) })
    }
}
