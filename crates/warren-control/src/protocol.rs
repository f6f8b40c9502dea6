//! Requests and answers.

use serde::{Deserialize, Serialize};
use warren_host::exec_groups::Side;

use warren_session::clients::Invitation;

use super::change::Change;
use super::clients::{ClientChange, NewClient};
use super::page::PageQuery;
use super::serializable_key::SerializableKey;

/// A request to a daemon.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "request")]
#[allow(missing_docs, reason = "each variant's comment covers its fields")]
pub enum Request {
    /// The daemon's state and all counters.
    Status,
    /// Undo all changes to the host and end.
    Stop,
    /// Change a setting until the daemon ends. The answer is the previous value.
    Set { change: Change },
    /// Read the configuration again. The answer is [`super::Reloaded`]. An older daemon answers null.
    Reload,
    /// Client: prepare this host for programs inside or outside of the tunnel, before `warren exec` starts such a program. The
    /// answer is the resolvers for these programs.
    Exec { side: Side },
    /// Client: read the profile again, and ask the exits again that have refused.
    Retry,
    /// Client: the resolvers of this host's network, without those of the tunnel.
    NetworkResolvers,
    /// Exit: the public keys that the exit serves, by which clients identify the exit.
    PublicKeys,
    /// Exit: use these keys from now on, the newest first. With `end_sessions`, end all sessions. The answer is the number of
    /// sessions that have ended. The keys are in the request, because a service may not be able to read its key file again.
    SetKeys { keys: Vec<SerializableKey>, end_sessions: bool },
    /// Exit: tell clients to move to another exit. End when they have moved, or after this time.
    Drain { milliseconds: u64 },
    /// Exit: enrol a client.
    ClientAdd { client: NewClient },
    /// Exit: enrol all of these clients, or none.
    ClientAddAll { clients: Vec<NewClient> },
    /// Exit: a page of the enrolled clients, sorted by name.
    ClientList { page: PageQuery },
    /// Exit: one client.
    ClientShow { name: String },
    /// Exit: add an invitation, whose token enrols a key.
    ClientInvite { invitation: Invitation },
    /// Exit: a page of the unused invitations, sorted by name.
    InvitationList { page: PageQuery },
    /// Exit: whether an unused invitation has this name.
    IsInvited { name: String },
    /// Exit: a page of the keys of removed clients, sorted by key.
    RemovedList { page: PageQuery },
    /// Exit: import the clients of `clients.toml`. With `dry_run`, only return what an import would change.
    ClientImport { dry_run: bool },
    /// Exit: remove a client and end its session, or withdraw the invitation of that name.
    ClientRemove { name: String },
    /// Exit: change a client.
    ClientChange { name: String, change: ClientChange },
    /// Make a part of the daemon panic, to test how the other parts react.
    #[cfg(debug_assertions)]
    BreakDown { part: Part },
}

/// A message of the command line: a request, and the user who has logged in. A daemon of an earlier version ignores the login.
#[derive(Serialize)]
pub(crate) struct Asking<'a> {
    #[serde(flatten)]
    pub(crate) request: &'a Request,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) login: Option<String>,
}

/// [`Asking`] without the request. It is parsed separately, because parsing both together would leave another copy of the
/// request, which may contain a private key, in memory.
#[derive(Default, Deserialize)]
pub(crate) struct AskedBy {
    #[serde(default)]
    pub(crate) login: Option<String>,
}

/// Parts of a daemon that a test can make panic. Release builds do not have this.
#[cfg(debug_assertions)]
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// The main task, which does all work other than carrying packets.
    Daemon,
    /// The first thread that carries packets.
    Worker,
    /// A task other than the main one.
    Task,
    /// A thread for blocking work.
    Aside,
}

/// An answer: JSON whose shape depends on the request, or a refusal.
pub(crate) type Response = Result<Answer, RequestRefused>;

/// A daemon's answer as JSON text. Answers are written without building a tree of JSON values first, because the status of a
/// thousand clients has 4,000 connections with forty figures each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer(String);

impl Answer {
    /// Writes a value as an answer.
    ///
    /// # Errors
    /// If the value cannot be expressed in JSON.
    pub fn of(value: impl Serialize) -> Result<Self, RequestRefused> {
        serde_json::to_string(&value).map(Self).map_err(RequestRefused::new)
    }

    /// The text before the JSON in a line, as serde writes a `Result`.
    const BEFORE: &str = "{\"Ok\":";

    /// Makes the line for the control socket.
    pub(crate) fn into_line(self) -> Vec<u8> {
        [Self::BEFORE, &self.0, "}\n"].concat().into_bytes()
    }

    /// Returns the JSON of the answer in a line of valid JSON. `None` if the line is a refusal.
    pub(crate) fn text_in(line: &str) -> Option<&str> {
        line.trim_end().strip_prefix(Self::BEFORE)?.strip_suffix('}')
    }
}

impl From<serde_json::Value> for Answer {
    fn from(value: serde_json::Value) -> Self {
        Self(value.to_string())
    }
}

/// Why a daemon refused a request.
#[derive(Debug, Clone, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct RequestRefused {
    /// A sentence for the user.
    pub message: String,
}

impl RequestRefused {
    /// Makes a refusal with this message.
    pub fn new(error: impl std::fmt::Display) -> Self {
        Self { message: error.to_string() }
    }
}
