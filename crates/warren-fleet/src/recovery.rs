//! Compares a store that was restored from an old backup with a copy, to find what the store has lost.
//!
//! In doubt, a recovery takes rights away: if either the copy or the store says that a key is removed, a token is used or a client
//! is disabled, the recovery keeps this state.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Deref;

use warren_fleet_link::ExitId;
use warren_session::PublicKey;
use warren_session::clients::{Client, Invitation, RowChange, RowId};

use crate::exits::{Member, Removed};
use crate::keys::{Key, Keys};
use crate::meta::{Found, Meta, Mismatch, Position, Recovery};
use crate::planted::{Bug, is_planted};
use crate::rows::{Claim, Rows};
use crate::transaction::Expected;

/// What a link's copy contains besides its rows.
#[derive(Clone, Debug, Default)]
pub(crate) struct BesideRows {
    /// The exits that were removed or have left.
    pub(crate) removed: BTreeMap<ExitId, Removed>,
    /// The link's own exit, if it belongs to the fleet.
    pub(crate) member: Option<Member>,
    pub(crate) roster: Option<Vec<u8>>,
}

impl BesideRows {
    /// Returns why the link's own exit is not in the recovered store. The exit must stop serving only if this copy has the exit's removal,
    /// because then the store itself has once said so. `own`: the number of the exit's membership.
    pub(crate) fn absence(&self, me: &ExitId, own: Option<u64>) -> Mismatch {
        match self.removed.get(me).filter(|removed| !removed.is_of_another(own)) {
            Some(removed) => Mismatch::Removed { must_stop: removed.must_stop() },
            None => Mismatch::NotMember,
        }
    }
}

impl BesideRows {
    /// Returns why the link must not use a store that has another membership of its exit than `own`. `None` if the store's
    /// membership may be the earlier one.
    pub(crate) fn replacement(
        &self,
        me: &ExitId,
        own: Option<u64>,
        found: &Found,
        basis: Basis,
    ) -> Option<Mismatch> {
        // Another host has joined since the recovery.
        if found.is_taken(own, found.began) {
            return Some(Mismatch::Replaced { must_stop: true });
        }
        if let Some(removed) = self.removed.get(me).filter(|removed| !removed.is_of_another(own)) {
            return Some(Mismatch::Replaced { must_stop: removed.must_stop() });
        }
        // The recovery knew this exit's membership, and has kept the other membership, which is therefore the later one.
        let is_outdated = own.is_some() && basis.known.is_some() && !basis.has_news();
        is_outdated.then_some(Mismatch::Replaced { must_stop: false })
    }
}

/// The copy's epoch, compared with the store's. Revisions of different epochs cannot be compared, because a store that has lost
/// everything starts counting again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Age {
    Same,
    /// Everything in the store may be newer than the copy.
    Earlier,
    /// Everything in the store is older than the copy.
    Later,
}

impl Age {
    /// Compares the epochs of the copy and of the store. A store that has lost everything has epoch 0, and contains nothing that
    /// could be newer.
    pub(crate) fn of(copy: u64, store: u64) -> Self {
        match copy.cmp(&store) {
            _ if store == 0 => Self::Same,
            Ordering::Less => Self::Earlier,
            Ordering::Equal => Self::Same,
            Ordering::Greater => Self::Later,
        }
    }
}

/// How a copy and the store are compared. Up to the revision of the backup from which the store was restored, a revision means the
/// same change in both. Later revisions do not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Basis {
    pub(crate) age: Age,
    /// The copy's revision.
    pub(crate) revision: i64,
    /// The store contains the copy's changes up to this revision. `None` if that revision is not known.
    pub(crate) known: Option<i64>,
    /// The store's rows up to this revision existed before the recovery.
    pub(crate) before: i64,
    /// Later rows up to this revision were written by the recovery.
    pub(crate) recovered: i64,
    /// Whether the store has lost changes.
    pub(crate) is_restored: bool,
    /// Whether it is certain that rows that only the copy has were lost, and not removed after the copy was made.
    pub(crate) is_newer: bool,
    /// Whether an invitation that only the store has must have been withdrawn. The withdrawal is not certain if the link has
    /// followed the restored store, which lacked the invitation too.
    pub(crate) withdraws: bool,
}

impl Basis {
    /// Makes the basis for a command that compares a whole copy with the store. `newest` is the revision of the store's latest
    /// change. `newest` is `None` if the store has lost everything.
    pub(crate) fn of_command(age: Age, revision: i64, newest: Option<i64>, is_restored: bool) -> Self {
        let is_newer = match age {
            Age::Same => is_restored && newest.is_none_or(|newest| revision >= newest),
            Age::Earlier => false,
            Age::Later => is_restored,
        };
        Self {
            age,
            revision,
            known: Some(i64::MIN),
            before: i64::MAX,
            recovered: i64::MAX,
            is_restored,
            is_newer,
            withdraws: true,
        }
    }

    /// Makes the basis for a link whose store was recovered after the link's copy was made.
    pub(crate) fn of_link(copy: &Position, meta: &Meta, found: &Found) -> Self {
        let recovery = meta.recovery_since(copy.epoch);
        let Recovery { store, .. } = recovery.unwrap_or_default();
        Self {
            age: Age::Same,
            revision: copy.revision,
            known: recovery.map(|recovery| recovery.revision).filter(|_| !is_planted(Bug::NewsForgotten)),
            before: store,
            recovered: found.began,
            is_restored: true,
            // If this link put back an invitation that a later link knows as withdrawn, the later link could not distinguish it
            // from a newer one.
            is_newer: false,
            withdraws: found.own < copy.own,
        }
    }

    /// Whether the copy is newer than the copy with which the store was recovered.
    pub(crate) fn has_news(&self) -> bool {
        self.known.is_some_and(|known| self.revision > known)
    }

    /// Whether the store cannot contain the change at this revision of the copy.
    pub(crate) fn is_news(&self, modified: i64) -> bool {
        self.known.is_some_and(|known| modified > known)
    }

    /// Whether the store may have lost a row of the copy, because the row came neither with the backup nor with the recovery.
    pub(crate) fn may_be_lost(&self, modified: i64) -> bool {
        self.is_news(modified) && modified > self.before
    }

    /// Whether the copy's row is newer than the store's.
    fn wins(&self, modified: i64, in_store: i64) -> bool {
        match self.age {
            Age::Same if in_store <= self.before => modified > in_store,
            Age::Same => in_store <= self.recovered,
            Age::Earlier => false,
            Age::Later => true,
        }
    }

    /// Whether the copy must once have had this row of the store. If the copy lacks such a row, the row was deleted.
    pub(crate) fn knew(&self, in_store: i64) -> bool {
        self.has_news()
            && match self.age {
                Age::Same if in_store <= self.before => in_store <= self.revision,
                Age::Same => in_store <= self.recovered,
                Age::Earlier => false,
                Age::Later => true,
            }
    }

    /// Whether the copy may lack the store's row although the store has lost nothing.
    fn is_kept(&self, in_store: i64) -> bool {
        !self.is_restored
            && match self.age {
                Age::Same | Age::Later => in_store > self.revision,
                Age::Earlier => in_store > 0,
            }
    }
}

/// Returns the changes that take rights away and that the store lacks: removed keys, and used or withdrawn invitations. Each
/// group is one transaction.
pub(crate) fn revocations(copy: &Rows, store: &Rows, basis: Basis) -> Vec<Vec<RowChange>> {
    let mut groups = Vec::new();
    if is_planted(Bug::TombstoneForgotten) {
        return groups;
    }
    // If the store was not restored, its newer rows are changes that the copy does not have.
    let is_kept = |id: RowId| basis.is_kept(modified(store, id));
    for (id, row) in copy.iter().filter(|(_, row)| basis.known.is_none() || basis.is_news(row.modified)) {
        match id {
            RowId::Removed(key) if !store.has(id) && !is_kept(RowId::Client(key)) => {
                groups.push(revocation(key, &row.content, store));
            }
            RowId::Invitation(_) if is_used(&row.content) && !is_used(&store.content(id)) && !is_kept(id) => {
                groups.push(vec![row.content.clone()]);
            }
            RowId::Removed(_) | RowId::Invitation(_) | RowId::Client(_) => {}
        }
    }
    // These invitations were withdrawn, or their clients were removed.
    let gone = store.iter().filter(|(id, row)| {
        basis.withdraws
            && matches!(id, RowId::Invitation(_))
            && !copy.is_there(*id)
            && basis.knew(row.modified)
    });
    groups.extend(gone.map(|(id, _)| vec![id.deletion()]));
    groups
}

/// Clients and invitations that the store lacks, or contains only in an earlier state. Removed clients and withdrawn invitations
/// are left out. No client is enabled.
pub(crate) fn clients(copy: &Rows, store: &Rows, basis: Basis) -> Vec<Vec<RowChange>> {
    let news = copy.iter().filter(|(_, row)| basis.is_news(row.modified));
    let rows = news.filter_map(|(id, row)| match &row.content {
        RowChange::Client { key, client: Some(client) } if !store.has(RowId::Removed(*key)) => {
            let wins = basis.wins(row.modified, modified(store, id));
            Some(merged(client, store, basis.is_restored, wins).into())
        }
        RowChange::Invitation { invitation: Some(_), .. } => {
            let is_wanted = match store.has(id) {
                true => {
                    basis.wins(row.modified, modified(store, id))
                        && (is_used(&row.content) || !is_used(&store.content(id)))
                }
                // The invitation may have been withdrawn. Rows that only a link's copy has wait until all links are back
                // (`crate::returned`).
                false => basis.is_newer,
            };
            is_wanted.then(|| row.content.clone())
        }
        RowChange::Client { .. } | RowChange::Invitation { .. } | RowChange::Removed { .. } => None,
    });
    rows.filter(|row| store.content(row.id()) != *row).map(|row| vec![row]).collect()
}

/// Returns the copy's client as it should be stored. With `wins`, the copy's row is newer than the store's.
fn merged(client: &Client, store: &Rows, is_restored: bool, wins: bool) -> Client {
    let next = client.next_public_key.filter(|next| !store.has(RowId::Removed(*next)));
    let copied = Client { next_public_key: next, ..client.clone() };
    match store.client(client.public_key) {
        None => copied,
        Some(stored) if wins => Client { disabled: copied.disabled || stored.disabled, ..copied },
        Some(stored) => {
            Client { disabled: stored.disabled || (is_restored && copied.disabled), ..stored.clone() }
        }
    }
}

fn modified(rows: &Rows, id: RowId) -> i64 {
    rows.modified(crate::rows::Subject::Row(id))
}

fn invitation_of(row: &RowChange) -> Option<&Invitation> {
    match row {
        RowChange::Invitation { invitation, .. } => invitation.as_ref(),
        RowChange::Client { .. } | RowChange::Removed { .. } => None,
    }
}

/// Whether the row is an invitation that nobody has used.
pub(crate) fn is_open_invitation(row: &RowChange) -> bool {
    invitation_of(row).is_some_and(|invitation| invitation.used_by.is_none())
}

fn is_used(row: &RowChange) -> bool {
    invitation_of(row).is_some_and(|invitation| invitation.used_by.is_some())
}

/// Removes a key, and the client that has it as its key or next key.
fn revocation(key: PublicKey, tombstone: &RowChange, store: &Rows) -> Vec<RowChange> {
    let mut group = vec![tombstone.clone()];
    // The client is removed even if its row cannot be read.
    if store.is_there(RowId::Client(key)) {
        group.push(RowId::Client(key).deletion());
    }
    let waiting = store.holder(&Claim::NextKey(key)).filter(|holder| *holder != key);
    if let Some(client) = waiting.and_then(|holder| store.client(holder)) {
        group.push(Client { next_public_key: None, ..client.clone() }.into());
    }
    group
}

/// Returns the row without the sticky addresses of its client, because another client may have these addresses now. `None` if
/// there are no such addresses.
pub(crate) fn without_lease(row: &RowChange) -> Option<RowChange> {
    let RowChange::Client { client: Some(client), .. } = row else { return None };
    let has_lease = client.leased_ipv4.is_some() || client.leased_ipv6.is_some();
    has_lease.then(|| Client { leased_ipv4: None, leased_ipv6: None, ..client.clone() }.into())
}

/// The exits that the store has.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExitsInStore {
    /// The exits of the fleet, each with the revision at which it joined.
    pub(crate) members: BTreeMap<ExitId, i64>,
    /// The revisions of their values.
    written: BTreeMap<ExitId, i64>,
    /// The numbers of their memberships, as far as they are known.
    pub(crate) memberships: BTreeMap<ExitId, u64>,
    pub(crate) removed: BTreeMap<ExitId, Removed>,
}

impl ExitsInStore {
    /// Records an exit of the fleet, with the revisions at which it joined and at which its value was written.
    pub(crate) fn add(&mut self, exit: ExitId, (joined, written): (i64, i64), member: Option<Member>) {
        self.written.insert(exit.clone(), written);
        let membership = member.and_then(|member| member.membership);
        self.memberships.extend(membership.map(|number| (exit.clone(), number)));
        self.members.insert(exit, joined);
    }

    fn membership(&self, exit: &ExitId) -> Option<u64> {
        self.memberships.get(exit).copied()
    }

    /// The state in which this exit was found, as the condition of a transaction that takes it out.
    pub(crate) fn expected(&self, keys: &Keys, exit: &ExitId) -> [(String, Expected); 2] {
        let (member, removed) = (self.written.get(exit), self.removed.get(exit).map(|removed| removed.at));
        [
            (keys.name(&Key::Member(exit.clone())), Expected::Modified(member.copied().unwrap_or(0))),
            (keys.name(&Key::RemovedExit(exit.clone())), Expected::Modified(removed.unwrap_or(0))),
        ]
    }

    fn is_written_after(&self, exit: &ExitId, basis: Basis) -> bool {
        self.written.get(exit).is_some_and(|written| *written > basis.recovered)
    }
}

/// Exits to take out of the fleet, each with the end of its membership.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Removals {
    exits: Vec<ExitId>,
    /// In the order of `exits`.
    ends: Vec<Removed>,
}

impl Removals {
    /// Keeps the exits for which the function returns true.
    pub(crate) fn retain(&mut self, is_kept: impl Fn(&ExitId) -> bool) {
        let kept = self.each().filter(|(exit, _)| is_kept(exit)).map(|(exit, end)| (exit.clone(), end));
        *self = kept.collect();
    }

    pub(crate) fn each(&self) -> impl Iterator<Item = (&ExitId, Removed)> {
        self.exits.iter().zip(self.ends.iter().copied())
    }
}

impl Deref for Removals {
    type Target = [ExitId];

    fn deref(&self) -> &[ExitId] {
        &self.exits
    }
}

impl Extend<(ExitId, Removed)> for Removals {
    fn extend<T: IntoIterator<Item = (ExitId, Removed)>>(&mut self, iter: T) {
        for (exit, end) in iter {
            self.exits.push(exit);
            self.ends.push(end);
        }
    }
}

impl FromIterator<(ExitId, Removed)> for Removals {
    fn from_iter<T: IntoIterator<Item = (ExitId, Removed)>>(iter: T) -> Self {
        let mut removals = Self::default();
        removals.extend(iter);
        removals
    }
}

/// How a recovery changes the exits of the fleet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ExitChanges {
    /// Exits that were removed since the backup.
    pub(crate) removed: Removals,
    /// Exits that have joined since the backup.
    pub(crate) put_back: Vec<ExitId>,
    /// Exits that the copy has, and that may have been removed after the copy was made. They are not put back.
    pub(crate) left_out: Vec<ExitId>,
}

/// Compares the exits of a copy with those of the store. An exit that the copy or the store lists as removed does not come back, unless the
/// store's removal ended an earlier membership than the copy's.
pub(crate) fn exits(
    members: &BTreeMap<ExitId, Option<Member>>,
    removed: &BTreeMap<ExitId, Removed>,
    store: &ExitsInStore,
    basis: Basis,
) -> ExitChanges {
    let mut changes = ExitChanges { removed: removed_exits(removed, store, basis), ..ExitChanges::default() };
    // A copy of an earlier release does not list removed exits. A copy of a later epoch may lack an exit that was not linked
    // since that epoch began.
    let gone = store.members.iter().filter(|(exit, joined)| {
        basis.age == Age::Same
            && !members.contains_key(*exit)
            && !removed.contains_key(*exit)
            && basis.knew(**joined)
    });
    changes.removed.extend(gone.map(|(exit, _)| (exit.clone(), Removed::default())));
    let missing = members
        .iter()
        .filter(|(exit, _)| !removed.contains_key(*exit))
        .filter(|(exit, _)| !store.members.contains_key(*exit) || store.removed.contains_key(*exit));
    for (exit, member) in missing {
        let membership = member.as_ref().and_then(|member| member.membership);
        let is_earlier = |removed: &Removed| removed.is_of_another(membership);
        let may_return = basis.is_newer && store.removed.get(exit).is_none_or(is_earlier);
        let list = if may_return { &mut changes.put_back } else { &mut changes.left_out };
        list.push(exit.clone());
    }
    changes
}

/// Returns the exits that the copy lists as removed, if the store does not list them or has an earlier removal of them. An exit that has
/// joined again since its removal stays, even if it had already come back with its new membership when this copy was read.
pub(crate) fn removed_exits(
    removed: &BTreeMap<ExitId, Removed>,
    store: &ExitsInStore,
    basis: Basis,
) -> Removals {
    let is_unknown = |exit: &ExitId, copied: &Removed| match store.members.get(exit) {
        // The exit itself has come back with its own copy.
        Some(_) if copied.membership.is_some() && copied.membership == store.membership(exit) => true,
        // A value that was written after the recovery is the exit's own. It may have replaced the value of an earlier membership in the
        // backup. The key is then still as old as in the backup, so the revision at which the exit joined says nothing.
        Some(_) if copied.is_of_another(store.membership(exit)) && store.is_written_after(exit, basis) => {
            false
        }
        Some(joined) => basis.knew(*joined),
        None => store.removed.get(exit).is_none_or(|stored| {
            // An exit that has confirmed its removal has stopped, no matter which value is newer.
            let is_same = copied.membership.is_some() && copied.membership == stored.membership;
            match (copied.has_stopped(), stored.has_stopped()) {
                (copied, stored) if is_same && copied != stored => copied,
                _ => copied.differs_from(stored) && basis.wins(copied.at, stored.at),
            }
        }),
    };
    let news = removed.iter().filter(|(exit, copied)| basis.is_news(copied.at) && is_unknown(exit, copied));
    news.map(|(exit, copied)| (exit.clone(), *copied)).collect()
}

#[cfg(test)]
pub(crate) mod tests;
