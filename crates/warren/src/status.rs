//! What `warren status` shows: one shape for the daemons that fill it and the command that prints it.

mod client;
mod connection;
mod counters;
mod exit;
mod occupancy;
mod process;
mod transport;

use std::collections::BTreeMap;
use std::time::Instant;

use serde::{Deserialize, Serialize};

pub(crate) use client::{ClientSessionStatus, ClientStatus, ExitPeer};
pub(crate) use connection::ConnectionStatus;
pub(crate) use exit::{ClientCounts, ExitStatus, SessionStatus, turned_away};
pub(crate) use transport::{DeviceStatus, TransportStatus};

use self::counters::{by_name, totals, transport_drops};
use self::occupancy::Occupancy;
use self::process::ProcessStatus;
use crate::tuning::Tuning;
use crate::worker::Snapshot;

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
    /// The host is not as it should be and cannot be made so.
    Error,
    Stopping,
}

impl State {
    /// The word a person reads.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Up => "up",
            Self::Reconnecting => "reconnecting",
            Self::Error => "error",
            Self::Stopping => "stopping",
        }
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
            connections: snapshot.connections.iter().map(ConnectionStatus::of).collect(),
            totals: totals(snapshot),
            drops_to_carrier,
            drops_to_tun,
            transport_drops,
            drops,
            occupancy: Occupancy::of(snapshot),
            process: ProcessStatus::read(),
        }
    }
}

#[cfg(test)]
mod tests {
    use warren_packet::reason::DropReason;

    use super::*;

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
        let client = ClientStatus {
            error: None,
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
