//! Tests of the choice: of one client, and of a thousand.

use proptest::prelude::*;
use warren_simulation::Random;

use super::*;

const CLIENTS: usize = 1_000;
const SEEDS: u64 = 1_000;

fn at(milliseconds: u64, load: u32) -> Candidate {
    let round_trip = Some(Duration::from_millis(milliseconds));
    Candidate { round_trip, load: Some(load), weight: 1, is_draining: false }
}

/// The lot of the client with the pool's address of this number.
fn lot(number: usize) -> Lot {
    let number = 0x0a42_0000 + u32::try_from(number).unwrap();
    Lot::of(Some(number.into()), None).unwrap()
}

/// Counts how many of a thousand clients put each exit first.
fn firsts(candidates: &[Candidate]) -> Vec<u32> {
    let mut counts = vec![0; candidates.len()];
    for number in 0..CLIENTS {
        counts[order(candidates, lot(number))[0]] += 1;
    }
    counts
}

#[test]
fn near_exits_share_clients_and_far_ones_get_none() {
    let counts = firsts(&[at(10, 0), at(12, 0), at(13, 0), at(90, 0)]);
    assert!(counts[0].abs_diff(500) < 10 && counts[1].abs_diff(500) < 10, "{counts:?}");
    assert_eq!(counts[2..], [0, 0]);
}

#[test]
fn an_exit_gets_clients_by_the_part_of_it_that_is_free() {
    let counts = firsts(&[at(10, 900), at(10, 600)]);
    assert!(counts[0].abs_diff(200) < 10, "{counts:?}");
    // A load that is higher by one thousandth makes no difference.
    let counts = firsts(&[at(10, 5), at(10, 6)]);
    assert!(counts[0].abs_diff(500) < 10, "{counts:?}");
    assert_eq!(firsts(&[at(10, 1_000), at(10, 999)]), [0, 1_000]);
    // The control: if all exits are full, they share the clients by weight.
    let counts = firsts(&[at(10, 1_000), at(10, 1_000)]);
    assert!(counts[0].abs_diff(500) < 10, "{counts:?}");
}

#[test]
fn exits_get_clients_by_their_weights() {
    let heavy = Candidate { weight: 3, load: None, ..at(10, 0) };
    let counts = firsts(&[heavy, Candidate { load: None, ..at(10, 0) }]);
    assert!(counts[0].abs_diff(750) < 10, "{counts:?}");
}

#[test]
fn exits_that_drain_or_have_not_answered_come_last() {
    let draining = Candidate { is_draining: true, ..at(1, 0) };
    let unknown = Candidate { round_trip: None, ..at(1, 0) };
    for number in 0..CLIENTS {
        assert_eq!(order(&[draining, unknown, at(90, 900)], lot(number)), [2, 1, 0]);
    }
}

#[test]
fn a_fifth_is_worth_moving_and_less_is_not() {
    let milliseconds = Duration::from_millis;
    assert!(is_worth_moving(milliseconds(10), milliseconds(8)));
    assert!(!is_worth_moving(milliseconds(10), milliseconds(9)));
    assert!(!is_worth_moving(milliseconds(10), milliseconds(10)));
    assert!(!is_worth_moving(milliseconds(2), milliseconds(1)), "noise");
}

#[test]
fn a_client_s_lot_follows_from_its_address() {
    let (four, six) = ("10.66.0.9".parse().unwrap(), "fd66::9".parse().unwrap());
    assert_eq!(Lot::of(None, None), None);
    assert_eq!(Lot::of(Some(four), Some(six)), Lot::of(Some(four), None));
    assert_ne!(Lot::of(None, Some(six)), Lot::of(None, Some("fd66::a".parse().unwrap())));
}

#[test]
fn the_last_of_many_exits_are_drawn_evenly_too() {
    let candidates = vec![at(10, 0); 64];
    let mut seconds_to_last = vec![0; 64];
    for number in 0..64 * 100 {
        seconds_to_last[order(&candidates, lot(number))[62]] += 1;
    }
    // The mean is 100.
    assert!(seconds_to_last.iter().all(|count| (50..160).contains(count)), "{seconds_to_last:?}");
}

/// A thousand clients of three exits that are equally near, and of one that is far.
struct World {
    random: Random,
    addresses: Vec<usize>,
    /// The loads of the four exits, as reported at each of several moments.
    told: Vec<[u32; 4]>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let first = 2 + below(&mut random, 60_000);
        // Up to one enrolled client in eight is not connected.
        let away = below(&mut random, 9);
        let mut addresses = Vec::new();
        let mut next = first;
        while addresses.len() < CLIENTS {
            if below(&mut random, 64) >= away {
                addresses.push(next);
            }
            next += 1;
        }
        // In about half of the worlds, all clients know the loads of the same moment, just after one exit restarted.
        let moments = if below(&mut random, 2) == 0 { 1 } else { 20 };
        let told = (0..moments)
            .map(|_| {
                let mut loads = [0; 4].map(|_: u32| u32::try_from(below(&mut random, 30)).unwrap());
                loads[below(&mut random, 3)] = 0;
                loads
            })
            .collect();
        Self { random, addresses, told }
    }

    /// Returns each client's exits in the order of its choice.
    fn orders(&mut self, choose: fn(&[Candidate], Lot) -> Vec<usize>) -> Vec<Vec<usize>> {
        let addresses = std::mem::take(&mut self.addresses);
        let order = |number: &usize| {
            let loads = self.told[below(&mut self.random, self.told.len())];
            let round_trips = [10_000, 10_000, 10_000, 60_000].map(|microseconds: u64| {
                // One measurement in 32 is far off: the host was busy.
                let off = if below(&mut self.random, 32) == 0 { 10_000 } else { 1_500 };
                Duration::from_micros(microseconds + self.random.below(off))
            });
            let candidates: Vec<_> = round_trips
                .into_iter()
                .zip(loads)
                .map(|(round_trip, load)| Candidate { round_trip: Some(round_trip), ..at(0, load) })
                .collect();
            choose(&candidates, lot(*number))
        };
        addresses.iter().map(order).collect()
    }
}

fn below(random: &mut Random, bound: usize) -> usize {
    usize::try_from(random.below(bound as u64)).unwrap()
}

/// Counts the clients of each exit while one exit is dead.
fn shares(orders: &[Vec<usize>], dead: Option<usize>) -> [usize; 4] {
    let mut shares = [0; 4];
    for order in orders {
        shares[*order.iter().find(|exit| Some(**exit) != dead).unwrap()] += 1;
    }
    shares
}

/// Whether the share of each live exit is within a tenth of an even share, and the far exit has no clients.
fn is_even(shares: [usize; 4], dead: Option<usize>) -> bool {
    let living = (0..3).filter(|exit| Some(*exit) != dead);
    let even = CLIENTS / living.clone().count();
    shares[3] == 0 && living.map(|exit| shares[exit]).all(|share| share.abs_diff(even) <= even / 10)
}

#[test]
fn a_thousand_clients_share_three_exits_evenly_and_two_after_one_was_killed() {
    let mut worst = [0; 2];
    for seed in 0..SEEDS {
        let mut world = World::new(seed);
        let orders = world.orders(order);
        let dead = below(&mut world.random, 3);
        for (stage, dead) in [(0, None), (1, Some(dead))] {
            let shares = shares(&orders, dead);
            assert!(is_even(shares, dead), "seed {seed}, {dead:?} is dead: {shares:?}");
            let even = CLIENTS / (3 - stage);
            let living = (0..3).filter(|exit| Some(*exit) != dead);
            let off = living.map(|exit| shares[exit].abs_diff(even)).max().unwrap();
            worst[stage] = worst[stage].max(off);
        }
    }
    println!("measured: {SEEDS} seeds; shares differ from even shares by at most {worst:?} clients");
}

/// The control: an earlier rule, which chose the less loaded of two exits and ignored the lot.
#[test]
fn clients_that_believed_old_loads_would_all_run_to_one_exit() {
    fn least_loaded(candidates: &[Candidate], _: Lot) -> Vec<usize> {
        let mut order: Vec<usize> = (0..3).collect();
        order.sort_by_key(|exit| candidates[*exit].load);
        order
    }
    let uneven = (0..100).filter(|seed| {
        let mut world = World::new(*seed);
        let orders = world.orders(least_loaded);
        !is_even(shares(&orders, Some(0)), Some(0))
    });
    assert!(uneven.count() >= 40);
}

/// The control: chance alone is not enough.
#[test]
fn clients_with_random_lots_would_often_not_be_even() {
    let uneven = (0..SEEDS).filter(|seed| {
        let mut random = Random::new(*seed);
        let orders: Vec<_> = (0..CLIENTS)
            .map(|_| order(&[at(10, 0), at(10, 0), at(10, 0), at(90, 0)], Lot::random(random.draw())))
            .collect();
        !is_even(shares(&orders, None), None)
    });
    let uneven = uneven.count();
    assert!((20..150).contains(&uneven), "{uneven}");
}

proptest! {
    #[test]
    fn each_exit_is_in_the_order_once(
        candidates in prop::collection::vec((any::<bool>(), prop::option::of(0..200_u64), 0..1_200_u32, 0..1_001_u32), 0..65),
        number: u64,
    ) {
        let candidate = |(is_draining, round_trip, load, weight): (bool, Option<u64>, u32, u32)| Candidate {
            round_trip: round_trip.map(Duration::from_millis), load: Some(load), weight, is_draining,
        };
        let candidates: Vec<_> = candidates.into_iter().map(candidate).collect();
        let mut order = order(&candidates, Lot::random(number));
        order.sort_unstable();
        prop_assert_eq!(order, (0..candidates.len()).collect::<Vec<_>>());
    }
}
