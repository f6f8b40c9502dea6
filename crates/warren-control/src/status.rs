//! The status of a daemon: one type for the daemons that fill it and the command that prints it.

mod client;
mod connection;
mod counters;
mod exit;
mod occupancy;
mod process;
mod rates;
mod transport;

use std::collections::BTreeMap;
use std::time::{Instant, SystemTime};

use serde::{Deserialize, Serialize};

pub use client::{
    ClientSessionStatus, ClientStatus, ExitPeer, FollowedFleetStatus, MoveStatus, RefusedStatus,
};
pub use connection::{ConnectionStatus, ControllerStatus, RepairStatus};
pub use exit::{
    ClientCounts, ExitStatus, FleetExitStatus, FleetStatus, SessionStatus, WireGuardStatus, turned_away,
};
pub use process::{FileAccess, Sandbox, resident_kib};
pub use rates::{RateMeter, Rates, percent};
pub use transport::{DeviceStatus, TransportStatus};

use self::counters::{by_name, totals, transport_drops};
use self::occupancy::Occupancy;
use self::process::ProcessStatus;
use crate::clients::timestamp;
use warren_tunnel::tuning::Tuning;
use warren_tunnel::{Snapshot, WorkerShare};

/// A daemon's state and counters. Every drop reason is present, even at zero.
///
/// There are 22 fields because each is a documented key of the JSON object of `warren status --json` (docs/status.md).
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Status {
    /// The daemon's role.
    pub role: Role,
    /// The daemon's version.
    pub version: String,
    /// The daemon's process ID.
    pub pid: u32,
    /// The daemon's state.
    pub state: State,
    /// Seconds in this state.
    pub since_seconds: f64,
    /// When this state began, in UTC (RFC 3339).
    pub since: String,
    /// Why the latest reload failed. `None` if it succeeded, or if there was none.
    pub reload_error: Option<String>,
    /// Keys that only a client has.
    #[serde(flatten)]
    pub client: Option<ClientStatus>,
    /// Keys that only an exit has.
    #[serde(flatten)]
    pub exit: Option<ExitStatus>,
    /// The TUN device, once there is one.
    pub device: Option<DeviceStatus>,
    /// Changes on this host that will be undone, in the order in which they were made.
    pub host_changes: Vec<String>,
    /// The transport settings in force.
    pub transport: TransportStatus,
    /// The rates of all connections together.
    pub rates: Rates,
    /// Each worker, by number.
    pub workers: Vec<WorkerShare>,
    /// Every connection.
    pub connections: Vec<ConnectionStatus>,
    /// Packets and bytes since the daemon started, by name.
    pub totals: BTreeMap<String, u64>,
    /// Packets from the TUN that were dropped, by reason.
    pub drops_to_carrier: BTreeMap<String, u64>,
    /// Packets from the carrier that were dropped, by reason.
    pub drops_to_tun: BTreeMap<String, u64>,
    /// Datagrams that QUIC dropped, and packets that the kernel dropped before QUIC received them.
    pub transport_drops: BTreeMap<String, u64>,
    /// The three maps `drops_to_carrier`, `drops_to_tun` and `transport_drops`, added up by reason.
    pub drops: BTreeMap<String, u64>,
    /// How full batches were.
    pub occupancy: Occupancy,
    /// The process's resources.
    pub process: ProcessStatus,
}

/// The two daemons.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Holds one session with an exit.
    Client,
    /// Serves clients.
    Exit,
}

/// The state of a daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// No session has been established yet.
    Connecting,
    /// Traffic flows.
    Up,
    /// The session was lost, and the client is reconnecting.
    Reconnecting,
    /// The tunnel is down because the host is on a trusted network. It comes up on any other network.
    Resting,
    /// Every exit has refused for good. The tunnel's traffic is blocked, so it does not leave outside.
    Refused,
    /// The host is not set up correctly, and the daemon cannot fix it.
    Error,
    /// The daemon is undoing its changes.
    Stopping,
}

impl State {
    /// The state's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Up => "up",
            Self::Reconnecting => "reconnecting",
            Self::Resting => "resting",
            Self::Refused => "refused",
            Self::Error => "error",
            Self::Stopping => "stopping",
        }
    }
}

/// The facts that a daemon reports about itself, whether it is a client or an exit.
pub struct Observed<'a> {
    /// The daemon's state.
    pub state: State,
    /// When this state began.
    pub since: Instant,
    /// The TUN device, once there is one.
    pub device: Option<DeviceStatus>,
    /// The daemon's changes on the host, in a few words each.
    pub host_changes: Vec<String>,
    /// Why the latest reload failed.
    pub reload_error: Option<String>,
    /// The settings in force.
    pub tuning: &'a Tuning,
    /// The workers' counters.
    pub snapshot: Snapshot,
    /// Computes the rates.
    pub meter: &'a RateMeter,
    /// The restrictions in force for this process.
    pub sandbox: Sandbox,
}

impl Status {
    /// A client's status.
    pub fn client(client: ClientStatus, observed: Observed<'_>) -> Self {
        Self { client: Some(client), ..Self::new(Role::Client, observed) }
    }

    /// The shortest round-trip time of the connections in milliseconds. For a client with a session, only the connections of the
    /// session in use count. `None` if none was measured.
    pub fn shortest_rtt_ms(&self) -> Option<f64> {
        let session =
            self.client.as_ref().and_then(|client| client.session.as_ref()).map(|session| session.id);
        let counts = |connection: &&ConnectionStatus| session.is_none() || connection.session == session;
        let connections = self.connections.iter().filter(counts).map(|connection| connection.rtt_ms);
        // 0 means that no round trip was measured yet.
        connections.filter(|rtt| *rtt > 0.0).reduce(f64::min)
    }

    /// An exit's status.
    pub fn exit(exit: ExitStatus, observed: Observed<'_>) -> Self {
        Self { exit: Some(exit), ..Self::new(Role::Exit, observed) }
    }

    fn new(role: Role, observed: Observed<'_>) -> Self {
        let Observed { state, since, device, host_changes, reload_error, tuning, snapshot, meter, sandbox } =
            observed;
        let drops_to_carrier = by_name(&snapshot.drops_to_carrier);
        let drops_to_tun = by_name(&snapshot.drops_to_tun);
        let transport_drops = transport_drops(&snapshot);
        // A reason can occur in more than one of the three maps.
        let mut drops = drops_to_carrier.clone();
        for (reason, count) in drops_to_tun.iter().chain(&transport_drops) {
            *drops.entry(reason.clone()).or_default() += count;
        }
        let now = Instant::now();
        let since = now.duration_since(since);
        let rates = meter.rates(now, &snapshot);
        Self {
            role,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            state,
            since_seconds: since.as_secs_f64(),
            // An `Instant` has no date, so the date is calculated from the age of the state.
            since: timestamp(SystemTime::now() - since),
            reload_error,
            client: None,
            exit: None,
            device,
            host_changes,
            transport: TransportStatus::of(tuning),
            rates: meter.total(now, &snapshot),
            workers: snapshot.workers.clone(),
            connections: snapshot
                .connections
                .iter()
                .map(|connection| {
                    let rates = rates.get(&connection.connection.0).copied().unwrap_or_default();
                    ConnectionStatus::of(connection, rates, meter.given_up_percent(connection))
                })
                .collect(),
            totals: totals(&snapshot),
            drops_to_carrier,
            drops_to_tun,
            transport_drops,
            drops,
            occupancy: Occupancy::of(&snapshot),
            process: ProcessStatus::read(sandbox),
        }
    }
}

#[cfg(test)]
mod tests {
    use warren_packet::reason::DropReason;
    use warren_quic::driver::ConnectionId;

    use super::*;
    use warren_tunnel::ConnectionSnapshot;

    #[test]
    fn documentation_lists_every_drop_reason_and_total() {
        let documentation = include_str!("../../../docs/counters.md");
        for reason in DropReason::ALL {
            let row = format!("| `{}` | {} |", reason.name(), reason.description());
            assert!(documentation.contains(&row), "docs/counters.md lacks {row}");
        }
        for why in warren_quic::strangers::Turned::ALL {
            let row = format!("| `{}` | {} |", why.name(), why.description());
            assert!(documentation.contains(&row), "docs/counters.md lacks {row}");
        }
        for name in totals(&Snapshot::default()).keys() {
            assert!(documentation.contains(&format!("`{name}`")), "docs/counters.md lacks {name}");
        }
    }

    #[test]
    fn status_survives_the_control_socket() {
        let value = serde_json::to_value(client()).unwrap();
        assert_eq!(value["role"], "client");
        assert_eq!(value["reconnects"], 2);
        let back: Status = serde_json::from_value(value).unwrap();
        assert!(back.client.is_some() && back.exit.is_none());
        assert_eq!(back.drops.len(), DropReason::ALL.len());
    }

    #[test]
    fn documentation_lists_every_field() {
        let documentation =
            [include_str!("../../../docs/status.md"), include_str!("../../../docs/counters.md")].concat();
        let mut fields = Vec::new();
        for status in [client(), exit()] {
            collect_fields(&serde_json::to_value(status).unwrap(), &mut fields);
        }
        assert!(fields.len() > 100);
        for field in fields {
            assert!(documentation.contains(&format!("`{field}`")), "docs/status.md lacks {field}");
        }
    }

    fn client() -> Status {
        let client = ClientStatus {
            refused: Some(RefusedStatus {
                reason: "disabled".to_owned(),
                message: String::new(),
                asked_again_in_seconds: None,
            }),
            error: None,
            profile: "home".to_owned(),
            exit: ExitPeer {
                endpoint: "exit.example.net:443".to_owned(),
                address: None,
                public_key: String::new(),
                next_public_key: None,
            },
            session: Some(ClientSessionStatus {
                id: 1,
                ipv4: None,
                ipv6: None,
                mtu: 1380,
                connections: 4,
                gateway_ipv4: None,
                gateway_ipv6: None,
                prefixes: Vec::new(),
            }),
            host_outside: false,
            warnings: Vec::new(),
            last_error: None,
            resting: None,
            roster: Some(FollowedFleetStatus {
                name: "acme".to_owned(),
                serial: 7,
                public_key: String::new(),
                exits: 3,
                exit: None,
            }),
            moving: None,
            kill_switch: false,
            reconnects: 2,
            dropped_queries: 0,
        };
        Status::client(client, observed(&Tuning::default(), &RateMeter::new(Instant::now())))
    }

    fn exit() -> Status {
        let session = SessionStatus {
            id: 1,
            name: "laptop".to_owned(),
            public_key: String::new(),
            ipv4: None,
            ipv6: None,
            since_seconds: 1.0,
            connections: vec![0],
            has_other_exit: None,
        };
        let exit = ExitStatus {
            wireguard: None,
            listen: Vec::new(),
            public_key: String::new(),
            old_public_key: None,
            clients: ClientCounts { enrolled: 1, connected: 1 },
            sessions: vec![session],
            silent: true,
            strangers: turned_away(&Tuning::default().settings.strangers),
            handshakes_in_flight: 0,
            handshakes_timed_out: 0,
            is_disk_failing: false,
            fleet: None,
        };
        Status::exit(exit, observed(&Tuning::default(), &RateMeter::new(Instant::now())))
    }

    fn observed<'a>(tuning: &'a Tuning, meter: &'a RateMeter) -> Observed<'a> {
        let connection = ConnectionSnapshot {
            connection: ConnectionId(1),
            session: None,
            index: None,
            packets_out: 0,
            bytes_out: 0,
            packets_in: 0,
            bytes_in: 0,
            queue_packets: 0,
            queue_bytes: 0,
            repair: Default::default(),
            quic: None,
        };
        Observed {
            state: State::Connecting,
            since: Instant::now(),
            device: Some(DeviceStatus { name: "warren0".to_owned(), mtu: 1380, offload: true }),
            host_changes: Vec::new(),
            reload_error: None,
            tuning,
            snapshot: Snapshot::of_all(vec![Snapshot {
                connections: vec![connection],
                ..Snapshot::default()
            }]),
            meter,
            sandbox: Sandbox::default(),
        }
    }

    fn collect_fields(value: &serde_json::Value, fields: &mut Vec<String>) {
        match value {
            serde_json::Value::Object(object) => {
                for (field, value) in object {
                    fields.push(field.clone());
                    collect_fields(value, fields);
                }
            }
            serde_json::Value::Array(values) => values.iter().for_each(|value| collect_fields(value, fields)),
            serde_json::Value::Null
            | serde_json::Value::Bool(_)
            | serde_json::Value::Number(_)
            | serde_json::Value::String(_) => {}
        }
    }
}
