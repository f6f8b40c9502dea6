use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, UNIX_EPOCH};

use proptest::prelude::*;

use super::*;

#[test]
fn the_first_host_is_the_gateway_and_clients_follow() {
    let mut pool = pool("10.66.0.0/24", "fd66::/64");
    assert_eq!(pool.gateway_ipv4().unwrap().to_string(), "10.66.0.1/24");
    assert_eq!(pool.gateway_ipv6().unwrap().to_string(), "fd66::1/64");
    let leased = pool.lease(key(1)).unwrap();
    assert_eq!((leased.lease, leased.changed), (lease("10.66.0.2", "fd66::2"), true));
}

#[test]
fn a_lease_sticks_to_its_key_while_it_is_away() {
    let mut pool = pool("10.66.0.0/24", "fd66::/64");
    let first = pool.lease(key(1)).unwrap().lease;
    pool.set_offline(key(1), at(0));
    pool.lease(key(2)).unwrap();
    let again = pool.lease(key(1)).unwrap();
    assert_eq!((again.lease, again.changed, again.taken_from), (first, false, vec![]));
}

#[test]
fn a_full_pool_takes_back_the_lease_of_the_key_longest_offline() {
    // Three clients fit into this /29: .2 to .6 without the two static addresses.
    let mut pool = pool("10.66.0.0/29", "fd66::/64");
    pool.reserve(key(90), Lease { ipv4: Some("10.66.0.2".parse().unwrap()), ipv6: None }, at(0)).unwrap();
    pool.reserve(key(91), Lease { ipv4: Some("10.66.0.4".parse().unwrap()), ipv6: None }, at(0)).unwrap();
    for number in 1..=3 {
        pool.lease(key(number)).unwrap();
    }
    pool.set_offline(key(1), at(20));
    pool.set_offline(key(3), at(10));
    let leased = pool.lease(key(4)).unwrap();
    assert_eq!(leased.taken_from, [key(3)]);
    assert_eq!(leased.lease.ipv4, Some("10.66.0.6".parse().unwrap()));
    assert_eq!(pool.lease_of(key(3)), Lease { ipv4: None, ipv6: Some("fd66::4".parse().unwrap()) });
    assert_eq!(pool.lease(key(5)).unwrap().taken_from, [key(1)]);
    let full = PoolError::Exhausted { network: "10.66.0.0/29".parse().unwrap() };
    assert_eq!(pool.lease(key(6)), Err(full));
    assert_eq!(pool.lease_of(key(6)), Lease::default(), "a refusal leaves no half of a lease");
}

#[test]
fn static_addresses_are_reserved_and_outlast_any_shortage() {
    let mut pool = pool("10.66.0.0/30", "fd66::/64");
    let own = Lease { ipv4: Some("10.66.0.2".parse().unwrap()), ipv6: None };
    assert_eq!(pool.reserve(key(1), own, at(0)), Ok(vec![]));
    assert!(matches!(pool.lease(key(2)), Err(PoolError::Exhausted { .. })));
    assert_eq!(pool.lease(key(1)).unwrap().lease, lease("10.66.0.2", "fd66::2"));
}

#[test]
fn a_static_address_takes_a_sticky_lease_only_from_a_client_that_is_away() {
    let mut pool = pool("10.66.0.0/24", "fd66::/64");
    let leased = pool.lease(key(1)).unwrap().lease;
    let wanted = Lease { ipv4: leased.ipv4, ipv6: None };
    let address = leased.ipv4.unwrap().into();
    assert_eq!(pool.reserve(key(2), wanted, at(0)), Err(PoolError::InUse { address, holder: key(1) }));
    pool.set_offline(key(1), at(0));
    assert_eq!(pool.reserve(key(2), wanted, at(0)), Ok(vec![key(1)]));
    assert_eq!(pool.reserve(key(3), wanted, at(0)), Err(PoolError::InUse { address, holder: key(2) }));
    assert_ne!(pool.lease(key(1)).unwrap().lease.ipv4, leased.ipv4);
}

#[test]
fn addresses_that_are_given_back_or_taken_are_lost_once_and_those_that_are_held_again_are_not() {
    let lost = |pool: &mut AddressPool| -> Vec<String> {
        pool.take_lost().iter().map(ToString::to_string).collect()
    };
    let mut pool = pool("10.66.0.0/29", "fd66::/64");
    (1..=5).for_each(|number| drop(pool.lease(key(number)).unwrap()));
    assert!(lost(&mut pool).is_empty());

    pool.remove(key(1));
    assert_eq!(lost(&mut pool), ["10.66.0.2", "fd66::2"]);
    assert!(lost(&mut pool).is_empty(), "a second time");

    // Another client takes an address from one that is offline: a static one, and one from a full pool.
    pool.set_offline(key(2), at(0));
    pool.set_offline(key(3), at(1));
    let taken = Lease { ipv4: Some("10.66.0.3".parse().unwrap()), ipv6: None };
    assert_eq!(pool.reserve(key(6), taken, at(0)), Ok(vec![key(2)]));
    assert_eq!(lost(&mut pool), ["10.66.0.3"]);
    pool.lease(key(7)).unwrap();
    assert!(lost(&mut pool).is_empty(), "an address was free");
    assert_eq!(pool.lease(key(8)).unwrap().taken_from, [key(3)]);
    assert_eq!(lost(&mut pool), ["10.66.0.4"]);

    // The controls: a client that gets its address again, and one that has another key now.
    let own = pool.lease_of(key(4));
    pool.remove(key(4));
    pool.restore(key(4), own, at(0));
    pool.remove(key(5));
    pool.pass_on(key(5));
    assert!(lost(&mut pool).is_empty());
}

#[test]
fn nobody_gets_the_gateway_or_an_address_outside() {
    let mut pool = pool("10.66.0.0/24", "fd66::/64");
    for reserved in
        ["10.66.0.0", "10.66.0.1", "10.66.0.255", "fd66::", "fd66::1", "fd66::ffff:ffff:ffff:ffff"]
    {
        let address: IpAddr = reserved.parse().unwrap();
        assert_eq!(pool.check_static(key(1), address), Err(PoolError::Reserved { address }));
    }
    for outside in ["10.66.1.2", "fd67::2", "0.0.0.0"] {
        let address: IpAddr = outside.parse().unwrap();
        assert_eq!(pool.check_static(key(1), address), Err(PoolError::NotInPool { address }));
    }
    assert_eq!(pool.restore(key(1), lease("10.66.0.1", "fd67::2"), at(0)), Lease::default());
}

#[test]
fn networks_that_cannot_hold_clients_are_refused() {
    let refused = |ipv4: &str| AddressPool::new(Some(ipv4.parse().unwrap()), None).unwrap_err();
    assert!(matches!(refused("10.0.0.0/31"), PoolError::TooSmall { longest: 30, .. }));
    assert!(matches!(refused("10.0.0.1/24"), PoolError::HostBits { .. }));
    for reserved in ["127.0.0.0/8", "0.0.0.0/0", "169.254.0.0/16", "224.0.0.0/8"] {
        assert!(matches!(refused(reserved), PoolError::NotUnicast { .. }), "{reserved}");
    }
    assert_eq!(AddressPool::new(None, None).unwrap_err(), PoolError::NoNetwork);
}

#[test]
fn an_address_that_was_given_back_rests_until_the_others_are_used() {
    let mut pool = pool("10.66.0.0/29", "fd66::/64");
    pool.lease(key(1)).unwrap();
    pool.lease(key(2)).unwrap();
    pool.remove(key(1));
    let ipv4: Vec<_> =
        (3..=6).map(|number| pool.lease(key(number)).unwrap().lease.ipv4.unwrap().octets()[3]).collect();
    assert_eq!(ipv4, [4, 5, 6, 2]);
}

/// What can happen to a pool. Keys are few and the network is small, so it is full most of the time.
#[derive(Clone, Debug)]
enum Step {
    Lease(u8),
    Offline(u8, u64),
    Remove(u8),
    Reserve(u8, u8),
    Promise(u8, bool),
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0..12u8;
    prop_oneof![
        5 => key.clone().prop_map(Step::Lease),
        4 => (key.clone(), 0..1_000u64).prop_map(|(key, when)| Step::Offline(key, when)),
        1 => key.clone().prop_map(Step::Remove),
        1 => (key, 0..9u8).prop_map(|(key, host)| Step::Reserve(key, host)),
        1 => (0..9u8, any::<bool>()).prop_map(|(host, is_promised)| Step::Promise(host, is_promised)),
        1 => Just(Step::Restart),
    ]
}

/// A pool of one /29 as a plain table. The real pool must agree with it, except on which free address comes next.
#[derive(Default)]
struct Model {
    held: BTreeMap<PublicKey, (Ipv4Addr, bool)>,
    online: BTreeSet<PublicKey>,
    offline_since: BTreeMap<PublicKey, SystemTime>,
    promised: BTreeSet<Ipv4Addr>,
}

impl Model {
    fn is_taken(&self, address: Ipv4Addr) -> bool {
        self.held.values().any(|(held, _)| *held == address)
    }

    fn longest_offline(&self) -> Option<PublicKey> {
        let sticky =
            self.held.iter().filter(|(key, (_, is_static))| !is_static && !self.online.contains(key));
        sticky.map(|(key, _)| (self.offline_since[key], *key)).min().map(|(_, key)| key)
    }

    fn lease(&mut self, key: PublicKey, got: Result<Leased, PoolError>) -> Result<(), TestCaseError> {
        let is_free = |address: &Ipv4Addr| !self.is_taken(*address) && !self.promised.contains(address);
        let mut free = (2..=6).map(|host| Ipv4Addr::new(10, 66, 0, host)).filter(is_free);
        let expected_loser = match (self.held.contains_key(&key), free.next()) {
            (true, _) | (_, Some(_)) => None,
            (false, None) => match self.longest_offline() {
                Some(loser) => Some(loser),
                None => {
                    prop_assert!(matches!(got, Err(PoolError::Exhausted { .. })), "{got:?}");
                    return Ok(());
                }
            },
        };
        let got = got.map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert_eq!(&got.taken_from, &Vec::from_iter(expected_loser));
        let address = got.lease.ipv4.unwrap();
        match self.held.get(&key) {
            Some((held, _)) => prop_assert_eq!((*held, false), (address, got.changed)),
            None => {
                if let Some(loser) = expected_loser {
                    prop_assert_eq!(self.held.remove(&loser).map(|(held, _)| held), Some(address));
                }
                prop_assert!(!self.is_taken(address) && (2..=6).contains(&address.octets()[3]));
                self.held.insert(key, (address, false));
            }
        }
        self.online.insert(key);
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_pool_agrees_with_a_plain_table(steps in prop::collection::vec(step(), 1..80)) {
        let network = "10.66.0.0/29".parse().unwrap();
        let mut pool = AddressPool::new(Some(network), None).unwrap();
        let mut model = Model::default();
        for step in steps {
            match step {
                Step::Lease(number) => {
                    let got = pool.lease(key(number));
                    model.lease(key(number), got)?;
                }
                Step::Offline(number, when) => {
                    pool.set_offline(key(number), at(when));
                    if model.held.contains_key(&key(number)) || model.online.contains(&key(number)) {
                        model.online.remove(&key(number));
                        model.offline_since.insert(key(number), at(when));
                    }
                }
                Step::Remove(number) => {
                    pool.remove(key(number));
                    model.held.remove(&key(number));
                    model.online.remove(&key(number));
                }
                Step::Reserve(number, host) => reserve(&mut pool, &mut model, key(number), host)?,
                Step::Promise(host, is_promised) => {
                    let address = Ipv4Addr::new(10, 66, 0, host);
                    pool.promise(address.into(), is_promised);
                    if is_promised {
                        model.promised.insert(address);
                    } else {
                        model.promised.remove(&address);
                    }
                }
                Step::Restart => pool = restart(network, &mut model),
            }
            for number in 0..12 {
                let expected = model.held.get(&key(number)).map(|(address, _)| *address);
                prop_assert_eq!(pool.lease_of(key(number)).ipv4, expected, "key {}", number);
                prop_assert_eq!(pool.is_online(key(number)), model.online.contains(&key(number)));
            }
        }
    }
}

fn reserve(pool: &mut AddressPool, model: &mut Model, key: PublicKey, host: u8) -> Result<(), TestCaseError> {
    let address = Ipv4Addr::new(10, 66, 0, host);
    let holder = model.held.iter().find(|(other, (held, _))| *held == address && **other != key);
    let holder = holder.map(|(other, (_, is_static))| (*other, *is_static || model.online.contains(other)));
    let got = pool.reserve(key, Lease { ipv4: Some(address), ipv6: None }, at(0));
    if !(2..=6).contains(&host) || holder.is_some_and(|(_, is_firm)| is_firm) {
        prop_assert!(got.is_err());
        return Ok(());
    }
    prop_assert_eq!(got, Ok(holder.map(|(loser, _)| loser).into_iter().collect()));
    if let Some((loser, _)) = holder {
        model.held.remove(&loser);
    }
    model.held.insert(key, (address, true));
    model.offline_since.entry(key).or_insert(at(0));
    Ok(())
}

/// Makes a new pool from the leases that a registry would have kept. Every client starts offline.
fn restart(network: Ipv4Net, model: &mut Model) -> AddressPool {
    let mut pool = AddressPool::new(Some(network), None).unwrap();
    let now = at(5_000);
    for (&key, &(address, is_static)) in &model.held {
        let since = if model.online.contains(&key) { now } else { model.offline_since[&key] };
        model.offline_since.insert(key, since);
        let lease = Lease { ipv4: Some(address), ipv6: None };
        if is_static {
            pool.reserve(key, lease, since).unwrap();
        } else {
            assert_eq!(pool.restore(key, lease, since), lease);
        }
    }
    model.online.clear();
    model.promised.clear();
    pool
}

fn pool(ipv4: &str, ipv6: &str) -> AddressPool {
    AddressPool::new(Some(ipv4.parse().unwrap()), Some(ipv6.parse().unwrap())).unwrap()
}

fn lease(ipv4: &str, ipv6: &str) -> Lease {
    Lease { ipv4: Some(ipv4.parse().unwrap()), ipv6: Some(ipv6.parse().unwrap()) }
}

fn key(number: u8) -> PublicKey {
    PublicKey([number; 32])
}

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_700_000_000 + seconds)
}
