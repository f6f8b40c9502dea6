//! The link's copy of the store, from a full reading, events, or the disk.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde::de::DeserializeOwned;
use warren_fleet_link::{ExitId, FleetMessage, MAX_ROWS, MAX_VALUE};
use warren_session::clients::{RowChange, RowId};
use warren_session::roster::MAX_ROSTER_LENGTH;

use crate::exits::{Heartbeat, Member, Removed};
use crate::keys::{Key, Keys};
use crate::rows::{Before, Rows, Subject, Unseen};
use crate::sessions::Records;

/// The unreadable values that were logged, with their keys and revisions. Each full reading finds the same values again.
static SAID: Mutex<BTreeMap<Vec<u8>, i64>> = Mutex::new(BTreeMap::new());

/// Maximum number of keys in [`SAID`].
const MOST_SAID: usize = 1000;

/// A key of the store with its value, or `None` if it was deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Option<Vec<u8>>,
    /// The revision of the key's latest change.
    pub(crate) modified: i64,
}

impl Pair {
    pub(crate) fn new(key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>, modified: i64) -> Self {
        Self { key: key.into(), value: Some(value.into()), modified }
    }

    /// Parses the value. `None` if it was deleted, is damaged, or is too long to be passed on. The value is not trusted, because
    /// any exit of the fleet can write it.
    pub(crate) fn parse<T: DeserializeOwned>(&self, what: &str) -> Option<T> {
        let value = self.value.as_ref()?;
        if value.len() > MAX_VALUE {
            self.warn(what, &format!("it has {} bytes, but may have at most {MAX_VALUE}", value.len()));
            return None;
        }
        let parsed = serde_json::from_slice(value);
        parsed.inspect_err(|error| self.warn(what, &error.to_string())).ok()
    }

    /// Logs once that this value cannot be read, no matter how often it is read.
    fn warn(&self, what: &str, error: &str) {
        let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
        // Clearing the map bounds the memory. Some lines then appear in the log again.
        if said.len() >= MOST_SAID {
            said.clear();
        }
        if said.insert(self.key.clone(), self.modified) == Some(self.modified) {
            return;
        }
        let key = String::from_utf8_lossy(&self.key).into_owned();
        let advice = match what {
            "exit" => "the exit stays in the fleet, and its link writes the value again",
            _ => "a client's next change replaces it, otherwise delete the key or restore a backup",
        };
        tracing::warn!(
            "the store's {what} at {key} cannot be read and is ignored ({error}); everything else is used; {advice}"
        );
    }

    /// The value as a signed roster. `None` if it was deleted, or is too long for a roster.
    pub(crate) fn roster(&self) -> Option<Vec<u8>> {
        let value = self.value.as_ref()?;
        if value.len() > MAX_ROSTER_LENGTH {
            self.warn(
                "roster",
                &format!("it has {} bytes, but may have at most {MAX_ROSTER_LENGTH}", value.len()),
            );
            return None;
        }
        Some(value.clone())
    }

    /// The content of a key `xr/EXIT`. `None` if it was deleted.
    pub(crate) fn removed(&self) -> Option<Removed> {
        Some(Removed::read(self.value.as_deref()?, self.modified))
    }

    fn row(&self, id: RowId) -> Option<RowChange> {
        if self.value.is_none() {
            return Some(id.deletion());
        }
        let row: RowChange = self.parse("row")?;
        // Any exit of the fleet can write any value, so the row in the value must belong to this key.
        if row.id() != id || !row.is_set() {
            self.warn("row", "it belongs to another key");
            return None;
        }
        Some(row)
    }
}

/// The link's copy of the store.
#[derive(Debug)]
pub(crate) struct Copy {
    /// Shared with a connection until the connection knows whether it must replay removed keys.
    rows: Arc<Rows>,
    unseen: Unseen,
    revision: i64,
    is_filled: bool,
    /// Whether the copy was read from the disk, and the store has not been read since then.
    is_from_disk: bool,
    has_revoked: bool,
    changes: u64,
    /// The revision of the latest change of a row.
    latest_change: i64,
    others: Others,
}

/// The roster, and the values in the store that concern this exit alone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Others {
    /// The revision of the exit's own `wr`.
    written: i64,
    /// The revision of the exit's own `po`.
    position: i64,
    /// Whether an operator drains the exit. `None` until the store has been asked.
    drains: Option<bool>,
    roster: Option<Vec<u8>>,
}

impl Others {
    pub(crate) fn roster(&self) -> Option<Vec<u8>> {
        self.roster.clone()
    }
}

/// A full reading of the store, sorted by kind.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    pub(crate) rows: Rows,
    pub(crate) sessions: Records,
    /// The exits of the fleet, each `None` if its value cannot be read.
    pub(crate) members: BTreeMap<ExitId, Option<Member>>,
    pub(crate) heartbeats: BTreeMap<ExitId, Heartbeat>,
    /// The exits that were removed or have left.
    pub(crate) removed: BTreeMap<ExitId, Removed>,
    pub(crate) others: Others,
    pub(crate) drained: Vec<ExitId>,
}

/// Sorts a full reading of the store by kind. `me` is the exit whose own values are needed.
pub(crate) fn read(keys: &Keys, me: Option<&ExitId>, pairs: &[Pair]) -> Contents {
    let mut contents = Contents::default();
    for pair in pairs {
        match keys.parse(&pair.key) {
            Some(Key::Row(id)) => match pair.row(id) {
                Some(row) => contents.rows.put(row, pair.modified),
                None => contents.rows.cannot_read(id, pair.modified),
            },
            Some(Key::Prefixes) => contents.rows.touch(Subject::Prefixes, pair.modified),
            Some(Key::Forwards) => contents.rows.touch(Subject::Forwards, pair.modified),
            Some(Key::Session(key)) => {
                contents.sessions.insert(key, (pair.modified, pair.parse("session")));
            }
            Some(Key::Heartbeat(exit)) => {
                contents.heartbeats.extend(pair.parse("heartbeat").map(|it| (exit, it)))
            }
            Some(Key::Member(exit)) => drop(contents.members.insert(exit, pair.parse("exit"))),
            Some(Key::RemovedExit(exit)) => contents.removed.extend(pair.removed().map(|it| (exit, it))),
            Some(Key::Written(exit)) if Some(&exit) == me => contents.others.written = pair.modified,
            Some(Key::Position(exit)) if Some(&exit) == me => contents.others.position = pair.modified,
            Some(Key::Drain(exit)) => {
                if Some(&exit) == me {
                    contents.others.drains = Some(true);
                }
                contents.drained.push(exit);
            }
            Some(Key::Roster) => contents.others.roster = pair.roster(),
            Some(Key::Written(_) | Key::Position(_) | Key::Meta) | None => {}
        }
    }
    // If a full reading does not contain the key, there is no drain. `None` would mean that the link does not know.
    contents.others.drains.get_or_insert(false);
    contents
}

/// Splits changed rows into messages of limited length.
pub(crate) fn in_parts(revision: i64, rows: Vec<RowChange>) -> impl Iterator<Item = FleetMessage> {
    let mut rest = rows.into_iter();
    std::iter::from_fn(move || {
        let rows: Vec<_> = rest.by_ref().take(MAX_ROWS).collect();
        (!rows.is_empty()).then_some(FleetMessage::Changes { revision, rows })
    })
}

impl Copy {
    pub(crate) fn new() -> Self {
        Self {
            rows: Arc::default(),
            unseen: Unseen::default(),
            revision: 0,
            is_filled: false,
            is_from_disk: false,
            has_revoked: false,
            changes: 0,
            latest_change: 0,
            others: Others::default(),
        }
    }

    pub(crate) fn rows(&self) -> &Arc<Rows> {
        &self.rows
    }

    pub(crate) fn unseen(&self) -> &Unseen {
        &self.unseen
    }

    /// Counts changes of rows.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    pub(crate) fn latest_change(&self) -> i64 {
        self.latest_change
    }

    pub(crate) fn revision(&self) -> i64 {
        self.revision
    }

    /// Whether the copy has been complete at some revision.
    pub(crate) fn is_filled(&self) -> bool {
        self.is_filled
    }

    pub(crate) fn is_from_disk(&self) -> bool {
        self.is_from_disk
    }

    pub(crate) fn roster(&self) -> Option<&[u8]> {
        self.others.roster.as_deref()
    }

    pub(crate) fn set_roster(&mut self, roster: Option<Vec<u8>>) {
        self.others.roster = roster;
        self.changes += 1;
    }

    /// Replaces the whole copy. Returns the changes, and records them as unseen.
    pub(crate) fn replace(&mut self, revision: i64, mut rows: Rows, others: Others) -> Vec<RowChange> {
        // Without this, a damaged value would look like a deletion, and the exit would end the client's session.
        rows.keep_unreadable(&self.rows);
        let changes = self.rows.changes_to(&rows);
        let mut before: Vec<Before> = changes.iter().map(|change| self.before(change.id())).collect();
        for subject in [Subject::Prefixes, Subject::Forwards] {
            // Prefixes and forwards have no content of their own, so only their revision shows a change.
            if rows.modified(subject) != self.rows.modified(subject) {
                before.push((subject, None));
            }
        }
        self.unseen.note(revision, before);
        self.note_revoked(&changes);
        self.latest_change = rows.latest_change();
        (self.rows, self.revision, self.is_filled) = (Arc::new(rows), revision, true);
        self.is_from_disk = false;
        self.changes += 1;
        self.others = others;
        changes
    }

    fn before(&self, id: RowId) -> Before {
        (Subject::Row(id), Some(self.rows.content(id)))
    }

    /// Applies an event for one row, or for all prefixes or forwards. Returns the previous content and the row's new content.
    pub(crate) fn event(&mut self, key: &Key, pair: &Pair) -> Option<(Before, Option<RowChange>)> {
        if let Key::Row(id) = key {
            let Some(row) = pair.row(*id) else {
                // The earlier content stays in force, because a damaged value must not end a client's session.
                Arc::make_mut(&mut self.rows).cannot_read(*id, pair.modified);
                return None;
            };
            let before = self.before(*id);
            Arc::make_mut(&mut self.rows).put(row.clone(), pair.modified);
            self.changes += 1;
            self.latest_change = pair.modified;
            return Some((before, Some(row)));
        }
        let subject = if *key == Key::Prefixes { Subject::Prefixes } else { Subject::Forwards };
        Arc::make_mut(&mut self.rows).touch(subject, pair.modified);
        Some(((subject, None), None))
    }

    pub(crate) fn advance(&mut self, revision: i64) {
        self.revision = self.revision.max(revision);
    }

    pub(crate) fn note_unseen(&mut self, revision: i64, before: Vec<Before>) {
        self.unseen.note(revision, before);
    }

    pub(crate) fn forget_unseen(&mut self, up_to: i64) {
        self.unseen.forget(up_to);
    }

    /// Records whether rows remove or disable a client.
    pub(crate) fn note_revoked(&mut self, rows: &[RowChange]) {
        self.has_revoked |= rows.iter().any(|row| match row {
            RowChange::Client { client, .. } => client.as_ref().is_none_or(|client| client.disabled),
            RowChange::Removed { removed, .. } => removed.is_some(),
            RowChange::Invitation { .. } => false,
        });
    }

    pub(crate) fn take_revoked(&mut self) -> bool {
        std::mem::take(&mut self.has_revoked)
    }

    /// Returns the whole copy as messages.
    pub(crate) fn whole(&self) -> Vec<FleetMessage> {
        let mut rest = self.rows.iter().map(|(_, row)| row.content.clone()).peekable();
        let mut messages = Vec::new();
        loop {
            let rows: Vec<_> = rest.by_ref().take(MAX_ROWS).collect();
            let is_last = rest.peek().is_none();
            // Even an empty registry makes one message, because the exit waits for the last part.
            messages.push(FleetMessage::Whole { revision: self.revision, rows, is_last });
            if is_last {
                return messages;
            }
        }
    }

    /// The revision of the link's latest transaction.
    pub(crate) fn written(&self) -> i64 {
        self.others.written
    }

    pub(crate) fn wrote(&mut self, modified: i64) {
        self.others.written = modified;
    }

    /// The revision of the exit's latest heartbeat.
    pub(crate) fn position(&self) -> i64 {
        self.others.position
    }

    pub(crate) fn positioned(&mut self, modified: i64) {
        self.others.position = modified;
    }

    pub(crate) fn drains(&self) -> Option<bool> {
        self.others.drains
    }

    pub(crate) fn drain(&mut self, on: bool) {
        self.others.drains = Some(on);
        self.changes += 1;
    }

    /// Records that the copy is from the disk. A drain may have begun since it was written, so the exit must not be told that there
    /// is no drain.
    pub(crate) fn note_from_disk(&mut self) {
        self.is_from_disk = true;
        self.others.drains = self.others.drains.filter(|on| *on);
    }

    /// The rows, the roster and the exit's drain for the disk.
    pub(crate) fn pairs(&self, keys: &Keys, me: &ExitId) -> Vec<Pair> {
        let rows = self.rows.iter().filter_map(|(id, row)| {
            let value = serde_json::to_vec(&row.content).ok()?;
            Some(Pair::new(keys.name(&Key::Row(id)), value, row.modified))
        });
        let roster = self.roster().map(|roster| Pair::new(keys.name(&Key::Roster), roster, 0));
        let drain =
            (self.drains() == Some(true)).then(|| Pair::new(keys.name(&Key::Drain(me.clone())), "", 0));
        rows.chain(roster).chain(drain).collect()
    }
}
