//! The addresses of one network: which addresses are taken, and which free address is assigned next.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::SystemTime;

use ipnet::IpNet;

use super::PoolError;
use crate::PublicKey;
use crate::compact::compact;
use crate::message::is_unicast;

/// Number of addresses, computed from its key, that a client tries before it gets the next free address. In a network that is half
/// full, half of these addresses are taken.
const PLACES: u32 = 16;

/// One network. Addresses are stored as numbers (IPv4 in the low 32 bits), so that both families share the code. Addresses that
/// were never used are assigned first, in ascending order. A returned address therefore stays unused as long as possible before
/// another client gets it. Exits that share the network assign scattered addresses instead ([`Self::free`]).
#[derive(Debug)]
pub(super) struct Range {
    network: IpNet,
    /// First and last address that a client can have.
    first: u128,
    last: u128,
    /// The lowest address that was never taken. No address from here to `last` is in `given_back`.
    next: u128,
    given_back: BTreeSet<u128>,
    taken: BTreeMap<u128, PublicKey>,
    /// Addresses that are about to be given to a client.
    promised: BTreeSet<u128>,
    /// The keys with sticky leases that are offline, and since when.
    away: BTreeSet<(SystemTime, PublicKey)>,
}

impl Range {
    pub(super) fn new(network: IpNet) -> Result<Self, PoolError> {
        if network.trunc() != network {
            return Err(PoolError::HostBits { network });
        }
        if !is_unicast(&network.network()) || !is_unicast(&network.broadcast()) {
            return Err(PoolError::NotUnicast { network });
        }
        // A network needs four addresses: network, gateway, one client, broadcast. IPv6 has no broadcast, but its last address
        // stays unused as well.
        let longest = network.max_prefix_len() - 2;
        if network.prefix_len() > longest {
            return Err(PoolError::TooSmall { network, longest });
        }
        // The first address after the gateway.
        let first = number(network.network()) + 2;
        let last = number(network.broadcast()) - 1;
        Ok(Self {
            network,
            first,
            last,
            next: first,
            given_back: BTreeSet::new(),
            taken: BTreeMap::new(),
            promised: BTreeSet::new(),
            away: BTreeSet::new(),
        })
    }

    pub(super) fn compact(&mut self) {
        compact(&mut self.taken);
        compact(&mut self.given_back);
        compact(&mut self.away);
    }

    pub(super) fn network(&self) -> IpNet {
        self.network
    }

    pub(super) fn holder(&self, number: u128) -> Option<PublicKey> {
        self.taken.get(&number).copied()
    }

    /// Checks that the address can be a client's, whether it is taken or not.
    pub(super) fn check(&self, number: u128) -> Result<(), PoolError> {
        let address = self.address(number);
        if !self.network.contains(&address) {
            return Err(PoolError::NotInPool { address });
        }
        if (self.first..=self.last).contains(&number) { Ok(()) } else { Err(PoolError::Reserved { address }) }
    }

    /// Returns a free address, if any. With the key `scattered`, addresses computed from that key are tried first. Two exits that
    /// do not know each other's clients therefore rarely choose the same address.
    pub(super) fn free(&self, scattered: Option<PublicKey>) -> Option<u128> {
        let is_free = |number: &u128| !self.promised.contains(number) && !self.taken.contains_key(number);
        let place = scattered.and_then(|key| self.places(key).find(is_free));
        if place.is_some() {
            return place;
        }
        let unused = (self.next..=self.last).find(is_free);
        unused.or_else(|| self.given_back.iter().copied().find(is_free))
    }

    /// The addresses that are tried first for a key.
    fn places(&self, key: PublicKey) -> impl Iterator<Item = u128> + use<> {
        let (first, count) = (self.first, self.last - self.first + 1);
        let (head, _) = key.0.split_first_chunk().expect("a key has 32 bytes");
        let seed = u128::from_le_bytes(*head);
        // Rotations of a random number serve as further random numbers. Every exit computes the same addresses for a key.
        (0..PLACES).map(move |turn| first + seed.rotate_left(turn * 7) % count)
    }

    pub(super) fn take(&mut self, number: u128, key: PublicKey) {
        self.taken.insert(number, key);
        self.given_back.remove(&number);
        // Addresses beyond `next` may be taken already, as static or restored ones.
        while self.next <= self.last && self.taken.contains_key(&self.next) {
            self.next += 1;
        }
    }

    pub(super) fn give_back(&mut self, number: u128) {
        // `free` finds addresses from `next` on by itself, so only lower ones go into `given_back`.
        if self.taken.remove(&number).is_some() && number < self.next {
            self.given_back.insert(number);
        }
    }

    /// Sets whether an address is about to be given to a client. Such an address is not free.
    pub(super) fn promise(&mut self, number: u128, is_promised: bool) {
        if is_promised {
            self.promised.insert(number);
        } else {
            self.promised.remove(&number);
        }
    }

    pub(super) fn is_promised(&self, number: u128) -> bool {
        self.promised.contains(&number)
    }

    /// The keys that are offline with sticky leases, the one that has been offline longest first.
    pub(super) fn away(&self) -> impl Iterator<Item = PublicKey> {
        self.away.iter().map(|(_, key)| *key)
    }

    /// Updates the keys in `away`. `before` and `after` are the old and the new value of the time since when the key has been
    /// offline with a sticky lease. `None` means that it is online or has no sticky lease.
    pub(super) fn set_away(&mut self, key: PublicKey, before: Option<SystemTime>, after: Option<SystemTime>) {
        if before != after {
            before.map(|since| self.away.remove(&(since, key)));
            after.map(|since| self.away.insert((since, key)));
        }
    }

    pub(super) fn address(&self, number: u128) -> IpAddr {
        match self.network {
            // The conversion never fails, because the numbers of an IPv4 network have 32 bits.
            IpNet::V4(_) => Ipv4Addr::from(u32::try_from(number).unwrap_or(u32::MAX)).into(),
            IpNet::V6(_) => Ipv6Addr::from(number).into(),
        }
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u32::from(address).into(),
        IpAddr::V6(address) => address.into(),
    }
}
