//! The content of single rows, changes that can be undone, and the rows that a change touched.

use super::super::row::{Before, RowChange, RowId};
use super::{Client, ClientRegistry, Invitation, PublicKey, RemovedKey};
use crate::invite::TokenDigest;

impl ClientRegistry {
    /// Makes a change. Returns its result and the rows that it touched. If it fails, nothing changes.
    pub(crate) fn transact<T, E>(
        &mut self,
        change: impl FnOnce(&mut Self) -> Result<T, E>,
    ) -> Result<(T, Before), E> {
        self.before = Some(Before::default());
        let outcome = change(self);
        let before = self.before.take().unwrap_or_default();
        match outcome {
            Ok(value) => Ok((value, before)),
            Err(error) => {
                // `self.before` is unset again, so this restoring is not recorded as a change.
                self.restore(before);
                Err(error)
            }
        }
    }

    /// Tries a change and undoes it. Returns its result and the rows that it would change.
    pub(crate) fn changes_of<T, E>(
        &mut self,
        change: impl FnOnce(&mut Self) -> Result<T, E>,
    ) -> Result<(T, Vec<RowChange>), E> {
        let (value, before) = self.transact(change)?;
        let changes = self.changes_since(&before);
        self.restore(before);
        Ok((value, changes))
    }

    /// Returns the rows that have changed since `before`.
    pub(crate) fn changes_since(&self, before: &Before) -> Vec<RowChange> {
        let now = before.rows().map(|before| (before, self.row(before.id())));
        now.filter(|(before, now)| *before != now).map(|(_, now)| now).collect()
    }

    /// Returns the names of the rows that have changed since `before`.
    pub(crate) fn rows_changed_since(&self, before: &Before) -> Vec<RowId> {
        self.changes_since(before).iter().map(RowChange::id).collect()
    }

    /// Undoes a change.
    pub(crate) fn restore(&mut self, before: Before) {
        // Nothing is checked here, because the registry may contradict itself until all rows are restored.
        before.into_rows().for_each(|row| self.put(row));
    }

    pub(super) fn set_client(&mut self, key: PublicKey, client: Option<Client>) -> Option<Client> {
        let was = self.clients.put(key, client);
        self.note(RowId::Client(key), || RowChange::Client { key, client: was.clone() });
        was
    }

    pub(super) fn set_invitation(
        &mut self,
        token: TokenDigest,
        invitation: Option<Invitation>,
    ) -> Option<Invitation> {
        let was = self.invitations.put(token, invitation);
        self.note(RowId::Invitation(token), || RowChange::Invitation { token, invitation: was.clone() });
        was
    }

    pub(super) fn set_removed(&mut self, key: PublicKey, removed: Option<RemovedKey>) -> Option<RemovedKey> {
        let was = self.removed.put(key, removed);
        self.note(RowId::Removed(key), || RowChange::Removed { key, removed: was.clone() });
        was
    }

    fn note(&mut self, id: RowId, was: impl FnOnce() -> RowChange) {
        if let Some(before) = &mut self.before {
            before.note(id, was);
        }
    }

    /// The present content of a row.
    pub(crate) fn row(&self, id: RowId) -> RowChange {
        match id {
            RowId::Client(key) => RowChange::Client { key, client: self.clients.by_key(key).cloned() },
            RowId::Invitation(token) => {
                RowChange::Invitation { token, invitation: self.invitations.get(&token).cloned() }
            }
            RowId::Removed(key) => RowChange::Removed { key, removed: self.removed.get(key).cloned() },
        }
    }

    /// Sets a row without any check.
    pub(super) fn put(&mut self, row: RowChange) {
        match row {
            RowChange::Client { key, client } => drop(self.set_client(key, client)),
            RowChange::Invitation { token, invitation } => drop(self.set_invitation(token, invitation)),
            RowChange::Removed { key, removed } => drop(self.set_removed(key, removed)),
        }
    }
}
