//! An honest sender over a path that loses, repeats and reorders datagrams. Repairs arrive in time or too late.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;
use proptest::prelude::*;
use warren_packet::datagram::{Lane, Number, Place};
use warren_packet::resequence::{Limits, Resequencer};

const HOLD: Duration = Duration::from_millis(100);
const EVERY: Duration = Duration::from_millis(1);

/// What the path does to a datagram.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// The datagram arrives this many milliseconds after it was sent.
    Arrives(u64),
    /// The datagram arrives twice, after these many milliseconds.
    Twice(u64, u64),
    /// The datagram never arrives.
    Lost,
}

fn fate(longest: u64) -> impl Strategy<Value = Fate> {
    prop_oneof![
        20 => Just(Fate::Arrives(0)),
        3 => (0..longest).prop_map(Fate::Arrives),
        1 => (0..longest, 0..longest).prop_map(|(first, second)| Fate::Twice(first, second)),
    ]
}

fn lossy(longest: u64) -> impl Strategy<Value = Fate> {
    prop_oneof![20 => fate(longest), 1 => Just(Fate::Lost)]
}

/// Sends one datagram a millisecond, in turn over three lanes whose numbers start at `first`. Returns what was released.
fn receive(fates: &[Fate], first: u32) -> (Resequencer, Vec<u64>) {
    let mut arrivals: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    let mut arrive = |at: u64, sent: u64| {
        arrivals.insert((at, arrivals.len() as u64), sent);
    };
    for (sent, fate) in (0..).zip(fates) {
        match *fate {
            Fate::Arrives(delay) => arrive(sent + delay, sent),
            Fate::Twice(one, other) => [one, other].into_iter().for_each(|delay| arrive(sent + delay, sent)),
            Fate::Lost => {}
        }
    }
    let (start, mut released) = (Instant::now(), VecDeque::new());
    let mut resequencer = Resequencer::new(Limits::default());
    for lane in 1..=3 {
        let half = Number::COUNT / 2 - 1;
        for number in [half.min(first), first] {
            let place = Place { lane: Lane::new(lane).unwrap(), number: Number::new(number) };
            resequencer.nothing_below(place, &mut released);
        }
    }
    let before = resequencer.counters();
    assert_eq!((before.held_datagrams, released.len()), (0, 0));
    for ((at, _), sent) in arrivals {
        let now = start + EVERY * u32::try_from(at).unwrap();
        resequencer.expire(now, &mut released);
        let lane = Lane::new(1 + u8::try_from(sent % 3).unwrap()).unwrap();
        let number = Number::new(first).plus(u32::try_from(sent / 3).unwrap());
        let datagram = Bytes::copy_from_slice(&sent.to_be_bytes());
        let _ = resequencer.take(now, Place { lane, number }, datagram, HOLD, &mut released);
    }
    while let Some(deadline) = resequencer.next_deadline() {
        resequencer.expire(deadline, &mut released);
    }
    let released = released.iter().map(|datagram| u64::from_be_bytes(datagram[..].try_into().unwrap()));
    (resequencer, released.collect())
}

fn lanes(released: &[u64]) -> [Vec<u64>; 3] {
    [0, 1, 2].map(|lane| released.iter().copied().filter(|sent| sent % 3 == lane).collect())
}

fn first() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), Just(Number::COUNT - 30), 0..Number::COUNT - 1]
}

proptest! {
    #[test]
    fn what_arrives_in_time_is_released_once_and_in_order(
        fates in prop::collection::vec(fate(100), 1..600),
        first in first(),
    ) {
        let (resequencer, released) = receive(&fates, first);
        let mut all = released.clone();
        all.sort_unstable();
        prop_assert!(all.into_iter().eq(0..fates.len() as u64));
        for lane in lanes(&released) {
            prop_assert!(lane.is_sorted());
        }
        let repeated = fates.iter().filter(|fate| matches!(fate, Fate::Twice(..))).count() as u64;
        let counters = resequencer.counters();
        prop_assert_eq!((counters.repeated, counters.late, counters.held_bytes), (repeated, 0, 0));
    }

    #[test]
    fn what_arrives_is_released_once_whatever_is_lost_or_late(
        fates in prop::collection::vec(lossy(300), 1..600),
        first in first(),
    ) {
        let (resequencer, released) = receive(&fates, first);
        let mut all = released.clone();
        all.sort_unstable();
        let arrived = (0..).zip(&fates).filter(|(_, fate)| !matches!(fate, Fate::Lost)).map(|(sent, _)| sent);
        prop_assert!(all.into_iter().eq(arrived));
        let counters = resequencer.counters();
        let out_of_order: usize = lanes(&released)
            .iter()
            .map(|lane| {
                let mut highest = None;
                lane.iter().filter(|sent| highest > Some(**sent) || { highest = Some(**sent); false }).count()
            })
            .sum();
        prop_assert_eq!(out_of_order as u64, counters.late);
        prop_assert_eq!((counters.held_datagrams, resequencer.next_deadline()), (0, None));
    }
}
