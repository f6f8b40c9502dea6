//! An exit's part of the status.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use warren_quic::strangers::{Strangers, Turned};

/// The keys that only an exit's status has.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ExitStatus {
    /// The addresses on which the exit listens.
    pub listen: Vec<SocketAddr>,
    /// How the exit serves WireGuard clients. Absent if it does not.
    #[serde(default)]
    pub wireguard: Option<WireGuardStatus>,
    /// The exit's key.
    pub public_key: String,
    /// The old key, which the exit also serves until it is retired.
    pub old_public_key: Option<String>,
    /// How many clients there are.
    pub clients: ClientCounts,
    /// Every session.
    pub sessions: Vec<SessionStatus>,
    /// Whether a peer that does not know the exit's key gets no answer at all.
    pub silent: bool,
    /// Connection attempts that were turned away, by reason. Reasons at zero are present too.
    pub strangers: BTreeMap<String, u64>,
    /// Handshakes under way.
    #[serde(default)]
    pub handshakes_in_flight: usize,
    /// Handshakes that took too long, since the start.
    #[serde(default)]
    pub handshakes_timed_out: u64,
    /// Whether changes of clients cannot be written to the disk, so that they would be lost at a restart.
    #[serde(default)]
    pub is_disk_failing: bool,
    /// The state of the exit's fleet. Absent if the exit belongs to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fleet: Option<FleetStatus>,
}

/// The state of an exit's fleet, as the exit sees it. There are 20 fields because each is a documented key of `warren status exit
/// --json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FleetStatus {
    /// The exit's name in the fleet.
    pub name: String,
    /// `reachable`, `reading` (the exit is reading its clients), `away`, `refused` (the store must not be used), or `no_link`
    /// (`warren-fleet` is not connected).
    pub store: String,
    /// Why the store is not reachable.
    pub reason: Option<String>,
    /// Time since the store's last answer.
    pub silent_seconds: f64,
    /// `max_staleness`. Null for `never`.
    pub max_staleness_seconds: Option<u64>,
    /// Time until clients are sent away, if the store stays silent. Null for `never`.
    pub stale_in_seconds: Option<f64>,
    /// Whether clients are sent away because the store has not answered for too long.
    pub is_stale: bool,
    /// Whether the store has said that this exit was removed from the fleet. Clients are then sent away.
    #[serde(default)]
    pub is_removed: bool,
    /// Whether clients are sent away for any reason.
    pub is_draining: bool,
    /// Whether an operator has drained the exit, from this exit or another one.
    pub is_drained_by_operator: bool,
    /// The store's revision up to which the exit has applied all changes.
    pub revision: i64,
    /// The revision of the latest change of a client, invitation or removed key that this exit knows of.
    pub changed: i64,
    /// The exit's clock minus the median of all exits' clocks.
    pub clock_offset_ms: i64,
    /// Whether the offset is so large that no invitation is redeemed at this exit.
    pub is_clock_wrong: bool,
    /// Requests to the store since the start, by outcome.
    pub requests: BTreeMap<String, u64>,
    /// Requests without an answer.
    pub requests_open: usize,
    /// How many times a client was not allowed to keep its session after a failed move, because it had kept sessions too often
    /// shortly before.
    #[serde(default)]
    pub stays_refused: u64,
    /// The length of the signed list of exits in the store. 0 if there is none.
    pub roster_bytes: usize,
    /// Every exit of the fleet, by name.
    pub exits: Vec<FleetExitStatus>,
    /// How many seconds all answers took since the start, and the number of answers, by operation: `enrol`, `invite`, `change` or
    /// `remove`.
    #[serde(default)]
    pub operations: BTreeMap<String, (f64, u64)>,
    /// Days until the certificates around the store expire, by name: `ca`, `client`, and `server HOST:PORT`. Below 0 once a
    /// certificate has expired.
    #[serde(default)]
    pub certificate_days: BTreeMap<String, f64>,
}

/// An exit of the fleet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FleetExitStatus {
    /// The exit's name.
    pub name: String,
    /// `serving`, `draining`, or `gone` (the store has not heard from the exit for 10 s).
    pub state: String,
    /// Sessions of clients.
    pub sessions: u32,
    /// Maximum number of sessions of the exit.
    pub max_sessions: u32,
    /// Traffic in both directions together.
    pub bits_per_second: u64,
    /// CPU cores that the exit's process uses.
    pub cores: f32,
    /// The revision up to which the exit has applied all changes.
    pub revision: i64,
    /// How long a change of a client, invitation or removed key has been waiting for the exit to apply it. 0 if the exit has
    /// applied all changes, or is gone.
    pub behind_seconds: f64,
    /// The exit's clock minus the clock of the exit that reports this status.
    pub clock_offset_ms: i64,
    /// Where clients reach the exit.
    pub endpoints: Vec<String>,
}

impl FleetExitStatus {
    /// Whether the exit has been behind for so long that the delay of its heartbeats cannot be the reason.
    pub fn is_behind(&self) -> bool {
        self.behind_seconds >= 5.0
    }
}

/// Where WireGuard clients reach the exit.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct WireGuardStatus {
    /// The addresses that the exit listens on.
    pub listen: Vec<SocketAddr>,
    /// The exit's WireGuard key.
    pub public_key: String,
}

/// The number of connection attempts that were turned away, by reason.
pub fn turned_away(strangers: &Strangers) -> BTreeMap<String, u64> {
    Turned::ALL.into_iter().map(|why| (why.name().to_owned(), strangers.turned_away(why))).collect()
}

/// How many clients there are.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ClientCounts {
    /// Clients in the registry.
    pub enrolled: usize,
    /// Clients with a session.
    pub connected: usize,
}

/// A client's session at the exit.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SessionStatus {
    /// The session's number.
    pub id: u64,
    /// The client's name.
    pub name: String,
    /// The client's key.
    pub public_key: String,
    /// The client's inner IPv4 address.
    pub ipv4: Option<String>,
    /// The client's inner IPv6 address.
    pub ipv6: Option<String>,
    /// The session's age.
    pub since_seconds: f64,
    /// The indices of its attached connections.
    pub connections: Vec<u32>,
    /// Whether the client knows another exit. `None` if the client's version does not report this.
    #[serde(default)]
    pub has_other_exit: Option<bool>,
}
