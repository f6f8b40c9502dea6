//! The exit's requests to the store: changes that it asks for, and changes in force that the store lacks.

use std::time::{Duration, Instant, SystemTime};

use super::claims::{Claim, claims_of};
use super::store::Awaited;
use super::{Deadline, ExitAction, ExitSessions, StoreRefusal, StoreRequestId};
use crate::PublicKey;
use crate::clients::{RowChange, RowId};
use crate::planted::{Bug, is_planted};

/// Delay before the store is told that a session ended. One request covers all sessions that end within this time, so that a
/// client that reconnects in a tight loop cannot make the exit write all the time.
const ENDED_INTERVAL: Duration = Duration::from_secs(5);

/// Delay before repeating a write for which the store was unavailable, or that the store keeps refusing.
const UNAVAILABLE_INTERVAL: Duration = Duration::from_secs(5);

/// Delay before resending a row that somebody else has changed meanwhile. The other change arrives within this time.
const CONFLICT_INTERVAL: Duration = Duration::from_millis(100);

impl ExitSessions {
    /// Asks the store for changes. Returns `None` if a request about the same client, name, address or invitation is
    /// under way, or if the store is stuck.
    pub(super) fn ask(
        &mut self,
        mut changes: Vec<RowChange>,
        awaited: Option<Awaited>,
    ) -> Option<StoreRequestId> {
        let mut claims = claims_of(&changes);
        let is_free = claims.iter().all(|claim| self.store.claimed(claim).is_none());
        if (!is_free && !is_planted(Bug::TokenTakenTwice)) || self.store.is_stuck() {
            return None;
        }
        // The claimed addresses are reserved before leases are chosen, because a lease must not be an address that another row of
        // the request has.
        self.promise(&claims, true);
        if self.store.is_shared() {
            changes.iter_mut().for_each(|change| claims.extend(self.give_lease(change)));
        }
        let request = self.store.propose(claims, changes, awaited, &self.registry);
        let id = request.id;
        self.actions.push_back(ExitAction::Store(request));
        Some(id)
    }

    /// Chooses the addresses of a new client, if free ones are left, so that they are stored together with the client's other
    /// values. If two exits give one address to two clients, the store reports the conflict before either client connects. Returns
    /// the claims on these addresses.
    fn give_lease(&mut self, change: &mut RowChange) -> Vec<Claim> {
        let RowChange::Client { key, client: Some(client) } = change else { return Vec::new() };
        // An existing client gets no address here, because another change may be about to take one of its addresses.
        let is_new = self.registry.by_key(*key).is_none();
        let planned = self.pool.plan(*key).ok().filter(|planned| is_new && planned.taken_from.is_empty());
        let Some(planned) = planned else { return Vec::new() };
        client.leased_ipv4 = client.leased_ipv4.or(planned.lease.ipv4).filter(|_| client.ipv4.is_none());
        client.leased_ipv6 = client.leased_ipv6.or(planned.lease.ipv6).filter(|_| client.ipv6.is_none());
        let claims: Vec<_> = client.sticky_lease().addresses().map(Claim::Address).collect();
        // Another client in the same request must not get these addresses either.
        self.promise(&claims, true);
        claims
    }

    /// Sets whether claimed addresses are reserved. While they are, no other client gets them from the pool.
    pub(super) fn promise(&mut self, claims: &[Claim], is_promised: bool) {
        for claim in claims {
            if let Claim::Address(address) = claim {
                self.pool.promise(*address, is_promised);
            }
        }
    }

    /// Tells the store about changed rows.
    pub(super) fn record(&mut self, rows: &[RowId]) -> Option<StoreRequestId> {
        if rows.is_empty() {
            return None;
        }
        let (id, request) = self.store.record(rows, &self.registry);
        self.actions.extend(request.map(ExitAction::Store));
        Some(id)
    }

    /// Tells the store about every change in force that it lacks. Consecutive requests are merged into one.
    pub(super) fn save(&mut self) {
        if let Some(due) = self.store.ends_due.take() {
            self.deadlines.remove(due, Deadline::Ends);
        }
        self.actions.extend(self.store.begin_batch().map(ExitAction::Store));
    }

    /// Tells the store about ended sessions, if that is due.
    pub(super) fn save_ends(&mut self) {
        if self.store.ends_due.is_some() {
            self.save();
        }
    }

    /// Schedules a write to the store within [`ENDED_INTERVAL`]. The write will contain all changes made until then.
    pub(super) fn save_soon(&mut self, now: Instant) {
        if self.store.ends_due.is_none() {
            self.store.ends_due = Some(now + ENDED_INTERVAL);
            self.deadlines.add(now + ENDED_INTERVAL, Deadline::Ends);
        }
    }

    /// Schedules another write to the store, because it has refused one. `are_alone`: the store has repeatedly refused these
    /// rows, even in a batch of their own.
    pub(super) fn save_later(&mut self, now: Instant, refusal: StoreRefusal, are_alone: bool) {
        // A retry that is already planned stays as it is: a batch contains all rows that the store lacks, so one retry covers them.
        if self.store.again_at.is_none() {
            let at = now
                + match refusal {
                    StoreRefusal::Conflict if !are_alone => CONFLICT_INTERVAL,
                    StoreRefusal::Unavailable | StoreRefusal::Conflict => UNAVAILABLE_INTERVAL,
                };
            self.store.again_at = Some(at);
            self.deadlines.add(at, Deadline::Again);
        }
    }

    /// Records when a client was online. The date goes to the store with the next other change, or within
    /// [`ENDED_INTERVAL`] of a session's end.
    pub(super) fn record_seen(&mut self, key: PublicKey, when: SystemTime) {
        if self.registry.record_seen(key, when) {
            self.store.changed(RowId::Client(key));
        }
    }
}
