//! What a client says of itself.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ClientStatus {
    pub(crate) profile: String,
    pub(crate) exit: ExitPeer,
    pub(crate) session: Option<ClientSessionStatus>,
    /// What the exits have said, in the state `refused`.
    #[serde(default)]
    pub(crate) refused: Option<RefusedStatus>,
    /// Why the state is `error`, and what to do.
    pub(crate) error: Option<String>,
    /// What is not as it should be although traffic flows, and what to do.
    #[serde(default)]
    pub(crate) warnings: Vec<String>,
    pub(crate) last_error: Option<String>,
    /// Whether nothing leaves the host outside the tunnel.
    pub(crate) kill_switch: bool,
    /// Times that every connection was lost since the start.
    pub(crate) reconnects: u64,
}

/// A refusal by an exit that has proven its key.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct RefusedStatus {
    /// The Goodbye's name, such as `disabled`.
    pub(crate) reason: String,
    /// What happened and what to do.
    pub(crate) message: String,
    /// When the exits are asked again; none if that takes `warren up`.
    pub(crate) asked_again_in_seconds: Option<f64>,
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
    /// Networks behind this host that the exit routes to it.
    #[serde(default)]
    pub(crate) prefixes: Vec<String>,
}
