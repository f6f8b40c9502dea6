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
    /// The registry refuses it.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// It does not fit the exit's networks.
    #[error(transparent)]
    Config(#[from] SessionConfigError),
}

impl ExitSessions {
    /// Runs `change` as a transaction: if any part of it fails, such as saving the registry, all state is restored. `change` must
    /// not poll actions.
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

    /// Enrols a client, which may connect at once.
    ///
    /// # Errors
    ///
    /// If its name, key, addresses or prefixes are invalid or belong to another client. Nothing changes then.
    pub fn add_client(&mut self, now: Instant, client: Client) -> Result<(), AdminError> {
        let mut client = client;
        // Only the pool gives sticky leases.
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
    /// As [`Self::add_client`], for any of them. Nothing changes then.
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

    /// Adds an invitation. A machine that presents its token may enrol a key of its own.
    ///
    /// # Errors
    ///
    /// If its name is invalid or belongs to a client. Nothing changes then.
    pub fn invite(&mut self, now: Instant, invitation: Invitation) -> Result<(), RegistryError> {
        self.registry.invite(invitation, self.clock.at(now))?;
        self.persist();
        Ok(())
    }

    /// Removes a client: ends its session, closes its connections and frees its addresses. Also withdraws an open invitation of
    /// its name. Returns `None` if there was only an open invitation.
    ///
    /// # Errors
    ///
    /// If there is neither a client nor an open invitation of that name.
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
            // The session ends before its addresses are free for others.
            self.cut_off(now, key, reason);
            self.predecessors.remove(&key);
            self.pool.remove(key);
        }
        let removed = self.registry.remove(name, self.clock.at(now))?;
        self.persist();
        Ok(removed)
    }

    /// Disables a client and ends its session, or enables it again. The client keeps its addresses.
    ///
    /// # Errors
    ///
    /// If no client has that name.
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

    /// Changes a client's settings. `change` must not touch its name or key. New addresses or prefixes end its session, and the
    /// client opens a new one by itself.
    ///
    /// # Errors
    ///
    /// If no client has that name, or its addresses or prefixes are invalid or belong to another client. Nothing changes then.
    pub fn set_client(
        &mut self,
        now: Instant,
        name: &str,
        change: impl FnOnce(&mut Client),
    ) -> Result<(), AdminError> {
        self.change_registry(now, name, |registry, client| {
            let mut changed = client.clone();
            change(&mut changed);
            registry.replace(changed)
        })
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
        self.change_registry(now, name, |registry, _| registry.change(name, change))
    }

    /// Changes one client in the registry, and makes its session follow.
    fn change_registry(
        &mut self,
        now: Instant,
        name: &str,
        change: impl FnOnce(&mut ClientRegistry, &Client) -> Result<(), RegistryError>,
    ) -> Result<(), AdminError> {
        let no_such_client = || RegistryError::NoSuchClient { name: name.to_owned() };
        let before = self.registry.by_name(name).cloned().ok_or_else(no_such_client)?;
        // On a copy, because the change may still not fit the pool.
        let mut registry = self.registry.clone();
        change(&mut registry, &before)?;
        let key = before.public_key;
        let Some(after) = registry.by_key(key).cloned() else { return Ok(()) };
        if is_chosen_anew(&before, &after) {
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
    /// If the exit could not start with it, or it brings back a removed key or a withdrawn invitation.
    pub fn check(&self, now: Instant, edited: &ClientRegistry) -> Result<(), SessionConfigError> {
        self.registry.check_edited(edited, self.clock.at(now)).map_err(SessionConfigError::BroughtBack)?;
        self.config.fill_pool(&mut edited.clone()).map(drop)
    }

    /// Takes over a registry that the operator edited: its clients and their settings. Leases and dates stay this exit's, which
    /// are newer.
    ///
    /// Sessions of unchanged clients go on. Removed keys stay removed. A client that enrolled meanwhile stays if its invitation
    /// is still open in the edited registry.
    ///
    /// # Errors
    ///
    /// As [`Self::check`]. Nothing changes then.
    pub fn adopt(&mut self, now: Instant, edited: ClientRegistry) -> Result<(), AdminError> {
        let edited = self.registry.with_enrolled_since(edited);
        self.check(now, &edited)?;
        self.attempt(|sessions| sessions.take_over(now, &edited))
    }

    fn take_over(&mut self, now: Instant, edited: &ClientRegistry) -> Result<(), AdminError> {
        // First: a client that is listed with its next key only would otherwise look like one removed and one added.
        self.finish_rotations(now, edited);
        let current: Vec<Client> = self.registry.iter().cloned().collect();
        let mut taken_out = ClientRegistry::new();
        for client in current {
            match edited.by_key(client.public_key) {
                None => drop(self.take_out(now, &client.name, EndReason::Revoked)?),
                // All changed clients are taken out before any is added again, so that two can swap addresses.
                Some(edited) if is_chosen_anew(&client, edited) => {
                    if let Some(changed) = self.take_out(now, &client.name, EndReason::Changed)? {
                        // It is added again below, so its keys are not removed keys.
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

    /// Completes the key rotation of each client that `edited` lists with its next key only.
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

    /// Completes a key rotation, because a connection proved a client's next key. The client keeps its addresses. The old key is
    /// refused from now on.
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

    /// Replaces a client's key by its next one.
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

    /// Ends the session of a key and closes the key's other connections.
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

/// Whether the client's static addresses or prefixes differ.
fn is_chosen_anew(before: &Client, after: &Client) -> bool {
    before.static_lease() != after.static_lease() || before.prefixes != after.prefixes
}
