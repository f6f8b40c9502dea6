//! The address pool, which maps client keys to inner addresses.
//!
//! A key keeps its lease whether the client is online or not. When a network is full, the pool takes back the sticky lease of the
//! key that has been offline longest. Static leases and leases of online clients are never taken back.

mod error;
mod range;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::SystemTime;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

pub use self::error::PoolError;
use self::range::Range;
use crate::PublicKey;
use crate::compact::compact;
use crate::planted::{Bug, is_planted};

/// The inner addresses of one client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lease {
    /// The IPv4 address, if the exit has an IPv4 network.
    pub ipv4: Option<Ipv4Addr>,
    /// The IPv6 address, if the exit has an IPv6 network.
    pub ipv6: Option<Ipv6Addr>,
}

impl Lease {
    /// Every address of the lease.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + use<> {
        self.ipv4.map(IpAddr::V4).into_iter().chain(self.ipv6.map(IpAddr::V6))
    }

    /// Sets the address of one family, as a number like in [`Range`].
    fn set(&mut self, family: Family, number: Option<u128>) {
        match family {
            // An IPv4 address is a number of 32 bits, so its conversion never fails.
            Family::V4 => {
                self.ipv4 = number.and_then(|number| u32::try_from(number).ok()).map(Ipv4Addr::from)
            }
            Family::V6 => self.ipv6 = number.map(Ipv6Addr::from),
        }
    }

    /// Whether the address is one of the lease.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.addresses().any(|own| own == address)
    }
}

/// The result of [`AddressPool::lease`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leased {
    /// The addresses of the key.
    pub lease: Lease,
    /// Whether any of the addresses is new to the key.
    pub changed: bool,
    /// The keys that lost an address to this key, at most one per network.
    pub taken_from: Vec<PublicKey>,
}

/// The leases of one exit. A query or change for one client never visits all leases.
#[derive(Debug)]
pub struct AddressPool {
    ipv4: Option<Range>,
    ipv6: Option<Range>,
    holders: BTreeMap<PublicKey, Holder>,
    /// The addresses that were given back or taken since the last [`Self::take_lost`], each with the first key that lost it.
    lost: BTreeMap<IpAddr, PublicKey>,
    /// Whether other exits assign addresses of the same networks.
    is_shared: bool,
}

/// The addresses of a key, as numbers like in [`Range`].
#[derive(Clone, Copy, Debug)]
struct Holder {
    ipv4: Option<Held>,
    ipv6: Option<Held>,
    presence: Presence,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    address: u128,
    is_static: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    Online,
    OfflineSince(SystemTime),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    V4,
    V6,
}

/// How a key gets its address in one network.
#[derive(Clone, Copy, Debug)]
enum Choice {
    Keeps,
    Free(u128),
    TakenFrom(PublicKey, u128),
}

/// The exit's own address in a pool's network, and the prefix length. The address is the first one after the network's address.
pub fn gateway_ipv4(network: Ipv4Net) -> Ipv4Net {
    Ipv4Net::new_assert((u32::from(network.network()) | 1).into(), network.prefix_len())
}

/// Does the same as [`gateway_ipv4`] for IPv6. The network's own address is not used, because it is the anycast address of all
/// routers (RFC 4291 section 2.6.1).
pub fn gateway_ipv6(network: Ipv6Net) -> Ipv6Net {
    Ipv6Net::new_assert((u128::from(network.network()) | 1).into(), network.prefix_len())
}

impl AddressPool {
    /// Makes a pool. The first host of each network is the gateway, which is the exit itself.
    ///
    /// # Errors
    ///
    /// If both networks are missing, or one has host bits set or is too small.
    pub fn new(ipv4: Option<Ipv4Net>, ipv6: Option<Ipv6Net>) -> Result<Self, PoolError> {
        if ipv4.is_none() && ipv6.is_none() {
            return Err(PoolError::NoNetwork);
        }
        Ok(Self {
            ipv4: ipv4.map(|network| Range::new(network.into())).transpose()?,
            ipv6: ipv6.map(|network| Range::new(network.into())).transpose()?,
            holders: BTreeMap::new(),
            lost: BTreeMap::new(),
            is_shared: false,
        })
    }

    /// Records that other exits assign addresses of the same networks.
    pub(crate) fn share(&mut self) {
        self.is_shared = true;
    }

    /// Frees memory that many changes have left unused.
    pub(crate) fn compact(&mut self) {
        compact(&mut self.holders);
        [&mut self.ipv4, &mut self.ipv6].into_iter().flatten().for_each(Range::compact);
    }

    /// The exit's own inner IPv4 address with its network's prefix length.
    pub fn gateway_ipv4(&self) -> Option<Ipv4Net> {
        match self.ipv4.as_ref()?.network() {
            IpNet::V4(network) => Some(gateway_ipv4(network)),
            IpNet::V6(_) => None,
        }
    }

    /// The exit's own inner IPv6 address with its network's prefix length.
    pub fn gateway_ipv6(&self) -> Option<Ipv6Net> {
        match self.ipv6.as_ref()?.network() {
            IpNet::V4(_) => None,
            IpNet::V6(network) => Some(gateway_ipv6(network)),
        }
    }

    /// The pool's networks.
    pub fn networks(&self) -> impl Iterator<Item = IpNet> {
        [&self.ipv4, &self.ipv6].into_iter().flatten().map(Range::network)
    }

    /// Checks that `address` can become the static lease of `key`.
    ///
    /// # Errors
    ///
    /// If the address is outside the pool, reserved, another key's static lease, or held by an online client.
    pub fn check_static(&self, key: PublicKey, address: IpAddr) -> Result<(), PoolError> {
        self.check_address(address)?;
        let (family, number) = number_of(address);
        match self.range(family).and_then(|range| range.holder(number)) {
            Some(holder) if holder != key && !self.can_take(holder, family) => {
                Err(PoolError::InUse { address, holder })
            }
            _ => Ok(()),
        }
    }

    /// Checks that a client can have an address, no matter who has it now.
    ///
    /// # Errors
    ///
    /// If the address is outside the pool or reserved.
    pub fn check_address(&self, address: IpAddr) -> Result<(), PoolError> {
        let (family, number) = number_of(address);
        self.range(family).ok_or(PoolError::NotInPool { address })?.check(number)
    }

    /// Sets whether an address is promised, that is, about to be given to a client. No other client gets a promised address as a
    /// free one.
    pub(crate) fn promise(&mut self, address: IpAddr, is_promised: bool) {
        let (family, number) = number_of(address);
        if let Some(range) = self.range_mut(family) {
            range.promise(number, is_promised);
        }
    }

    /// Reserves static addresses for a key, replacing its addresses in those networks. Returns the keys that lost a sticky lease to
    /// this key.
    ///
    /// # Errors
    ///
    /// As [`Self::check_static`]. In that case nothing changes.
    pub fn reserve(
        &mut self,
        key: PublicKey,
        addresses: Lease,
        now: SystemTime,
    ) -> Result<Vec<PublicKey>, PoolError> {
        for address in addresses.addresses() {
            // All addresses are checked before any is taken, so that nothing changes after an error.
            self.check_static(key, address)?;
        }
        let mut taken_from = Vec::new();
        for address in addresses.addresses() {
            let (family, number) = number_of(address);
            let holder = self.range(family).and_then(|range| range.holder(number));
            if let Some(holder) = holder.filter(|holder| *holder != key) {
                self.give_back(holder, family);
                taken_from.push(holder);
            }
            // The key may have another address in this network, such as a sticky one.
            self.give_back(key, family);
            self.hold(key, family, number, true, Presence::OfflineSince(now));
        }
        Ok(taken_from)
    }

    /// Restores the sticky lease of a key that has been offline since `last_seen`. Skips addresses that are outside the pool or
    /// held by another key. Returns the key's current lease.
    pub fn restore(&mut self, key: PublicKey, lease: Lease, last_seen: SystemTime) -> Lease {
        // Unlike in `reserve`, nothing is refused here: an exit must start even if its networks have changed.
        for address in lease.addresses() {
            let (family, number) = number_of(address);
            let free = self
                .range(family)
                .is_some_and(|range| range.check(number).is_ok() && range.holder(number).is_none());
            if free && self.held(key, family).is_none() {
                self.hold(key, family, number, false, Presence::OfflineSince(last_seen));
            }
        }
        if !self.is_online(key) {
            self.set_presence(key, Presence::OfflineSince(last_seen));
        }
        self.lease_of(key)
    }

    /// Leases a key its addresses, one of each network, and marks the key as online.
    ///
    /// # Errors
    ///
    /// [`PoolError::Exhausted`]. In that case nothing changes.
    pub fn lease(&mut self, key: PublicKey) -> Result<Leased, PoolError> {
        let choices = self.choose(key)?;
        let mut leased = Leased { lease: Lease::default(), changed: false, taken_from: Vec::new() };
        for (family, choice) in choices {
            match choice {
                None | Some(Choice::Keeps) => continue,
                Some(Choice::Free(address)) => self.hold(key, family, address, false, Presence::Online),
                Some(Choice::TakenFrom(loser, address)) => {
                    self.give_back(loser, family);
                    self.hold(key, family, address, false, Presence::Online);
                    leased.taken_from.push(loser);
                }
            }
            leased.changed = true;
        }
        self.set_presence(key, Presence::Online);
        leased.lease = self.lease_of(key);
        Ok(leased)
    }

    /// Returns what [`Self::lease`] would return, but leases nothing.
    ///
    /// # Errors
    ///
    /// As [`Self::lease`].
    pub(crate) fn plan(&self, key: PublicKey) -> Result<Leased, PoolError> {
        let mut planned = Leased { lease: self.lease_of(key), changed: false, taken_from: Vec::new() };
        for (family, choice) in self.choose(key)? {
            let address = match choice {
                None | Some(Choice::Keeps) => continue,
                Some(Choice::Free(address)) => address,
                Some(Choice::TakenFrom(loser, address)) => {
                    planned.taken_from.push(loser);
                    address
                }
            };
            planned.lease.set(family, Some(address));
            planned.changed = true;
        }
        Ok(planned)
    }

    /// Marks a key as offline since `since`. The key keeps its lease.
    pub fn set_offline(&mut self, key: PublicKey, since: SystemTime) {
        self.set_presence(key, Presence::OfflineSince(since));
    }

    /// Frees the key's addresses, including static ones.
    pub fn remove(&mut self, key: PublicKey) {
        self.give_back(key, Family::V4);
        self.give_back(key, Family::V6);
        // Removes the key's entry last, because `give_back` finds the addresses by this entry.
        self.set(key, None);
    }

    /// The addresses that keys have lost since the last call. Leaves out addresses that their keys have again.
    pub(crate) fn take_lost(&mut self) -> Vec<IpAddr> {
        let lost = std::mem::take(&mut self.lost).into_iter();
        lost.filter(|(address, key)| !self.lease_of(*key).contains(*address))
            .map(|(address, _)| address)
            .collect()
    }

    /// Does not count the addresses of a key as lost, because its client keeps them under another key.
    pub(crate) fn pass_on(&mut self, key: PublicKey) {
        self.lost.retain(|_, loser| *loser != key);
    }

    /// The current lease of a key.
    pub fn lease_of(&self, key: PublicKey) -> Lease {
        let mut lease = Lease::default();
        for family in [Family::V4, Family::V6] {
            lease.set(family, self.held(key, family).map(|held| held.address));
        }
        lease
    }

    /// Whether a key is marked as online.
    pub fn is_online(&self, key: PublicKey) -> bool {
        self.holders.get(&key).is_some_and(|holder| holder.presence == Presence::Online)
    }

    /// Chooses a key's addresses. The choice is `None` if the pool has no network of that family.
    fn choose(&self, key: PublicKey) -> Result<[(Family, Option<Choice>); 2], PoolError> {
        // Both families are chosen before anything is taken, so that a full network leaves the other network's lease unchanged.
        let ipv4 = self.choose_of(key, Family::V4)?;
        Ok([(Family::V4, ipv4), (Family::V6, self.choose_of(key, Family::V6)?)])
    }

    fn choose_of(&self, key: PublicKey, family: Family) -> Result<Option<Choice>, PoolError> {
        let Some(range) = self.range(family) else { return Ok(None) };
        if self.held(key, family).is_some() {
            return Ok(Some(Choice::Keeps));
        }
        // While an address is free, no client loses its lease.
        if let Some(address) = range.free(self.is_shared.then_some(key)) {
            return Ok(Some(Choice::Free(address)));
        }
        let planted = self.planted_loser(family).into_iter();
        let mut losers =
            planted.chain(range.away()).filter_map(|key| Some((key, self.held(key, family)?.address)));
        // A shared store would refuse an address that another request is about to give to another client.
        let loser = losers.find(|(_, address)| !self.is_shared || !range.is_promised(*address));
        let (loser, address) = loser.ok_or(PoolError::Exhausted { network: range.network() })?;
        Ok(Some(Choice::TakenFrom(loser, address)))
    }

    /// With the bug `OnlineLeaseTaken` planted, returns an online client that loses its lease.
    fn planted_loser(&self, family: Family) -> Option<PublicKey> {
        if !is_planted(Bug::OnlineLeaseTaken) {
            return None;
        }
        let mut online = self.holders.iter().filter(|(key, _)| self.is_online(**key));
        online.find(|(_, holder)| holder.held(family).is_some()).map(|(key, _)| *key)
    }

    fn can_take(&self, holder: PublicKey, family: Family) -> bool {
        !self.is_online(holder) && self.held(holder, family).is_none_or(|held| !held.is_static)
    }

    fn hold(&mut self, key: PublicKey, family: Family, address: u128, is_static: bool, presence: Presence) {
        if let Some(range) = self.range_mut(family) {
            range.take(address, key);
        }
        let holder = self.holders.get(&key).copied();
        // A key that already has an address of the other family stays online or offline as it is.
        let mut holder = holder.unwrap_or(Holder { ipv4: None, ipv6: None, presence });
        *holder.held_mut(family) = Some(Held { address, is_static });
        self.set(key, Some(holder));
    }

    fn give_back(&mut self, key: PublicKey, family: Family) {
        let Some(mut holder) = self.holders.get(&key).copied() else { return };
        let Some(held) = holder.held_mut(family).take() else { return };
        if let Some(range) = self.range_mut(family) {
            range.give_back(held.address);
            let address = range.address(held.address);
            self.lost.entry(address).or_insert(key);
        }
        self.set(key, Some(holder));
    }

    fn set_presence(&mut self, key: PublicKey, presence: Presence) {
        if let Some(&holder) = self.holders.get(&key) {
            self.set(key, Some(Holder { presence, ..holder }));
        }
    }

    /// Sets a key's addresses, and updates the set of keys that can lose their sticky leases.
    fn set(&mut self, key: PublicKey, after: Option<Holder>) {
        let before = match after {
            Some(after) => self.holders.insert(key, after),
            None => self.holders.remove(&key),
        };
        for family in [Family::V4, Family::V6] {
            let since = |holder: Option<Holder>| holder.and_then(|holder| holder.can_lose_since(family));
            if let Some(range) = self.range_mut(family) {
                range.set_away(key, since(before), since(after));
            }
        }
    }

    fn held(&self, key: PublicKey, family: Family) -> Option<Held> {
        self.holders.get(&key).and_then(|holder| holder.held(family))
    }

    fn range(&self, family: Family) -> Option<&Range> {
        match family {
            Family::V4 => self.ipv4.as_ref(),
            Family::V6 => self.ipv6.as_ref(),
        }
    }

    fn range_mut(&mut self, family: Family) -> Option<&mut Range> {
        match family {
            Family::V4 => self.ipv4.as_mut(),
            Family::V6 => self.ipv6.as_mut(),
        }
    }
}

impl Holder {
    /// Since when the key has been offline with a sticky lease in a network.
    fn can_lose_since(&self, family: Family) -> Option<SystemTime> {
        match self.presence {
            Presence::OfflineSince(since) => self.held(family).filter(|held| !held.is_static).map(|_| since),
            Presence::Online => None,
        }
    }

    fn held(&self, family: Family) -> Option<Held> {
        match family {
            Family::V4 => self.ipv4,
            Family::V6 => self.ipv6,
        }
    }

    fn held_mut(&mut self, family: Family) -> &mut Option<Held> {
        match family {
            Family::V4 => &mut self.ipv4,
            Family::V6 => &mut self.ipv6,
        }
    }
}

fn number_of(address: IpAddr) -> (Family, u128) {
    match address {
        IpAddr::V4(address) => (Family::V4, u32::from(address).into()),
        IpAddr::V6(address) => (Family::V6, address.into()),
    }
}

#[cfg(test)]
mod tests;
