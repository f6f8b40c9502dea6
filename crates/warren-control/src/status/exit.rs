//! An exit's part of the status.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use warren_quic::strangers::{Strangers, Turned};

/// The keys that only an exit's status has.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ExitStatus {
    /// The addresses that it listens on.
    pub listen: Vec<SocketAddr>,
    /// How it serves WireGuard clients, if it does.
    #[serde(default)]
    pub wireguard: Option<WireGuardStatus>,
    /// The exit's key.
    pub public_key: String,
    /// The old key, which is served too until it is retired.
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
}

/// What WireGuard clients reach.
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
    /// Whether the client can go to another exit. None if its version does not say.
    #[serde(default)]
    pub has_other_exit: Option<bool>,
}
