//! Tests of whole lanes. They share the fuzz target's oracle, feed it random bytes, and check that it finds each planted bug.

#[allow(dead_code, unreachable_pub, reason = "the files are modules of fuzz/ as well")]
#[path = "../../../../fuzz/src/input.rs"]
mod input;
#[allow(unreachable_pub, reason = "it is a module of fuzz/ as well")]
#[path = "../../../../fuzz/src/resequence.rs"]
mod oracle;

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use bytes::Bytes;
use proptest::prelude::*;
use warren_simulation::{Random, find_every_bug, outcome, seeds};

use super::planted::Bug;
use super::{Counters, Limits, MAX_AHEAD, MAX_HOLD, Resequencer};
use crate::datagram::{Lane, Number, Place};
use crate::reason::DropReason;

/// Number of seeds to run. `WARREN_SIMULATION=FROM..TO` runs others, for example to repeat one that failed.
const SEEDS: Range<u64> = 0..400;
/// Most seeds that may pass before a planted bug is found.
const SEEDS_FOR_A_BUG: u64 = 100;

#[test]
fn whatever_a_peer_sends_is_released_once_in_order_and_in_time() {
    for seed in seeds(SEEDS) {
        assert!(outcome(|| run(seed)).is_kept, "repeat it with WARREN_SIMULATION={seed}..{}", seed + 1);
    }
}

#[test]
fn every_planted_bug_is_found_and_found_again_by_its_seed() {
    find_every_bug::<Bug>(SEEDS_FOR_A_BUG, |seed| outcome(|| run(seed)));
}

proptest! {
    #[test]
    fn any_steps_of_a_peer_hold_what_the_oracle_expects(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        oracle::run(&bytes);
    }
}

#[test]
fn a_missing_number_holds_back_its_own_lane_only() {
    let mut peer = Peer::new(Limits::default());
    assert_eq!(peer.send(1, 0), ["1/0"]);
    assert!(peer.send(1, 2).is_empty());
    assert!(peer.send(1, 3).is_empty());
    assert_eq!(peer.send(2, 0), ["2/0"]);
    assert_eq!(peer.send(0, 7), ["0/7"]);
    assert_eq!(peer.send(1, 1), ["1/1", "1/2", "1/3"]);
    let counters = peer.resequencer.counters();
    assert_eq!(counters, Counters { filled: 1, given_up: 7, ..Counters::default() });
}

#[test]
fn each_gap_has_the_deadline_of_the_datagram_that_found_it() {
    let mut peer = Peer::new(Limits::default());
    peer.send(1, 1);
    let found = peer.now;
    peer.now += Duration::from_millis(30);
    peer.send(1, 3);
    peer.send(1, 4);
    assert_eq!(peer.resequencer.next_deadline(), Some(found + HOLD));
    assert!(peer.expire(found + HOLD - Duration::from_nanos(1)).is_empty());
    assert_eq!(peer.expire(found + HOLD), ["1/1"]);
    assert_eq!(peer.resequencer.next_deadline(), Some(peer.now + HOLD));
    assert_eq!(peer.send(1, 0), ["1/0"], "it is late");
    assert_eq!(peer.expire(peer.now + HOLD), ["1/3", "1/4"]);
    assert_eq!(peer.resequencer.next_deadline(), None);
    let counters = peer.resequencer.counters();
    assert_eq!((counters.given_up, counters.late), (2, 1));
}

#[test]
fn no_caller_makes_a_lane_wait_for_more_than_400_ms() {
    let mut resequencer = Resequencer::new(Limits::default());
    let (now, mut out) = (Instant::now(), VecDeque::new());
    resequencer.take(now, place(1, 1), Bytes::new(), Duration::MAX, &mut out).unwrap();
    assert_eq!(resequencer.next_deadline(), Some(now + MAX_HOLD));
}

#[test]
fn nothing_below_passes_what_is_missing_and_stops_at_the_next_gap() {
    let mut peer = Peer::new(Limits::default());
    for number in [2, 4, 6, 7] {
        assert!(peer.send(9, number).is_empty());
    }
    assert_eq!(peer.nothing_below(9, 1), [""; 0]);
    assert_eq!(peer.nothing_below(9, 4), ["9/2", "9/4"]);
    assert_eq!(peer.nothing_below(9, 3), [""; 0], "it is behind");
    assert_eq!(peer.nothing_below(9, 20), ["9/6", "9/7"]);
    assert_eq!(peer.send(9, 20), ["9/20"]);
    assert_eq!(peer.nothing_below(0, 20), [""; 0]);
    assert_eq!(peer.send(0, 0), ["0/0"]);
}

#[test]
fn a_held_datagram_is_repeated_as_much_as_a_released_one() {
    let mut peer = Peer::new(Limits::default());
    for (lane, number) in [(1, 0), (1, 5), (0, 0), (0, 5), (0, 3)] {
        let mut out = VecDeque::new();
        for expected in [Ok(()), Err(DropReason::Repeated)] {
            let datagram = Bytes::from_static(b"x");
            let taken = peer.resequencer.take(peer.now, place(lane, number), datagram, HOLD, &mut out);
            assert_eq!(taken, expected, "{lane}/{number}");
        }
    }
    assert_eq!(peer.resequencer.counters().repeated, 5);
}

#[test]
fn the_fullest_lane_goes_on_where_there_is_no_room() {
    let mut peer = Peer::new(Limits { max_datagrams: 4, ..Limits::default() });
    peer.send(1, 1);
    for number in [1, 3, 5] {
        assert!(peer.send(2, number).is_empty());
    }
    assert_eq!(peer.send(1, 2), ["2/1"]);
    assert_eq!(peer.send(2, 7), ["2/3"]);
    assert_eq!(peer.resequencer.counters().held_datagrams, 4);
}

#[test]
fn memory_stays_within_its_limit_however_numbers_are_spread() {
    for step in [1, 3, 64, 65, 1_000, MAX_AHEAD / 2] {
        let mut peer = Peer::new(Limits::default());
        let (mut sent, mut released) = (0, 0);
        for turn in 1..=600 {
            for lane in 1..64 {
                released += peer.send(lane, turn * step).len();
                sent += 1;
                let held: usize = peer.resequencer.lanes.iter().flatten().map(|lane| lane.size()).sum();
                assert_eq!(peer.resequencer.size, held);
                assert!(held <= Limits::default().max_bytes);
            }
        }
        assert_eq!(sent, released + peer.resequencer.counters().held_datagrams);
        let mut out = VecDeque::new();
        peer.resequencer.release_all(&mut out);
        assert_eq!((sent, peer.resequencer.size), (released + out.len(), 0));
    }
}

#[test]
fn a_held_datagram_keeps_no_receive_buffer() {
    let mut peer = Peer::new(Limits::default());
    let buffer = Bytes::from(vec![1; 60_000]);
    let mut out = VecDeque::new();
    peer.resequencer.take(peer.now, place(1, 1), buffer.slice(..10), HOLD, &mut out).unwrap();
    assert!(buffer.is_unique());
}

const HOLD: Duration = Duration::from_millis(100);

struct Peer {
    resequencer: Resequencer,
    now: Instant,
}

impl Peer {
    fn new(limits: Limits) -> Self {
        Self { resequencer: Resequencer::new(limits), now: Instant::now() }
    }

    /// Sends a datagram that names its place. Returns the datagrams that are released.
    fn send(&mut self, lane: u8, number: u32) -> Vec<String> {
        let mut out = VecDeque::new();
        let datagram = Bytes::from(format!("{lane}/{number}"));
        self.resequencer.take(self.now, place(lane, number), datagram, HOLD, &mut out).unwrap();
        texts(out)
    }

    fn nothing_below(&mut self, lane: u8, number: u32) -> Vec<String> {
        let mut out = VecDeque::new();
        self.resequencer.nothing_below(place(lane, number), &mut out);
        texts(out)
    }

    fn expire(&mut self, now: Instant) -> Vec<String> {
        let mut out = VecDeque::new();
        self.resequencer.expire(now, &mut out);
        texts(out)
    }
}

fn place(lane: u8, number: u32) -> Place {
    Place { lane: Lane::new(lane).unwrap(), number: Number::new(number) }
}

fn texts(datagrams: VecDeque<Bytes>) -> Vec<String> {
    datagrams.into_iter().map(|datagram| String::from_utf8(datagram.to_vec()).unwrap()).collect()
}

/// Gives the oracle a few hundred steps.
fn run(seed: u64) {
    let mut random = Random::new(seed);
    let mut bytes = vec![0; 1_500];
    random.fill(&mut bytes);
    oracle::run(&bytes);
}
