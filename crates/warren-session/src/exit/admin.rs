//! Changes of the registry on a running exit.

use std::time::Instant;

use thiserror::Error;

use super::config::{check_prefixes, reserve};
use super::{EndReason, ExitSessions, SessionConfigError};
use crate::clients::{Client, ClientChange, ClientRegistry, Invitation, RegistryError};
use crate::goodbye::Goodbye;
use crate::planted::{Bug, is_planted};

/// Why a change is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AdminError {
    /// The registry does not take it.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// It does not fit the exit's networks.
    #[error(transparent)]
    Config(#[from] SessionConfigError),
}

impl ExitSessions {
    /// Makes a change that stays only if `change` succeeds in all that it does, such as saving the registry; else everything is as
    /// it was. Actions must not be taken out meanwhile.
    ///
    /// # Errors
    ///
    /// As `change`.
    pub fn attempt<T, E>(&mut self, change: impl FnOnce(&mut Self) -> Result<T, E>) -> Result<T, E> {
        let registry = self.registry.clone();
        let pool = self.pool.clone();
        let sessions = self.sessions.clone();
        let by_key = self.by_key.clone();
        let predecessors = self.predecessors.clone();
        let connections = self.connections.clone();
        let deadlines = self.deadlines.clone();
        let actions = self.actions.clone();
        let ends_due = self.ends_due;
        change(self).inspect_err(|_| {
            if is_planted(Bug::UnsavedChangeKept) {
                return;
            }
            (self.registry, self.pool) = (registry, pool);
            (self.sessions, self.by_key, self.predecessors) = (sessions, by_key, predecessors);
            (self.connections, self.deadlines, self.actions) = (connections, deadlines, actions);
            self.ends_due = ends_due;
        })
    }

    /// Enrols a client; it may connect at once.
    ///
    /// # Errors
    ///
    /// If its name, key, addresses or prefixes are invalid or another client's; nothing has changed then.
    pub fn add_client(&mut self, now: Instant, client: Client) -> Result<(), AdminError> {
        let mut client = client;
        // Sticky leases are the pool's to give.
        (client.leased_ipv4, client.leased_ipv6) = (None, None);
        check_prefixes(&self.pool, &client)?;
        self.registry.check(&client)?;
        let taken_from = reserve(&mut self.pool, &client, self.clock.at(now))?;
        self.registry.add(client)?;
        for key in taken_from {
            self.registry.record_lease(key, self.pool.lease_of(key));
        }
        self.persist();
        Ok(())
    }

    /// Enrols several clients.
    ///
    /// # Errors
    ///
    /// As [`Self::add_client`], for any of them; nothing has changed then.
    pub fn add_clients(&mut self, now: Instant, clients: Vec<Client>) -> Result<(), AdminError> {
        let before = (self.registry.clone(), self.pool.clone());
        let added = clients.into_iter().try_for_each(|client| self.add_client(now, client));
        if added.is_err() {
            (self.registry, self.pool) = before;
        }
        added
    }

    /// Allows a removed key to be enrolled again.
    pub fn allow_key(&mut self, key: crate::PublicKey) {
        if self.registry.allow(key) {
            self.persist();
        }
    }

    /// Lets the machine that shows the invitation's token enrol a key of its own.
    ///
    /// # Errors
    ///
    /// If its name is invalid or a client's; nothing has changed then.
    pub fn invite(&mut self, now: Instant, invitation: Invitation) -> Result<(), RegistryError> {
        self.registry.invite(invitation, self.clock.at(now))?;
        self.persist();
        Ok(())
    }

    /// Removes a client: its session ends, its connections are told, its addresses are free. An open invitation of its name is
    /// withdrawn; `None` if there was only that.
    ///
    /// # Errors
    ///
    /// If there is neither.
    pub fn remove_client(&mut self, now: Instant, name: &str) -> Result<Option<Client>, RegistryError> {
        self.take_out(now, name, EndReason::Revoked)
    }

    fn take_out(
        &mut self,
        now: Instant,
        name: &str,
        reason: EndReason,
    ) -> Result<Option<Client>, RegistryError> {
        let key = self.registry.by_name(name).map(|client| client.public_key);
        if let Some(key) = key {
            self.cut_off(now, key, reason);
            self.predecessors.remove(&key);
            self.pool.remove(key);
        }
        let removed = self.registry.remove(name, self.clock.at(now))?;
        self.persist();
        Ok(removed)
    }

    /// Refuses a client from now on, ending its session, or admits it again. Its addresses stay its own.
    ///
    /// # Errors
    ///
    /// If there is none of that name.
    pub fn set_client_disabled(
        &mut self,
        now: Instant,
        name: &str,
        disabled: bool,
    ) -> Result<(), RegistryError> {
        let key = self.registry.set_disabled(name, disabled)?;
        if disabled {
            self.cut_off(now, key, EndReason::Disabled);
        }
        self.persist();
        Ok(())
    }

    /// Gives a client another name; its session goes on.
    ///
    /// # Errors
    ///
    /// If there is none of the old name, or the new one is invalid or another client's.
    pub fn rename_client(&mut self, old: &str, new: &str) -> Result<(), RegistryError> {
        self.registry.rename(old, new)?;
        for session in self.sessions.values_mut().filter(|session| session.name == old) {
            session.name = new.to_owned();
        }
        self.persist();
        Ok(())
    }

    /// Changes what the operator chose for a client; `change` leaves its name and key as they are. Other addresses or prefixes
    /// end its session, and it opens a new one by itself.
    ///
    /// # Errors
    ///
    /// If there is none of that name, or its addresses or prefixes are invalid or another client's; nothing has changed
    /// then.
    pub fn set_client(
        &mut self,
        now: Instant,
        name: &str,
        change: impl FnOnce(&mut Client),
    ) -> Result<(), AdminError> {
        let no_such_client = || RegistryError::NoSuchClient { name: name.to_owned() };
        let before = self.registry.by_name(name).cloned().ok_or_else(no_such_client)?;
        let mut after = before.clone();
        change(&mut after);
        if is_chosen_anew(&before, &after) {
            check_prefixes(&self.pool, &after)?;
        }
        let mut registry = self.registry.clone();
        registry.replace(after)?;
        self.take_change_of(now, &before, registry)
    }

    /// Makes a change that an operator asks for. The session goes on unless the change concerns it: being disabled ends it, and so
    /// do other addresses or prefixes, after which the client opens a new one by itself.
    ///
    /// # Errors
    ///
    /// As [`ClientRegistry::change`], or if the addresses or prefixes do not fit the exit's networks; nothing has changed then.
    pub fn change_client(
        &mut self,
        now: Instant,
        name: &str,
        change: &ClientChange,
    ) -> Result<(), AdminError> {
        let no_such_client = || RegistryError::NoSuchClient { name: name.to_owned() };
        let before = self.registry.by_name(name).cloned().ok_or_else(no_such_client)?;
        let mut registry = self.registry.clone();
        registry.change(name, change)?;
        self.take_change_of(now, &before, registry)
    }

    /// Takes over a registry in which one client is another than `before`, and makes its session follow.
    fn take_change_of(
        &mut self,
        now: Instant,
        before: &Client,
        registry: ClientRegistry,
    ) -> Result<(), AdminError> {
        let key = before.public_key;
        let Some(after) = registry.by_key(key).cloned() else { return Ok(()) };
        if is_chosen_anew(before, &after) {
            check_prefixes(&self.pool, &after)?;
            let wall = self.clock.at(now);
            let mut pool = self.pool.clone();
            pool.remove(key);
            let taken_from = reserve(&mut pool, &after, wall)?;
            pool.restore(key, after.sticky_lease(), wall);

            if !is_planted(Bug::ChangedSessionKept) {
                self.cut_off(now, key, EndReason::Changed);
            }
            (self.registry, self.pool) = (registry, pool);
            for changed in taken_from.into_iter().chain([key]) {
                self.registry.record_lease(changed, self.pool.lease_of(changed));
            }
            self.registry.record_seen(key, wall);
        } else if registry != self.registry {
            self.registry = registry;
        } else {
            return Ok(());
        }
        if after.disabled && !before.disabled {
            self.cut_off(now, key, EndReason::Disabled);
        }
        for session in self.sessions.values_mut().filter(|session| session.key == key) {
            session.name.clone_from(&after.name);
        }
        self.persist();
        Ok(())
    }

    /// Checks that [`Self::adopt`] can take over a registry.
    ///
    /// # Errors
    ///
    /// If the exit could not start with it, or it brings back a key or an invitation that is gone.
    pub fn check(&self, now: Instant, edited: &ClientRegistry) -> Result<(), SessionConfigError> {
        self.registry.check_edited(edited, self.clock.at(now)).map_err(SessionConfigError::BroughtBack)?;
        self.config.fill_pool(&mut edited.clone()).map(drop)
    }

    /// Takes over a registry that the operator edited: who is in it and what they chose, not the leases and dates, which
    /// this exit knows better. Sessions of clients that did not change go on, a removed key stays one, and so does a client whose
    /// invitation is still open in there.
    ///
    /// # Errors
    ///
    /// As [`Self::check`]; nothing has changed then.
    pub fn adopt(&mut self, now: Instant, edited: ClientRegistry) -> Result<(), AdminError> {
        let edited = self.registry.with_enrolled_since(edited);
        self.check(now, &edited)?;
        self.attempt(|sessions| sessions.take_over(now, &edited))
    }

    fn take_over(&mut self, now: Instant, edited: &ClientRegistry) -> Result<(), AdminError> {
        self.finish_rotations(now, edited);
        let current: Vec<Client> = self.registry.iter().cloned().collect();
        let mut taken_out = ClientRegistry::new();
        for client in current {
            match edited.by_key(client.public_key) {
                None => drop(self.take_out(now, &client.name, EndReason::Revoked)?),
                // All of these leave before one comes back, so that two can exchange what they have.
                Some(edited) if is_chosen_anew(&client, edited) => {
                    if let Some(changed) = self.take_out(now, &client.name, EndReason::Changed)? {
                        // It only leaves to come back.
                        for key in changed.keys() {
                            self.registry.allow(key);
                        }
                        taken_out.add(changed)?;
                    }
                }
                Some(_) => {}
            }
        }
        self.registry.take_small_changes_of(edited);
        for session in self.sessions.values_mut() {
            if let Some(client) = self.registry.by_key(session.key) {
                session.name.clone_from(&client.name);
            }
        }
        for client in edited.iter() {
            let key = client.public_key;
            let Some(known) = self.registry.by_key(key) else {
                self.add_client(now, client.clone())?;
                let sticky = taken_out.by_key(key).map(Client::sticky_lease).unwrap_or_default();
                let held = self.pool.restore(key, sticky, self.clock.at(now));
                self.registry.record_lease(key, held);
                continue;
            };
            if known.disabled != client.disabled {
                self.set_client_disabled(now, &client.name, client.disabled)?;
            }
        }
        self.persist();
        Ok(())
    }

    /// Gives each client its next key that has it as its only one in `edited`.
    fn finish_rotations(&mut self, now: Instant, edited: &ClientRegistry) {
        let is_there = |key| edited.by_key(key).is_some();
        let finished: Vec<_> = self
            .registry
            .iter()
            .filter_map(|client| Some((client.public_key, client.next_public_key?)))
            .filter(|(old, next)| !is_there(*old) && is_there(*next))
            .collect();
        for (old, next) in finished {
            self.rotate(now, old, next, EndReason::Revoked);
        }
    }

    /// Somebody connects with the next key of a client: it is the client's from now on, with its addresses, and who still has
    /// the old one is refused.
    pub(super) fn take_next_key(&mut self, now: Instant, next: crate::PublicKey) {
        if is_planted(Bug::UnsetKeyTaken) {
            let first = self.registry.iter().next().map(|client| client.name.clone()).unwrap_or_default();
            let _ = self.set_client(now, &first, |client| client.next_public_key = Some(next));
        }
        let client = self.registry.by_next_key(next);
        let client = client.filter(|client| !client.disabled || is_planted(Bug::DisabledTakesNextKey));
        let Some(old) = client.map(|client| client.public_key) else { return };
        self.rotate(now, old, next, EndReason::Replaced);
    }

    /// Puts a client's next key in the place of the one that it has.
    fn rotate(&mut self, now: Instant, old: crate::PublicKey, next: crate::PublicKey, reason: EndReason) {
        if !is_planted(Bug::OldKeySessionKept) {
            self.cut_off(now, old, reason);
        }
        self.predecessors.remove(&old);
        if !is_planted(Bug::LeaseLostWithKey) {
            self.pool.rename(old, next);
        }
        self.registry.take_next_key(old, self.clock.at(now));
        self.persist();
    }

    /// Ends the session of a key and closes every other connection of it.
    fn cut_off(&mut self, now: Instant, key: crate::PublicKey, reason: EndReason) {
        if let Some(session) = self.by_key.get(&key).copied()
            && !is_planted(Bug::RevokedSessionKept)
        {
            self.end(now, session, reason);
        }
        let goodbye: Goodbye = reason.goodbye();
        for connection in self.connections.of_key(key) {
            self.dismiss(connection, goodbye);
        }
    }
}

/// Whether the operator chose other addresses or prefixes for the client.
fn is_chosen_anew(before: &Client, after: &Client) -> bool {
    before.static_lease() != after.static_lease() || before.prefixes != after.prefixes
}
