//! What an exit says of itself.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

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
