//! Takes over a registry that the operator edited, except for leases and dates, which the exit keeps.

use std::time::SystemTime;

use super::{ClientRegistry, RegistryError};

impl ClientRegistry {
    /// Checks that `edited` brings back neither a removed key nor a withdrawn invitation.
    pub(crate) fn check_edited(&self, edited: &Self, now: SystemTime) -> Result<(), RegistryError> {
        edited.clients.values().try_for_each(|client| self.removed_key_of(client))?;
        let is_known = |token| self.invitations.contains_key(token);
        match edited.open_invitations(now).into_iter().find(|open| !is_known(&open.token_sha256)) {
            Some(unknown) => Err(RegistryError::UnknownInvitation { name: unknown.name.clone() }),
            None => Ok(()),
        }
    }

    /// Adds to `edited` the clients that enrolled after it was written. Their invitations are still open in it.
    pub(crate) fn with_enrolled_since(&self, mut edited: Self) -> Self {
        for (token, used) in &self.invitations {
            let Some(client) = used.used_by.and_then(|key| self.by_key(key)) else { continue };
            let was_open = edited.invitations.get(token).is_some_and(|named| named.used_by.is_none());
            if was_open && edited.add(client.clone()).is_ok() {
                edited.invitations.insert(*token, used.clone());
            }
        }
        edited
    }

    /// Takes over the changes that end no session: names, rate limits, next keys, removed keys and invitations. `edited` has
    /// passed [`Self::check_edited`] and has every client of this registry.
    pub(crate) fn take_small_changes_of(&mut self, edited: &Self) {
        for client in self.clients.values_mut() {
            if let Some(named) = edited.by_key(client.public_key) {
                client.name.clone_from(&named.name);
                client.rate_limit = named.rate_limit;
                client.next_public_key = named.next_public_key;
            }
        }
        self.names = self.clients.values().map(|client| (client.name.clone(), client.public_key)).collect();
        self.next_keys = self
            .clients
            .values()
            .filter_map(|client| Some((client.next_public_key?, client.public_key)))
            .collect();
        self.removed.join(&edited.removed);
        // A key may have moved from one client to another. Taking out the first client removed the key, so it is allowed again
        // here.
        for key in edited.clients.values().flat_map(|client| client.keys()) {
            self.removed.forget(key);
        }
        self.take_invitations_of(edited);
    }

    /// Withdraws each invitation that `edited` lacks. An invitation that was used meanwhile stays used.
    fn take_invitations_of(&mut self, edited: &Self) {
        self.invitations.retain(|token, invitation| {
            let Some(named) = edited.invitations.get(token) else { return false };
            if invitation.used_by.is_none() {
                invitation.clone_from(named);
            }
            true
        });
    }
}
