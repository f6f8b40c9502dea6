//! Numbered datagrams from a peer that may be malicious. The resequencer must release each datagram exactly once or refuse it. It
//! must release them in order and before their deadline, and its memory must be bounded.

#[path = "resequence/expected.rs"] // tests of other crates take this file in by its path
mod expected;

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;
use warren_packet::DropReason;
use warren_packet::datagram::{Lane, Number, Place};
use warren_packet::resequence::{Limits, MAX_HOLD, REMEMBERED, Resequencer};

use self::expected::Expected;
use super::input::Input;

/// The lanes that the target uses. Lane 0 is unordered.
const LANES: [u8; 4] = [0, 1, 2, 63];
/// The first number of each lane. In this file, numbers do not wrap. They are sent modulo `Number::COUNT`, so the first number is
/// sent as zero.
const START: u64 = 8 * Number::COUNT as u64;
/// The longest jump ahead. A jump of half of all numbers or more would count as a jump back, so this is well below half.
const LONGEST_JUMP: u64 = Number::COUNT as u64 / 2 - 300_000;

/// The first byte of the input sets the limits. The second byte selects whether the lanes start just before their numbers wrap.
/// Steps follow. A step is a byte with its kind and lane, a byte with a size or time, and arguments that depend on the kind.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let limits = match input.byte() {
        0..128 => Limits::default(),
        tight => Limits { max_bytes: usize::from(tight) * 500, max_datagrams: usize::from(tight - 127) },
    };
    let mut peer = Peer::new(limits);
    if input.byte() % 2 == 1 {
        peer.go_near_the_wrap();
    }
    while !input.is_empty() {
        let what = input.byte();
        let lane = usize::from(what / 16 % 4);
        let end = peer.ends[lane];
        let room = usize::from(input.byte());
        match what % 16 {
            0..=4 => peer.send(lane, end, room),
            5 | 6 => peer.send(lane, end + 1 + u64::from(input.byte() % 4), room),
            7 | 8 => peer.send(lane, end - 1 - u64::from(input.byte() % 16), room),
            9 => peer.send(lane, end - u64::from(input.word()), room),
            10 => peer.send(lane, end + u64::from(input.word()) * 2, room),
            11 => peer.send(lane, end + (u64::from(input.word()) << 10).min(LONGEST_JUMP), room),
            12 => peer.nothing_below(lane, end + 8 - u64::from(input.byte() % 16)),
            // If this time is longer than MAX_HOLD, the resequencer must use MAX_HOLD.
            13 => peer.hold = Duration::from_millis(u64::from(input.byte()) * 4),
            _ => peer.wait(Duration::from_millis(room as u64)),
        }
    }
    peer.leave();
}

/// A datagram that the resequencer has taken and not released yet.
struct Waiting {
    lane: usize,
    number: u64,
    length: usize,
    since: Instant,
}

/// A peer, its resequencer, and a record of the datagrams that were taken and released. Numbers do not wrap.
struct Peer {
    resequencer: Resequencer,
    limits: Limits,
    now: Instant,
    hold: Duration,
    longest_hold: Duration,
    /// For each lane, the highest number so far plus 1.
    ends: [u64; LANES.len()],
    taken: [HashSet<u64>; LANES.len()],
    waiting: HashMap<u64, Waiting>,
    /// For each lane, the highest released number plus 1.
    released: [u64; LANES.len()],
    serial: u64,
    /// The model of the resequencer. None with small limits, because the model has no limits.
    expected: Option<Expected>,
}

impl Peer {
    fn new(limits: Limits) -> Self {
        Self {
            resequencer: Resequencer::new(limits),
            limits,
            now: Instant::now(),
            hold: Duration::from_millis(100),
            longest_hold: Duration::ZERO,
            ends: [START; LANES.len()],
            taken: Default::default(),
            waiting: HashMap::new(),
            released: [START; LANES.len()],
            serial: 0,
            expected: (limits == Limits::default()).then(Expected::default),
        }
    }

    fn go_near_the_wrap(&mut self) {
        // Several jumps are needed, because none may be longer than LONGEST_JUMP.
        for lane in 0..LANES.len() {
            self.send(lane, START + LONGEST_JUMP, 0);
            self.send(lane, START + LONGEST_JUMP * 2, 0);
            self.send(lane, START + u64::from(Number::COUNT) - 4, 0);
        }
    }

    fn send(&mut self, lane: usize, number: u64, room: usize) {
        let serial = self.serial;
        self.serial += 1;
        let mut datagram = serial.to_be_bytes().to_vec();
        datagram.resize(8 + room * 5, 0);
        self.longest_hold = self.longest_hold.max(self.hold.min(MAX_HOLD));
        let is_known = !self.taken[lane].insert(number);
        // The datagram is added before the call of `take`, because `take` may release it immediately.
        self.waiting.insert(serial, Waiting { lane, number, length: datagram.len(), since: self.now });

        let mut out = VecDeque::new();
        let datagram = Bytes::from(datagram);
        let taken = self.resequencer.take(self.now, place(lane, number), datagram, self.hold, &mut out);

        if taken.is_err() {
            assert_eq!(taken, Err(DropReason::Repeated));
            // The resequencer remembers a limited number of datagrams. A datagram that is older might be a repetition, so it may
            // be refused too.
            assert!(is_known || number + u64::from(REMEMBERED) < self.ends[lane], "it is new");
            self.waiting.remove(&serial);
        } else {
            assert!(!is_known, "it was taken twice");
            self.ends[lane] = self.ends[lane].max(number + 1);
        }
        if let Some(expected) = &mut self.expected {
            let deadline = self.now + self.hold.min(MAX_HOLD);
            assert_eq!(taken.is_ok(), expected.take(LANES[lane], number, serial, deadline));
        }
        self.check(&out, Some(serial));
    }

    fn nothing_below(&mut self, lane: usize, number: u64) {
        let mut out = VecDeque::new();
        self.resequencer.nothing_below(place(lane, number), &mut out);
        // Lane 0 is unordered, so `nothing_below` has no effect on it.
        if lane > 0 {
            self.ends[lane] = self.ends[lane].max(number);
            if let Some(expected) = &mut self.expected {
                expected.nothing_below(LANES[lane], number);
            }
        }
        self.check(&out, None);
    }

    fn wait(&mut self, time: Duration) {
        self.now += time;
        let mut out = VecDeque::new();
        self.resequencer.expire(self.now, &mut out);
        if let Some(expected) = &mut self.expected {
            expected.expire(self.now);
        }
        self.check(&out, None);
        assert!(self.resequencer.next_deadline().is_none_or(|deadline| deadline > self.now));
        // The hold may have changed while datagrams were waiting, so the wait of each is compared with the longest hold so far.
        for datagram in self.waiting.values() {
            assert!(datagram.since + self.longest_hold > self.now, "it was held for too long");
        }
    }

    fn leave(mut self) {
        let mut out = VecDeque::new();
        self.resequencer.release_all(&mut out);
        // The model does not have `release_all`.
        self.expected = None;
        self.check(&out, None);
        assert!(self.waiting.is_empty(), "something was lost");
    }

    /// Checks the released datagrams. Only the datagram that has just arrived, `newest`, may be late.
    fn check(&mut self, out: &VecDeque<Bytes>, newest: Option<u64>) {
        let serials: Vec<u64> = out.iter().map(|datagram| serial(datagram)).collect();
        for (serial, datagram) in serials.iter().zip(out) {
            let waiting = self.waiting.remove(serial).expect("it was released twice");
            assert_eq!(waiting.length, datagram.len());
            let released = &mut self.released[waiting.lane];
            let is_late = waiting.number < *released;
            assert!(!is_late || Some(*serial) == newest, "it is out of order");
            *released = (*released).max(waiting.number + 1);
        }

        let counters = self.resequencer.counters();
        let bytes: usize = self.waiting.values().map(|waiting| waiting.length).sum();
        assert_eq!((counters.held_datagrams, counters.held_bytes), (self.waiting.len(), bytes));
        assert!(bytes <= self.limits.max_bytes && self.waiting.len() <= self.limits.max_datagrams);
        assert_eq!(self.resequencer.next_deadline().is_some(), !self.waiting.is_empty());
        if let Some(expected) = &mut self.expected {
            assert_eq!(serials, expected.released());
            let counted = (counters.filled, counters.given_up, counters.late);
            assert_eq!(counted, (expected.filled, expected.given_up, expected.late));
        }
    }
}

fn place(lane: usize, number: u64) -> Place {
    let number = u32::try_from(number % u64::from(Number::COUNT)).expect("it has 26 bits");
    Place { lane: Lane::new(LANES[lane]).expect("it is a lane"), number: Number::new(number) }
}

fn serial(datagram: &[u8]) -> u64 {
    let first = datagram.first_chunk().expect("each datagram begins with its serial number");
    u64::from_be_bytes(*first)
}
