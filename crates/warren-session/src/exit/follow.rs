//! Adapts the pool and the sessions to a change of the registry.

use std::convert::Infallible;
use std::time::{Instant, SystemTime};

use super::config::{check_fits, reserve, seen};
use super::store::{Pending, claims_of};
use super::{
    AdminError, EndReason, ExitAction, ExitSessions, SessionConfigError, StoreRefusal, StoreRequestId,
};
use crate::PublicKey;
use crate::clients::{Before, Client, RowChange, RowId};
use crate::planted::{Bug, is_planted};
use crate::pool::AddressPool;

/// The writer of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writer {
    /// This exit, by a proposal.
    Own(StoreRequestId),
    /// Another exit, or another program that writes to the store.
    Other,
}

impl ExitSessions {
    /// Handles the store's answer to a request. Each request gets one. Answers and the changes of [`Self::apply`] must come in
    /// the order in which they took place in the store.
    pub fn stored(&mut self, now: Instant, id: StoreRequestId, outcome: Result<(), StoreRefusal>) {
        let Some(Pending { proposed, in_force, awaited }) = self.store.answered(id) else { return };
        // If the change is stored, `take_over` gives the addresses to their clients.
        self.promise(&claims_of(&proposed), false);
        let is_stored = outcome.is_ok();
        self.store.recorded(id, &in_force, is_stored || is_planted(Bug::UnsavedForgotten));
        if let Err(refusal) = outcome
            && !in_force.is_empty()
        {
            self.save_later(now, refusal);
        }
        if is_stored || is_planted(Bug::UnsavedChangeKept) {
            // The errors are ignored. The changes were checked before, and a client that no longer fits is left out.
            self.take_over(now, proposed, Writer::Own(id));
        }
        if let Some(awaited) = awaited {
            self.answer_waiting(now, awaited, outcome);
        }
        if self.store.is_due_again() {
            self.save();
        }
    }

    /// Applies changes that somebody else made in the store, except where this exit has shut a client out and the store
    /// does not know it yet. Returns an error for each client that does not fit this exit and is therefore left out.
    pub fn apply(&mut self, now: Instant, changes: Vec<RowChange>) -> Vec<AdminError> {
        self.take_over(now, changes, Writer::Other)
    }

    fn take_over(&mut self, now: Instant, changes: Vec<RowChange>, writer: Writer) -> Vec<AdminError> {
        let mut errors = Vec::new();
        let (mut own, mut stored) = (Vec::new(), Vec::new());
        for row in changes {
            // Looked up first, because merging can make further rows owed.
            let is_own = self.store.owes(row.id());
            let Some(row) = self.merged(row, writer) else { continue };
            let row = fitting(row, &self.pool).unwrap_or_else(|(key, error)| {
                errors.push(error.into());
                RowChange::Client { key, client: None }
            });
            if is_own { own.push(row) } else { stored.push(row) }
        }
        // If two clients have a lease of one address, the row that is applied later wins. So the store's rows come last: another
        // exit has given that lease meanwhile, and its client may be there. The row of the client that loses its lease is owed
        // already.
        let rows = if is_planted(Bug::OwnLeaseWins) { [stored, own] } else { [own, stored] }.concat();
        let taken = self.registry.transact(|registry| Ok::<_, Infallible>(registry.take_over(rows)));
        let Ok((refused, before)) = taken;
        self.registry.rows_changed_since(&before).into_iter().for_each(|row| self.store.note(row));
        errors.extend(refused.into_iter().map(AdminError::from));
        self.follow(now, &before, EndReason::Revoked);
        if self.store.has_news() {
            self.save();
        }
        errors
    }

    /// Merges a row of the store with this exit's more recent knowledge. Returns `None` if this exit has a later
    /// change of the row.
    fn merged(&mut self, row: RowChange, writer: Writer) -> Option<RowChange> {
        let id = row.id();
        let lacks = self.store.lacks(id);
        let RowChange::Client { key, client: Some(mut client) } = row else {
            if is_planted(Bug::RemovalElsewhereIgnored) && writer == Writer::Other {
                return None;
            }
            let is_later = match writer {
                Writer::Own(request) => self.store.is_overtaken(id, request),
                Writer::Other => lacks && !matches!(id, RowId::Client(_)),
            };
            return Some(row).filter(|_| !is_later);
        };
        if writer == Writer::Other && self.has_removed(&client) {
            // The store must delete this row, too. Otherwise it would refuse the removed key again and again.
            self.store.owe(id);
            return Some(RowChange::Client { key, client: None });
        }
        if !lacks {
            return Some(RowChange::Client { key, client: Some(client) });
        }
        // If the exit has removed the client, its key is a removed key, and the registry refuses the row.
        if let Some(own) = self.registry.by_key(key) {
            // This exit's values that the store lacks are newer: the date, and for an owed row also the lease.
            if self.store.owes(id) {
                (client.leased_ipv4, client.leased_ipv6) = (own.leased_ipv4, own.leased_ipv6);
            }
            client.last_seen = own.last_seen;
            // A client without a session here may be at another exit, which knows better which key it was shown.
            if self.by_key.contains_key(&key) {
                client.exit_key = own.exit_key;
            }
        }
        match (self.store.shut_out_by(key), writer) {
            // This exit proposed the row after the client was disabled, so the client is enabled again.
            (Some(by), Writer::Own(request)) if by < request => self.store.let_in(key),
            (Some(_), _) => client.disabled |= !is_planted(Bug::ShutOutOverwritten),
            (None, _) => {}
        }
        self.store.owe(id);
        Some(RowChange::Client { key, client: Some(client) })
    }

    /// Whether this exit has removed a client, and the store does not know it yet. Meanwhile, the client may have changed to its
    /// next key at another exit.
    fn has_removed(&self, client: &Client) -> bool {
        client.keys().any(|key| self.store.owes(RowId::Removed(key)) && self.registry.has_removed(key))
    }

    /// Adapts pool and sessions to a change. If a client is gone, its session ends for `reason`.
    pub(super) fn follow(&mut self, now: Instant, before: &Before, reason: EndReason) {
        // Sessions end before their addresses are free for others.
        for (key, was) in before.clients() {
            let Some(was) = was else { continue };
            if let Some(reason) = self.reason_to_end(key, was, reason) {
                self.cut_off(now, key, reason);
            }
            if self.registry.by_key(key).is_none() {
                self.predecessors.remove(&key);
            }
        }
        let moved: Vec<PublicKey> =
            before.clients().filter(|(key, was)| self.has_moved(*key, *was)).map(|(key, _)| key).collect();
        // All addresses are free before any is given out, so that clients can exchange theirs.
        moved.iter().for_each(|key| self.pool.remove(*key));
        self.hold(&moved);
        for (key, was) in before.clients() {
            self.follow_name(key);
            self.follow_wireguard(key, was);
        }
    }

    /// Why the session of a client that was changed ends, if it does.
    fn reason_to_end(&self, key: PublicKey, was: &Client, gone: EndReason) -> Option<EndReason> {
        let Some(is) = self.registry.by_key(key) else {
            let is_kept = is_planted(Bug::OldKeySessionKept) && gone == EndReason::Replaced;
            return Some(gone).filter(|_| !is_kept);
        };
        if is.disabled && !was.disabled {
            return Some(EndReason::Disabled);
        }
        let session = self.by_key.get(&key).and_then(|id| self.sessions.get(id));
        // The store may have given an address of the session to another client.
        let has_other_lease = session.is_some_and(|session| session.lease != is.lease());
        let is_changed = is.is_chosen_anew(was) || has_other_lease;
        (is_changed && !is_planted(Bug::ChangedSessionKept)).then_some(EndReason::Changed)
    }

    /// Whether a client's addresses in the pool differ from those in the registry.
    fn has_moved(&self, key: PublicKey, was: Option<&Client>) -> bool {
        let Some(is) = self.registry.by_key(key) else { return true };
        was.is_none_or(|was| was.static_lease() != is.static_lease()) || self.pool.lease_of(key) != is.lease()
    }

    /// Reserves the clients' addresses in the pool: first the static ones, which win over sticky ones.
    fn hold(&mut self, keys: &[PublicKey]) {
        let clients: Vec<Client> =
            keys.iter().filter_map(|key| self.registry.by_key(*key).cloned()).collect();
        for client in &clients {
            // Every earlier holder has lost these addresses by now, and the addresses were checked.
            let _ = reserve(&mut self.pool, client, seen(client));
        }
        for client in &clients {
            let key = client.public_key;
            let held = self.pool.restore(key, client.sticky_lease(), seen(client));
            if self.registry.record_lease(key, held) {
                self.store.owe(RowId::Client(key));
            }
        }
    }

    fn follow_wireguard(&mut self, key: PublicKey, was: Option<&Client>) {
        let is = self.registry.by_key(key).and_then(Client::by_wireguard);
        if was.and_then(Client::by_wireguard) != is {
            self.actions.push_back(ExitAction::SetWireGuard { key, client: is.cloned() });
        }
    }

    fn follow_name(&mut self, key: PublicKey) {
        let session = self.by_key.get(&key).and_then(|id| self.sessions.get_mut(id));
        if let (Some(session), Some(client)) = (session, self.registry.by_key(key)) {
            session.name.clone_from(&client.name);
        }
    }

    /// Records when a client was online. The date goes to the store with the next other change, or within
    /// [`super::ENDED_INTERVAL`] of a session's end.
    pub(super) fn record_seen(&mut self, key: PublicKey, when: SystemTime) {
        if self.registry.record_seen(key, when) {
            self.store.changed(RowId::Client(key));
        }
    }
}

/// A row, if its client fits the exit's networks.
fn fitting(row: RowChange, pool: &AddressPool) -> Result<RowChange, (PublicKey, SessionConfigError)> {
    match &row {
        RowChange::Client { key, client: Some(client) } => {
            check_fits(pool, client).map_err(|error| (*key, error))?
        }
        RowChange::Client { .. } | RowChange::Invitation { .. } | RowChange::Removed { .. } => {}
    }
    Ok(row)
}
