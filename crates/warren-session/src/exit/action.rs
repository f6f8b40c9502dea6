//! What the exit's state machine asks its driver to do.

use ipnet::IpNet;

use super::SessionId;
use crate::PublicKey;
use crate::goodbye::Goodbye;
use crate::pool::Lease;

/// One thing to do, in the order given.
///
/// A session is opened before a connection is attached to it, and a connection is attached before the message is sent that
/// lets the client use it. Each attached connection is detached once, before its session ends or another takes its index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExitAction {
    /// Send bytes on the connection's control stream.
    Send {
        /// The connection.
        connection: u64,
        /// An encoded message.
        bytes: Vec<u8>,
    },
    /// Close the connection, after what was sent before. Nothing more is heard of it.
    Close {
        /// The connection.
        connection: u64,
        /// Its code is the QUIC application close code, its sentence the reason phrase.
        reason: Goodbye,
    },
    /// A client has enrolled itself with an invitation. Persist follows.
    Enrolled {
        /// The name that the invitation gave it.
        name: String,
    },
    /// A session is open: its addresses and prefixes lead to it from now on.
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
    },
    /// A connection carries the session's traffic from now on.
    Attach {
        /// The session.
        session: SessionId,
        /// The connection.
        connection: u64,
        /// Its number in the session.
        index: u32,
    },
    /// A connection no longer carries the session's traffic.
    Detach {
        /// The session.
        session: SessionId,
        /// The connection.
        connection: u64,
        /// Its number in the session.
        index: u32,
    },
    /// A session is over: nothing leads to it any more.
    End {
        /// The session.
        session: SessionId,
        /// Why.
        reason: EndReason,
    },
    /// The registry has changed: write it. A lease is written before the client hears of it if this is done in order.
    Persist,
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EndReason {
    /// It had no connection for [`super::SESSION_TIMEOUT`], or heard nothing on its last one for the idle timeout.
    TimedOut,
    /// Another host opened a newer session with the same key.
    Replaced,
    /// The same client process opened a new session.
    Superseded,
    /// The client was removed.
    Revoked,
    /// The client was disabled.
    Disabled,
    /// The operator changed the client's addresses or prefixes; it opens a new session by itself.
    Changed,
    /// The operator retired one of the exit's keys and ended every session; whoever pins the other comes back by itself.
    KeyRetired,
    /// The client said goodbye.
    ClientStopped,
    /// The exit leaves, and says this.
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

    /// The reason's name in metrics, in snake case; it never changes.
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

    /// What the connections of the session are told.
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

/// Few words for logs.
impl std::fmt::Display for EndReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::TimedOut => "its client is away",
            Self::Replaced => "replaced by a newer session of the same key",
            Self::Superseded => "the client began anew",
            Self::Revoked => "the client was removed",
            Self::Disabled => "the client was disabled",
            Self::Changed => "the client was changed",
            Self::KeyRetired => "the exit's old key was retired",
            Self::ClientStopped => "the client stopped",
            Self::Shutdown(_) => "the exit stops",
        })
    }
}
