//! What an exit says of itself.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use warren_quic::strangers::{Strangers, Turned};

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ExitStatus {
    pub(crate) listen: Vec<SocketAddr>,
    pub(crate) public_key: String,
    /// The one that is served too until it is retired.
    pub(crate) old_public_key: Option<String>,
    pub(crate) clients: ClientCounts,
    pub(crate) sessions: Vec<SessionStatus>,
    /// Whether who does not know the exit's key gets no answer at all.
    pub(crate) silent: bool,
    /// Attempts to connect that were turned away, by reason, those at zero too.
    pub(crate) strangers: BTreeMap<String, u64>,
    /// Handshakes under way, and those that took too long since the start.
    #[serde(default)]
    pub(crate) handshakes_in_flight: usize,
    #[serde(default)]
    pub(crate) handshakes_timed_out: u64,
}

/// Counts by reason.
pub(crate) fn turned_away(strangers: &Strangers) -> BTreeMap<String, u64> {
    Turned::ALL.into_iter().map(|why| (why.name().to_owned(), strangers.turned_away(why))).collect()
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
