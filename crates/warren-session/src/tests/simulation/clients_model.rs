//! A model of the clients and invitations that the operator and the machines made. The exit changes only two things by itself: it
//! leases addresses, and it rotates a client to its next key when a connection proves that key.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{SystemTime, UNIX_EPOCH};

use ipnet::{IpNet, Ipv4Net};

use crate::clients::{Client, ClientRegistry, Invitation, RowChange};
use crate::exit::ExitSessions;
use crate::invite::InviteToken;
use crate::{Goodbye, PublicKey};

use super::network::Network;
use super::world::Room;

/// Number of clients that have hosts.
pub(super) const CLIENTS: usize = 4;

/// Number of clients that enrol but never connect.
pub(super) const GUESTS: usize = 2;

/// Number of keys on each client's machine.
pub(super) const KEYS: usize = 3;

/// One key of a client's machine. No other client ever gets this key.
pub(super) fn key_of(client: usize, number: usize) -> PublicKey {
    PublicKey([u8::try_from(1 + client + 10 * number).unwrap(); 32])
}

/// The client whose machine has the key.
pub(super) fn client_of(key: PublicKey) -> usize {
    usize::from(key.0[0] - 1) % 10
}

/// A client's name in the registry.
pub(super) fn name_of(client: usize) -> String {
    format!("c{}", client + 1)
}

/// The network that a client's machine wants routed to it.
pub(super) fn network_behind(client: usize) -> IpNet {
    Ipv4Net::new([192, 168, u8::try_from(client).unwrap(), 0].into(), 24).unwrap().into()
}

/// The clients that the exit should know.
#[derive(Debug)]
pub(super) struct ClientsModel {
    clients: BTreeMap<String, Client>,
    /// Invitations that the exit has neither withdrawn nor deleted.
    invitations: Vec<Invited>,
    /// Every token that was issued, with its client.
    tokens: Vec<(InviteToken, usize)>,
    /// Keys of hosts that the exit had to refuse at some time.
    shut_out: BTreeSet<PublicKey>,
    /// Removed keys that the operator has not allowed again.
    removed: BTreeSet<PublicKey>,
}

#[derive(Debug)]
struct Invited {
    token: InviteToken,
    name: String,
    expires: SystemTime,
    used_by: Option<PublicKey>,
}

impl ClientsModel {
    pub(super) fn new(registry: &ClientRegistry) -> Self {
        let clients = registry.iter().map(|client| (client.name.clone(), client.clone())).collect();
        Self {
            clients,
            invitations: Vec::new(),
            tokens: Vec::new(),
            shut_out: BTreeSet::new(),
            removed: BTreeSet::new(),
        }
    }

    /// Makes the model follow the store. Other checks find out whether the store's decisions are right.
    pub(super) fn resync(&mut self, registry: &ClientRegistry) {
        self.clients = registry.iter().map(|client| (client.name.clone(), client.clone())).collect();
        self.removed = registry.removed_after(None).map(|removed| removed.public_key).collect();
        let tokens = &self.tokens;
        let kept = registry.rows().filter_map(|row| {
            let RowChange::Invitation { invitation: Some(invitation), .. } = row else { return None };
            let (token, _) = tokens.iter().find(|(token, _)| token.digest() == invitation.token_sha256)?;
            let Invitation { name, expires, used_by, .. } = invitation;
            Some(Invited { token: *token, name, expires, used_by })
        });
        self.invitations = kept.collect();
    }

    pub(super) fn by_name(&self, name: &str) -> Option<&Client> {
        self.clients.get(name)
    }

    pub(super) fn by_key(&self, key: PublicKey) -> Option<&Client> {
        self.clients.values().find(|client| client.public_key == key)
    }

    /// The reason for refusing a connection that proves a key and sends Hello, or Attach with a wrong token. `None` if it must not
    /// be refused for one of these reasons.
    pub(super) fn refusal(&self, key: PublicKey, says_hello: bool) -> Option<Goodbye> {
        let is_next = |client: &Client| !client.disabled && client.next_public_key == Some(key);
        match self.by_key(key) {
            Some(client) => client.disabled.then_some(Goodbye::Disabled),
            None if self.clients.values().any(is_next) => (!says_hello).then_some(Goodbye::UnknownSession),
            None => Some(Goodbye::NotEnrolled),
        }
    }

    pub(super) fn admits(&self, key: PublicKey) -> bool {
        self.refusal(key, true).is_none()
    }

    /// Records whether a host's key is admitted now.
    pub(super) fn look_at(&mut self, key: PublicKey) {
        if !self.admits(key) {
            self.shut_out.insert(key);
        }
    }

    /// Whether the exit ever had to refuse a host with the key.
    pub(super) fn was_shut_out(&self, key: PublicKey) -> bool {
        self.shut_out.contains(&key)
    }

    /// Checks the exit's own changes of its clients and records them. Returns the keys that rotations replaced.
    pub(super) fn follow(
        &mut self,
        registry: &ClientRegistry,
        room: Room,
        network: &Network,
    ) -> Vec<PublicKey> {
        assert_eq!(registry.iter().count(), self.clients.len(), "{registry:?}");
        let mut left = Vec::new();
        for client in registry.iter() {
            let known = self.clients.get_mut(&client.name).expect("a client that nobody enrolled");
            let keeps_addresses = known.lease().addresses().all(|address| client.lease().contains(address));
            if client.public_key != known.public_key {
                let is_promised = known.next_public_key == Some(client.public_key) && !known.disabled;
                assert!(is_promised, "{} has a key that nobody set", client.name);
                assert!(network.has_shown(client.public_key), "{} has a key that nobody showed", client.name);
                assert!(keeps_addresses, "an address is lost with the old key");
                left.push(known.public_key);
                self.removed.insert(known.public_key);
                for invited in &mut self.invitations {
                    invited.used_by =
                        invited.used_by.map(|by| if by == known.public_key { client.public_key } else { by });
                }
                (known.public_key, known.next_public_key) = (client.public_key, None);
            }
            assert!(keeps_addresses || room == Room::Tight, "a lease sticks to its client");
            (known.leased_ipv4, known.leased_ipv6) = (client.leased_ipv4, client.leased_ipv6);
            assert!(is_chosen_alike(client, known), "{client:?} instead of {known:?}");
        }
        let removed: BTreeSet<_> = registry.removed_after(None).map(|removed| removed.public_key).collect();
        assert_eq!(removed, self.removed, "what is removed is remembered for good");
        left
    }

    /// Whether the exit must accept a change that results in this client.
    pub(super) fn takes(&self, after: &Client, exit: &ExitSessions) -> bool {
        let others = || self.clients.values().filter(|other| other.name != after.name);
        let keys = |client: &Client| [Some(client.public_key), client.next_public_key];
        let key_is_free = after.next_public_key.is_none_or(|next| {
            !self.removed.contains(&next) && others().all(|other| !keys(other).contains(&Some(next)))
        });
        let address_is_free = after.ipv4.is_none_or(|address| {
            let mut online = exit.sessions().filter(|session| session.name() != after.name);
            (2..=6).contains(&address.octets()[3])
                && others().all(|other| other.ipv4 != Some(address))
                && online.all(|session| !session.lease().contains(address.into()))
        });
        let inner: IpNet = "10.66.0.0/29".parse().unwrap();
        let prefixes_are_free = after.prefixes.iter().all(|prefix| {
            let mut taken = others().flat_map(|other| &other.prefixes).chain([&inner]);
            taken.all(|other| !other.contains(prefix) && !prefix.contains(other))
        });
        key_is_free && address_is_free && prefixes_are_free
    }

    /// Records an operator's change of a client. If the change removes sticky addresses, the exit may lease new ones.
    pub(super) fn replace(&mut self, after: Client) {
        let before = self.clients.insert(after.name.clone(), after.clone()).expect("a client that there was");
        for other in self.clients.values_mut() {
            other.leased_ipv4 = other.leased_ipv4.filter(|leased| after.ipv4 != Some(*leased));
        }
        if let Some(changed) = self.clients.get_mut(&after.name).filter(|after| after.ipv4 != before.ipv4) {
            changed.leased_ipv4 = None;
        }
    }

    pub(super) fn add(&mut self, client: Client) {
        self.withdraw(&client.name);
        self.clients.insert(client.name.clone(), client);
    }

    /// Removes a client and an open invitation of its name. `None` if there is neither.
    pub(super) fn remove(&mut self, name: &str) -> Option<Option<Client>> {
        let was_invited = self.withdraw(name);
        let removed = self.clients.remove(name);
        if let Some(client) = &removed {
            self.invitations.retain(|invited| invited.used_by != Some(client.public_key));
            self.removed.extend(client.keys());
        }
        (was_invited || removed.is_some()).then_some(removed)
    }

    /// Whether the key is a removed key.
    pub(super) fn is_removed(&self, key: PublicKey) -> bool {
        self.removed.contains(&key)
    }

    /// Allows a removed key again.
    pub(super) fn allow(&mut self, key: PublicKey) {
        self.removed.remove(&key);
    }

    /// Disables or enables a client. Returns whether there is such a client.
    pub(super) fn set_disabled(&mut self, name: &str, disabled: bool) -> bool {
        let client = self.clients.get_mut(name);
        client.map(|client| client.disabled = disabled).is_some()
    }

    /// The token of the next invitation.
    pub(super) fn next_token(&self) -> InviteToken {
        let mut bytes = [0; InviteToken::LENGTH];
        bytes[..8].copy_from_slice(&u64::try_from(self.tokens.len()).unwrap().to_le_bytes());
        InviteToken::new(bytes)
    }

    /// Records that the next token was issued.
    pub(super) fn give_token(&mut self, client: usize) {
        let token = self.next_token();
        self.tokens.push((token, client));
    }

    /// Invites a client with the latest token if that is possible. Returns whether the client was invited.
    pub(super) fn invite(&mut self, client: usize, expires: SystemTime, now: SystemTime) -> bool {
        let (name, (token, _)) = (name_of(client), *self.tokens.last().expect("a token was given out"));
        if self.clients.contains_key(&name) {
            return false;
        }
        self.withdraw(&name);
        self.invitations.retain(|invited| now < invited.expires);
        self.invitations.push(Invited { token, name, expires, used_by: None });
        true
    }

    /// The clients that are not enrolled.
    pub(super) fn absent(&self) -> Vec<usize> {
        (0..CLIENTS + GUESTS).filter(|client| !self.clients.contains_key(&name_of(*client))).collect()
    }

    pub(super) fn tokens(&self) -> &[(InviteToken, usize)] {
        &self.tokens
    }

    /// Whether a token enrols a key, or has enrolled it.
    pub(super) fn admits_token(&self, token: InviteToken, key: PublicKey, now: SystemTime) -> bool {
        let invited = self.invitations.iter().find(|invited| invited.token == token);
        let is_open = |invited: &Invited| match invited.used_by {
            Some(by) => by == key,
            // Another exit may have enrolled a client of that name.
            None => !self.clients.contains_key(&invited.name),
        };
        invited.is_some_and(|invited| now < invited.expires && is_open(invited))
            && !self.removed.contains(&key)
    }

    /// Enrols a key with a token. Returns the client's name, or `None` if the invitation does not admit the key.
    pub(super) fn redeem(&mut self, token: InviteToken, key: PublicKey, now: SystemTime) -> Option<String> {
        let invited = self.invitations.iter_mut().find(|invited| invited.token == token)?;
        let is_void = now >= invited.expires || invited.used_by.is_some_and(|by| by != key);
        if is_void || self.removed.contains(&key) {
            return None;
        }
        let name = invited.name.clone();
        if invited.used_by.replace(key).is_none() {
            self.clients.insert(name.clone(), Client::new(name.clone(), key, UNIX_EPOCH));
        }
        Some(name)
    }

    /// The names of the invitations that are open at a time.
    pub(super) fn open_invitations(&self, now: SystemTime) -> Vec<&str> {
        let open =
            self.invitations.iter().filter(|invited| invited.used_by.is_none() && now < invited.expires);
        let mut names: Vec<_> = open.map(|invited| invited.name.as_str()).collect();
        names.sort_unstable();
        names
    }

    /// Withdraws the unused invitation of a name. Returns whether there was one.
    fn withdraw(&mut self, name: &str) -> bool {
        let before = self.invitations.len();
        self.invitations.retain(|invited| invited.name != name || invited.used_by.is_some());
        self.invitations.len() < before
    }
}

/// Whether two clients of one name have the same operator settings.
fn is_chosen_alike(one: &Client, other: &Client) -> bool {
    one.next_public_key == other.next_public_key
        && one.static_lease() == other.static_lease()
        && one.prefixes == other.prefixes
        && one.rate_limit == other.rate_limit
        && one.disabled == other.disabled
}
