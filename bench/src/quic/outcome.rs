//! What a run of `quic` showed, from both sides' counters before and after.

use std::fmt;

use serde::Serialize;

use super::{
    histogram,
    options::{Mode, Options},
    side::SideOutcome,
    snapshot::Snapshot,
};
use crate::{
    report::{self, Machine, Table, number},
    stats::{Sample, float},
    way::Ways,
};

/// Both sides' counters, the client's first: at the start and end of the count, and when the last datagrams had come.
pub(super) struct Run {
    pub(super) start: (Snapshot, Snapshot),
    pub(super) end: (Snapshot, Snapshot),
    pub(super) settled: (Snapshot, Snapshot),
}

/// The result; what `ab` looks for is at the top.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Outcome {
    benchmark: &'static str,
    /// Of this repository's tree.
    commit: String,
    /// Bytes of payload that arrived, by the receiver's count and clock; both ways together where both are used.
    goodput_mbit_per_s: f64,
    /// Datagrams that arrived; UDP datagrams where a stream carries the payload.
    packets_per_s: f64,
    /// Of one core, by the whole process; none where both sides do both.
    sender_cpu_percent: Option<f64>,
    receiver_cpu_percent: Option<f64>,
    sender_cpu_seconds_per_gb: Option<f64>,
    receiver_cpu_seconds_per_gb: Option<f64>,
    /// Both sides.
    cpu_seconds_per_gb: Option<f64>,
    /// ACK frames sent for each UDP datagram with data.
    acks_per_data_packet: Option<f64>,
    /// UDP datagrams of the receiver, which has nothing but acknowledgements to send, for each of the sender's.
    ack_only_per_data_packet: Option<f64>,
    /// QUIC packets that the senders declared lost.
    packets_lost: u64,
    /// Datagrams that connections took and no application got, over the whole run; none for streams, which lose nothing.
    datagrams_missing: Option<u64>,
    rtt_ms: Option<Rtt>,
    client: SideOutcome,
    exit: SideOutcome,
    options: Options,
    machine: Machine,
}

/// Of the sender's smoothed round-trip time, sampled every 10 ms.
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
        let client = SideOutcome::new(&run.start.0, &run.end.0, carried);
        let exit = SideOutcome::new(&run.start.1, &run.end.1, carried);

        let rate = |count: u64, side: &SideOutcome| float(count) / side.usage.seconds;
        let goodput = rate(at_client.bytes, &client) + rate(at_exit.bytes, &exit);
        let carried_by_datagrams = options.mode == Mode::Datagrams;
        let packets = if carried_by_datagrams {
            rate(at_client.datagrams, &client) + rate(at_exit.datagrams, &exit)
        } else {
            let arrived = |side: &SideOutcome| rate(side.totals.udp_datagrams_received, side);
            let (up, down) = (options.direction.is_up(), options.direction.is_down());
            (if up { arrived(&exit) } else { 0.0 }) + (if down { arrived(&client) } else { 0.0 })
        };

        let roles = match options.direction {
            Ways::Up => Some((&client, &exit)),
            Ways::Down => Some((&exit, &client)),
            Ways::Both => None,
        };
        let data_packets: u64 = match options.direction {
            Ways::Up => client.totals.udp_datagrams_sent,
            Ways::Down => exit.totals.udp_datagrams_sent,
            Ways::Both => client.totals.udp_datagrams_sent + exit.totals.udp_datagrams_sent,
        };
        let per_data_packet = |count: u64| (data_packets > 0).then(|| float(count) / float(data_packets));
        let acks = match options.direction {
            Ways::Up => exit.totals.acks_sent,
            Ways::Down => client.totals.acks_sent,
            Ways::Both => client.totals.acks_sent + exit.totals.acks_sent,
        };
        let (client_settled, exit_settled) = &run.settled;
        let accepted = client_settled.accepted.datagrams + exit_settled.accepted.datagrams;
        let arrived = client_settled.delivered.datagrams + exit_settled.delivered.datagrams;
        let rtt_samples = if options.direction.is_up() { &run.end.0 } else { &run.end.1 };
        Self {
            benchmark: "quic",
            commit: report::commit(),
            goodput_mbit_per_s: goodput * 8e-6,
            packets_per_s: packets,
            sender_cpu_percent: roles.map(|(sender, _)| sender.cpu_percent),
            receiver_cpu_percent: roles.map(|(_, receiver)| receiver.cpu_percent),
            sender_cpu_seconds_per_gb: roles.and_then(|(sender, _)| sender.cpu_seconds_per_gb),
            receiver_cpu_seconds_per_gb: roles.and_then(|(_, receiver)| receiver.cpu_seconds_per_gb),
            cpu_seconds_per_gb: client.cpu_seconds_per_gb.zip(exit.cpu_seconds_per_gb).map(|(a, b)| a + b),
            acks_per_data_packet: per_data_packet(acks),
            ack_only_per_data_packet: roles
                .and_then(|(_, receiver)| per_data_packet(receiver.totals.udp_datagrams_sent)),
            packets_lost: client.totals.packets_lost + exit.totals.packets_lost,
            datagrams_missing: carried_by_datagrams.then(|| accepted.saturating_sub(arrived)),
            rtt_ms: Rtt::of(&rtt_samples.rtt_samples),
            client,
            exit,
            options: options.clone(),
            machine: Machine::here(),
        }
    }

    fn totals_table(&self) -> Table {
        let or_dash = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), number);
        let mut table = Table::new(["both sides", "value"]);
        let rtt = self.rtt_ms.map_or_else(
            || "-".to_owned(),
            |rtt| format!("{} / {} / {}", number(rtt.min), number(rtt.median), number(rtt.p99)),
        );
        for (name, value) in [
            ("goodput at the receiver, Mbit/s", number(self.goodput_mbit_per_s)),
            ("packets per second received", number(self.packets_per_s)),
            ("CPU seconds per GB, both sides", or_dash(self.cpu_seconds_per_gb)),
            ("ACK frames per data packet", or_dash(self.acks_per_data_packet)),
            ("ACK-only packets per data packet", or_dash(self.ack_only_per_data_packet)),
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

impl Rtt {
    fn of(micros: &[u32]) -> Option<Self> {
        let sample = Sample::new(micros.iter().map(|&micros| f64::from(micros) / 1e3).collect())?;
        Some(Self { min: sample.quantile(0.0), median: sample.median(), p99: sample.quantile(0.99) })
    }
}
