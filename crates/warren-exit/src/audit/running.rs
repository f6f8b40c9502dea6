//! The audit log of a running exit: each change is written to its file and to the exit's log.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::path::Path;

use serde_json::{Value, json};
use warren_control::{Peer, Users};

use super::file::follow;
use super::{AuditFile, Change, Entry, Found, Way, Who, read};
use crate::web::AuditQuery;

/// The number of entries that are kept in memory for the page.
const RECENT: usize = 2_000;

/// The number of entries on a page of the log.
const ROWS: usize = 50;

/// The number of entries that the page shows about one client.
const OF_CLIENT: usize = 10;

/// The audit log, and the part of it that the page shows.
#[derive(Debug)]
pub(crate) struct Audit {
    file: AuditFile,
    /// The newest entries, the oldest first.
    recent: VecDeque<Entry>,
    /// The names of users. They are read before the sandbox is entered, because the sandbox has no access to `/etc/passwd`.
    users: Users,
    /// Whether the latest entry could not be written.
    is_failing: bool,
}

impl Audit {
    /// Opens the audit log beside the clients' store. Call it before the sandbox is entered.
    pub(crate) fn open(directory: &Path) -> Self {
        let found = read(directory).unwrap_or_else(|error| {
            tracing::error!("cannot read the audit log, so the page shows only entries from now on: {error}");
            Found::default()
        });
        let skipped = found.entries.len().saturating_sub(RECENT);
        let recent = found.entries.into_iter().skip(skipped).collect();
        Self { file: AuditFile::of(directory), recent, users: Users::read(), is_failing: false }
    }

    /// The newest entries, the newest first.
    pub(crate) fn newest(&self) -> impl Iterator<Item = &Entry> {
        self.recent.iter().rev()
    }

    /// Returns the newest entries about a client, including those under its earlier names.
    pub(crate) fn of_client(&self, name: &str) -> Vec<&Entry> {
        let mut found = follow(self.newest(), vec![name], None);
        found.truncate(OF_CLIENT);
        found
    }

    /// A page of the entries.
    pub(crate) fn page(&self, query: &AuditQuery) -> Value {
        let part = query.search.trim().to_lowercase();
        let found: Vec<&Entry> = self.newest().filter(|entry| has(entry, &part)).collect();
        let shown: Vec<&Entry> =
            found.iter().skip(query.page.saturating_mul(ROWS)).take(ROWS).copied().collect();
        json!({
            "rows": shown,
            "matching": found.len(),
            "pages": found.len().div_ceil(ROWS).max(1),
            "failing": self.is_failing,
        })
    }

    /// Records a change that a command has asked for.
    pub(crate) fn note_command(&mut self, peer: &Peer, change: Change) {
        let user = Some(self.users.name(peer.user));
        self.note(Who { user, login: peer.login.clone(), ..Who::by(Way::Command) }, change);
    }

    /// Records a change that was made on the page.
    pub(crate) fn note_page(&mut self, user: Option<u32>, from: Option<IpAddr>, change: Change) {
        let user = user.map(|user| self.users.name(user));
        let from = from.map(|address| address.to_string());
        self.note(Who { user, from, ..Who::by(Way::Page) }, change);
    }

    /// Records that a client has used its invitation.
    pub(crate) fn note_joined(&mut self, name: &str) {
        self.note(Who::by(Way::Invitation), Change::joined(name));
    }

    fn note(&mut self, who: Who, change: Change) {
        log(&who, &change);
        let entry = Entry::now(who, change);
        match self.file.add(&entry) {
            Ok(()) if std::mem::take(&mut self.is_failing) => {
                tracing::info!("the audit log is written again")
            }
            Ok(()) => {}
            Err(error) => {
                // A lasting failure is logged only once.
                if !std::mem::replace(&mut self.is_failing, true) {
                    tracing::error!(
                        "cannot write the audit log: {error}; changes are in this log alone until that works"
                    );
                }
            }
        }
        if self.recent.len() >= RECENT {
            self.recent.pop_front();
        }
        // The page shows the entry even if it could not be written to the file.
        self.recent.push_back(entry);
    }
}

fn has(entry: &Entry, part: &str) -> bool {
    let Entry { who: Who { by, user, login, from }, change: Change { client, what }, .. } = entry;
    let texts = [user, login, from, client].into_iter().flatten().map(String::as_str);
    texts.chain([by.name(), what.as_str()]).any(|text| text.to_lowercase().contains(part))
}

fn log(who: &Who, change: &Change) {
    let Who { by, user, login, from } = who;
    tracing::info!(client = change.client, by = by.name(), user, login, from, "{}", change.what);
}

#[cfg(test)]
mod tests {
    use warren_control::ClientChange;

    use super::*;

    fn names(audit: &Audit) -> Vec<String> {
        audit.newest().map(|entry| entry.change.client.clone().unwrap_or_default()).collect()
    }

    #[test]
    fn entries_survive_a_restart_and_a_file_that_cannot_be_written() {
        let directory = tempfile::tempdir().unwrap();
        let mut audit = Audit::open(directory.path());
        let peer = Peer { user: 0, login: Some("ann".to_owned()) };
        audit.note_command(&peer, Change::removed("one"));
        audit.note_joined("two");
        assert_eq!(names(&audit), ["two", "one"]);

        let mut audit = Audit::open(directory.path());
        assert_eq!(names(&audit), ["two", "one"]);
        let who = &audit.newest().last().unwrap().who;
        assert_eq!(who.person(), "root (login ann)");

        std::fs::remove_file(crate::audit::path(directory.path())).unwrap();
        std::fs::create_dir(crate::audit::path(directory.path())).unwrap();
        audit.note_joined("three");
        assert_eq!(names(&audit), ["three", "two", "one"], "the page shows it all the same");
        assert!(audit.is_failing);
    }

    #[test]
    fn a_client_has_the_entries_of_its_earlier_names_and_no_others() {
        let directory = tempfile::tempdir().unwrap();
        let mut audit = Audit::open(directory.path());
        let rename =
            |from: &str, to: &str| Change::of_client(from, &ClientChange::Rename { to: to.to_owned() });
        let peer = Peer { user: 0, login: None };
        for change in [
            Change::removed("desk"),
            Change::joined("laptop"),
            rename("laptop", "desk"),
            Change::joined("laptop"),
            Change::of_client("desk", &ClientChange::Disable),
        ] {
            audit.note_command(&peer, change);
        }
        let of = |name: &str| {
            audit.of_client(name).iter().map(|entry| entry.change.what.as_str()).collect::<Vec<_>>()
        };
        assert_eq!(of("desk"), ["disabled", "renamed to desk", "enrolled by invitation"]);
        assert_eq!(of("laptop"), ["enrolled by invitation"]);
    }

    #[test]
    fn memory_is_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let mut audit = Audit::open(&directory.path().join("nowhere"));
        for number in 0..RECENT + 5 {
            audit.note_joined(&number.to_string());
        }
        assert_eq!((audit.recent.len(), names(&audit)[0].as_str()), (RECENT, "2004"));
    }
}
