//! The networks behind clients. A look-up finds the longest network that contains an address.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use ipnet::IpNet;
use warren_session::exit::SessionId;

/// Networks and the sessions that they belong to. A look-up takes one step for each prefix length in use.
#[derive(Debug, Default)]
pub(super) struct Prefixes {
    owners: HashMap<IpNet, SessionId>,
    /// How many networks of IPv4 and of IPv6 have each length, the longest first.
    lengths: [BTreeMap<Reverse<u8>, usize>; 2],
}

impl Prefixes {
    /// Assigns a network to a session. If several sessions claim it, it belongs to the latest one.
    pub(super) fn insert(&mut self, network: IpNet, session: SessionId) {
        // 10.0.0.1/8 and 10.0.0.0/8 are the same network, so they must be the same key.
        let network = network.trunc();
        if self.owners.insert(network, session).is_none() {
            *self.lengths_of(network).entry(Reverse(network.prefix_len())).or_default() += 1;
        }
    }

    /// Takes a network from a session, unless it belongs to another session by now.
    pub(super) fn remove(&mut self, network: IpNet, session: SessionId) {
        let network = network.trunc();
        if self.owners.get(&network) != Some(&session) {
            return;
        }
        self.owners.remove(&network);
        let length = Reverse(network.prefix_len());
        let lengths = self.lengths_of(network);
        match lengths.get_mut(&length) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(lengths.remove(&length)),
        }
    }

    /// The session with the smallest network that contains an address.
    pub(super) fn owner_of(&self, address: IpAddr) -> Option<SessionId> {
        let [ipv4, ipv6] = &self.lengths;
        let lengths = if address.is_ipv4() { ipv4 } else { ipv6 };
        lengths.keys().find_map(|Reverse(length)| {
            let network = IpNet::new(address, *length).ok()?.trunc();
            self.owners.get(&network).copied()
        })
    }

    fn lengths_of(&mut self, network: IpNet) -> &mut BTreeMap<Reverse<u8>, usize> {
        let [ipv4, ipv6] = &mut self.lengths;
        if network.addr().is_ipv4() { ipv4 } else { ipv6 }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Few addresses, so that networks contain each other.
    fn network() -> impl Strategy<Value = IpNet> {
        prop_oneof![
            (0..16_u32, 26..=32_u8).prop_map(|(address, length)| IpNet::new(
                IpAddr::V4((address * 3).into()),
                length
            )
            .unwrap()),
            (0..16_u128, 120..=128_u8).prop_map(|(address, length)| IpNet::new(
                IpAddr::V6((address * 3).into()),
                length
            )
            .unwrap()),
        ]
    }

    proptest! {
        #[test]
        fn smallest_network_around_an_address_is_found_whatever_came_and_went(
            changes in prop::collection::vec((any::<bool>(), network(), 0..3_u64), 0..60),
            address in 0..64_u8,
        ) {
            let mut prefixes = Prefixes::default();
            let mut plain: Vec<(IpNet, SessionId)> = Vec::new();
            for (adds, network, session) in changes {
                let (network, session) = (network, SessionId(session));
                if adds {
                    prefixes.insert(network, session);
                    plain.retain(|(other, _)| *other != network.trunc());
                    plain.push((network.trunc(), session));
                } else {
                    prefixes.remove(network, session);
                    plain.retain(|entry| *entry != (network.trunc(), session));
                }
            }
            for address in [IpAddr::V4(u32::from(address).into()), IpAddr::V6(u128::from(address).into())] {
                let around = plain.iter().filter(|(network, _)| network.contains(&address));
                let smallest = around.max_by_key(|(network, _)| network.prefix_len()).map(|(_, owner)| *owner);
                prop_assert_eq!(prefixes.owner_of(address), smallest);
            }
            let counted: usize = prefixes.lengths.iter().flat_map(BTreeMap::values).sum();
            prop_assert_eq!(counted, plain.len());
        }
    }
}
