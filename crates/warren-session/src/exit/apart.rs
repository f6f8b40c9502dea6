//! Rows that the store keeps refusing. One such row must not hold up all other requests of the exit.
//!
//! As a rule, every request contains all owed rows: rows in force that the store lacks. If such batches conflict several times in a
//! row, the rows are sent in groups that do not depend on each other. A group that conflicts by itself is left out of other
//! requests, and tried again now and then.

use std::collections::{BTreeSet, VecDeque};

use super::claims::{Claim, claims_of};
use crate::clients::{ClientRegistry, RowChange, RowId};

/// After this many batches in a row that conflict, the rows are sent in separate groups. Most conflicts end once the other exit's
/// change has arrived.
const MANY_CONFLICTS: u32 = 3;

/// Which rows are sent apart from all others.
#[derive(Debug, Default)]
pub(super) struct Apart {
    /// How many batches in a row have conflicted.
    conflicts: u32,
    /// The groups to send, each in a request of its own.
    groups: VecDeque<BTreeSet<RowId>>,
    /// The rows that the store has refused even in a request without other rows.
    refused: BTreeSet<RowId>,
}

impl Apart {
    /// Whether other requests must not contain the row.
    pub(super) fn has(&self, row: &RowId) -> bool {
        self.refused.contains(row)
    }

    /// Takes the next group to send, if all of its rows still have to be sent.
    pub(super) fn take_group(&mut self, is_due: impl Fn(&RowId) -> bool) -> Option<BTreeSet<RowId>> {
        while let Some(group) = self.groups.pop_front() {
            if group.iter().all(&is_due) {
                return Some(group);
            }
        }
        None
    }

    pub(super) fn has_groups(&self) -> bool {
        !self.groups.is_empty()
    }

    /// Handles a batch that conflicts.
    pub(super) fn conflicted(&mut self, rows: &[RowId], registry: &ClientRegistry) {
        self.conflicts += 1;
        if self.conflicts < MANY_CONFLICTS {
            return;
        }
        let groups = groups(rows, registry);
        if groups.len() > 1 {
            self.groups.extend(groups);
        } else {
            self.refused.extend(rows);
        }
    }

    /// Handles a batch that is stored.
    pub(super) fn stored(&mut self) {
        // The remaining groups belong to a batch that has conflicted too often.
        if self.groups.is_empty() {
            self.conflicts = 0;
        }
    }

    /// Lets other requests contain the row again, because it is stored, or has changed and may be accepted now.
    pub(super) fn forget(&mut self, row: &RowId) {
        self.refused.remove(row);
    }

    /// Sends the refused rows once more: first together, because they may depend on each other.
    pub(super) fn try_again(&mut self) {
        if !self.refused.is_empty() && self.groups.is_empty() {
            self.conflicts = MANY_CONFLICTS;
            self.groups.push_back(self.refused.clone());
        }
    }
}

/// Groups the rows that have a key, name, address or token in common.
fn groups(rows: &[RowId], registry: &ClientRegistry) -> Vec<BTreeSet<RowId>> {
    let mut groups: Vec<(BTreeSet<RowId>, BTreeSet<Claim>)> = Vec::new();
    for id in rows {
        let mut joined = (BTreeSet::from([*id]), subjects_of(&registry.row(*id)));
        // Each group that shares a subject with this row becomes part of one group.
        let (related, others): (Vec<_>, Vec<_>) =
            groups.into_iter().partition(|(_, subjects)| !subjects.is_disjoint(&joined.1));
        for (rows, subjects) in related {
            joined.0.extend(rows);
            joined.1.extend(subjects);
        }
        groups = others;
        groups.push(joined);
    }
    groups.into_iter().map(|(rows, _)| rows).collect()
}

fn subjects_of(row: &RowChange) -> BTreeSet<Claim> {
    let mut subjects: BTreeSet<_> = claims_of(std::slice::from_ref(row)).into_iter().collect();
    // Rows of unrelated clients share these claims.
    subjects.retain(|claim| !matches!(claim, Claim::Prefixes | Claim::Forwards));
    match row {
        RowChange::Removed { removed: Some(removed), .. } => {
            subjects.insert(Claim::Name(removed.name.clone()));
        }
        RowChange::Invitation { invitation: Some(invitation), .. } => {
            subjects.extend(invitation.used_by.map(Claim::Key));
        }
        RowChange::Client { .. } | RowChange::Removed { .. } | RowChange::Invitation { .. } => {}
    }
    subjects
}
