//! Changes of the registry on a running exit.

use std::time::Instant;

use thiserror::Error;

use super::config::{check_prefixes, reserve};
use super::{ConfigError, EndReason, ExitSessions};
use crate::clients::{Client, Invitation, RegistryError};
use crate::goodbye::Goodbye;

/// Why a change is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AdminError {
    /// The registry does not take it.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// It does not fit the exit's networks.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

impl ExitSessions {
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
        let key = self.registry.by_name(name).map(|client| client.public_key);
        if let Some(key) = key {
            self.cut_off(now, key, EndReason::Revoked);
            self.predecessors.remove(&key);
            self.pool.remove(key);
        }
        let removed = self.registry.remove(name)?;
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

    /// Ends the session of a key and closes every other connection of it.
    fn cut_off(&mut self, now: Instant, key: crate::PeerKey, reason: EndReason) {
        if let Some(session) = self.by_key.get(&key).copied() {
            self.end(now, session, reason);
        }
        let goodbye: Goodbye = reason.goodbye();
        for connection in self.connections.of_key(key) {
            self.dismiss(connection, goodbye);
        }
    }
}
