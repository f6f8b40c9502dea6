//! How an exit of a fleet differs, because other exits have the same clients. The exit keeps its own copy of the registry, and
//! remembers across a restart which rows the store may lack. The exit applies whole copies of the store. The exit's clients may
//! have sessions at other exits ([`super::elsewhere`]).

use std::collections::BTreeSet;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::{AdminError, Deadline, ExitSessions, StoreRequestId};
use crate::clients::{MAX_CLIENTS, RowChange, RowId};
use crate::goodbye::Goodbye;
use crate::planted::{Bug, is_planted};

/// A row in force that the store may lack. The exit keeps such rows over a restart, so that the store gets them in the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnsentRow {
    row: RowId,
    /// Whether only a date has changed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_date: bool,
    /// Whether this exit has disabled the client. If so, the client stays disabled, no matter what another exit has written
    /// meanwhile.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_shut_out: bool,
}

/// The parts of a whole copy of the store that have arrived so far.
#[derive(Debug, Default)]
pub struct WholeCopy {
    seen: BTreeSet<RowId>,
    /// The rows that differed from the exit's own rows when they arrived.
    differing: Vec<RowChange>,
}

/// Maximum number of rows of a whole copy: the clients, and as many invitations and removed keys as fit into an exit's memory.
const MAX_WHOLE: usize = 8 * MAX_CLIENTS;

/// After this many changes at once, the exit frees unused memory.
const MANY_CHANGES: usize = 1_000;

/// Why rows cannot be part of a whole copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadWhole {
    /// The copy contains a row twice.
    #[error("a whole copy has a row twice")]
    Twice,
    /// The copy has too many rows.
    #[error("a whole copy has more than {MAX_WHOLE} rows")]
    TooLong,
    /// A part deletes a row. A whole copy simply omits rows that do not exist.
    #[error("a whole copy deletes a row")]
    Deletion,
}

impl WholeCopy {
    /// Whether no row has arrived.
    pub fn is_empty(&self) -> bool {
        self.seen.is_empty()
    }

    /// Adds a part. `sessions` is the exit that will apply the copy.
    ///
    /// # Errors
    ///
    /// If the part repeats a row, deletes a row, or makes the copy too long.
    pub fn add(&mut self, sessions: &ExitSessions, rows: Vec<RowChange>) -> Result<(), BadWhole> {
        for row in rows {
            let id = row.id();
            if row == id.deletion() {
                return Err(BadWhole::Deletion);
            }
            if !self.seen.insert(id) {
                return Err(BadWhole::Twice);
            }
            if self.seen.len() > MAX_WHOLE {
                return Err(BadWhole::TooLong);
            }
            if sessions.registry.row(id) != row {
                self.differing.push(row);
            }
        }
        Ok(())
    }
}

impl ExitSessions {
    /// Starts to record which rows change, for [`Self::take_uncopied`].
    pub fn keep_copy(&mut self) {
        self.store.keep_copy();
        self.pool.share();
    }

    /// The rows that have changed since the latest call, as they are now, for the exit's own copy of the registry.
    pub fn take_uncopied(&mut self) -> Vec<RowChange> {
        self.store.take_uncopied().into_iter().map(|row| self.registry.row(row)).collect()
    }

    /// Records rows that could not be copied, so that the next [`Self::take_uncopied`] returns them again.
    pub fn copy_again(&mut self, rows: &[RowChange]) {
        rows.iter().for_each(|row| self.store.note(row.id()));
    }

    /// Every row in force that the store may lack. The exit saves these rows before it saves its copy of the registry.
    pub fn unsent(&self) -> Vec<UnsentRow> {
        let row = |(row, is_owed): (RowId, bool)| {
            let is_shut_out = matches!(row, RowId::Client(key) if self.store.shut_out_by(key).is_some());
            UnsentRow { row, is_date: !is_owed, is_shut_out }
        };
        self.store.lacking().map(row).collect()
    }

    /// Whether the store may lack more than dates.
    pub fn owes(&self) -> bool {
        self.store.lacking().any(|(_, is_owed)| is_owed)
    }

    /// Restores what [`Self::unsent`] returned before a restart. Call it before anything else happens.
    pub fn resume(&mut self, unsent: Vec<UnsentRow>) {
        for UnsentRow { row, is_date, is_shut_out } in unsent {
            // The exit may have ended after it wrote the row's name and before it wrote the row itself. In that case nobody has
            // learned of the change.
            if is_planted(Bug::UnsentForgotten) || !self.is_change_of_this_exit(row) {
                continue;
            }
            if is_date {
                self.store.changed(row);
            } else {
                self.store.owe(row);
            }
            if let RowId::Client(key) = row
                && is_shut_out
                && self.registry.by_key(key).is_some_and(|client| client.disabled)
            {
                // This number stands for a request that is older than every request of this run.
                self.store.shut_out(key, StoreRequestId(0));
            }
        }
    }

    /// Whether a row can be the result of a change that an exit makes without the store.
    fn is_change_of_this_exit(&self, row: RowId) -> bool {
        match (row, self.registry.row(row)) {
            // If this exit removed the client, the registry lists the client's key as removed.
            (RowId::Client(key), RowChange::Client { client: None, .. }) => {
                self.registry.row(RowId::Removed(key)) != RowId::Removed(key).deletion()
            }
            // Only an operator can allow a removed key again, and an operator's change goes to the store as a proposal. So the
            // exit alone can only add a removal.
            (_, RowChange::Removed { removed, .. }) => removed.is_some(),
            // A new invitation goes to the store as a proposal. So the exit alone can only mark an invitation as used.
            (_, RowChange::Invitation { invitation: Some(invitation), .. }) => invitation.used_by.is_some(),
            (_, RowChange::Client { .. } | RowChange::Invitation { .. }) => true,
        }
    }

    /// Applies a whole copy of the store, except where this exit has a later change that the store lacks. Returns an error for
    /// each client that does not fit this exit and is therefore left out.
    pub fn take_whole(&mut self, now: Instant, whole: WholeCopy) -> Vec<AdminError> {
        let WholeCopy { seen, differing: mut changes } = whole;
        if !is_planted(Bug::GoneRowsKept) {
            // A client may have taken its new key here, and the store does not know that yet. If another exit has removed the
            // client, the copy contains the removed key.
            let is_new = |id: &RowId| matches!(id, RowId::Client(_)) && self.store.owes(*id);
            let here = self.registry.rows().map(|row| row.id());
            changes.extend(here.filter(|id| !seen.contains(id) && !is_new(id)).map(RowId::deletion));
        }
        let are_many = changes.len() >= MANY_CHANGES;
        let errors = self.apply(now, changes);
        if are_many {
            self.registry.compact();
            self.pool.compact();
        }
        errors
    }

    /// Sends the store all rows that it lacks, because it answers again.
    pub fn store_answers(&mut self) {
        if let Some(at) = self.store.again_at.take() {
            self.deadlines.remove(at, Deadline::Again);
        }
        self.store.join_all();
        self.save();
    }

    /// Sets whether this host's clock is so wrong that no invitation may be redeemed here.
    pub fn set_clock_wrong(&mut self, is_wrong: bool) {
        self.fleet.is_clock_wrong = is_wrong;
    }

    /// Accepts clients again after [`Self::drain`], or after [`Self::shutdown`] with [`Goodbye::Draining`].
    pub fn serve_again(&mut self) {
        if self.leaving == Some(Goodbye::Draining) {
            self.leaving = None;
        }
    }
}
