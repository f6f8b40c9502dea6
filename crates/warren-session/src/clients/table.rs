//! The enrolled clients, indexed by each property that only one client can have.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;

use super::client::Client;
use super::forward::{Forward, ForwardProtocol, PortRange};
use super::registry_error::RegistryError;
use crate::PublicKey;
use crate::compact::compact;

/// Clients by key. Neither a look-up nor a change visits all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ClientTable {
    /// Boxed, because an exit may have 100,000 clients, and a map's nodes have unused room.
    clients: BTreeMap<PublicKey, Box<Client>>,
    names: BTreeMap<String, PublicKey>,
    /// Maps each client's next key to the client's current key.
    next_keys: BTreeMap<PublicKey, PublicKey>,
    /// Static and sticky addresses.
    addresses: BTreeMap<IpAddr, PublicKey>,
    /// Prefixes of different clients do not overlap.
    prefixes: BTreeMap<IpNet, PublicKey>,
    /// Forwards by protocol and last port. Forwards of different clients do not overlap.
    forwards: BTreeMap<(ForwardProtocol, u16), (Forward, PublicKey)>,
}

impl ClientTable {
    pub(super) const fn new() -> Self {
        Self {
            clients: BTreeMap::new(),
            names: BTreeMap::new(),
            next_keys: BTreeMap::new(),
            addresses: BTreeMap::new(),
            prefixes: BTreeMap::new(),
            forwards: BTreeMap::new(),
        }
    }

    /// Sets or deletes the client of a key without any check. Returns the previous client.
    pub(super) fn put(&mut self, key: PublicKey, client: Option<Client>) -> Option<Client> {
        let before = self.clients.remove(&key).map(|before| *before);
        if let Some(before) = &before {
            self.unindex(before);
        }
        if let Some(client) = client {
            self.names.insert(client.name.clone(), key);
            self.next_keys.extend(client.next_public_key.map(|next| (next, key)));
            self.addresses.extend(addresses(&client).map(|address| (address, key)));
            self.prefixes.extend(client.prefixes.iter().map(|prefix| (*prefix, key)));
            self.forwards.extend(client.forwards.iter().map(|forward| (place(*forward), (*forward, key))));
            self.clients.insert(key, Box::new(client));
        }
        before
    }

    /// Removes the client's entries from the indexes. While several rows are replaced, another client may have taken over some of
    /// these entries. Such entries stay.
    fn unindex(&mut self, client: &Client) {
        let key = client.public_key;
        if self.names.get(&client.name) == Some(&key) {
            self.names.remove(&client.name);
        }
        if let Some(next) = client.next_public_key
            && self.next_keys.get(&next) == Some(&key)
        {
            self.next_keys.remove(&next);
        }
        for address in addresses(client) {
            if self.addresses.get(&address) == Some(&key) {
                self.addresses.remove(&address);
            }
        }
        for prefix in &client.prefixes {
            if self.prefixes.get(prefix) == Some(&key) {
                self.prefixes.remove(prefix);
            }
        }
        for forward in &client.forwards {
            if self.forwards.get(&place(*forward)).is_some_and(|(_, holder)| *holder == key) {
                self.forwards.remove(&place(*forward));
            }
        }
    }

    pub(super) fn by_key(&self, key: PublicKey) -> Option<&Client> {
        self.clients.get(&key).map(Box::as_ref)
    }

    /// Sets the date when a client was last online, which no index contains.
    pub(super) fn set_seen(&mut self, key: PublicKey, when: std::time::SystemTime) -> bool {
        let client = self.clients.get_mut(&key);
        client.map(|client| client.last_seen = Some(when)).is_some()
    }

    pub(super) fn by_name(&self, name: &str) -> Option<&Client> {
        self.by_key(*self.names.get(name)?)
    }

    pub(super) fn by_next_key(&self, key: PublicKey) -> Option<&Client> {
        self.by_key(*self.next_keys.get(&key)?)
    }

    /// The client with a static or sticky address.
    pub(super) fn by_address(&self, address: IpAddr) -> Option<&Client> {
        self.by_key(*self.addresses.get(&address)?)
    }

    pub(super) fn prefixes(&self) -> impl Iterator<Item = (IpNet, &Client)> {
        self.prefixes.iter().filter_map(|(prefix, key)| Some((*prefix, self.by_key(*key)?)))
    }

    /// The forwards of all clients, in order.
    pub(super) fn forwards(&self) -> impl Iterator<Item = (Forward, &Client)> {
        self.forwards.values().filter_map(|(forward, key)| Some((*forward, self.by_key(*key)?)))
    }

    /// Number of ports that are forwarded to a different port number of their client.
    pub(super) fn moved_ports(&self) -> usize {
        self.forwards.values().map(|(forward, _)| forward.moved_ports()).sum()
    }

    /// Returns a forward that includes one of these ports, and its client.
    fn forwarding(&self, ports: PortRange) -> Option<(Forward, &Client)> {
        // The forwards of the table do not overlap, so the first one that ends at these ports or above is the only candidate.
        let (_, (other, key)) = self.forwards.range((ports.protocol(), ports.first())..).next()?;
        Some((*other, self.by_key(*key)?)).filter(|_| other.ports().overlaps(ports))
    }

    /// Returns a client's prefix that overlaps `prefix`, and the client.
    fn overlapping(&self, prefix: &IpNet) -> Option<(IpNet, &Client)> {
        // The prefixes of the table do not overlap, so only the two next to `prefix` in the order of addresses can overlap it.
        let below = self.prefixes.range(..=prefix).next_back();
        let above = self.prefixes.range(prefix..).next();
        let (other, key) = [below, above].into_iter().flatten().find(|(other, _)| overlap(other, prefix))?;
        Some((*other, self.by_key(*key)?))
    }

    /// The clients whose names come after `name` and contain `part`, sorted by name. If `name` is `None`, begins with the first
    /// client.
    pub(super) fn after(&self, name: Option<&str>, part: &str) -> impl Iterator<Item = &Client> {
        use std::ops::Bound;
        let from = name.map_or(Bound::Unbounded, Bound::Excluded);
        let names = self.names.range::<str, _>((from, Bound::Unbounded));
        // The names are filtered first, because looking up a client takes longer.
        let named = names.filter(move |(name, _)| name.contains(part));
        named.filter_map(|(_, key)| self.by_key(*key))
    }

    /// Frees the room that many changes have left unused in the maps.
    pub(super) fn compact(&mut self) {
        let Self { clients, names, next_keys, addresses, prefixes, forwards } = self;
        compact(clients);
        compact(names);
        compact(next_keys);
        compact(addresses);
        compact(prefixes);
        compact(forwards);
    }

    pub(super) fn len(&self) -> usize {
        self.clients.len()
    }

    /// Finds another client that already has a name, key, static address or prefix of `client`. Returns that client's key and the
    /// error for the caller.
    pub(super) fn rival_of(&self, client: &Client) -> Option<(PublicKey, RegistryError)> {
        let name = || client.name.clone();
        if let Some(rival) = self.by_name(&client.name) {
            return Some((rival.public_key, RegistryError::NameTaken { name: name() }));
        }
        for key in client.keys() {
            if let Some(rival) = self.by_key(key).or_else(|| self.by_next_key(key)) {
                let (holder, maker) = (rival.name.clone(), client.key_maker(key));
                let error = RegistryError::KeyTaken { name: name(), key, holder, maker };
                return Some((rival.public_key, error));
            }
        }
        for address in client.static_lease().addresses() {
            // A sticky lease is no obstacle: a client loses its sticky lease to a static address.
            let holder = self.by_address(address);
            if let Some(rival) = holder.filter(|holder| holder.static_lease().contains(address)) {
                let holder = rival.name.clone();
                let error = RegistryError::AddressTaken { name: name(), address, holder };
                return Some((rival.public_key, error));
            }
        }
        for forward in &client.forwards {
            if let Some((other, rival)) = self.forwarding(forward.ports()) {
                let (ports, other, holder) = (forward.ports(), other.ports(), rival.name.clone());
                return Some((
                    rival.public_key,
                    RegistryError::PortsTaken { name: name(), ports, other, holder },
                ));
            }
        }
        client.prefixes.iter().find_map(|prefix| {
            let (other, rival) = self.overlapping(prefix)?;
            let (prefix, holder) = (*prefix, rival.name.clone());
            Some((rival.public_key, RegistryError::PrefixTaken { name: name(), prefix, other, holder }))
        })
    }
}

/// A forward's key in the table.
fn place(forward: Forward) -> (ForwardProtocol, u16) {
    (forward.ports().protocol(), forward.ports().last())
}

fn addresses(client: &Client) -> impl Iterator<Item = IpAddr> {
    client.static_lease().addresses().chain(client.sticky_lease().addresses())
}

/// Whether two networks have an address in common. They never overlap in part: one contains the other, or they have none in common.
pub fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(other) || other.contains(one)
}
