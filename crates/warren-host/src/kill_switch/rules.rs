//! The rules of a kill switch: the traffic that it lets out.

use std::net::SocketAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::GuestNetwork;

/// The traffic that a kill switch lets out in addition to the traffic of Warren's tunnels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KillSwitchRules {
    /// The networks that must not leave outside the tunnel. A network with prefix length 0 contains all of its IP version.
    pub include: Vec<IpNet>,
    /// Networks that packets may leave to outside the tunnel although `include` contains them.
    pub exclude: Vec<IpNet>,
    /// This host's private networks, if they should be reachable. DNS queries to them are blocked, because they would reveal
    /// every name.
    pub lan: Vec<IpNet>,
    /// Networks of containers and virtual machines on this host. Packets to them do not leave this host. Ports of guests that
    /// this host publishes by DNAT can be reached from other hosts only if they are in `allow_inbound`.
    pub guests: Vec<GuestNetwork>,
    /// Networks behind this host that hosts may reach through the tunnel.
    pub prefixes: Vec<IpNet>,
    /// Ports of this host that may answer hosts outside the tunnel.
    pub allow_inbound: Vec<InboundPort>,
    /// The networks that this host is on, to whose DHCP servers it may send.
    pub on_link: Vec<IpNet>,
    /// Permitted destinations of UDP packets with [`crate::CARRIER_MARK`]: the exits.
    pub carriers: Vec<SocketAddr>,
    /// Permitted destinations of UDP packets with `query_mark`: the resolvers that the daemon asks for its exits.
    pub resolvers: Vec<SocketAddr>,
    /// The mark of the daemon's own queries, which no other program on this host knows. `None` if the daemon sends no queries.
    pub query_mark: Option<u32>,
    /// The marks of programs that `warren exec` has put inside or outside the tunnel.
    #[serde(default)]
    pub exec: Option<ExecLetOut>,
    /// Whether a portal ([`crate::portal`]) may let a browser out.
    #[serde(default)]
    pub portal: bool,
}

/// The packets of programs started by `warren exec` that a kill switch lets out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecLetOut {
    /// The mark of programs inside. Their packets are filtered by the device through which they finally leave.
    pub inside: u32,
    /// The mark of programs outside, if the profile allows them.
    pub outside: Option<u32>,
}

/// A port of this host that stays reachable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct InboundPort {
    /// TCP or UDP.
    pub protocol: InboundProtocol,
    /// The port.
    pub port: u16,
}

/// The protocol of an [`InboundPort`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InboundProtocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}
