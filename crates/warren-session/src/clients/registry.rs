//! All enrolled clients. Their names, keys, static addresses and prefixes are unique.

mod edited;
mod rows;
mod undo;

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::SystemTime;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};

use super::client::{Client, MAX_CLIENTS, is_valid_name};
use super::forward::Forward;
use super::forwards::check_forwards;
use super::invitation::Invitation;
use super::invitations::Invitations;
use super::registry_error::RegistryError;
use super::removed::{RemovedKey, RemovedKeys};
use super::row::{Before, RowChange};
use super::table::{ClientTable, overlap};
use crate::PublicKey;
use crate::invite::{InviteToken, TokenDigest};
use crate::planted::{Bug, is_planted};
use crate::pool::Lease;

/// The enrolled clients of one exit. Serde reads and writes it in the format of `clients.toml`.
///
/// Each address belongs to at most one client, as a static or as a sticky address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "ClientsFile", into = "ClientsFile")]
pub struct ClientRegistry {
    clients: ClientTable,
    invitations: Invitations,
    removed: RemovedKeys,
    /// The rows that the current change has touched. Unset while no change is under way.
    before: Option<Before>,
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
            clients: ClientTable::new(),
            invitations: Invitations::new(),
            removed: RemovedKeys::new(),
            before: None,
        }
    }

    /// Frees memory that many changes have left unused.
    pub(crate) fn compact(&mut self) {
        self.clients.compact();
        self.invitations.compact();
        self.removed.compact();
    }

    /// Enrols a client. Another client that holds one of its addresses as a sticky lease loses that lease. An open invitation
    /// with the client's name is withdrawn, unless it upgrades this client.
    ///
    /// # Errors
    ///
    /// If the client's name, key, static addresses or prefixes are invalid or belong to another client, or if its key was
    /// removed. In that case nothing changes.
    pub fn add(&mut self, client: Client) -> Result<(), RegistryError> {
        self.check(&client)?;
        self.withdraw(&client.name, Some(client.public_key));
        self.place(client);
        Ok(())
    }

    /// Replaces the client of the same name.
    ///
    /// # Errors
    ///
    /// If there is no client of that name, or as [`Self::add`]. In that case nothing changes.
    pub fn replace(&mut self, client: Client) -> Result<(), RegistryError> {
        let before = self.by_name(&client.name);
        let before = before.ok_or_else(|| RegistryError::NoSuchClient { name: client.name.clone() })?;
        // The client must be taken out first. Otherwise it would conflict with itself.
        let before = self.set_client(before.public_key, None);
        let added = self.add(client);
        if let Some(before) = before.filter(|_| added.is_err()) {
            self.set_client(before.public_key, Some(before));
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
        let withdrawn = self.withdraw(name, None);
        let key = self.by_name(name).map(|client| client.public_key);
        let removed = key.and_then(|key| self.remove_key(key, now));
        if removed.is_none() && !withdrawn {
            return Err(RegistryError::NoSuchClient { name: name.to_owned() });
        }
        Ok(removed)
    }

    /// Removes the client with this key. Its keys become removed keys. Returns the client, if there is one.
    pub(crate) fn remove_key(&mut self, key: PublicKey, now: SystemTime) -> Option<Client> {
        let client = self.set_client(key, None)?;
        for token in client.keys().flat_map(|key| self.invitations.used_by(key)).collect::<Vec<_>>() {
            self.set_invitation(token, None);
        }
        self.remember_removed(&client, now);
        Some(client)
    }

    /// Turns all keys of a client into removed keys, including its next key.
    pub(crate) fn remember_removed(&mut self, client: &Client, now: SystemTime) {
        for public_key in client.keys() {
            let removed = RemovedKey { name: client.name.clone(), public_key, removed: now };
            self.set_removed(public_key, Some(removed));
        }
    }

    /// Allows a removed key to be enrolled again. Returns whether the key was a removed key.
    pub fn allow(&mut self, key: PublicKey) -> bool {
        self.removed.has(key) && self.set_removed(key, None).is_some()
    }

    /// Whether a key is a removed key.
    pub(crate) fn has_removed(&self, key: PublicKey) -> bool {
        self.removed.has(key)
    }

    /// The removed keys above `after` in ascending order, or all removed keys if `after` is `None`. Used to read the keys in
    /// pages.
    pub fn removed_after(&self, after: Option<PublicKey>) -> impl Iterator<Item = &RemovedKey> {
        self.removed.after(after)
    }

    /// Adds an invitation, which replaces an open invitation of the same name. Deletes the invitations that have expired by
    /// `now`. An invitation with the name of a WireGuard client turns that client into a Warren client, even if the client is
    /// renamed before the invitation is used.
    ///
    /// # Errors
    ///
    /// If the invitation's name is invalid or belongs to a Warren client. In that case nothing changes.
    pub fn invite(&mut self, invitation: Invitation, now: SystemTime) -> Result<(), RegistryError> {
        let name = || invitation.name.clone();
        if !is_valid_name(&invitation.name) {
            return Err(RegistryError::BadName { name: name() });
        }
        let upgrades = match self.by_name(&invitation.name) {
            None => None,
            Some(client) if client.wireguard.is_some() => Some(client.public_key),
            Some(_) => return Err(RegistryError::NameTaken { name: name() }),
        };
        self.withdraw(&invitation.name, None);
        for token in self.invitations.expired_by(now) {
            self.set_invitation(token, None);
        }
        self.set_invitation(invitation.token_sha256, Some(Invitation { upgrades, ..invitation }));
        Ok(())
    }

    /// Deletes the open invitation of a name, unless it upgrades the client with the key `but`. Returns whether an invitation was
    /// deleted.
    fn withdraw(&mut self, name: &str, but: Option<PublicKey>) -> bool {
        let mut open = self.invitations.unused_of(name);
        let is_kept = |token: &TokenDigest| {
            let upgrades = self.invitations.get(token).and_then(|invitation| invitation.upgrades);
            upgrades.is_some() && upgrades == but
        };
        open.retain(|token| !is_kept(token));
        open.iter().for_each(|token| drop(self.set_invitation(*token, None)));
        !open.is_empty()
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
            return self.enrolled(key).map(|client| Redeemed { name: client.name.clone(), is_new: false });
        }
        if let Some(old) = invitation.upgrades {
            return self.upgrade(old, key, invitation);
        }
        // Since the invitation was issued, another client may have been renamed to this name, and the key may have been enrolled
        // or removed.
        self.add(Client::new(invitation.name.clone(), key, now)).ok()?;
        let name = invitation.name.clone();
        self.set_invitation(digest, Some(Invitation { used_by: Some(key), ..invitation }));
        Some(Redeemed { name, is_new: true })
    }

    /// Gives a WireGuard client a Warren key as its next key. The client connects with that key from then on.
    fn upgrade(&mut self, old: PublicKey, key: PublicKey, invitation: Invitation) -> Option<Redeemed> {
        // Since the invitation was issued, the client may have been removed, or upgraded in another way.
        let client = self.by_key(old).filter(|client| client.wireguard.is_some())?.clone();
        let name = client.name.clone();
        self.replace(Client { next_public_key: Some(key), ..client }).ok()?;
        let token = invitation.token_sha256;
        self.set_invitation(token, Some(Invitation { used_by: Some(key), upgrades: None, ..invitation }));
        Some(Redeemed { name, is_new: true })
    }

    /// The client whose current or next key this is.
    pub(crate) fn enrolled(&self, key: PublicKey) -> Option<&Client> {
        self.by_key(key).or_else(|| self.by_next_key(key))
    }

    /// Whether an invitation may enrol a key, or has enrolled it.
    pub(crate) fn admits(&self, token: TokenDigest, key: PublicKey, now: SystemTime) -> bool {
        !self.removed.has(key)
            && self.invitations.get(&token).is_some_and(|invitation| invitation.admits(key, now))
    }

    /// The invitations that are open at `now`, sorted by name.
    pub fn open_invitations(&self, now: SystemTime) -> Vec<&Invitation> {
        self.open_after("", now).collect()
    }

    /// The open invitations whose names come after `name`, sorted by name. Used to read the invitations in pages.
    pub fn open_after(&self, name: &str, now: SystemTime) -> impl Iterator<Item = &Invitation> {
        self.invitations.unused_after(name).filter(move |invitation| invitation.is_open(now))
    }

    /// Whether an open invitation has this name.
    pub fn is_invited(&self, name: &str, now: SystemTime) -> bool {
        let mut invitations = self.invitations.unused_of(name).into_iter();
        invitations
            .any(|token| self.invitations.get(&token).is_some_and(|invitation| invitation.is_open(now)))
    }

    /// Gives a client another name.
    ///
    /// # Errors
    ///
    /// If no client has the old name, or the new one is invalid or belongs to another client.
    pub fn rename(&mut self, old: &str, new: &str) -> Result<(), RegistryError> {
        let mut client = self.named(old)?.clone();
        if !is_valid_name(new) {
            return Err(RegistryError::BadName { name: new.to_owned() });
        }
        // A client may be renamed to its current name.
        if self.by_name(new).is_some_and(|holder| holder.public_key != client.public_key) {
            return Err(RegistryError::NameTaken { name: new.to_owned() });
        }
        new.clone_into(&mut client.name);
        self.set_client(client.public_key, Some(client));
        Ok(())
    }

    /// Disables or enables a client. Returns its key.
    ///
    /// # Errors
    ///
    /// If no client has that name.
    pub fn set_disabled(&mut self, name: &str, disabled: bool) -> Result<PublicKey, RegistryError> {
        let client = Client { disabled, ..self.named(name)?.clone() };
        let key = client.public_key;
        self.set_client(key, Some(client));
        Ok(key)
    }

    /// The client with this key.
    pub fn by_key(&self, key: PublicKey) -> Option<&Client> {
        self.clients.by_key(key)
    }

    /// The client whose next key this is.
    pub(crate) fn by_next_key(&self, key: PublicKey) -> Option<&Client> {
        self.clients.by_next_key(key)
    }

    /// Replaces a client's key by its next key. The old key becomes a removed key.
    pub(crate) fn take_next_key(&mut self, key: PublicKey, now: SystemTime) {
        let Some(next) = self.by_key(key).and_then(|client| client.next_public_key) else { return };
        let Some(mut client) = self.set_client(key, None) else { return };
        if is_planted(Bug::LeaseLostWithKey) {
            (client.leased_ipv4, client.leased_ipv6) = (None, None);
        }
        if is_planted(Bug::OldKeyAccepted) {
            self.set_client(key, Some(Client { next_public_key: None, ..client.clone() }));
        }
        let removed = RemovedKey { name: client.name.clone(), public_key: key, removed: now };
        self.set_removed(key, Some(removed));
        // The next key is always a Warren key, so a WireGuard client becomes a Warren client here.
        let renewed = Client { public_key: next, next_public_key: None, wireguard: None, ..client };
        self.set_client(next, Some(renewed));
        // A later removal of the client also deletes the invitation that it used. The removal finds the invitation by the
        // client's current key.
        for token in self.invitations.used_by(key) {
            let used = self.invitations.get(&token).cloned();
            self.set_invitation(token, used.map(|used| Invitation { used_by: Some(next), ..used }));
        }
    }

    /// The client with this name.
    pub fn by_name(&self, name: &str) -> Option<&Client> {
        self.clients.by_name(name)
    }

    pub(super) fn named(&self, name: &str) -> Result<&Client, RegistryError> {
        self.by_name(name).ok_or_else(|| RegistryError::NoSuchClient { name: name.to_owned() })
    }

    /// Every client, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = &Client> {
        self.clients.after(None, "")
    }

    /// The clients whose names come after `after` and contain `part`, sorted by name. Returns all clients if `after` is `None`
    /// and `part` is empty. Used to read and search the clients in pages.
    pub fn page(&self, after: Option<&str>, part: &str) -> impl Iterator<Item = &Client> {
        self.clients.after(after, part)
    }

    /// The prefixes of all clients, in order.
    pub fn prefixes(&self) -> impl Iterator<Item = (IpNet, &Client)> {
        self.clients.prefixes()
    }

    /// The forwards of all clients, sorted by protocol and port.
    pub fn forwards(&self) -> impl Iterator<Item = (Forward, &Client)> {
        self.clients.forwards()
    }

    /// Number of clients.
    pub fn len(&self) -> usize {
        self.clients.len()
    }

    /// Whether there is no client.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Records the client's lease from the pool. Returns whether it changed.
    pub(crate) fn record_lease(&mut self, key: PublicKey, lease: Lease) -> bool {
        let Some(client) = self.by_key(key) else { return false };
        // A client with a static address has no sticky address of the same family.
        let leased_ipv4 = lease.ipv4.filter(|_| client.ipv4.is_none());
        let leased_ipv6 = lease.ipv6.filter(|_| client.ipv6.is_none());
        let changes = client.sticky_lease() != Lease { ipv4: leased_ipv4, ipv6: leased_ipv6 };
        if changes {
            let client = Client { leased_ipv4, leased_ipv6, ..client.clone() };
            self.set_client(key, Some(client));
        }
        changes
    }

    /// Records to which of the exit's keys a client has connected. Returns whether it differs from the recorded key.
    pub(crate) fn record_exit_key(&mut self, key: PublicKey, exit_key: PublicKey) -> bool {
        let client = self.by_key(key).filter(|client| client.exit_key != Some(exit_key)).cloned();
        let is_news = client.is_some();
        if let Some(client) = client {
            self.set_client(key, Some(Client { exit_key: Some(exit_key), ..client }));
        }
        is_news
    }

    /// Records when a client was online. Returns whether the client exists.
    pub(crate) fn record_seen(&mut self, key: PublicKey, when: SystemTime) -> bool {
        self.clients.set_seen(key, when)
    }

    /// Adds a client whose name, keys, static addresses and prefixes belong to no other client. If two clients have the same
    /// address, a static address wins over a sticky one, and the sticky address of the added client wins over another sticky one.
    fn place(&mut self, mut client: Client) {
        let key = client.public_key;
        client.leased_ipv4 = client.leased_ipv4.filter(|_| client.ipv4.is_none());
        client.leased_ipv6 = client.leased_ipv6.filter(|_| client.ipv6.is_none());
        for address in client.lease().addresses() {
            let holder = self.clients.by_address(address).filter(|holder| holder.public_key != key);
            let Some(holder) = holder.filter(|_| !is_planted(Bug::AddressTakenTwice)).cloned() else {
                continue;
            };
            let mut loser = if holder.static_lease().contains(address) { client.clone() } else { holder };
            loser.leased_ipv4 = loser.leased_ipv4.filter(|leased| *leased != address);
            loser.leased_ipv6 = loser.leased_ipv6.filter(|leased| *leased != address);
            if loser.public_key == key {
                client = loser;
            } else {
                self.set_client(loser.public_key, Some(loser));
            }
        }
        self.set_client(key, Some(client));
    }

    /// Checks that a client can be added.
    pub(crate) fn check(&self, client: &Client) -> Result<(), RegistryError> {
        self.check_alone(client)?;
        self.clients.rival_of(client).map_or(Ok(()), |(_, error)| Err(error))
    }

    /// Checks the rules that concern this client alone.
    fn check_alone(&self, client: &Client) -> Result<(), RegistryError> {
        if self.len() >= MAX_CLIENTS {
            return Err(RegistryError::Full);
        }
        if !is_valid_name(&client.name) {
            return Err(RegistryError::BadName { name: client.name.clone() });
        }
        self.removed_key_of(client)?;
        check_prefixes(client)?;
        check_forwards(client, self.clients.moved_ports())
    }

    fn removed_key_of(&self, client: &Client) -> Result<(), RegistryError> {
        let Some(removed) = client.keys().find_map(|key| self.removed.find(key)) else { return Ok(()) };
        let (key, holder) = (removed.public_key, removed.name.clone());
        let (name, maker) = (client.name.clone(), client.key_maker(key));
        Err(RegistryError::KeyRemoved { name, key, holder, maker })
    }
}

fn check_prefixes(client: &Client) -> Result<(), RegistryError> {
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
        if let Some((reserved, what)) = reserved().into_iter().find(|(other, _)| overlap(other, &prefix)) {
            return Err(RegistryError::ReservedPrefix { name: name(), prefix, reserved, what });
        }
        if let Some(&other) = client.prefixes.iter().take(position).find(|other| overlap(other, &prefix)) {
            return Err(RegistryError::PrefixTwice { name: name(), prefix, other });
        }
    }
    Ok(())
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
        let removed = file.removed.into_iter().map(RowChange::from);
        let clients = file.client.into_iter().map(RowChange::from);
        let mut registry = Self::new();
        // `from_rows` is not used here: two entries with one key are a mistake, not a change.
        removed.chain(clients).try_for_each(|row| registry.load(row))?;
        file.invitation.into_iter().try_for_each(|invitation| registry.load(invitation.into()))?;
        Ok(registry)
    }
}

impl From<ClientRegistry> for ClientsFile {
    fn from(registry: ClientRegistry) -> Self {
        let client = registry.iter().cloned().collect();
        let invitation = registry.invitations.iter().map(|(_, invitation)| invitation.clone()).collect();
        Self { client, invitation, removed: registry.removed.into_list() }
    }
}
