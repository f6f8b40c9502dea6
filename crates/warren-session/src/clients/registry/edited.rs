//! Applies a registry that the operator edited, except for leases and dates, which the exit keeps.

use std::net::IpAddr;
use std::time::SystemTime;

use super::{Client, ClientRegistry, Invitation, PublicKey, RegistryError};

impl ClientRegistry {
    /// Checks that `edited` brings back neither a removed key nor a withdrawn invitation.
    pub(crate) fn check_edited(&self, edited: &Self, now: SystemTime) -> Result<(), RegistryError> {
        edited.iter().try_for_each(|client| self.removed_key_of(client))?;
        let is_known = |token| self.invitations.get(token).is_some();
        match edited.open_invitations(now).into_iter().find(|open| !is_known(&open.token_sha256)) {
            Some(unknown) => Err(RegistryError::UnknownInvitation { name: unknown.name.clone() }),
            None => Ok(()),
        }
    }

    /// Turns this registry into the one that an operator edited. This registry's leases and dates stay, because they are newer.
    /// Removed keys stay removed. A client that has enrolled since the edit stays if its invitation is still open in `edited`.
    ///
    /// # Errors
    ///
    /// As [`Self::check_edited`], or if two clients contradict each other.
    pub(crate) fn become_edited(&mut self, edited: Self, now: SystemTime) -> Result<(), RegistryError> {
        self.check_edited(&edited, now)?;
        let edited = self.with_enrolled_since(edited);
        self.finish_rotations(&edited, now);
        // Removed clients are deleted first, because changed clients may have got their names or addresses.
        let names: Vec<_> = self.iter().map(|client| (client.public_key, client.name.clone())).collect();
        for (key, name) in names {
            if edited.by_key(key).is_none() {
                self.remove(&name, now)?;
            }
        }
        let changed: Vec<_> = edited.iter().map(|client| self.with_own_dates(client)).collect();
        let changed: Vec<_> =
            changed.into_iter().filter(|client| self.by_key(client.public_key) != Some(client)).collect();
        // All changed clients are taken out before any is entered again, so that two can swap names and addresses.
        changed.iter().for_each(|client| drop(self.set_client(client.public_key, None)));
        // A key may have moved from one client to another. Removing the first client has made it a removed key.
        for key in edited.iter().flat_map(Client::keys) {
            self.allow(key);
        }
        for client in changed {
            self.check(&client)?;
            self.place(client);
        }
        for removed in edited.removed.iter() {
            if !self.removed.has(removed.public_key) {
                self.set_removed(removed.public_key, Some(removed.clone()));
            }
        }
        self.take_invitations_of(&edited);
        Ok(())
    }

    /// Adds the clients that enrolled after `edited` was written. Their invitations are still open in `edited`.
    fn with_enrolled_since(&self, mut edited: Self) -> Self {
        for (token, used) in self.invitations.iter() {
            let Some(key) = used.used_by else { continue };
            let Some(client) = self.enrolled(key) else { continue };
            let was_open = edited.invitations.get(token).is_some_and(|named| named.used_by.is_none());
            let is_upgraded = client.next_public_key == Some(key);
            // `edited` contains either the WireGuard client that the invitation upgraded, or no client of this invitation yet.
            let taken = match edited.by_key(client.public_key).filter(|_| was_open && is_upgraded).cloned() {
                Some(named) => edited.replace(Client { next_public_key: Some(key), ..named }),
                None if was_open && !is_upgraded => edited.add(client.clone()),
                None => continue,
            };
            if taken.is_ok() {
                edited.set_invitation(*token, Some(used.clone()));
            }
        }
        edited
    }

    /// Completes the key rotation of each client whose next key is its only key in `edited`. Without this, `edited` would seem to
    /// remove one client and add another.
    fn finish_rotations(&mut self, edited: &Self, now: SystemTime) {
        let is_there = |key: PublicKey| edited.by_key(key).is_some();
        let rotating = self.iter().filter_map(|client| Some((client.public_key, client.next_public_key?)));
        let finished: Vec<_> = rotating.filter(|(old, next)| !is_there(*old) && is_there(*next)).collect();
        finished.into_iter().for_each(|(old, _)| self.take_next_key(old, now));
    }

    /// An edited client with this registry's lease and dates. If there is no lease here, the client gets the edited lease, unless another
    /// client has that address. The pool accepts only addresses that belong to it.
    fn with_own_dates(&self, edited: &Client) -> Client {
        let edited = edited.clone();
        let is_free = |address: IpAddr| self.clients.by_address(address).is_none();
        let leased_ipv4 = edited.leased_ipv4.filter(|address| is_free(IpAddr::V4(*address)));
        let leased_ipv6 = edited.leased_ipv6.filter(|address| is_free(IpAddr::V6(*address)));
        let Some(own) = self.by_key(edited.public_key) else {
            return Client { leased_ipv4, leased_ipv6, ..edited };
        };
        Client {
            leased_ipv4: own.leased_ipv4.or(leased_ipv4).filter(|_| edited.ipv4.is_none()),
            leased_ipv6: own.leased_ipv6.or(leased_ipv6).filter(|_| edited.ipv6.is_none()),
            created: own.created,
            last_seen: own.last_seen,
            exit_key: own.exit_key,
            ..edited
        }
    }

    /// Withdraws each invitation that `edited` lacks. An invitation that was used meanwhile stays used.
    fn take_invitations_of(&mut self, edited: &Self) {
        let own: Vec<Invitation> =
            self.invitations.iter().map(|(_, invitation)| invitation.clone()).collect();
        for invitation in own {
            let named = edited.invitations.get(&invitation.token_sha256);
            // An invitation may have been used after the file was written. Such an invitation keeps its new state.
            if named.is_none() || invitation.used_by.is_none() {
                self.set_invitation(invitation.token_sha256, named.cloned());
            }
        }
    }
}
