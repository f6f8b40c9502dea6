//! The configuration of a client's session.

use ipnet::IpNet;

use crate::roster::FleetName;

/// Configuration of a client's session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientConfig {
    /// Number of connections to ask for, clamped to the range from 1 to [`MAX_CONNECTIONS`](crate::MAX_CONNECTIONS).
    pub connections: u32,
    /// This host's name, shown to the exit's operator. Characters that the protocol does not allow become dashes.
    pub name: String,
    /// Bit set of optional features that the client has.
    pub features: u64,
    /// Networks behind this client that the exit is asked to route to it, at most [`MAX_PREFIXES`](crate::MAX_PREFIXES).
    pub prefixes: Vec<IpNet>,
    /// Whether this client can go to another exit. The operator of this exit sees that before draining it.
    pub has_other_exit: bool,
    /// 16 random bytes, which stay the same as long as the client process lives. From them, an exit can tell whether a client has
    /// moved or another machine uses the same key. If unset, the session draws a nonce of its own.
    pub nonce: Option<[u8; 16]>,
    /// The number of this session. It is higher than the numbers of all earlier sessions of this client process. With this
    /// number, the exits of a fleet agree on which of two sessions counts.
    pub claim: u64,
    /// Whether the client can open a session at another exit while this session continues. If so, a draining exit's message does
    /// not end the session. Instead, the caller gets [`ClientAction::AskedToLeave`](super::ClientAction::AskedToLeave).
    pub moves_without_gap: bool,
    /// The fleet that the client follows, and the serial of the newest roster that it has.
    pub fleet: Option<(FleetName, u64)>,
}
