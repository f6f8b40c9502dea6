//! Changes of the store: answers to this exit's requests, and changes that others make.

use std::convert::Infallible;
use std::time::Instant;

use super::claims::claims_of;
use super::config::check_fits;
use super::connections::Phase;
use super::store::{Awaited, Pending};
use super::{
    AdminError, EndReason, ExitAction, ExitSessions, SessionConfigError, StoreRefusal, StoreRequestId,
};
use crate::PublicKey;
use crate::clients::{Client, RowChange, RowId};
use crate::goodbye::Goodbye;
use crate::message::{Enrolled, Message};
use crate::planted::{Bug, is_planted};
use crate::pool::AddressPool;

/// The writer of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writer {
    /// This exit, through the proposal with this number.
    Own(StoreRequestId),
    /// Another exit, or another program that writes to the store.
    Other,
}

impl ExitSessions {
    /// Handles the store's answer to a request. Each request gets one answer. Answers and the changes of [`Self::apply`] must
    /// come in the order in which they took place in the store.
    pub fn stored(&mut self, now: Instant, id: StoreRequestId, outcome: Result<(), StoreRefusal>) {
        let Some(Pending { proposed, in_force, awaited }) = self.store.answered(id) else { return };
        // If the change is stored, `take_over` gives the addresses to their clients.
        self.promise(&claims_of(&proposed), false);
        let is_stored = outcome.is_ok();
        self.store.recorded(id, &in_force, is_stored || is_planted(Bug::UnsavedForgotten));
        let are_alone = proposed.is_empty() && self.store.batch_answered(&in_force, outcome, &self.registry);
        if let Err(refusal) = outcome
            && !in_force.is_empty()
        {
            self.save_later(now, refusal, are_alone);
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

    /// Applies changes that somebody else made in the store. This exit's own decision to shut a client out prevails until the store
    /// knows it. Returns an error for each client that does not fit this exit and is therefore left out.
    pub fn apply(&mut self, now: Instant, changes: Vec<RowChange>) -> Vec<AdminError> {
        self.take_over(now, changes, Writer::Other)
    }

    fn take_over(&mut self, now: Instant, changes: Vec<RowChange>, writer: Writer) -> Vec<AdminError> {
        let mut errors = Vec::new();
        let (mut own, mut stored) = (Vec::new(), Vec::new());
        let withdrawn = self.withdrawn_too_late(&changes, writer);
        for row in changes {
            // `is_own` is computed before the merge, because merging can add rows that the store lacks.
            let is_own = self.store.owes(row.id());
            let Some(row) = self.merged(row, writer) else { continue };
            let row = fitting(row, &self.pool).unwrap_or_else(|(key, error)| {
                errors.push(error.into());
                RowChange::Client { key, client: None }
            });
            if is_own { own.push(row) } else { stored.push(row) }
        }
        // If two clients have a lease of one address, the row that is applied later wins. So the store's rows come last: another
        // exit has granted that lease in the meantime, and the lease's client may be connected there. The client that loses its
        // lease already has a row that goes to the store.
        let rows = if is_planted(Bug::OwnLeaseWins) { [stored, own] } else { [own, stored] }.concat();
        let taken = self.registry.transact(|registry| Ok::<_, Infallible>(registry.take_over(rows)));
        let Ok((refused, before)) = taken;
        self.registry.rows_changed_since(&before).into_iter().for_each(|row| self.store.note(row));
        errors.extend(refused.into_iter().map(AdminError::from));
        self.follow(now, &before, EndReason::Revoked);
        self.remove_keys(now, &withdrawn);
        if self.store.has_news() {
            self.save();
        }
        errors
    }

    /// Keys that another exit has enrolled with invitations that this exit has withdrawn. The store does not know of the
    /// withdrawals yet, and the operator was told that they are in force.
    fn withdrawn_too_late(&self, changes: &[RowChange], writer: Writer) -> Vec<PublicKey> {
        let enrolled = changes.iter().filter(|_| writer == Writer::Other).filter_map(|row| match row {
            RowChange::Invitation { invitation: Some(invitation), .. } => {
                Some((row.id(), invitation.used_by?))
            }
            RowChange::Client { .. } | RowChange::Invitation { .. } | RowChange::Removed { .. } => None,
        });
        let is_withdrawn = |id: RowId| self.store.owes(id) && self.registry.row(id) == id.deletion();
        enrolled.filter(|(id, _)| is_withdrawn(*id)).map(|(_, key)| key).collect()
    }

    /// Removes the clients that have these keys, as if an operator had removed them here.
    fn remove_keys(&mut self, now: Instant, keys: &[PublicKey]) {
        if keys.is_empty() {
            return;
        }
        let wall = self.clock.at(now);
        let removed = self.registry.transact(|registry| {
            for key in keys {
                // An upgraded client has the key as its next key.
                let current = registry.enrolled(*key).map(|client| client.public_key);
                current.and_then(|current| registry.remove_key(current, wall));
            }
            Ok::<_, Infallible>(())
        });
        let Ok(((), before)) = removed;
        self.follow(now, &before, EndReason::Revoked);
        let rows = self.registry.rows_changed_since(&before);
        self.record(&rows);
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
            // The store must delete this row, too. Otherwise the store would refuse the removed key again and again.
            self.store.owe(id);
            return Some(RowChange::Client { key, client: None });
        }
        if !lacks {
            return Some(RowChange::Client { key, client: Some(client) });
        }
        // If the exit has removed the client, its key is a removed key, and the registry refuses the row.
        if let Some(own) = self.registry.by_key(key) {
            // This exit's values are newer if the store lacks them: always the date, and also the lease if the store lacks this
            // exit's row.
            if self.store.owes(id) {
                (client.leased_ipv4, client.leased_ipv6) = (own.leased_ipv4, own.leased_ipv6);
            }
            client.last_seen = own.last_seen;
            // A client without a session here may be at another exit. The other exit knows better which key the client was shown.
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

    /// Answers the clients that wait for the store.
    fn answer_waiting(&mut self, now: Instant, awaited: Awaited, outcome: Result<(), StoreRefusal>) {
        let Awaited { key, token, waiting } = awaited;
        // An upgraded client has the key as its next key.
        let name = self.registry.enrolled(key).map(|client| client.name.clone());
        if let (Ok(()), Some(name), Some(_)) = (outcome, &name, token) {
            self.actions.push_back(ExitAction::Enrolled { name: name.clone() });
        }
        let is_void = token.is_some_and(|token| !self.registry.admits(token, key, self.clock.at(now)));
        for (connection, hello) in waiting {
            let Some((_, Phase::Storing { deadline, enrolled, .. })) = self.connections.phase(connection)
            else {
                continue;
            };
            self.change_phase(connection, Phase::Waiting { deadline, enrolled });
            match (hello, &name, outcome) {
                // Another exit may have given the client its addresses in the meantime, so the outcome of this request does not
                // matter.
                (Some(hello), Some(_), _) if self.pool.plan(key).is_ok_and(|planned| !planned.changed) => {
                    self.greet(now, connection, key, Message::Hello(hello));
                    self.read(now, connection);
                }
                (Some(_), ..) => self.refuse(now, connection, Goodbye::NotStored),
                // The outcome of this request does not matter: if the store refused it, another exit has enrolled the key in the
                // meantime.
                (None, Some(name), _) => {
                    self.send(connection, &Message::Enrolled(Enrolled { name: name.clone() }));
                    // Messages that came while the connection waited were not read.
                    self.read(now, connection);
                }
                // In the meantime, the invitation was withdrawn or another key has used it, as the store has shown.
                (None, None, Ok(()) | Err(StoreRefusal::Conflict)) if is_void => {
                    self.refuse(now, connection, Goodbye::InvitationVoid);
                }
                (None, None, _) => self.refuse(now, connection, Goodbye::NotStored),
            }
        }
    }

    /// Whether this exit has removed a client and the store does not know that yet. Meanwhile, the client may have changed to its
    /// next key at another exit.
    fn has_removed(&self, client: &Client) -> bool {
        client.keys().any(|key| self.store.owes(RowId::Removed(key)) && self.registry.has_removed(key))
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
