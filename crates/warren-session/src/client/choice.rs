//! Chooses among the exits of a fleet, by round-trip time and load.
//!
//! Of two random exits that are about as near as the nearest, the one with less load is taken. So clients spread over near exits
//! without all of them running to the one that was idle a moment ago.

use std::time::Duration;

/// Round-trip times that differ by less than this are taken as equal: a busy host alone makes such a difference.
const NOISE: Duration = Duration::from_millis(2);

/// An exit that a client may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The round-trip time, if it was measured.
    pub round_trip: Option<Duration>,
    /// The exit's load in thousandths, if it is known.
    pub load: Option<u32>,
    /// The share of clients that it is to get.
    pub weight: u32,
    /// Whether it sends its clients away.
    pub is_draining: bool,
}

/// Puts exits in the order in which to use them. Returns their places in `candidates`. `random` gives a number below its argument.
pub fn order(candidates: &[Candidate], mut random: impl FnMut(u32) -> u32) -> Vec<usize> {
    let mut left: Vec<(usize, Candidate)> = candidates.iter().copied().enumerate().collect();
    let mut order = Vec::with_capacity(left.len());
    while let Some(place) = choose(&left, &mut random) {
        order.push(place);
        left.retain(|(other, _)| *other != place);
    }
    order
}

/// Whether another exit is so much nearer that moving there is worth its cost: by a fifth or more, and by more than noise.
pub fn is_worth_moving(current: Duration, other: Duration) -> bool {
    other.as_nanos() * 5 <= current.as_nanos() * 4 && current.saturating_sub(other) >= NOISE
}

/// The best of the exits that are left.
fn choose(left: &[(usize, Candidate)], random: &mut impl FnMut(u32) -> u32) -> Option<usize> {
    // Exits that take clients come first, then those that have answered.
    let class = |candidate: &Candidate| (candidate.is_draining, candidate.round_trip.is_none());
    let best_class = left.iter().map(|(_, candidate)| class(candidate)).min()?;
    let of_class = || left.iter().filter(|(_, candidate)| class(candidate) == best_class);
    let nearest = of_class().filter_map(|(_, candidate)| candidate.round_trip).min().unwrap_or_default();
    // 1.2 times the nearest.
    let farthest = (nearest * 6 / 5).max(nearest + NOISE);
    let is_near =
        |candidate: &Candidate| candidate.round_trip.is_none_or(|round_trip| round_trip <= farthest);
    let near: Vec<_> = of_class().filter(|(_, candidate)| is_near(candidate)).copied().collect();
    let first = draw(&near, random)?;
    let others: Vec<_> = near.into_iter().filter(|(place, _)| *place != first.0).collect();
    let second = draw(&others, random).unwrap_or(first);
    // An exit of unknown load counts as idle, or it would never be tried.
    let load = |(_, candidate): (usize, Candidate)| candidate.load.unwrap_or_default();
    Some(if load(second) < load(first) { second.0 } else { first.0 })
}

/// Draws one, each with the probability of its weight.
fn draw(from: &[(usize, Candidate)], random: &mut impl FnMut(u32) -> u32) -> Option<(usize, Candidate)> {
    let total: u32 = from.iter().map(|(_, candidate)| candidate.weight.max(1)).sum();
    let mut drawn = if total == 0 { return None } else { random(total) };
    for each in from {
        let weight = each.1.weight.max(1);
        if drawn < weight {
            return Some(*each);
        }
        drawn -= weight;
    }
    from.last().copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use warren_simulation::Random;

    fn at(milliseconds: u64, load: u32) -> Candidate {
        let round_trip = Some(Duration::from_millis(milliseconds));
        Candidate { round_trip, load: Some(load), weight: 1, is_draining: false }
    }

    /// How often each exit comes first in a thousand choices.
    fn firsts(candidates: &[Candidate]) -> Vec<u32> {
        let mut random = Random::new(1);
        let mut counts = vec![0; candidates.len()];
        for _ in 0..1_000 {
            let order = order(candidates, |below| u32::try_from(random.below(u64::from(below))).unwrap());
            counts[order[0]] += 1;
        }
        counts
    }

    #[test]
    fn near_exits_share_clients_and_far_ones_get_none() {
        let counts = firsts(&[at(10, 0), at(12, 0), at(13, 0), at(90, 0)]);
        assert!(counts[0].abs_diff(500) < 60 && counts[1].abs_diff(500) < 60, "{counts:?}");
        assert_eq!(counts[2..], [0, 0]);
    }

    #[test]
    fn of_two_exits_the_one_with_less_load_is_taken() {
        assert_eq!(firsts(&[at(10, 500), at(10, 400)]), [0, 1_000]);
        // Of three, the busiest is taken only if both draws are unlucky, which cannot be.
        let counts = firsts(&[at(10, 100), at(10, 500), at(10, 900)]);
        assert!(counts[2] == 0 && counts[0] > counts[1] && counts[1] > 200, "{counts:?}");
    }

    #[test]
    fn exits_get_clients_by_their_weights() {
        let heavy = Candidate { weight: 3, load: None, ..at(10, 0) };
        let counts = firsts(&[heavy, Candidate { load: None, ..at(10, 0) }]);
        assert!(counts[0].abs_diff(750) < 60, "{counts:?}");
    }

    #[test]
    fn exits_that_drain_or_have_not_answered_come_last() {
        let draining = Candidate { is_draining: true, ..at(1, 0) };
        let unknown = Candidate { round_trip: None, ..at(1, 0) };
        let mut random = Random::new(1);
        let order = order(&[draining, unknown, at(90, 900)], |below| {
            u32::try_from(random.below(u64::from(below))).unwrap()
        });
        assert_eq!(order, [2, 1, 0]);
    }

    #[test]
    fn a_fifth_is_worth_moving_and_less_is_not() {
        let milliseconds = Duration::from_millis;
        assert!(is_worth_moving(milliseconds(10), milliseconds(8)));
        assert!(!is_worth_moving(milliseconds(10), milliseconds(9)));
        assert!(!is_worth_moving(milliseconds(10), milliseconds(10)));
        assert!(!is_worth_moving(milliseconds(2), milliseconds(1)), "noise");
    }

    proptest! {
        #[test]
        fn each_exit_is_in_the_order_once(
            candidates in prop::collection::vec((any::<bool>(), prop::option::of(0..200_u64), 0..1_000_u32, 0..1_001_u32), 0..65),
            seed: u64,
        ) {
            let candidate = |(is_draining, round_trip, load, weight): (bool, Option<u64>, u32, u32)| Candidate {
                round_trip: round_trip.map(Duration::from_millis), load: Some(load), weight, is_draining,
            };
            let candidates: Vec<_> = candidates.into_iter().map(candidate).collect();
            let mut random = Random::new(seed);
            let mut order = order(&candidates, |below| u32::try_from(random.below(u64::from(below))).unwrap());
            order.sort_unstable();
            prop_assert_eq!(order, (0..candidates.len()).collect::<Vec<_>>());
        }
    }
}
