//! What may be asked and what is answered.

use serde::{Deserialize, Serialize};

use warren_session::clients::Invitation;

use super::change::Change;
use super::clients::{ClientChange, NewClient};
use super::secret::Secret;

/// A question to a daemon.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "request")]
#[allow(missing_docs, reason = "each variant's comment covers its fields")]
pub enum Request {
    /// The daemon's state and every counter.
    Status,
    /// End: undo everything and exit.
    Stop,
    /// Change a setting until the daemon ends; the answer is the value that was.
    Set { change: Change },
    /// Read the configuration again.
    Reload,
    /// Client: read the profile again, and ask the exits again that have refused.
    Retry,
    /// Exit: the public keys that it serves, by which a command knows it.
    PublicKeys,
    /// Exit: have these keys from now on, the newest first, and end every session or none; the answer is how many ended. A
    /// service may not be able to read its key's file again.
    SetKeys { keys: Vec<Secret>, end_sessions: bool },
    /// Exit: tell clients to move to another exit, and end once they have, or after this many milliseconds.
    Drain { milliseconds: u64 },
    /// Exit: enrol a client.
    ClientAdd { client: NewClient },
    /// Exit: enrol all of these clients, or none.
    ClientAddAll { clients: Vec<NewClient> },
    /// Exit: every enrolled client.
    ClientList,
    /// Exit: let whoever shows an invitation's token enrol a key.
    ClientInvite { invitation: Invitation },
    /// Exit: the invitations that nobody has used yet.
    InvitationList,
    /// Exit: the keys that were taken from clients.
    RemovedList,
    /// Exit: forget a client and end its session, or withdraw the invitation of that name.
    ClientRemove { name: String },
    /// Exit: change a client.
    ClientChange { name: String, change: ClientChange },
    /// Let a part of the daemon panic, to see what becomes of the rest.
    #[cfg(debug_assertions)]
    BreakDown { part: Part },
}

impl Request {
    /// Whether the exit's clients, or what they may have, could be others afterwards.
    pub fn changes_clients(&self) -> bool {
        match self {
            Self::ClientAdd { .. }
            | Self::ClientAddAll { .. }
            | Self::ClientRemove { .. }
            | Self::ClientChange { .. } => true,
            Self::Status
            | Self::Stop
            | Self::Set { .. }
            | Self::Reload
            | Self::Retry
            | Self::PublicKeys
            | Self::SetKeys { .. }
            | Self::Drain { .. }
            | Self::ClientList
            | Self::ClientInvite { .. }
            | Self::InvitationList
            | Self::RemovedList => false,
            #[cfg(debug_assertions)]
            Self::BreakDown { .. } => false,
        }
    }
}

/// The parts of a daemon that a test lets panic. No release build knows them.
#[cfg(debug_assertions)]
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// The task that does everything but carry packets.
    Daemon,
    /// The first thread that carries packets.
    Worker,
    /// A task of its own beside the daemon's.
    Task,
    /// A thread for what may block.
    Aside,
}

/// An answer: a value whose shape belongs to the question, or a refusal.
pub(crate) type Response = Result<serde_json::Value, Refusal>;

/// Why a question was not answered.
#[derive(Debug, Clone, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// One sentence for the user.
    pub message: String,
}

impl Refusal {
    /// A refusal with this sentence.
    pub fn new(error: impl std::fmt::Display) -> Self {
        Self { message: error.to_string() }
    }
}
