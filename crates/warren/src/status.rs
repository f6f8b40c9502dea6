//! What `warren status` shows: one shape for the daemons that fill it and the command that prints it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use warren_packet::reason::{DropCounters, DropReason};

use warren_quic::driver::{ConnectionStats, SendErrors};

use crate::tuning::Tuning;
use crate::worker::{ConnectionSnapshot, Histogram, QuicSums, Snapshot};

/// A daemon's state and counters. Every drop reason is named, those at zero too.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Status {
    pub(crate) role: Role,
    pub(crate) version: String,
    pub(crate) pid: u32,
    pub(crate) state: State,
    /// Seconds in this state.
    pub(crate) since_seconds: f64,
    #[serde(flatten)]
    pub(crate) client: Option<ClientStatus>,
    #[serde(flatten)]
    pub(crate) exit: Option<ExitStatus>,
    pub(crate) device: Option<DeviceStatus>,
    pub(crate) transport: TransportStatus,
    pub(crate) connections: Vec<ConnectionStatus>,
    pub(crate) totals: BTreeMap<String, u64>,
    pub(crate) drops_to_carrier: BTreeMap<String, u64>,
    pub(crate) drops_to_tun: BTreeMap<String, u64>,
    /// Datagrams that QUIC dropped itself.
    pub(crate) transport_drops: BTreeMap<String, u64>,
    /// All of these together, by reason.
    pub(crate) drops: BTreeMap<String, u64>,
    pub(crate) occupancy: Occupancy,
    pub(crate) process: ProcessStatus,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Role {
    Client,
    Exit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    Connecting,
    Up,
    Reconnecting,
    Stopping,
}

impl State {
    /// The word a person reads.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Up => "up",
            Self::Reconnecting => "reconnecting",
            Self::Stopping => "stopping",
        }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ClientStatus {
    pub(crate) profile: String,
    pub(crate) exit: ExitPeer,
    pub(crate) session: Option<ClientSessionStatus>,
    pub(crate) last_error: Option<String>,
    /// Whether nothing leaves the host outside the tunnel.
    pub(crate) kill_switch: bool,
    /// Why the latest reload changed nothing; none if it did, or there was none.
    pub(crate) reload_error: Option<String>,
    /// Times that every connection was lost since the start.
    pub(crate) reconnects: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ExitPeer {
    pub(crate) endpoint: String,
    pub(crate) address: Option<SocketAddr>,
    pub(crate) public_key: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ClientSessionStatus {
    pub(crate) id: u64,
    pub(crate) ipv4: Option<String>,
    pub(crate) ipv6: Option<String>,
    pub(crate) mtu: u16,
    pub(crate) connections: u32,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ExitStatus {
    pub(crate) listen: Vec<SocketAddr>,
    pub(crate) public_key: String,
    /// Why the latest reload changed nothing; none if it did, or there was none.
    pub(crate) reload_error: Option<String>,
    pub(crate) clients: ClientCounts,
    pub(crate) sessions: Vec<SessionStatus>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ClientCounts {
    pub(crate) enrolled: usize,
    pub(crate) connected: usize,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SessionStatus {
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) public_key: String,
    pub(crate) ipv4: Option<String>,
    pub(crate) ipv6: Option<String>,
    pub(crate) since_seconds: f64,
    /// Indices of the connections that are attached.
    pub(crate) connections: Vec<u32>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct DeviceStatus {
    pub(crate) name: String,
    pub(crate) mtu: u16,
    pub(crate) offload: bool,
}

/// The transport settings in force; `warren set` changes them.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct TransportStatus {
    pub(crate) driver: String,
    pub(crate) congestion: String,
    pub(crate) max_transmit_segments: usize,
    pub(crate) max_transmit_datagrams: usize,
    pub(crate) receive_batches: usize,
    pub(crate) tun_batches: usize,
    /// "tcp and udp", "tcp", "udp" or "off"; nothing before there is a device.
    pub(crate) tun_offload: Option<String>,
    /// "on", "off" or "unavailable".
    pub(crate) udp_gso: String,
    pub(crate) udp_gro: String,
}

impl TransportStatus {
    fn of(Tuning { settings, tun_batches, tun_offload }: &Tuning) -> Self {
        let in_force = |wanted: bool, lacking: bool| match (wanted, lacking) {
            (false, _) => "off".to_owned(),
            (true, false) => "on".to_owned(),
            (true, true) => "unavailable".to_owned(),
        };
        Self {
            driver: settings.driver.to_string(),
            congestion: settings.congestion.get().to_string(),
            max_transmit_segments: settings.caps.segments(),
            max_transmit_datagrams: settings.caps.datagrams(),
            receive_batches: settings.receive_batches.get(),
            tun_batches: tun_batches.get(),
            tun_offload: tun_offload.in_force().map(str::to_owned),
            udp_gso: in_force(settings.udp_gso, settings.lacking.gso()),
            udp_gro: in_force(settings.udp_gro, settings.lacking.gro()),
        }
    }
}

/// One QUIC connection. Sizes in bytes, counters since the connection began.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ConnectionStatus {
    pub(crate) id: u64,
    pub(crate) session: Option<u64>,
    pub(crate) index: Option<u32>,
    pub(crate) remote: Option<SocketAddr>,
    pub(crate) rtt_ms: f64,
    pub(crate) cwnd: u64,
    pub(crate) mtu: u16,
    pub(crate) sent_packets: u64,
    pub(crate) lost_packets: u64,
    pub(crate) black_holes: u64,
    pub(crate) datagrams_sent: u64,
    pub(crate) datagrams_received: u64,
    pub(crate) queue_packets: usize,
    pub(crate) queue_bytes: usize,
    pub(crate) packets_out: u64,
    pub(crate) bytes_out: u64,
    pub(crate) packets_in: u64,
    pub(crate) bytes_in: u64,
}

/// How full batches were: value = how often, index = size; the last index of a list counts larger ones too.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Occupancy {
    pub(crate) segments_per_send: Vec<u64>,
    /// Here index i counts 2^i up to 2^(i+1) - 1.
    pub(crate) datagrams_per_receive: Vec<u64>,
    pub(crate) packets_per_tun_read: Vec<u64>,
    pub(crate) packets_per_tun_write: Vec<u64>,
    /// Drives of connections in one turn of a worker.
    pub(crate) drives_per_wakeup: Vec<u64>,
    /// Sends that the kernel refused, by errno name.
    pub(crate) send_errors: BTreeMap<String, u64>,
}

/// What the process uses, from /proc/self.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct ProcessStatus {
    pub(crate) rss_kib: u64,
    pub(crate) fds: usize,
    pub(crate) threads: u64,
}

impl ProcessStatus {
    /// Reads this process's own figures; what cannot be read is 0.
    pub(crate) fn read() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|rest| rest.split_whitespace().next())
                .and_then(|value| value.parse().ok())
                .unwrap_or(0)
        };
        let fds = std::fs::read_dir("/proc/self/fd").map(Iterator::count).unwrap_or(0);
        Self { rss_kib: field("VmRSS:"), fds, threads: field("Threads:") }
    }
}

impl Status {
    /// A client's status.
    pub(crate) fn client(
        client: ClientStatus,
        state: State,
        since: Instant,
        device: Option<DeviceStatus>,
        tuning: &Tuning,
        snapshot: Snapshot,
    ) -> Self {
        Self { client: Some(client), ..Self::new(Role::Client, state, since, device, tuning, &snapshot) }
    }

    /// An exit's status.
    pub(crate) fn exit(
        exit: ExitStatus,
        state: State,
        since: Instant,
        device: DeviceStatus,
        tuning: &Tuning,
        snapshot: Snapshot,
    ) -> Self {
        Self { exit: Some(exit), ..Self::new(Role::Exit, state, since, Some(device), tuning, &snapshot) }
    }

    fn new(
        role: Role,
        state: State,
        since: Instant,
        device: Option<DeviceStatus>,
        tuning: &Tuning,
        snapshot: &Snapshot,
    ) -> Self {
        let drops_to_carrier = by_name(&snapshot.drops_to_carrier);
        let drops_to_tun = by_name(&snapshot.drops_to_tun);
        let transport_drops = transport_drops(snapshot);
        let mut drops = drops_to_carrier.clone();
        for (reason, count) in drops_to_tun.iter().chain(&transport_drops) {
            *drops.entry(reason.clone()).or_default() += count;
        }
        Self {
            role,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            state,
            since_seconds: since.elapsed().as_secs_f64(),
            client: None,
            exit: None,
            device,
            transport: TransportStatus::of(tuning),
            connections: snapshot.connections.iter().map(connection).collect(),
            totals: totals(snapshot),
            drops_to_carrier,
            drops_to_tun,
            transport_drops,
            drops,
            occupancy: occupancy(snapshot),
            process: ProcessStatus::read(),
        }
    }
}

fn occupancy(Snapshot { sockets, occupancy, .. }: &Snapshot) -> Occupancy {
    let counts = |histogram: &Histogram| histogram.counts().to_vec();
    let SendErrors {
        datagram_too_long,
        batch_too_long,
        io,
        invalid,
        no_buffers,
        refused,
        unreachable,
        other,
    } = sockets.send_errors.clone();
    let send_errors = [
        ("datagram_too_long", datagram_too_long),
        ("batch_too_long", batch_too_long),
        ("io", io),
        ("invalid", invalid),
        ("no_buffers", no_buffers),
        ("refused", refused),
        ("unreachable", unreachable),
        ("other", other),
    ];
    Occupancy {
        segments_per_send: sockets.segments_per_send.clone(),
        datagrams_per_receive: sockets.datagrams_per_receive.clone(),
        packets_per_tun_read: counts(&occupancy.packets_per_tun_read),
        packets_per_tun_write: counts(&occupancy.packets_per_tun_write),
        drives_per_wakeup: counts(&occupancy.drives_per_wakeup),
        send_errors: send_errors.into_iter().map(|(name, count)| (name.to_owned(), count)).collect(),
    }
}

fn by_name(drops: &DropCounters) -> BTreeMap<String, u64> {
    drops.iter().map(|(reason, count)| (reason.name().to_owned(), count)).collect()
}

fn connection(snapshot: &ConnectionSnapshot) -> ConnectionStatus {
    let quic = snapshot.quic.as_ref();
    let count = |of: fn(&ConnectionStats) -> u64| quic.map(of).unwrap_or_default();
    ConnectionStatus {
        id: snapshot.connection.0,
        session: snapshot.session.map(|session| session.0),
        index: snapshot.index,
        remote: quic.map(|quic| quic.remote),
        rtt_ms: quic.map(|quic| quic.rtt.as_secs_f64() * 1e3).unwrap_or_default(),
        cwnd: count(|quic| quic.cwnd),
        mtu: quic.map(|quic| quic.mtu).unwrap_or_default(),
        sent_packets: count(|quic| quic.sent_packets),
        lost_packets: count(|quic| quic.lost_packets),
        black_holes: count(|quic| quic.black_holes),
        datagrams_sent: count(|quic| quic.datagrams_sent),
        datagrams_received: count(|quic| quic.datagrams_received),
        queue_packets: snapshot.queue_packets,
        queue_bytes: snapshot.queue_bytes,
        packets_out: snapshot.packets_out,
        bytes_out: snapshot.bytes_out,
        packets_in: snapshot.packets_in,
        bytes_in: snapshot.bytes_in,
    }
}

fn totals(snapshot: &Snapshot) -> BTreeMap<String, u64> {
    let totals = &snapshot.totals;
    let quic = quic_sums(snapshot);
    [
        ("tun_reads", totals.tun_reads),
        ("tun_read_packets", totals.tun_read_packets),
        ("tun_read_bytes", totals.tun_read_bytes),
        ("tun_writes", totals.tun_writes),
        ("tun_written_packets", totals.tun_written_packets),
        ("tun_written_bytes", totals.tun_written_bytes),
        ("carrier_sent_packets", totals.carrier_sent_packets),
        ("marked_packets", totals.marked_packets),
        ("too_big_answers", totals.too_big_answers),
        ("carrier_sent_datagrams", totals.carrier_sent_datagrams),
        ("carrier_received_datagrams", totals.carrier_received_datagrams),
        ("carrier_received_packets", totals.carrier_received_packets),
        ("fragments_sent", totals.fragments_sent),
        ("fragments_received", totals.fragments_received),
        ("queued_packets", snapshot.queued_packets),
        ("assemblies_pending", snapshot.assemblies_pending),
        // The same datagrams as QUIC counts them, over connections that live and that are gone.
        ("quic_datagrams_sent", quic.datagrams_sent),
        ("quic_datagrams_received", quic.datagrams_received),
        ("quic_lost_packets", quic.lost_packets),
        ("connections_ended", snapshot.past.connections),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect()
}

/// Datagrams that QUIC itself dropped, after the packet path handed them over or before it got them.
fn transport_drops(snapshot: &Snapshot) -> BTreeMap<String, u64> {
    let quic = quic_sums(snapshot);
    let mut drops = DropCounters::default();
    drops.add_many(DropReason::TransportFull, quic.send_drops_full);
    drops.add_many(DropReason::TransportTooLarge, quic.send_drops_too_large);
    drops.add_many(DropReason::ConnectionLost, quic.send_drops_closed);
    drops.add_many(DropReason::ReceiveBufferFull, quic.receive_drops);
    by_name(&drops)
}

fn quic_sums(snapshot: &Snapshot) -> QuicSums {
    let mut sums = snapshot.past.sums;
    for quic in snapshot.connections.iter().filter_map(|connection| connection.quic.as_ref()) {
        sums.add(quic);
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documentation_lists_every_drop_reason_and_total() {
        let documentation = include_str!("../../../docs/counters.md");
        for reason in DropReason::ALL {
            let row = format!("| `{}` | {} |", reason.name(), reason.description());
            assert!(documentation.contains(&row), "docs/counters.md lacks {row}");
        }
        for name in totals(&Snapshot::default()).keys() {
            assert!(documentation.contains(&format!("`{name}`")), "docs/counters.md lacks {name}");
        }
    }

    #[test]
    fn status_survives_the_control_socket() {
        let client = ClientStatus {
            profile: "home".to_owned(),
            exit: ExitPeer {
                endpoint: "exit.example.net:443".to_owned(),
                address: None,
                public_key: String::new(),
            },
            session: None,
            last_error: None,
            kill_switch: false,
            reload_error: None,
            reconnects: 2,
        };
        let status = Status::client(
            client,
            State::Connecting,
            Instant::now(),
            None,
            &Tuning::default(),
            Snapshot::default(),
        );
        let value = serde_json::to_value(&status).unwrap();
        assert_eq!(value["role"], "client");
        assert_eq!(value["reconnects"], 2);
        let back: Status = serde_json::from_value(value).unwrap();
        assert!(back.client.is_some() && back.exit.is_none());
        assert_eq!(back.drops.len(), DropReason::ALL.len());
    }
}
