//! The audit log: what operators do to the exit and its clients, who does it, and how. It is kept in a file beside the clients'
//! store, and the exit also logs each entry.

mod change;
mod file;
mod running;

use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use warren_control::{Users, login, timestamp};

pub use change::Change;
pub use file::{AuditFile, Found, path, read};
pub(crate) use running::Audit;

/// How a change was requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// A command on this host.
    Command,
    /// The page for operators.
    Page,
    /// A client that used an invitation.
    Invitation,
}

impl Way {
    /// The name that people read in the log.
    pub fn name(self) -> &'static str {
        match self {
            Self::Command => "command",
            Self::Page => "page",
            Self::Invitation => "invitation",
        }
    }
}

/// Who asked for a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Who {
    /// How the change was requested.
    pub by: Way,
    /// The user on this host, by name or number. `None` if the kernel cannot tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The user who logged in, if that is a different user. The command reports this user, and the kernel does not confirm it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub login: Option<String>,
    /// The address from which the page was used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

impl Who {
    /// An unknown person who requested a change in this way.
    pub fn by(way: Way) -> Self {
        Self { by: way, user: None, login: None, from: None }
    }

    /// The user who runs this command.
    pub fn this_command() -> Self {
        let user = Users::read().name(rustix::process::getuid().as_raw());
        Self { user: Some(user), login: login(), ..Self::by(Way::Command) }
    }

    /// The user, followed by the login if that is a different user.
    pub fn person(&self) -> String {
        let user = self.user.as_deref().unwrap_or("-");
        match &self.login {
            Some(login) => format!("{user} (login {login})"),
            None => user.to_owned(),
        }
    }
}

/// A line of the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// When the change was made, in the format of RFC 3339.
    pub time: String,
    /// Who made the change.
    #[serde(flatten)]
    pub who: Who,
    /// The change.
    #[serde(flatten)]
    pub change: Change,
}

impl Entry {
    /// An entry with the current time.
    pub fn now(who: Who, change: Change) -> Self {
        Self { time: timestamp(SystemTime::now()), who, change }
    }
}
