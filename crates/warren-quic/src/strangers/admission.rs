//! Bounds the handshakes in progress. Above a threshold, clients must prove their addresses. At the limit, a new handshake
//! replaces an old one. The bounds apply to the whole exit, across its workers.
//!
//! An exit learns who is enrolled only when a handshake completes. Until then, anybody who knows its public key can begin any
//! number of handshakes. A flooder's handshakes stay open for a long time. So the network whose handshakes have waited longest in
//! total loses its oldest handshake. The time that an honest client needs does not count.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    mem,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::Waker,
    time::{Duration, Instant},
};

/// With this many half-open handshakes at an exit, new clients must prove their addresses (RFC 9000 section 8.1).
/// [`NETWORK_RETRY_FROM`] is the number for one network. Forged addresses cannot take the seats above these numbers.
const RETRY_FROM: usize = 100;
const NETWORK_RETRY_FROM: usize = 64;

/// Maximum number of half-open handshakes of an exit, each of about 50 KiB. At 500 new handshakes per second, each may take three
/// quarters of a second.
const MAX_HANDSHAKES: usize = 384;

/// The time that an honest client may need for a handshake. At 768 new ones per second, no handshake lives that long.
const HONEST: Duration = Duration::from_millis(500);

/// The handshakes in progress at an exit. Clones share them. The lock is taken once per attempt, never for a connection's packets.
#[derive(Clone, Debug, Default)]
pub(crate) struct Crowd(Arc<Mutex<UnderWay>>);

#[derive(Debug, Default)]
struct UnderWay {
    all: usize,
    /// The handshakes of each network by number. The oldest has the lowest number.
    by_network: HashMap<Network, BTreeMap<u64, Handshake>>,
    /// The number of the next handshake.
    next: u64,
    /// Number of handshakes that timed out since the start.
    timed_out: u64,
}

#[derive(Debug)]
struct Handshake {
    since: Instant,
    worker: Displaced,
    /// The handshake's slot at its worker, once the worker has assigned one.
    place: Option<u64>,
}

/// Counts of an exit's handshakes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Handshakes {
    /// Handshakes in progress.
    pub in_flight: usize,
    /// Handshakes that timed out since the start.
    pub timed_out: u64,
}

/// A handshake's seat: one of the [`MAX_HANDSHAKES`]. Dropping this frees the seat, if no other handshake has taken it.
#[derive(Debug)]
pub(crate) struct Seat {
    crowd: Crowd,
    network: Network,
    number: u64,
    worker: Displaced,
}

/// The handshakes of one worker that lost their seats and must end. Clones share the list.
#[derive(Clone, Debug, Default)]
pub(crate) struct Displaced(Arc<Lost>);

#[derive(Debug, Default)]
struct Lost {
    any: AtomicBool,
    list: Mutex<List>,
}

#[derive(Debug, Default)]
struct List {
    /// Slot and number of each handshake.
    lost: Vec<(u64, u64)>,
    /// The worker's waker.
    waker: Option<Waker>,
}

/// The decision on an attempt.
#[derive(Debug)]
pub(crate) enum Admission {
    /// Accept the attempt. The handshake keeps the seat while it is in progress.
    Take {
        /// The handshake's seat.
        seat: Seat,
        /// Whether another handshake lost its seat to the new one.
        displaced: bool,
    },
    /// Ask for a proof of the address.
    Prove,
}

impl Crowd {
    /// Decides on a peer's attempt at one of the exit's workers.
    pub(crate) fn admit(
        &self,
        peer: SocketAddr,
        proven: bool,
        worker: &Displaced,
        now: Instant,
    ) -> Admission {
        let network = Network::of(peer);
        let mut under_way = self.under_way();
        let neighbours = under_way.by_network.get(&network).map_or(0, BTreeMap::len);
        if !proven && (under_way.all >= RETRY_FROM || neighbours >= NETWORK_RETRY_FROM) {
            return Admission::Prove;
        }
        let displaced = under_way.all >= MAX_HANDSHAKES && under_way.displace(now);
        let number = under_way.next;
        under_way.next += 1;
        under_way.all += 1;
        let handshake = Handshake { since: now, worker: worker.clone(), place: None };
        under_way.by_network.entry(network).or_default().insert(number, handshake);
        let seat = Seat { crowd: self.clone(), network, number, worker: worker.clone() };
        Admission::Take { seat, displaced }
    }

    pub(super) fn handshakes(&self) -> Handshakes {
        let under_way = self.under_way();
        Handshakes { in_flight: under_way.all, timed_out: under_way.timed_out }
    }

    fn under_way(&self) -> MutexGuard<'_, UnderWay> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl UnderWay {
    /// Removes the oldest handshake of the network whose handshakes have waited longest in total.
    fn displace(&mut self, now: Instant) -> bool {
        // The sum of the handshakes' ages, each reduced by `beyond`.
        let waited = |handshakes: &BTreeMap<u64, Handshake>, beyond: Duration| -> Duration {
            let age = |handshake: &Handshake| now.saturating_duration_since(handshake.since);
            handshakes.values().map(|handshake| age(handshake).saturating_sub(beyond)).sum()
        };
        let longest = self
            .by_network
            .iter()
            .filter_map(|(network, handshakes)| {
                let oldest = *handshakes.first_key_value()?.0;
                // If no handshake exceeds the honest time, total waits decide. If all began at once, the oldest loses.
                let times = (waited(handshakes, HONEST), waited(handshakes, Duration::ZERO));
                Some((times, Reverse(oldest), *network))
            })
            .max_by_key(|(times, oldest, _)| (*times, *oldest));
        let Some((_, Reverse(number), network)) = longest else { return false };
        // If the handshake has no slot yet, its worker learns of this in `Seat::settle`.
        if let Some(Handshake { worker, place: Some(place), .. }) = self.remove(network, number) {
            worker.push(place, number);
        }
        true
    }

    fn remove(&mut self, network: Network, number: u64) -> Option<Handshake> {
        let handshakes = self.by_network.get_mut(&network)?;
        let removed = handshakes.remove(&number)?;
        if handshakes.is_empty() {
            self.by_network.remove(&network);
        }
        self.all -= 1;
        Some(removed)
    }
}

impl Seat {
    /// Records the slot that the worker uses for the handshake. [`Displaced::take`] returns the slot if the handshake is displaced.
    pub(crate) fn settle(&self, place: u64) {
        let mut under_way = self.crowd.under_way();
        let handshakes = under_way.by_network.get_mut(&self.network);
        match handshakes.and_then(|handshakes| handshakes.get_mut(&self.number)) {
            Some(handshake) => handshake.place = Some(place),
            // Another worker has displaced the handshake already.
            None => self.worker.push(place, self.number),
        }
    }

    /// Whether the seat has this number.
    pub(crate) fn is(&self, number: u64) -> bool {
        self.number == number
    }

    /// Gives up the seat because the handshake timed out.
    pub(crate) fn time_out(self) {
        // The lock ends with this statement. `drop` takes the lock again when `self` is dropped.
        self.crowd.under_way().timed_out += 1;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.crowd.under_way().remove(self.network, self.number);
    }
}

impl Displaced {
    /// Sets the waker to wake when a handshake is displaced.
    pub(crate) fn wake(&self, waker: &Waker) {
        self.list().waker = Some(waker.clone());
    }

    /// Removes and returns the displaced handshakes: the worker's slot of each, and its number.
    pub(crate) fn take(&self) -> Vec<(u64, u64)> {
        // A flag, so that a poll without displaced handshakes takes no lock. `Relaxed` is enough, because the list's own lock
        // orders the accesses.
        if self.0.any.swap(false, Relaxed) { mem::take(&mut self.list().lost) } else { Vec::new() }
    }

    fn push(&self, place: u64, number: u64) {
        let mut list = self.list();
        list.lost.push((place, number));
        // Set while the list is locked, so that `take` finds the entry if it sees the flag.
        self.0.any.store(true, Relaxed);
        if let Some(waker) = &list.waker {
            waker.wake_by_ref();
        }
    }

    fn list(&self) -> MutexGuard<'_, List> {
        self.0.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The network of an address, by the usual allocation to one owner: an IPv4 /24 or an IPv6 /56.
#[derive(Copy, Clone, Debug, Eq, Hash, PartialEq)]
pub struct Network(IpAddr);

impl Network {
    /// Returns the network of a peer's address.
    pub fn of(peer: SocketAddr) -> Self {
        // A dual-stack socket shows an IPv4 address as an IPv6 one.
        match peer.ip().to_canonical() {
            IpAddr::V4(address) => Self(IpAddr::V4((address.to_bits() & !0xff).into())),
            IpAddr::V6(address) => {
                Self(IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !((1 << (128 - 56)) - 1))))
            }
        }
    }

    /// Returns the network's first address.
    pub fn address(self) -> IpAddr {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(address: &str) -> SocketAddr {
        SocketAddr::new(address.parse().unwrap(), 4433)
    }

    /// A crowd of an exit with one worker.
    struct One {
        crowd: Crowd,
        worker: Displaced,
        start: Instant,
        seats: Vec<Seat>,
    }

    impl One {
        fn new() -> Self {
            let (crowd, worker) = (Crowd::default(), Displaced::default());
            Self { crowd, worker, start: Instant::now(), seats: Vec::new() }
        }

        /// Admits a handshake of a proven address, this many milliseconds after the start. The handshake's slot is its number.
        fn take(&mut self, address: &str, at: u64) -> u64 {
            let now = self.start + Duration::from_millis(at);
            let Admission::Take { seat, .. } = self.crowd.admit(peer(address), true, &self.worker, now)
            else {
                panic!("it is taken")
            };
            let number = seat.number;
            seat.settle(number);
            self.seats.push(seat);
            number
        }

        /// Admits `count` handshakes, one from each network in turn, 500 a second.
        fn fill(&mut self, networks: usize, count: usize, from: u64) {
            for index in 0..count {
                let at = from + 2 * u64::try_from(index).unwrap();
                self.take(&format!("10.{}.0.1", index % networks), at);
            }
        }

        fn displaced(&self) -> Vec<u64> {
            self.worker.take().into_iter().map(|(place, _)| place).collect()
        }

        fn asks_for_a_proof(&self, address: &str) -> bool {
            matches!(self.crowd.admit(peer(address), false, &self.worker, self.start), Admission::Prove)
        }
    }

    #[test]
    fn one_network_must_prove_addresses_before_others_must() {
        let mut one = One::new();
        for index in 0..64 {
            one.take(&format!("192.0.2.{index}"), 0);
        }
        assert!(one.asks_for_a_proof("192.0.2.250") && !one.asks_for_a_proof("198.51.100.1"));
        one.fill(50, 36, 0);
        assert!(one.asks_for_a_proof("198.51.100.1"));
    }

    #[test]
    fn the_oldest_of_those_that_waited_the_longest_gives_way_and_nobody_else_does() {
        let mut one = One::new();
        one.fill(64, MAX_HANDSHAKES, 0);
        assert_eq!(one.displaced(), []);
        let honest: Vec<u64> = (0..20).map(|_| one.take("192.0.2.1", 768)).collect();
        assert_eq!(
            one.displaced(),
            (0..20).collect::<Vec<_>>(),
            "the networks lose their oldest handshakes in turn"
        );
        one.fill(64, 200, 768);
        let displaced = one.displaced();
        assert_eq!(displaced.len(), 200);
        assert!(displaced.iter().all(|number| !honest.contains(number)), "{displaced:?}");
        assert_eq!(one.crowd.handshakes().in_flight, MAX_HANDSHAKES);
    }

    #[test]
    fn who_shares_a_network_with_an_attacker_outlasts_what_was_there_before() {
        let mut one = One::new();
        one.fill(1, MAX_HANDSHAKES, 0);
        let honest = one.take("10.0.0.77", 1_024);
        one.fill(1, MAX_HANDSHAKES, 1_024);
        assert_eq!(one.displaced().iter().position(|number| *number == honest), Some(MAX_HANDSHAKES));
    }

    #[test]
    fn a_network_of_its_own_is_safe_from_one_that_has_all_the_room() {
        let mut one = One::new();
        one.fill(1, MAX_HANDSHAKES - 1, 0);
        let honest = one.take("192.0.2.1", 1_024);
        one.fill(1, 5_000, 1_024);
        assert!(!one.displaced().contains(&honest), "not in its ten seconds");
    }

    #[test]
    fn a_handshake_of_another_worker_gives_way_and_that_worker_is_woken() {
        let mut one = One::new();
        one.fill(1, MAX_HANDSHAKES, 0);
        let woken = Arc::new(Woken::default());
        one.worker.wake(&woken.clone().into());
        let other = Displaced::default();
        let now = one.start + Duration::from_secs(1);
        let admitted = one.crowd.admit(peer("192.0.2.1"), true, &other, now);
        assert!(matches!(admitted, Admission::Take { displaced: true, .. }));
        assert!(woken.0.load(Relaxed));
        assert_eq!((one.displaced(), other.take()), (vec![0], vec![]));
    }

    #[test]
    fn who_loses_its_place_before_its_worker_has_one_for_it_hears_of_it_then() {
        let mut one = One::new();
        let Admission::Take { seat, .. } = one.crowd.admit(peer("10.0.0.1"), true, &one.worker, one.start)
        else {
            panic!("it is taken")
        };
        one.fill(1, MAX_HANDSHAKES, 0);
        assert_eq!(one.displaced(), []);
        seat.settle(77);
        assert_eq!(one.worker.take(), [(77, seat.number)]);
        drop(seat);
        assert_eq!(one.crowd.handshakes().in_flight, MAX_HANDSHAKES);
    }

    #[test]
    fn whoever_leaves_makes_room() {
        let mut one = One::new();
        one.fill(256, MAX_HANDSHAKES, 0);
        one.seats.pop();
        one.take("192.0.2.1", 600);
        assert_eq!(one.displaced(), []);
        one.seats.clear();
        assert!(one.crowd.under_way().by_network.is_empty() && one.crowd.under_way().all == 0);
    }

    #[test]
    fn handshakes_are_counted_while_they_are_under_way_and_those_that_took_too_long_for_good() {
        let mut one = One::new();
        one.fill(3, 3, 0);
        assert_eq!(one.crowd.handshakes(), Handshakes { in_flight: 3, timed_out: 0 });
        one.seats.pop().unwrap().time_out();
        assert_eq!(one.crowd.handshakes(), Handshakes { in_flight: 2, timed_out: 1 });
        one.seats.clear();
        assert_eq!(one.crowd.handshakes(), Handshakes { in_flight: 0, timed_out: 1 });
    }

    #[test]
    fn addresses_of_one_owner_are_one_network() {
        let network = |address| Network::of(peer(address));
        assert_eq!(network("192.0.2.1"), network("::ffff:192.0.2.200"));
        assert_ne!(network("192.0.2.1"), network("192.0.3.1"));
        assert_eq!(network("2001:db8:0:1::1"), network("2001:db8:0:ff::1"));
        assert_ne!(network("2001:db8:0:1::1"), network("2001:db8:0:100::1"));
    }

    #[derive(Debug, Default)]
    struct Woken(AtomicBool);

    impl std::task::Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Relaxed);
        }
    }
}
