//! Limits the number of handshakes that are processed. Each handshake costs multiplications on the curve, and anybody who knows the
//! exit's public key can begin one.
//!
//! With many handshakes a second ([`UNDER_LOAD`]), boringtun asks senders for a proof of their address. That stops forged
//! addresses. The budget here limits handshakes from real addresses.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

/// With this many handshake messages per second or more, senders must prove their addresses with a cookie.
pub(crate) const UNDER_LOAD: u64 = 100;
/// Maximum number of handshakes per second of all senders together, and maximum burst. A stranger's handshake costs about 60 us, so
/// all handshakes together take 3 % of a core.
const ALL: Rate = Rate { most: 500, every: Duration::from_micros(2_000) };
/// Maximum number of handshakes of one network: 20 per second, as in Linux. A burst may have a hundred, because many clients may
/// share an address.
const ONE: Rate = Rate { most: 100, every: Duration::from_millis(50) };
/// Maximum number of networks that are remembered. Beyond this number, new networks wait until others are forgotten.
const NETWORKS: usize = 8_192;
/// How often networks with a full budget are forgotten.
const FORGET: Duration = Duration::from_secs(1);

#[derive(Clone, Copy)]
struct Rate {
    most: u32,
    /// The time that each further handshake takes to become available.
    every: Duration,
}

#[derive(Debug)]
struct Bucket {
    left: u32,
    since: Instant,
}

/// The handshakes that may still be processed.
#[derive(Debug)]
pub(crate) struct Budget {
    all: Bucket,
    of_network: HashMap<IpAddr, Bucket>,
    forgot: Instant,
}

impl Budget {
    pub(crate) fn new(now: Instant) -> Self {
        Self { all: Bucket::full(ALL, now), of_network: HashMap::new(), forgot: now }
    }

    /// Whether to process one more handshake from this address.
    pub(crate) fn admits(&mut self, from: IpAddr, now: Instant) -> bool {
        if now.duration_since(self.forgot) >= FORGET {
            self.forgot = now;
            self.of_network.retain(|_, bucket| {
                bucket.fill(ONE, now);
                bucket.left < ONE.most
            });
        }
        let network = network_of(from);
        if self.of_network.len() >= NETWORKS && !self.of_network.contains_key(&network) {
            return false;
        }
        // The network's own budget is checked first, so that one network cannot use up the common budget.
        let own = self.of_network.entry(network).or_insert_with(|| Bucket::full(ONE, now));
        own.take(ONE, now) && self.all.take(ALL, now)
    }

    #[cfg(test)]
    pub(crate) fn networks(&self) -> usize {
        self.of_network.len()
    }
}

impl Bucket {
    fn full(rate: Rate, now: Instant) -> Self {
        Self { left: rate.most, since: now }
    }

    fn fill(&mut self, rate: Rate, now: Instant) {
        let passed = now.saturating_duration_since(self.since);
        let earned = u32::try_from(passed.as_micros() / rate.every.as_micros().max(1)).unwrap_or(u32::MAX);
        if earned >= rate.most.saturating_sub(self.left) {
            *self = Self::full(rate, now);
        } else {
            self.left += earned;
            self.since += rate.every * earned;
        }
    }

    fn take(&mut self, rate: Rate, now: Instant) -> bool {
        self.fill(rate, now);
        let has_one = self.left > 0;
        self.left = self.left.saturating_sub(1);
        has_one
    }
}

/// Returns an IPv4 address itself. For an IPv6 address, returns its /64 network, because one host may own a whole /64.
fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_network_does_not_use_up_the_budget_of_all() {
        let start = Instant::now();
        let mut budget = Budget::new(start);
        let loud: IpAddr = "2001:db8::1".parse().unwrap();
        let beside: IpAddr = "2001:db8::ffff:2".parse().unwrap();
        let taken = (0..10_000).filter(|_| budget.admits(loud, start)).count();
        assert_eq!(taken, 100);
        assert!(!budget.admits(beside, start), "it is the same network");
        assert!(budget.admits("192.0.2.1".parse().unwrap(), start));
        let later = start + Duration::from_secs(2);
        assert_eq!((0..1_000).filter(|_| budget.admits(loud, later)).count(), 40);
    }

    #[test]
    fn all_networks_together_are_bounded_and_so_is_what_is_remembered_of_them() {
        let start = Instant::now();
        let mut budget = Budget::new(start);
        let from = |number: u32| IpAddr::V4(number.into());
        let taken = (0..100_000).filter(|number| budget.admits(from(*number), start)).count();
        assert_eq!((taken, budget.networks()), (500, NETWORKS));
        let later = start + Duration::from_secs(10);
        assert!(budget.admits(from(200_000), later));
        assert_eq!(budget.networks(), 1, "the others are forgotten");
    }
}
