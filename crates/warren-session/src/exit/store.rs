//! The boundary to the store that keeps the registry: requests go out as actions, results and changes of others come in.
//!
//! A **proposal** is a change that an operator or an invitation asks for. A proposal is in force once it is stored. Changes that
//! the exit makes by itself (leases, dates, the change to a next key), and changes that shut a client out, are in force at once.
//! Afterwards they are **recorded**: sent to the store again and again until they are stored.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::apart::Apart;
use super::claims::{Claim, claims_of};
use crate::PublicKey;
use crate::clients::{ClientRegistry, RowChange, RowId};
use crate::invite::TokenDigest;
use crate::message::Hello;
use crate::planted::{Bug, is_planted};

/// Time that a client waits for the store to answer. After that, the client is told to try again.
pub(super) const STORE_TIMEOUT: Duration = Duration::from_secs(3);

/// Number of a request. Later requests have higher numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreRequestId(pub u64);

/// Changes that the store makes in one transaction: all of them or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreRequest {
    /// The request's number.
    pub id: StoreRequestId,
    /// The changed rows, each once.
    pub changes: Vec<RowChange>,
}

/// Why the store has not carried out a request. In all cases nothing in the store has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoreRefusal {
    /// The store cannot be reached or cannot write. Trying again later may work.
    Unavailable,
    /// Somebody else has the name, key, address or token, or has changed a row meanwhile.
    Conflict,
}

/// A request without an answer.
#[derive(Debug)]
pub(super) struct Pending {
    /// Changes that are in force once they are stored.
    pub(super) proposed: Vec<RowChange>,
    /// Rows that are in force already and that the request writes as well.
    pub(super) in_force: Vec<RowId>,
    pub(super) awaited: Option<Awaited>,
}

impl Pending {
    /// A request that writes only rows in force.
    fn of_rows(rows: impl IntoIterator<Item = RowId>) -> Self {
        Self { proposed: Vec::new(), in_force: rows.into_iter().collect(), awaited: None }
    }
}

/// A key whose client must wait until a request is stored, and the connections that wait for the outcome.
#[derive(Debug)]
pub(super) struct Awaited {
    pub(super) key: PublicKey,
    /// The invitation with which the key enrols itself. `None` if the key waits for its first lease.
    pub(super) token: Option<TokenDigest>,
    /// The connections, each with its Hello. `None` if the connection enrols the key.
    pub(super) waiting: BTreeMap<u64, Option<Hello>>,
}

/// The rows that are on their way to the store.
#[derive(Debug, Default)]
pub(super) struct StoreState {
    last: u64,
    requests: BTreeMap<StoreRequestId, Pending>,
    claims: BTreeMap<Claim, StoreRequestId>,
    /// Rows in force that no request contains yet.
    unsent: BTreeSet<RowId>,
    /// Rows in force that were sent, each with the latest request that contains it.
    sent: BTreeMap<RowId, StoreRequestId>,
    /// Rows in force in which more than a date has changed, each with the number of the latest request at the time of its change.
    /// Every request contains all of these rows, except those of `apart`. Otherwise, if only a later request was stored, a name or
    /// address that one client has given up could belong to two clients in the store.
    owed: BTreeMap<RowId, StoreRequestId>,
    /// Rows that the store keeps refusing.
    apart: Apart,
    /// Clients that were disabled by a request that is not stored yet.
    disabled: BTreeMap<PublicKey, StoreRequestId>,
    /// The request for the unsent rows. Set from the creation of its action until the store's answer.
    batch: Option<StoreRequestId>,
    /// Whether another batch follows after `batch`.
    again: bool,
    /// The number of the batch that a caller waits for and that an unanswered proposal delays, with the rows that the batch must
    /// contain.
    held_up: Option<(StoreRequestId, BTreeSet<RowId>)>,
    /// When to send the refused rows to the store again.
    pub(super) again_at: Option<Instant>,
    /// When the store must be told that sessions ended. Unset if there are no ends to report.
    pub(super) ends_due: Option<Instant>,
    /// Rows that have changed since the exit's own copy was written. Unset if the exit keeps no copy.
    uncopied: Option<BTreeSet<RowId>>,
}

impl StoreState {
    fn next_id(&mut self) -> StoreRequestId {
        self.last += 1;
        StoreRequestId(self.last)
    }

    /// Records a proposal.
    pub(super) fn propose(
        &mut self,
        claims: Vec<Claim>,
        proposed: Vec<RowChange>,
        awaited: Option<Awaited>,
        registry: &ClientRegistry,
    ) -> StoreRequest {
        let own: BTreeSet<_> = proposed.iter().map(RowChange::id).collect();
        // A proposal writes its own rows, so they are not listed in `in_force`.
        let in_force = self.joined().filter(|row| !own.contains(row)).collect();
        let request = Pending { proposed, in_force, awaited };
        let sent = self.send(request, registry);
        self.claims.extend(claims.into_iter().map(|claim| (claim, sent.id)));
        sent
    }

    /// Records changed rows for the store. Returns the number of their request, and the request itself if it can be sent now. The
    /// request cannot be sent while a proposal about one of the rows is unanswered, because the row may contradict the proposal.
    pub(super) fn record(
        &mut self,
        rows: &[RowId],
        registry: &ClientRegistry,
    ) -> (StoreRequestId, Option<StoreRequest>) {
        rows.iter().for_each(|row| self.owe(*row));
        if !self.is_stuck() {
            let rows: Vec<_> = self.joined().collect();
            let request = self.send(Pending::of_rows(rows), registry);
            return (request.id, Some(request));
        }
        // Another batch follows once the proposal that delays these rows is answered.
        self.again = true;
        let (id, mut held_up) = self.held_up.take().unwrap_or_else(|| (self.next_id(), BTreeSet::new()));
        held_up.extend(rows);
        self.held_up = Some((id, held_up));
        (id, None)
    }

    fn send(&mut self, request: Pending, registry: &ClientRegistry) -> StoreRequest {
        let id = self.next_id();
        self.enter(id, request, registry)
    }

    fn enter(&mut self, id: StoreRequestId, request: Pending, registry: &ClientRegistry) -> StoreRequest {
        let mut changes = request.proposed.clone();
        for row in &request.in_force {
            self.unsent.remove(row);
            self.sent.insert(*row, id);
            changes.push(registry.row(*row));
        }
        self.requests.insert(id, request);
        StoreRequest { id, changes }
    }

    /// Whether a change of more than a date, such as a removal, must wait for a proposal. Until the proposal is answered, nothing
    /// that builds on the change can be stored.
    pub(super) fn is_stuck(&self) -> bool {
        self.joined().any(|row| self.is_held(&row))
    }

    /// The owed rows that every request contains.
    fn joined(&self) -> impl Iterator<Item = RowId> + '_ {
        self.owed.keys().copied().filter(|row| !self.apart.has(row))
    }

    /// Whether a proposal about the row is under way, which a write of the row would overwrite.
    fn is_held(&self, row: &RowId) -> bool {
        let claim = match row {
            RowId::Client(key) | RowId::Removed(key) => Claim::Key(*key),
            RowId::Invitation(token) => Claim::Token(*token),
        };
        self.claims.contains_key(&claim)
    }

    /// The request of the proposal that has this claim, if any.
    pub(super) fn claimed(&self, claim: &Claim) -> Option<StoreRequestId> {
        self.claims.get(claim).copied()
    }

    /// The changes of a proposal.
    pub(super) fn proposed(&self, id: StoreRequestId) -> &[RowChange] {
        self.requests.get(&id).map(|request| request.proposed.as_slice()).unwrap_or_default()
    }

    /// The key and the connections that wait for a proposal.
    pub(super) fn awaited(&mut self, id: StoreRequestId) -> Option<&mut Awaited> {
        self.requests.get_mut(&id)?.awaited.as_mut()
    }

    /// Removes an answered request. Other proposals may then have the claims of this request.
    pub(super) fn answered(&mut self, id: StoreRequestId) -> Option<Pending> {
        let request = self.requests.remove(&id)?;
        if self.batch == Some(id) {
            self.batch = None;
        }
        for claim in claims_of(&request.proposed) {
            if self.claims.get(&claim) == Some(&id) {
                self.claims.remove(&claim);
            }
        }
        Some(request)
    }

    /// Records that the rows of a request are stored, or must be sent again.
    pub(super) fn recorded(&mut self, id: StoreRequestId, rows: &[RowId], is_stored: bool) {
        for row in rows {
            // If a later request contains the row too, the outcome of that request counts.
            if self.sent.get(row) != Some(&id) {
                continue;
            }
            self.sent.remove(row);
            if !is_stored {
                self.unsent.insert(*row);
            } else if !self.unsent.contains(row) {
                // The row has not changed again since the request.
                self.owed.remove(row);
                self.apart.forget(row);
                if let RowId::Client(key) = row {
                    self.disabled.remove(key);
                }
            }
        }
    }

    /// Records that the date of a row has changed here. The row goes to the store with the next batch.
    pub(super) fn changed(&mut self, row: RowId) {
        self.note(row);
        self.unsent.insert(row);
    }

    /// Records that more than the date of a row has changed here. The row goes to the store with the next request.
    pub(super) fn owe(&mut self, row: RowId) {
        self.note(row);
        self.unsent.insert(row);
        self.apart.forget(&row);
        // Requests up to this number were made before the change (`is_overtaken`).
        self.owed.insert(row, StoreRequestId(self.last));
    }

    /// Whether the store lacks more than the date of a row.
    pub(super) fn owes(&self, row: RowId) -> bool {
        self.owed.contains_key(&row)
    }

    /// Records that a request disabled a client.
    pub(super) fn shut_out(&mut self, key: PublicKey, by: StoreRequestId) {
        self.disabled.insert(key, by);
    }

    /// Records that a later change has enabled a client.
    pub(super) fn let_in(&mut self, key: PublicKey) {
        self.disabled.remove(&key);
    }

    /// The unsaved request that disabled a client.
    pub(super) fn shut_out_by(&self, key: PublicKey) -> Option<StoreRequestId> {
        self.disabled.get(&key).copied()
    }

    /// Whether more than a date has changed in a row that no request contains yet.
    pub(super) fn has_news(&self) -> bool {
        self.owed.keys().any(|row| self.unsent.contains(row))
    }

    /// Whether the store lacks a change of a row that is in force.
    pub(super) fn lacks(&self, row: RowId) -> bool {
        self.unsent.contains(&row) || self.sent.contains_key(&row)
    }

    /// Whether a row has changed here since a request was made.
    pub(super) fn is_overtaken(&self, row: RowId, id: StoreRequestId) -> bool {
        self.owed.get(&row).is_some_and(|latest| *latest >= id)
    }

    /// Starts to record which rows change, for a copy of the registry.
    pub(super) fn keep_copy(&mut self) {
        // Leases that did not fit at the start were changed before this call.
        let changed = self.unsent.clone();
        self.uncopied.get_or_insert(changed);
    }

    /// Whether other exits share the registry.
    pub(super) fn is_shared(&self) -> bool {
        self.uncopied.is_some()
    }

    /// Records for the exit's copy of the registry that a row has changed here.
    pub(super) fn note(&mut self, row: RowId) {
        self.uncopied.iter_mut().for_each(|rows| _ = rows.insert(row));
    }

    /// The rows that have changed since the previous call.
    pub(super) fn take_uncopied(&mut self) -> BTreeSet<RowId> {
        self.uncopied.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The rows in force that the store lacks, and for each row whether the store lacks more than a date.
    pub(super) fn lacking(&self) -> impl Iterator<Item = (RowId, bool)> + '_ {
        let sent = self.sent.keys().filter(|row| !self.unsent.contains(row));
        self.unsent.iter().chain(sent).map(|row| (*row, self.owes(*row)))
    }

    /// Begins a batch. If a batch is already under way, returns `None`, and another batch follows.
    pub(super) fn begin_batch(&mut self) -> Option<StoreRequest> {
        if self.batch.is_some() {
            self.again = true;
            return None;
        }
        // `record` has already returned the number of a batch that is held up.
        let id = self.held_up.as_ref().map(|(id, _)| *id).unwrap_or_else(|| self.next_id());
        self.batch = Some(id);
        Some(StoreRequest { id, changes: Vec::new() })
    }

    /// Puts the unsent rows into the batch that is about to be sent. Rows with an unanswered proposal stay behind. Returns false
    /// if no row is left to send.
    pub(super) fn fill_batch(&mut self, request: &mut StoreRequest, registry: &ClientRegistry) -> bool {
        // The request is not a batch, or is a batch that is filled already.
        if self.batch != Some(request.id) || self.requests.contains_key(&request.id) {
            return true;
        }
        if let Some(rows) = self.next_group(request.id) {
            // Another batch follows with the other rows.
            self.again = true;
            *request = self.enter(request.id, Pending::of_rows(rows), registry);
            return true;
        }
        let owed = self.owed.keys().copied().collect();
        let (held, mut rows): (BTreeSet<RowId>, BTreeSet<_>) =
            self.unsent.union(&owed).filter(|row| !self.apart.has(row)).partition(|row| self.is_held(row));
        // Another batch follows once the proposals for these rows are answered.
        self.again = !held.is_empty();
        if is_planted(Bug::HeldRowForgotten) {
            self.unsent.retain(|row| !held.contains(row));
        }
        let is_stuck = held.iter().any(|row| self.owes(*row));
        // A caller may wait for this batch even if another request has already sent its rows. The batch is sent, so that the caller
        // gets an answer.
        let awaited = self.held_up.take_if(|(id, _)| *id == request.id && !is_stuck);
        // A request must contain all owed rows. If a proposal delays one of them, nothing is sent.
        if is_stuck || awaited.is_none() && self.unsent.is_disjoint(&rows) {
            rows.clear();
        }
        rows.extend(awaited.into_iter().flat_map(|(_, rows)| rows));
        if rows.is_empty() {
            self.batch = None;
            return false;
        }
        *request = self.enter(request.id, Pending::of_rows(rows), registry);
        true
    }

    /// The next group of rows to send in a batch of its own. `None` if a caller waits for this batch, which must then contain the
    /// rows that the caller waits for.
    fn next_group(&mut self, batch: StoreRequestId) -> Option<BTreeSet<RowId>> {
        if self.held_up.as_ref().is_some_and(|(id, _)| *id == batch) {
            return None;
        }
        let mut apart = std::mem::take(&mut self.apart);
        let group = apart.take_group(|row| self.unsent.contains(row) && !self.is_held(row));
        self.apart = apart;
        group
    }

    /// Records the outcome of a batch. Returns whether the store has refused a batch of only these rows, so that they need not be
    /// sent again soon.
    pub(super) fn batch_answered(
        &mut self,
        rows: &[RowId],
        outcome: Result<(), StoreRefusal>,
        registry: &ClientRegistry,
    ) -> bool {
        match outcome {
            Ok(()) => self.apart.stored(),
            Err(StoreRefusal::Conflict) => self.apart.conflicted(rows, registry),
            Err(StoreRefusal::Unavailable) => {}
        }
        // The next group follows at once.
        self.again |= self.apart.has_groups();
        rows.iter().all(|row| self.apart.has(row))
    }

    /// Makes the next batches contain the rows that the store has refused.
    pub(super) fn try_again(&mut self) {
        self.apart.try_again();
    }

    /// Lets every request contain all owed rows again, because the store may have changed.
    pub(super) fn join_all(&mut self) {
        self.apart = Apart::default();
    }

    /// Whether another batch must follow now, because rows have waited for the answer that has just come.
    pub(super) fn is_due_again(&mut self) -> bool {
        self.batch.is_none() && std::mem::take(&mut self.again)
    }
}
