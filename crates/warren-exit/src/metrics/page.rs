//! The metrics page: every figure of the exit at one moment.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Registry;

use warren_session::clients::RateLimit;

use super::events::EventCounts;
use super::families::{Families, by_power, by_size};
use warren_control::status::{FleetStatus, Status};
use warren_tunnel::{Snapshot, Traffic};

/// Everything that the page shows.
#[derive(Debug)]
pub(crate) struct MetricsPage {
    pub status: Status,
    pub snapshot: Snapshot,
    pub events: EventCounts,
    pub reloads_refused: u64,
    /// Figures of clients, if `[metrics] clients` asks for them.
    pub clients: Option<Vec<ClientFigures>>,
}

/// The figures of one client.
#[derive(Debug)]
pub(crate) struct ClientFigures {
    pub name: String,
    pub traffic: Traffic,
    pub rate_limit: Option<RateLimit>,
    pub rate_limited_packets: u64,
    pub connections: usize,
    pub queued_bytes: usize,
    /// The shortest round-trip time of the client's connections, in seconds. `None` while it has no connection.
    pub round_trip: Option<f64>,
}

impl ClientFigures {
    /// Maximum number of clients that have figures of their own. With all clients of a large exit, a page would have tens of
    /// mebibytes.
    pub(crate) const MOST: usize = 1_000;
}

/// The totals of `docs/counters.md`, each with its description. Those in [`GAUGES`] can also fall.
const TOTALS: [(&str, &str); 32] = [
    ("tun_reads", "Reads of the TUN that returned packets."),
    ("handed_over", "Reads of the TUN that were handed to another worker."),
    ("tun_read_packets", "Packets read from the TUN, after super-packets were split."),
    ("tun_read_bytes", "Bytes of the packets read from the TUN, after super-packets were split."),
    ("tun_writes", "Writes that the TUN accepted."),
    ("tun_written_packets", "Packets written to the TUN, merged or not."),
    ("tun_written_bytes", "Bytes of packets written to the TUN."),
    ("carrier_sent_packets", "Packets handed to a QUIC connection, whole or as all of their fragments."),
    ("marked_packets", "Packets marked (ECN) because they had waited too long."),
    ("too_big_answers", "ICMP messages that told a sender the largest packet that passes in one piece."),
    ("carrier_sent_datagrams", "Datagrams handed to QUIC connections."),
    ("carrier_received_datagrams", "Datagrams that QUIC delivered."),
    ("carrier_received_packets", "Packets that came out of datagrams."),
    ("repairs_sent", "Datagrams sent again because the path lost them."),
    ("fragments_sent", "Fragments among the datagrams sent."),
    ("fragments_received", "Fragments among the datagrams received."),
    ("queued_packets", "Packets that are waiting for a connection now."),
    ("assemblies_pending", "Packets of which some fragments are missing now."),
    ("quic_datagrams_sent", "Datagrams as QUIC counts them on the wire, sent."),
    ("quic_datagrams_received", "Datagrams as QUIC counts them on the wire, received."),
    ("quic_lost_packets", "QUIC packets that were declared lost."),
    ("quic_spurious_losses", "QUIC packets that were declared lost and acknowledged after all."),
    ("quic_returned_datagrams", "Kept datagrams that QUIC returned because their packets were lost."),
    ("quic_forgotten_datagrams", "Kept datagrams that QUIC forgot because too many bytes were kept."),
    ("quic_kept_bytes", "Bytes of datagrams that are kept now, to be sent again if they are lost."),
    ("repaired_datagrams", "Lost datagrams that were sent again, counted once for each repair."),
    ("given_up_datagrams", "Lost datagrams that were not sent again."),
    ("filled_datagrams", "Missing datagrams that arrived while others waited for them."),
    ("late_datagrams", "Datagrams that arrived after others had stopped waiting for them."),
    ("missing_datagrams", "Missing datagrams that others waited for and that never arrived."),
    ("waiting_datagrams", "Received datagrams that are waiting for an earlier one now."),
    ("connections_ended", "Connections that are gone."),
];
const GAUGES: [&str; 4] = ["queued_packets", "assemblies_pending", "quic_kept_bytes", "waiting_datagrams"];

impl MetricsPage {
    /// The page as OpenMetrics text.
    pub(crate) fn text(self) -> Result<String, fmt::Error> {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        // This capacity is only a hint that saves copies while the text grows.
        let mut text = String::with_capacity(32 * 1024);
        prometheus_client::encoding::text::encode(&mut text, &registry)?;
        Ok(text)
    }
}

impl Collector for MetricsPage {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut families = Families(encoder);
        self.write_exit(&mut families)?;
        self.write_events(&mut families)?;
        self.write_packets(&mut families)?;
        self.write_batches(&mut families)?;
        self.write_process(&mut families)?;
        let fleet = self.status.exit.as_ref().and_then(|exit| exit.fleet.as_ref());
        fleet.map_or(Ok(()), |fleet| write_fleet(fleet, &mut families))?;
        let enrolled = self.status.exit.as_ref().map_or(0, |exit| exit.clients.enrolled);
        self.clients.iter().try_for_each(|clients| write_clients(clients, enrolled, &mut families))
    }
}

impl MetricsPage {
    fn write_exit(&self, families: &mut Families<'_>) -> fmt::Result {
        let Self { status, .. } = self;
        let labels = [("version", status.version.as_str()), ("driver", &status.transport.driver)];
        families.info("warren", "The running program.", &labels)?;
        families.gauge("warren_up_seconds", "How long the exit has run.", status.since_seconds)?;
        let (enrolled, connected) =
            status.exit.as_ref().map_or((0, 0), |exit| (exit.clients.enrolled, exit.clients.connected));
        families.gauge("warren_clients_enrolled", "Clients that the exit knows.", enrolled)?;
        families.gauge("warren_sessions", "Clients that have a session.", connected)?;
        families.gauge(
            "warren_connections",
            "QUIC connections, including strangers'.",
            status.connections.len(),
        )?;
        let queued: usize = status.connections.iter().map(|connection| connection.queue_bytes).sum();
        families.gauge("warren_queued_bytes", "Bytes that are waiting for a connection now.", queued)
    }

    fn write_events(&self, families: &mut Families<'_>) -> fmt::Result {
        let Self { events, .. } = self;
        families.counter("warren_handshakes", "TLS handshakes completed.", events.handshakes)?;
        let (in_flight, timed_out) = self
            .status
            .exit
            .as_ref()
            .map_or((0, 0), |exit| (exit.handshakes_in_flight, exit.handshakes_timed_out));
        families.gauge("warren_handshakes_in_flight", "TLS handshakes under way.", in_flight)?;
        families.counter("warren_handshakes_timed_out", "TLS handshakes that took too long.", timed_out)?;
        let is_disk_failing = self.status.exit.as_ref().is_some_and(|exit| exit.is_disk_failing);
        families.gauge(
            "warren_disk_failing",
            "Whether changes of clients cannot be written to the disk.",
            u32::from(is_disk_failing),
        )?;
        let strangers = self.status.exit.iter().flat_map(|exit| &exit.strangers);
        families.counters(
            "warren_strangers",
            "Attempts to connect that got no answer or a refusal.",
            strangers.map(|(reason, count)| ([("reason", reason)], *count)),
        )?;
        families.counter("warren_sessions_opened", "Sessions opened.", events.sessions_opened)?;
        families.counters(
            "warren_sessions_ended",
            "Sessions that ended.",
            by_reason(&events.sessions_ended),
        )?;
        families.counters(
            "warren_connections_closed",
            "Connections that the exit closed.",
            by_reason(&events.connections_closed),
        )?;
        families.counter(
            "warren_enrolments",
            "Clients that enrolled themselves by invitation.",
            events.enrolments,
        )?;
        families.counter(
            "warren_reloads_refused",
            "Reloads that failed because something was wrong. Most of them changed nothing.",
            self.reloads_refused,
        )
    }

    fn write_packets(&self, families: &mut Families<'_>) -> fmt::Result {
        let Self { status, snapshot, .. } = self;
        for (name, help) in TOTALS {
            let value = status.totals.get(name).copied().unwrap_or_default();
            let full_name = format!("warren_{name}");
            // A counter may only rise (OpenMetrics), so values that can also fall are gauges.
            if GAUGES.contains(&name) {
                families.gauge(&full_name, help, value)?;
            } else {
                families.counter(&full_name, help, value)?;
            }
        }
        let ways = [
            ("to_carrier", &status.drops_to_carrier),
            ("to_tun", &status.drops_to_tun),
            ("transport", &status.transport_drops),
        ];
        let drops = ways.into_iter().flat_map(|(way, drops)| {
            drops.iter().map(move |(reason, count)| ([("way", way), ("reason", reason)], *count))
        });
        families.counters(
            "warren_drops",
            "Dropped packets, and dropped datagrams in QUIC or on their way to it.",
            drops,
        )?;
        let places: Vec<(f64, u64)> = snapshot
            .totals
            .waits
            .places()
            // The last bucket has no bound.
            .map(|(bound, count)| (bound.map_or(f64::MAX, |bound| bound.as_secs_f64()), count))
            .collect();
        let sum = snapshot.totals.waits.sum().as_secs_f64();
        let help = "How long packets waited before they were handed to a connection.";
        families.histogram("warren_queue_wait_seconds", help, sum, &places)
    }

    fn write_batches(&self, families: &mut Families<'_>) -> fmt::Result {
        let Snapshot { sockets, occupancy, .. } = &self.snapshot;
        // The sum of a histogram's sizes equals the number of datagrams, because a size is the number of datagrams in one call.
        families.histogram(
            "warren_segments_per_send",
            "UDP datagrams in one send (GSO).",
            sockets.datagrams_sent() as f64,
            &by_size(&sockets.segments_per_send),
        )?;
        families.histogram(
            "warren_datagrams_per_receive",
            "UDP datagrams in one receive (GRO, recvmmsg).",
            sockets.datagrams_received as f64,
            &by_power(&sockets.datagrams_per_receive),
        )?;
        for (name, help, histogram) in [
            (
                "warren_packets_per_tun_read",
                "Packets cut from one read of the TUN.",
                &occupancy.packets_per_tun_read,
            ),
            (
                "warren_packets_per_tun_write",
                "Packets merged into one write to the TUN.",
                &occupancy.packets_per_tun_write,
            ),
            ("warren_drives_per_wakeup", "Drives in one turn of a worker.", &occupancy.drives_per_wakeup),
        ] {
            families.histogram(name, help, histogram.sum() as f64, &by_size(histogram.counts()))?;
        }
        families.counter("warren_udp_sent_bytes", "UDP payload sent.", sockets.bytes_sent)?;
        families.counter("warren_udp_received_bytes", "UDP payload received.", sockets.bytes_received)?;
        let errors = self.status.occupancy.send_errors.iter();
        families.counters(
            "warren_send_errors",
            "Sends that the kernel refused.",
            errors.map(|(kind, count)| ([("kind", kind)], *count)),
        )
    }

    fn write_process(&self, families: &mut Families<'_>) -> fmt::Result {
        // The names that Prometheus's client libraries use for every process.
        let process = &self.status.process;
        families.counter("process_cpu_seconds", "CPU time of all threads.", process.cpu_seconds)?;
        families.gauge("process_resident_memory_bytes", "Resident memory.", process.rss_kib * 1024)?;
        families.gauge("process_open_fds", "Open file descriptors.", process.fds)?;
        families.gauge("process_threads", "Threads.", process.threads)
    }
}

/// The figures of an exit that belongs to a fleet.
fn write_fleet(fleet: &FleetStatus, families: &mut Families<'_>) -> fmt::Result {
    let flag = |is_set: bool| f64::from(u8::from(is_set));
    let store_is = |state: &str| flag(fleet.store == state);
    let gauges = [
        ("store_up", "Whether the store that the fleet shares answers this exit.", store_is("reachable")),
        ("store_refused", "Whether the store answers but must not be used.", store_is("refused")),
        ("linked", "Whether warren-fleet is connected to this exit.", 1.0 - store_is("no_link")),
        ("store_silent_seconds", "Time since the store's last answer.", fleet.silent_seconds),
        (
            "stale",
            "Whether clients are sent away because the store is silent for too long.",
            flag(fleet.is_stale),
        ),
        ("draining", "Whether clients are sent to other exits.", flag(fleet.is_draining)),
        (
            "clock_offset_seconds",
            "This exit's clock minus the median of all exits' clocks.",
            fleet.clock_offset_ms as f64 / 1e3,
        ),
        ("requests_open", "Requests to the store that have no answer yet.", fleet.requests_open as f64),
    ];
    for (name, help, value) in gauges {
        families.gauge(&format!("warren_fleet_{name}"), help, value)?;
    }
    families.counters(
        "warren_fleet_requests",
        "Requests to the store.",
        fleet.requests.iter().map(|(outcome, count)| ([("outcome", outcome.as_str())], *count)),
    )?;
    families.counter(
        "warren_fleet_stays_refused",
        "How many times the exit refused a client that wanted to keep its session after a failed move, because the client had asked too often.",
        fleet.stays_refused,
    )?;
    let operation = |name: &str| [("operation", name.to_owned())];
    families.counters(
        "warren_fleet_operations",
        "Requests that the store has answered.",
        fleet.operations.iter().map(|(name, (_, count))| (operation(name), *count)),
    )?;
    families.counters(
        "warren_fleet_operation_seconds",
        "Time until the store answered requests.",
        fleet.operations.iter().map(|(name, (seconds, _))| (operation(name), *seconds)),
    )?;
    families.gauges(
        "warren_fleet_certificate_days",
        "Days until a certificate around the store expires.",
        fleet.certificate_days.iter().map(|(name, days)| ([("certificate", name.clone())], *days)),
    )?;
    write_exits(fleet, families)
}

/// The figures of all exits of the fleet.
fn write_exits(fleet: &FleetStatus, families: &mut Families<'_>) -> fmt::Result {
    let live = fleet.exits.iter().filter(|exit| exit.state != "gone");
    families.gauges(
        "warren_fleet_behind_seconds",
        "How long an exit of the fleet has been behind the changes of clients.",
        live.map(|exit| ([("exit", exit.name.clone())], exit.behind_seconds)),
    )?;
    let count = |state: &str| fleet.exits.iter().filter(|exit| exit.state == state).count() as f64;
    families.gauges(
        "warren_fleet_exits",
        "Exits of the fleet.",
        ["serving", "draining", "gone"].map(|state| ([("state", state)], count(state))),
    )
}

fn write_clients(clients: &[ClientFigures], enrolled: usize, families: &mut Families<'_>) -> fmt::Result {
    let left_out = enrolled.saturating_sub(clients.len());
    families.gauge("warren_clients_left_out", "Clients without figures of their own here.", left_out)?;
    let labels = |client: &ClientFigures| [("client", client.name.clone())];
    // All samples of one metric come before the next metric, because OpenMetrics does not allow the samples of two families to be
    // mixed.
    let mut counter = |name: &str, help: &str, of: fn(&ClientFigures) -> u64| {
        families.counters(name, help, clients.iter().map(|client| (labels(client), of(client))))
    };
    counter("warren_client_sent_packets", "Packets sent to the client.", |client| {
        client.traffic.packets_out
    })?;
    counter("warren_client_sent_bytes", "Bytes of packets sent to it.", |client| client.traffic.bytes_out)?;
    counter("warren_client_received_packets", "Packets received from the client.", |client| {
        client.traffic.packets_in
    })?;
    counter("warren_client_received_bytes", "Bytes of packets received from it.", |client| {
        client.traffic.bytes_in
    })?;
    counter(
        "warren_client_rate_limited_packets",
        "Packets in both directions that the client's rate limit dropped.",
        |client| client.rate_limited_packets,
    )?;
    let mut gauge = |name: &str, help: &str, of: fn(&ClientFigures) -> Option<f64>| {
        // A client without a value has no sample, because a zero would look like a measurement.
        let values = clients.iter().filter_map(|client| Some((labels(client), of(client)?)));
        families.gauges(name, help, values)
    };
    gauge("warren_client_connections", "Connections of the client's session.", |client| {
        Some(client.connections as f64)
    })?;
    gauge(
        "warren_client_rate_limit_bits",
        "The client's rate limit in bits per second, for each direction.",
        |client| client.rate_limit.map(|rate| rate.bits_per_second() as f64),
    )?;
    gauge("warren_client_queued_bytes", "Bytes that are waiting for the client now.", |client| {
        Some(client.queued_bytes as f64)
    })?;
    gauge("warren_client_round_trip_seconds", "Round-trip time of its fastest connection.", |client| {
        client.round_trip
    })
}

fn by_reason<'a>(
    counts: impl IntoIterator<Item = (&'a &'static str, &'a u64)>,
) -> impl Iterator<Item = ([(&'static str, &'static str); 1], u64)> {
    counts.into_iter().map(|(reason, count)| ([("reason", *reason)], *count))
}
