//! The actions that the exit's state machine asks of its driver.

use ipnet::IpNet;

use super::{SessionId, StoreRequest};
use crate::PublicKey;
use crate::clients::WireGuardClient;
use crate::goodbye::Goodbye;
use crate::pool::Lease;

/// An action for the caller. Carry out all actions in the order given.
///
/// A session is opened before a connection is attached to it. A connection is attached before the client is told that it may use
/// the connection. Each attached connection is detached once, before its session ends or another connection takes its index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExitAction {
    /// Send bytes on the connection's control stream.
    Send {
        /// The connection.
        connection: u64,
        /// An encoded message.
        bytes: Vec<u8>,
    },
    /// Close the connection once everything sent before is delivered. No further action concerns this connection.
    Close {
        /// The connection.
        connection: u64,
        /// The reason. The QUIC application close frame contains the reason's code, and its sentence as the reason phrase.
        reason: Goodbye,
    },
    /// A client has enrolled itself with an invitation, and the enrolment is stored.
    Enrolled {
        /// The name that the invitation gave the client.
        name: String,
    },
    /// A session is open: route its addresses and prefixes to it.
    Open {
        /// The session.
        session: SessionId,
        /// The client's key.
        key: PublicKey,
        /// The client's name in the registry.
        name: String,
        /// The client's inner addresses.
        lease: Lease,
        /// Networks behind the client that were granted.
        prefixes: Vec<IpNet>,
        /// Number of connections that the session may have.
        connections: u32,
        /// Bit set of the features that both sides have.
        features: u64,
    },
    /// A connection carries the session's traffic from now on.
    Attach {
        /// The session.
        session: SessionId,
        /// The connection.
        connection: u64,
        /// The connection's number in the session.
        index: u32,
    },
    /// A connection no longer carries the session's traffic.
    Detach {
        /// The session.
        session: SessionId,
        /// The connection.
        connection: u64,
        /// The connection's number in the session.
        index: u32,
    },
    /// A session is over: stop routing to it.
    End {
        /// The session.
        session: SessionId,
        /// Why the session ended.
        reason: EndReason,
    },
    /// The client keeps this session: tell the fleet that the client is here, as for [`Self::Open`].
    Stays {
        /// The session.
        session: SessionId,
        /// The client's key.
        key: PublicKey,
    },
    /// Admit this key to WireGuard, or refuse it from now on. The sessions of a refused key have already ended.
    SetWireGuard {
        /// The client's key.
        key: PublicKey,
        /// The facts that WireGuard needs about the client. `None` refuses the key.
        client: Option<WireGuardClient>,
    },
    /// Make these changes in the store, after those of earlier requests. Report the result with [`super::ExitSessions::stored`].
    /// A lease is in such a request before the client learns of the lease.
    Store(StoreRequest),
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EndReason {
    /// The session had no connection for [`super::SESSION_TIMEOUT`], or its last connection was silent for the idle timeout.
    TimedOut,
    /// Another host opened a newer session with the same key.
    Replaced,
    /// The same client process opened a new session.
    Superseded,
    /// The client was removed.
    Revoked,
    /// The client was disabled.
    Disabled,
    /// The operator changed the client's addresses or prefixes. The client opens a new session by itself.
    Changed,
    /// The operator retired one of the exit's keys, which ends every session. Clients that pin the other key reconnect by
    /// themselves.
    KeyRetired,
    /// The client said goodbye.
    ClientStopped,
    /// The exit stops or is drained, and gives this reason.
    Shutdown(Goodbye),
}

impl EndReason {
    /// The names of all reasons.
    pub const NAMES: [&'static str; 9] = [
        "timed_out",
        "replaced",
        "superseded",
        "revoked",
        "disabled",
        "changed",
        "key_retired",
        "client_stopped",
        "shutdown",
    ];

    /// The reason's stable name in metrics, in snake case.
    pub const fn name(self) -> &'static str {
        match self {
            Self::TimedOut => "timed_out",
            Self::Replaced => "replaced",
            Self::Superseded => "superseded",
            Self::Revoked => "revoked",
            Self::Disabled => "disabled",
            Self::Changed => "changed",
            Self::KeyRetired => "key_retired",
            Self::ClientStopped => "client_stopped",
            Self::Shutdown(_) => "shutdown",
        }
    }

    /// The reason that the exit sends on the session's connections.
    pub const fn goodbye(self) -> Goodbye {
        match self {
            Self::TimedOut | Self::Changed | Self::KeyRetired => Goodbye::UnknownSession,
            Self::Replaced => Goodbye::Replaced,
            Self::Superseded => Goodbye::Superseded,
            Self::Revoked => Goodbye::Revoked,
            Self::Disabled => Goodbye::Disabled,
            Self::ClientStopped => Goodbye::ClientStopped,
            Self::Shutdown(reason) => reason,
        }
    }
}

/// A short text for logs.
impl std::fmt::Display for EndReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::TimedOut => "the client is away",
            Self::Replaced => "replaced by a newer session of the same key",
            Self::Superseded => "the client opened a new session",
            Self::Revoked => "the client was removed",
            Self::Disabled => "the client was disabled",
            Self::Changed => "the client was changed",
            Self::KeyRetired => "the exit's old key was retired",
            Self::ClientStopped => "the client stopped",
            Self::Shutdown(_) => "the exit stops",
        })
    }
}
