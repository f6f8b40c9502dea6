//! Adapts the pool and the sessions to a change of the registry.

use std::time::Instant;

use super::config::{reserve, seen};
use super::{EndReason, ExitAction, ExitSessions};
use crate::PublicKey;
use crate::clients::{Before, Client, RowId};
use crate::planted::{Bug, is_planted};

impl ExitSessions {
    /// Adapts the pool and the sessions to a change. If a client is gone, its session ends for `reason`.
    pub(super) fn follow(&mut self, now: Instant, before: &Before, reason: EndReason) {
        // Sessions end before their addresses are free for others.
        for (key, was) in before.clients() {
            let Some(was) = was else { continue };
            if let Some(reason) = self.reason_to_end(key, was, reason) {
                self.cut_off(now, key, reason);
            }
            if self.registry.by_key(key).is_none() {
                // A removed key can never open a session again, so its predecessors do not matter.
                self.predecessors.remove(&key);
            }
        }
        let moved: Vec<PublicKey> =
            before.clients().filter(|(key, was)| self.has_moved(*key, *was)).map(|(key, _)| key).collect();
        // All changed addresses are freed before any is assigned, so that clients can exchange addresses.
        moved.iter().for_each(|key| self.pool.remove(*key));
        self.hold(&moved);
        if reason == EndReason::Replaced {
            moved.iter().for_each(|key| self.pool.pass_on(*key));
        }
        for (key, was) in before.clients() {
            self.follow_name(key);
            self.follow_wireguard(key, was);
        }
    }

    /// Why a changed client's session ends. `None` if the session continues.
    fn reason_to_end(&self, key: PublicKey, was: &Client, gone: EndReason) -> Option<EndReason> {
        let Some(is) = self.registry.by_key(key) else {
            let is_kept = is_planted(Bug::OldKeySessionKept) && gone == EndReason::Replaced;
            return Some(gone).filter(|_| !is_kept);
        };
        if is.disabled && !was.disabled {
            return Some(EndReason::Disabled);
        }
        let session = self.by_key.get(&key).and_then(|id| self.sessions.get(id));
        // The store may have given one of the session's addresses to another client.
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
            // All earlier holders have already lost these addresses, and the addresses were checked, so `reserve` cannot fail.
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
}
