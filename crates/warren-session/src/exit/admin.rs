//! Changes of the registry on a running exit.

use std::time::Instant;

use thiserror::Error;

use super::claims::Claim;
use super::config::{check_clients, check_prefixes};
use super::{EndReason, ExitSessions, SessionConfigError, StoreRequestId};
use crate::PublicKey;
use crate::clients::{Client, ClientChange, ClientRegistry, Invitation, RegistryError, RowChange, RowId};
use crate::goodbye::Goodbye;
use crate::pool::PoolError;

/// Why a change is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AdminError {
    /// The registry refuses the change.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The change does not fit the exit's networks.
    #[error(transparent)]
    Config(#[from] SessionConfigError),
    /// Another change of the same client, name, address or invitation is not stored yet.
    #[error(
        "another change of the same client or invitation is still being stored: try again in a few seconds"
    )]
    Busy,
}

/// Operators' changes are proposals: each returns the number of its request, and takes effect once the request is stored. `None`
/// means that there is nothing to change. A change that shuts a client out takes effect at once.
impl ExitSessions {
    /// Enrols a client, which may connect once the enrolment is stored. `allowed` is a removed key that may be enrolled again.
    ///
    /// # Errors
    ///
    /// If the client's name, key, addresses or prefixes are invalid or belong to another client.
    pub fn add_client(
        &mut self,
        client: Client,
        allowed: Option<PublicKey>,
    ) -> Result<Option<StoreRequestId>, AdminError> {
        self.propose(|registry| {
            allowed.map(|key| registry.allow(key));
            registry.add(without_lease(client))
        })
    }

    /// Enrols several clients.
    ///
    /// # Errors
    ///
    /// As [`Self::add_client`], for any of them.
    pub fn add_clients(&mut self, clients: Vec<Client>) -> Result<Option<StoreRequestId>, AdminError> {
        self.propose(|registry| {
            clients.into_iter().try_for_each(|client| registry.add(without_lease(client)))
        })
    }

    /// Adds an invitation. A machine that presents its token may enrol a key of its own.
    ///
    /// # Errors
    ///
    /// If the invitation's name is invalid or belongs to a client.
    pub fn invite(
        &mut self,
        now: Instant,
        invitation: Invitation,
    ) -> Result<Option<StoreRequestId>, AdminError> {
        let wall = self.clock.at(now);
        self.propose(|registry| registry.invite(invitation, wall))
    }

    /// Changes a client's settings. `change` must not touch its name or key. New addresses or prefixes end the client's session,
    /// and the client opens a new session by itself.
    ///
    /// # Errors
    ///
    /// If no client has that name, or its addresses or prefixes are invalid or belong to another client.
    pub fn set_client(
        &mut self,
        name: &str,
        change: impl FnOnce(&mut Client),
    ) -> Result<Option<StoreRequestId>, AdminError> {
        self.propose(|registry| {
            let client = registry.by_name(name).cloned();
            let mut client = client.ok_or_else(|| RegistryError::NoSuchClient { name: name.to_owned() })?;
            change(&mut client);
            registry.replace(client)
        })
    }

    /// Makes a change that an operator asks for. The client's session continues, except in two cases. Disabling the client ends
    /// the session at once. New addresses or prefixes also end the session, and the client opens a new session by itself.
    ///
    /// # Errors
    ///
    /// As [`ClientRegistry::change`], or if the addresses or prefixes do not fit the exit's networks.
    pub fn change_client(
        &mut self,
        now: Instant,
        name: &str,
        change: &ClientChange,
    ) -> Result<Option<StoreRequestId>, AdminError> {
        match change {
            ClientChange::Disable => self.disable_client(now, name),
            ClientChange::Rename { .. }
            | ClientChange::Enable
            | ClientChange::Set(_)
            | ClientChange::AddForward { .. }
            | ClientChange::RemoveForward { .. } => self.propose(|registry| registry.change(name, change)),
        }
    }

    /// Disables a client and ends its session at once. The client keeps its addresses.
    fn disable_client(&mut self, now: Instant, name: &str) -> Result<Option<StoreRequestId>, AdminError> {
        let (key, before) = self.registry.transact(|registry| registry.set_disabled(name, true))?;
        self.follow(now, &before, EndReason::Disabled);
        // The row is recorded even if the client is already disabled, because a change that enables the client may be under way,
        // from this exit or another one.
        let id = self.record(&[RowId::Client(key)]);
        id.inspect(|id| self.store.shut_out(key, *id));
        Ok(id)
    }

    /// Removes a client at once: ends its session, closes its connections and frees its addresses. Also withdraws an open
    /// invitation of its name, and an enrolment by that invitation that is not stored yet. Returns `None` if there was no client.
    ///
    /// # Errors
    ///
    /// If there is neither a client nor an open invitation of that name.
    pub fn remove_client(
        &mut self,
        now: Instant,
        name: &str,
    ) -> Result<(Option<Client>, Option<StoreRequestId>), AdminError> {
        let wall = self.clock.at(now);
        let coming = self.coming(name)?;
        let (removed, before) = self.registry.transact(|registry| {
            let removed = registry.remove(name, wall);
            let Some(coming) = &coming else { return removed };
            // The new client's row has not arrived yet. Its key becomes a removed key now, so that the row is refused on arrival.
            registry.remember_removed(coming, wall);
            Ok(removed.ok().flatten())
        })?;
        self.follow(now, &before, EndReason::Revoked);
        let mut rows = self.registry.rows_changed_since(&before);
        if let Some(coming) = coming {
            // If the enrolment is stored nevertheless, this deletion removes the client's row again.
            rows.push(RowId::Client(coming.public_key));
            // These connections wait for the enrolment, which will not take place now.
            for connection in self.connections.of_key(coming.public_key) {
                self.dismiss(connection, Goodbye::InvitationVoid);
            }
        }
        let id = self.record(&rows);
        Ok((removed, id))
    }

    /// Returns the client that will have this name once the request under way is stored.
    fn coming(&self, name: &str) -> Result<Option<Client>, AdminError> {
        let Some(id) = self.store.claimed(&Claim::Name(name.to_owned())) else { return Ok(None) };
        let named = self.store.proposed(id).iter().find_map(|change| match change {
            RowChange::Client { client: Some(client), .. } if client.name == name => Some(client.clone()),
            RowChange::Client { .. } | RowChange::Invitation { .. } | RowChange::Removed { .. } => None,
        });
        let is_here = |client: &Client| self.registry.by_key(client.public_key).is_some();
        match named {
            // The request changes the client that has the name now. The removal takes effect without waiting for that request.
            Some(client)
                if self.registry.by_name(name).is_some_and(|own| own.public_key == client.public_key) =>
            {
                Ok(None)
            }
            Some(client) if !is_here(&client) => Ok(Some(client)),
            // The request gives the name to another client or to an invitation.
            Some(_) | None => Err(AdminError::Busy),
        }
    }

    /// Checks that [`Self::adopt`] can apply a registry.
    ///
    /// # Errors
    ///
    /// If the exit could not start with the edited registry, or if that registry brings back a removed key or a withdrawn
    /// invitation.
    pub fn check(&self, now: Instant, edited: &ClientRegistry) -> Result<(), SessionConfigError> {
        self.registry.check_edited(edited, self.clock.at(now)).map_err(SessionConfigError::BroughtBack)?;
        check_clients(self.config.ipv4, self.config.ipv6, edited)
    }

    /// Applies a registry that the operator edited: its clients and their settings. This exit's leases and dates stay, because
    /// they are newer.
    ///
    /// Sessions of unchanged clients continue. Removed keys stay removed. A client that enrolled meanwhile stays if its
    /// invitation is still open in the edited registry.
    ///
    /// # Errors
    ///
    /// As [`Self::check`].
    pub fn adopt(
        &mut self,
        now: Instant,
        edited: ClientRegistry,
    ) -> Result<Option<StoreRequestId>, AdminError> {
        self.check(now, &edited)?;
        let wall = self.clock.at(now);
        self.propose(|registry| registry.become_edited(edited, wall))
    }

    /// Checks a change and asks the store for it.
    fn propose(
        &mut self,
        change: impl FnOnce(&mut ClientRegistry) -> Result<(), RegistryError>,
    ) -> Result<Option<StoreRequestId>, AdminError> {
        let ((), changes) = self.registry.changes_of(change)?;
        if changes.is_empty() {
            return Ok(None);
        }
        self.check_room(&changes)?;
        self.ask(changes, None).ok_or(AdminError::Busy).map(Some)
    }

    /// Checks that the pool has room for changed clients.
    fn check_room(&self, changes: &[RowChange]) -> Result<(), AdminError> {
        // The changes are sorted by row.
        let change_of = |key| {
            let at = changes.binary_search_by_key(&RowId::Client(key), RowChange::id).ok()?;
            let RowChange::Client { client, .. } = changes.get(at)? else { return None };
            Some(client.as_ref())
        };
        for change in changes {
            let RowChange::Client { key, client: Some(client) } = change else { continue };
            check_prefixes(&self.pool, client)?;
            for address in client.static_lease().addresses() {
                let Err(source) = self.pool.check_static(*key, address) else { continue };
                // If the same request also changes the holder, the holder gives up the address.
                if let PoolError::InUse { holder, .. } = source
                    && let Some(after) = change_of(holder)
                    && let Some(before) = self.registry.by_key(holder)
                    && after.is_none_or(|after| after.is_chosen_anew(before))
                {
                    continue;
                }
                return Err(SessionConfigError::StaticAddress { name: client.name.clone(), source }.into());
            }
        }
        Ok(())
    }
}

/// Removes a client's sticky leases, because only the pool assigns them.
fn without_lease(client: Client) -> Client {
    Client { leased_ipv4: None, leased_ipv6: None, ..client }
}
