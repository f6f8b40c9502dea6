//! All enrolled clients. Their names, keys, static addresses and prefixes are unique.

mod edited;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::SystemTime;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};

use super::client::{Client, MAX_CLIENTS, is_valid_name};
use super::invitation::Invitation;
use super::registry_error::RegistryError;
use super::removed::{RemovedKey, RemovedKeys};
use super::row::RowChange;
use crate::PublicKey;
use crate::invite::{InviteToken, TokenDigest};
use crate::planted::{Bug, is_planted};
use crate::pool::Lease;

/// The enrolled clients of one exit. Serde reads and writes it in the format of `clients.toml`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "ClientsFile", into = "ClientsFile")]
pub struct ClientRegistry {
    clients: BTreeMap<PublicKey, Client>,
    names: BTreeMap<String, PublicKey>,
    /// Maps each client's next key to its current one.
    next_keys: BTreeMap<PublicKey, PublicKey>,
    invitations: BTreeMap<TokenDigest, Invitation>,
    removed: RemovedKeys,
}

/// The result of redeeming a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Redeemed {
    /// The client's name.
    pub(crate) name: String,
    /// Whether this call enrolled the client.
    pub(crate) is_new: bool,
}

/// The format of `clients.toml`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClientsFile {
    #[serde(default)]
    client: Vec<Client>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    invitation: Vec<Invitation>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    removed: Vec<RemovedKey>,
}

impl ClientRegistry {
    /// A registry without clients.
    pub const fn new() -> Self {
        Self {
            clients: BTreeMap::new(),
            names: BTreeMap::new(),
            next_keys: BTreeMap::new(),
            invitations: BTreeMap::new(),
            removed: RemovedKeys::new(),
        }
    }

    /// Enrols a client. Another client that holds one of its static addresses as a sticky lease loses that lease. An open
    /// invitation with the client's name is withdrawn.
    ///
    /// # Errors
    ///
    /// If its name, key, static addresses or prefixes are invalid or belong to another client, or if its key was removed. Nothing
    /// changes then.
    pub fn add(&mut self, client: Client) -> Result<(), RegistryError> {
        self.check(&client)?;
        for other in self.clients.values_mut() {
            // A static address wins over a sticky one, which the pool can replace.
            other.leased_ipv4 = other.leased_ipv4.filter(|leased| client.ipv4 != Some(*leased));
            other.leased_ipv6 = other.leased_ipv6.filter(|leased| client.ipv6 != Some(*leased));
        }
        self.withdraw(&client.name);
        self.insert(client);
        Ok(())
    }

    /// Replaces the client of the same name.
    ///
    /// # Errors
    ///
    /// If there is no client of that name, or as [`Self::add`]. Nothing changes then.
    pub fn replace(&mut self, client: Client) -> Result<(), RegistryError> {
        let before = self.by_name(&client.name).cloned();
        let before = before.ok_or_else(|| RegistryError::NoSuchClient { name: client.name.clone() })?;
        // Taken out first, because it would conflict with itself.
        self.names.remove(&before.name);
        self.take(before.public_key);
        let added = self.add(client);
        if added.is_err() {
            self.insert(before);
        }
        added
    }

    /// Removes a client together with the invitation that it used, and withdraws an open invitation of its name. Returns `None`
    /// if there was only an open invitation. The client's keys cannot be enrolled again unless [`Self::allow`] permits it.
    ///
    /// # Errors
    ///
    /// If there is neither a client nor an open invitation of that name.
    pub fn remove(&mut self, name: &str, now: SystemTime) -> Result<Option<Client>, RegistryError> {
        let withdrawn = self.withdraw(name);
        let removed = self.names.remove(name).and_then(|key| self.take(key));
        match &removed {
            Some(client) => {
                self.invitations.retain(|_, invitation| invitation.used_by != Some(client.public_key));
                self.removed.add_client(client, now);
            }
            None if withdrawn => {}
            None => return Err(RegistryError::NoSuchClient { name: name.to_owned() }),
        }
        Ok(removed)
    }

    /// Allows a removed key to be enrolled again. Returns whether it was a removed key.
    pub fn allow(&mut self, key: PublicKey) -> bool {
        self.removed.forget(key)
    }

    /// Every removed key, sorted by the name of its client.
    pub fn removed_keys(&self) -> Vec<&RemovedKey> {
        self.removed.list()
    }

    /// Adds an invitation. It replaces an open one of the same name. Invitations that have expired by `now` are deleted.
    ///
    /// # Errors
    ///
    /// If its name is invalid or belongs to a client. Nothing changes then.
    pub fn invite(&mut self, invitation: Invitation, now: SystemTime) -> Result<(), RegistryError> {
        let name = || invitation.name.clone();
        if !is_valid_name(&invitation.name) {
            return Err(RegistryError::BadName { name: name() });
        }
        if self.names.contains_key(&invitation.name) {
            return Err(RegistryError::NameTaken { name: name() });
        }
        self.withdraw(&invitation.name);
        self.invitations.retain(|_, other| now < other.expires);
        self.invitations.insert(invitation.token_sha256, invitation);
        Ok(())
    }

    /// Deletes the open invitation of a name. Returns whether there was one.
    fn withdraw(&mut self, name: &str) -> bool {
        let before = self.invitations.len();
        self.invitations.retain(|_, invitation| invitation.name != name || invitation.used_by.is_some());
        self.invitations.len() < before
    }

    /// Enrols a key with the token of an invitation. Returns `None` if the invitation does not admit the key.
    ///
    /// The key that the invitation enrolled before gets the same answer again, and nothing changes.
    pub(crate) fn redeem(
        &mut self,
        token: &InviteToken,
        key: PublicKey,
        now: SystemTime,
    ) -> Option<Redeemed> {
        let digest = token.digest();
        let invitation =
            self.invitations.get(&digest).filter(|invitation| invitation.admits(key, now))?.clone();
        if invitation.used_by == Some(key) {
            return self.by_key(key).map(|client| Redeemed { name: client.name.clone(), is_new: false });
        }
        // Another client may have been renamed to this name meanwhile, and the key may belong to another client or be a removed
        // one.
        self.add(Client::new(invitation.name.clone(), key, now)).ok()?;
        let name = invitation.name.clone();
        self.invitations.insert(digest, Invitation { used_by: Some(key), ..invitation });
        Some(Redeemed { name, is_new: true })
    }

    /// Every invitation.
    pub(super) fn invitations(&self) -> impl Iterator<Item = &Invitation> {
        self.invitations.values()
    }

    /// Takes a stored row into a registry that does not have it yet.
    pub(super) fn load(&mut self, row: RowChange) -> Result<(), RegistryError> {
        match row {
            RowChange::Client { client: Some(client), .. } => self.add(client)?,
            RowChange::Invitation { invitation: Some(invitation), .. } => {
                self.invitations.insert(invitation.token_sha256, invitation);
            }
            RowChange::Removed { removed: Some(removed), .. } => {
                if !is_valid_name(&removed.name) {
                    return Err(RegistryError::BadName { name: removed.name });
                }
                self.removed.add(removed);
            }
            RowChange::Client { .. } | RowChange::Invitation { .. } | RowChange::Removed { .. } => {}
        }
        Ok(())
    }

    /// The invitations that are open at `now`, sorted by name.
    pub fn open_invitations(&self, now: SystemTime) -> Vec<&Invitation> {
        let mut open: Vec<_> =
            self.invitations.values().filter(|invitation| invitation.is_open(now)).collect();
        open.sort_by(|left, right| left.name.cmp(&right.name));
        open
    }

    /// Gives a client another name.
    ///
    /// # Errors
    ///
    /// If no client has the old name, or the new one is invalid or belongs to another client.
    pub fn rename(&mut self, old: &str, new: &str) -> Result<(), RegistryError> {
        let no_such_client = || RegistryError::NoSuchClient { name: old.to_owned() };
        let key = *self.names.get(old).ok_or_else(no_such_client)?;
        if !is_valid_name(new) {
            return Err(RegistryError::BadName { name: new.to_owned() });
        }
        if self.names.get(new).is_some_and(|holder| *holder != key) {
            return Err(RegistryError::NameTaken { name: new.to_owned() });
        }
        self.clients.get_mut(&key).ok_or_else(no_such_client)?.name = new.to_owned();
        self.names.remove(old);
        self.names.insert(new.to_owned(), key);
        Ok(())
    }

    /// Disables or enables a client. Returns its key.
    ///
    /// # Errors
    ///
    /// If no client has that name.
    pub fn set_disabled(&mut self, name: &str, disabled: bool) -> Result<PublicKey, RegistryError> {
        let key = self.names.get(name).copied();
        let client = key.and_then(|key| self.clients.get_mut(&key));
        let client = client.ok_or_else(|| RegistryError::NoSuchClient { name: name.to_owned() })?;
        client.disabled = disabled;
        Ok(client.public_key)
    }

    /// The client with a key.
    pub fn by_key(&self, key: PublicKey) -> Option<&Client> {
        self.clients.get(&key)
    }

    /// The client whose next key this is.
    pub(crate) fn by_next_key(&self, key: PublicKey) -> Option<&Client> {
        self.clients.get(self.next_keys.get(&key)?)
    }

    /// Replaces a client's key by its next key. The old key becomes a removed key.
    pub(crate) fn take_next_key(&mut self, key: PublicKey, now: SystemTime) {
        let Some(next) = self.clients.get(&key).and_then(|client| client.next_public_key) else { return };
        let Some(client) = self.take(key) else { return };
        if is_planted(Bug::OldKeyAccepted) {
            self.clients.insert(key, client.clone());
        }
        self.removed.add(RemovedKey { name: client.name.clone(), public_key: key, removed: now });
        self.insert(Client { public_key: next, next_public_key: None, ..client });
        // Removing the client later deletes the invitation that it used, which it must find by the new key.
        for invitation in self.invitations.values_mut().filter(|invitation| invitation.used_by == Some(key)) {
            invitation.used_by = Some(next);
        }
    }

    /// The client with a name.
    pub fn by_name(&self, name: &str) -> Option<&Client> {
        self.clients.get(self.names.get(name)?)
    }

    /// Every client, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = &Client> {
        self.names.values().filter_map(|key| self.clients.get(key))
    }

    /// Number of clients.
    pub fn len(&self) -> usize {
        self.clients.len()
    }

    /// Whether there is no client.
    pub fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }

    /// Records the client's lease from the pool. Returns whether it changed.
    pub(crate) fn record_lease(&mut self, key: PublicKey, lease: Lease) -> bool {
        let Some(client) = self.clients.get_mut(&key) else { return false };
        let before = client.sticky_lease();
        client.leased_ipv4 = lease.ipv4.filter(|_| client.ipv4.is_none());
        client.leased_ipv6 = lease.ipv6.filter(|_| client.ipv6.is_none());
        client.sticky_lease() != before
    }

    pub(crate) fn record_seen(&mut self, key: PublicKey, when: SystemTime) {
        if let Some(client) = self.clients.get_mut(&key) {
            client.last_seen = Some(when);
        }
    }

    fn insert(&mut self, client: Client) {
        self.names.insert(client.name.clone(), client.public_key);
        self.next_keys.extend(client.next_public_key.map(|next| (next, client.public_key)));
        self.clients.insert(client.public_key, client);
    }

    /// Takes a client out of the key maps. Its entry in `names` remains.
    fn take(&mut self, key: PublicKey) -> Option<Client> {
        let client = self.clients.remove(&key)?;
        client.next_public_key.map(|next| self.next_keys.remove(&next));
        Some(client)
    }

    /// Checks that a client can be added.
    pub(crate) fn check(&self, client: &Client) -> Result<(), RegistryError> {
        if self.clients.len() >= MAX_CLIENTS {
            return Err(RegistryError::Full);
        }
        let name = || client.name.clone();
        if !is_valid_name(&client.name) {
            return Err(RegistryError::BadName { name: name() });
        }
        if self.names.contains_key(&client.name) {
            return Err(RegistryError::NameTaken { name: name() });
        }
        self.removed_key_of(client)?;
        for key in client.keys() {
            if let Some(holder) = self.by_key(key).or_else(|| self.by_next_key(key)) {
                return Err(RegistryError::KeyTaken { name: name(), key, holder: holder.name.clone() });
            }
        }
        for address in client.static_lease().addresses() {
            if let Some(holder) = self.clients.values().find(|other| other.static_lease().contains(address)) {
                return Err(RegistryError::AddressTaken {
                    name: name(),
                    address,
                    holder: holder.name.clone(),
                });
            }
        }
        self.check_prefixes(client)
    }

    fn removed_key_of(&self, client: &Client) -> Result<(), RegistryError> {
        let Some(removed) = client.keys().find_map(|key| self.removed.find(key)) else { return Ok(()) };
        let (key, holder) = (removed.public_key, removed.name.clone());
        Err(RegistryError::KeyRemoved { name: client.name.clone(), key, holder })
    }

    fn check_prefixes(&self, client: &Client) -> Result<(), RegistryError> {
        let name = || client.name.clone();
        let count = client.prefixes.len();
        if count > crate::MAX_PREFIXES {
            return Err(RegistryError::TooManyPrefixes { name: name(), count });
        }
        for (position, &prefix) in client.prefixes.iter().enumerate() {
            if prefix.trunc() != prefix {
                return Err(RegistryError::BadPrefix { name: name(), prefix });
            }
            if prefix.prefix_len() == 0 {
                return Err(RegistryError::WholeInternet { name: name(), prefix });
            }
            if let Some((reserved, what)) = reserved().into_iter().find(|(other, _)| overlap(other, &prefix))
            {
                return Err(RegistryError::ReservedPrefix { name: name(), prefix, reserved, what });
            }
            if let Some(&other) = client.prefixes.iter().take(position).find(|other| overlap(other, &prefix))
            {
                return Err(RegistryError::PrefixTwice { name: name(), prefix, other });
            }
            let mut others = self
                .clients
                .values()
                .flat_map(|holder| holder.prefixes.iter().map(move |other| (holder, other)));
            if let Some((holder, other)) = others.find(|(_, other)| overlap(other, &prefix)) {
                let (other, holder) = (*other, holder.name.clone());
                return Err(RegistryError::PrefixTaken { name: name(), prefix, other, holder });
            }
        }
        Ok(())
    }
}

/// Whether two networks have an address in common.
fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(other) || other.contains(one)
}

/// Special-purpose networks that cannot be behind a client (RFC 6890), with the kind of their addresses.
fn reserved() -> [(IpNet, &'static str); 8] {
    let ipv4 = |a, b, length| IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(a, b, 0, 0), length));
    let ipv6 =
        |first, length| IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(first, 0, 0, 0, 0, 0, 0, 0), length));
    [
        (ipv4(0, 0, 8), "unspecified"),
        (ipv4(127, 0, 8), "loopback"),
        (ipv4(169, 254, 16), "link-local"),
        (ipv4(224, 0, 4), "multicast"),
        (ipv4(240, 0, 4), "reserved"),
        (ipv6(0, 127), "unspecified and loopback"),
        (ipv6(0xfe80, 10), "link-local"),
        (ipv6(0xff00, 8), "multicast"),
    ]
}

impl TryFrom<ClientsFile> for ClientRegistry {
    type Error = RegistryError;

    fn try_from(file: ClientsFile) -> Result<Self, RegistryError> {
        let mut registry = Self::new();
        // Before the clients, so that one with a removed key is refused.
        for removed in file.removed {
            if !is_valid_name(&removed.name) {
                return Err(RegistryError::BadName { name: removed.name });
            }
            registry.removed.add(removed);
        }
        file.client.into_iter().try_for_each(|client| registry.add(client))?;
        registry.invitations =
            file.invitation.into_iter().map(|invitation| (invitation.token_sha256, invitation)).collect();
        Ok(registry)
    }
}

impl From<ClientRegistry> for ClientsFile {
    fn from(registry: ClientRegistry) -> Self {
        let client = registry.iter().cloned().collect();
        let invitation = registry.invitations.into_values().collect();
        Self { client, invitation, removed: registry.removed.into_list() }
    }
}
