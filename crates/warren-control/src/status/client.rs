//! A client's part of the status.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use serde::{Deserialize, Serialize};

/// The keys that only a client's status has.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ClientStatus {
    /// The profile's name.
    pub profile: String,
    /// The exit of the session. Without a session, the exit that is tried first.
    pub exit: ExitPeer,
    /// The session, while there is one.
    pub session: Option<ClientSessionStatus>,
    /// The exits' refusal, in the state `refused`.
    #[serde(default)]
    pub refused: Option<RefusedStatus>,
    /// Why the state is `error`, and what to do.
    pub error: Option<String>,
    /// Problems that exist although traffic flows, and what to do.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// Why the latest attempt failed.
    pub last_error: Option<String>,
    /// The trusted network on which the tunnel rests, in the state `resting`.
    #[serde(default)]
    pub resting: Option<String>,
    /// The fleet that the client follows, if it follows one. The field is not called `fleet`,
    /// because an exit's field has that name, and both are fields of one JSON object.
    #[serde(default)]
    pub roster: Option<FollowedFleetStatus>,
    /// The move to another exit of the fleet, while one is under way.
    #[serde(default)]
    pub moving: Option<MoveStatus>,
    /// Whether the kill switch is closed. If so, nothing leaves outside the tunnel.
    pub kill_switch: bool,
    /// Whether the tunnel is only for programs of `warren exec`. If so, the host's own traffic stays outside.
    #[serde(default)]
    pub host_outside: bool,
    /// How often all connections were lost since the start.
    pub reconnects: u64,
    /// Queries that the stub resolver dropped, because too many were open at once. 0 without a stub.
    #[serde(default)]
    pub dropped_queries: u64,
}

/// A fleet and its newest roster.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FollowedFleetStatus {
    /// The fleet's name.
    pub name: String,
    /// The roster's serial.
    pub serial: u64,
    /// The key that signs the fleet's rosters.
    pub public_key: String,
    /// Number of exits of the roster.
    pub exits: usize,
    /// The name of the exit in use, if it is in the roster.
    pub exit: Option<String>,
}

/// A move to another exit of the fleet.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MoveStatus {
    /// The exit that the client leaves.
    pub from: String,
    /// The exit that the client moves to.
    pub to: String,
    /// Whether new flows use the new exit. Until then, all flows use the old one.
    pub has_switched: bool,
    /// Number of flows that began before the switch and finish at the old exit.
    pub flows_at_old_exit: usize,
    /// TCP connections that began after the switch but use the old exit, because there were too many to distinguish.
    pub flows_without_room: u64,
}

/// A refusal by an exit that has proven its key.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RefusedStatus {
    /// The name of the Goodbye's reason, such as `disabled`.
    pub reason: String,
    /// What happened and what to do.
    pub message: String,
    /// When the client asks the exits again. `None` if only `warren up` makes it ask.
    pub asked_again_in_seconds: Option<f64>,
}

/// An exit as the client knows it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ExitPeer {
    /// Host and port from the profile.
    pub endpoint: String,
    /// The address that answered.
    pub address: Option<SocketAddr>,
    /// The key that the exit has proven or, before the handshake, must prove.
    pub public_key: String,
    /// The exit's next key, which it has announced in a session, but not yet proven in a handshake.
    #[serde(default)]
    pub next_public_key: Option<String>,
}

/// A client's session.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ClientSessionStatus {
    /// The session's number at the exit.
    pub id: u64,
    /// The client's inner IPv4 address.
    pub ipv4: Option<String>,
    /// The client's inner IPv6 address.
    pub ipv6: Option<String>,
    /// The exit's inner IPv4 address.
    #[serde(default)]
    pub gateway_ipv4: Option<Ipv4Addr>,
    /// The exit's inner IPv6 address.
    #[serde(default)]
    pub gateway_ipv6: Option<Ipv6Addr>,
    /// The inner MTU in bytes.
    pub mtu: u16,
    /// How many connections the exit grants.
    pub connections: u32,
    /// Networks behind this host that the exit routes to this host.
    #[serde(default)]
    pub prefixes: Vec<String>,
}
