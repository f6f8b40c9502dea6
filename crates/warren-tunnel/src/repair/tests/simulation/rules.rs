//! What must hold for both halves of repair, checked from outside.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use bytes::Bytes;
use warren_packet::datagram::{Lane, Numbering, Place};

use super::PATIENCE;
use crate::repair::{COPY_AFTER, FRESH};

/// The largest share of the sent bytes that may be sent again, and the most bytes that may be saved up for that.
const MOST: f64 = 0.15;
const SAVED: f64 = 256.0 * 1024.0;

/// A place as a key that can be ordered.
type Key = (usize, u32);

/// A numbered datagram.
struct Numbered {
    datagram: Bytes,
    first_sent: Instant,
    times_sent: u8,
}

/// Everything that the rules need to know of a run.
#[derive(Default)]
pub(super) struct Rules {
    /// Numbered datagrams that were sent at least once.
    sent: BTreeMap<Key, Numbered>,
    /// The place of the datagram that carries each packet.
    places: BTreeMap<u64, Key>,
    /// The number that each lane must use next.
    next: BTreeMap<usize, u32>,
    /// Copies that must leave, and the latest time for each.
    copies: BTreeMap<Key, Instant>,
    /// Places that were given up, and the latest time to tell the peer of each.
    words: BTreeMap<Key, Instant>,
    /// Packets that the other side has delivered.
    arrived: BTreeSet<u64>,
    /// Places that the other side holds.
    held: BTreeSet<Key>,
    /// The highest number that each lane released.
    released: BTreeMap<usize, u32>,
    /// Datagrams that were released after a higher number of their lane: of ordered lanes, and of the unordered one.
    pub overtaken: (u64, u64),
    /// Bytes that may be sent again now, bytes sent for the first time, and bytes sent again.
    budget: f64,
    first_bytes: f64,
    repair_bytes: f64,
    /// Number of datagrams that were sent again, not counting copies.
    pub repairs: u64,
}

impl Rules {
    pub(super) fn new() -> Self {
        Self { budget: SAVED, ..Self::default() }
    }

    /// Records that a datagram is sent, and the context that the transport must return for it.
    pub(super) fn leaves(&mut self, now: Instant, mut datagram: Bytes, context: Option<u64>) {
        let whole = datagram.clone();
        match Numbering::cut(&mut datagram).unwrap() {
            Numbering::Unnumbered => {
                assert_eq!(context, None, "an unnumbered datagram is kept");
            }
            Numbering::NothingBelow(place) => {
                assert_eq!(context, None);
                let given_up = (place.lane.index(), place.number.value().wrapping_sub(1));
                assert!(self.words.remove(&given_up).is_some(), "{given_up:?} was not given up");
            }
            Numbering::Numbered(place) => {
                assert!(context.is_some(), "a numbered datagram is not kept");
                self.numbered_leaves(now, place, whole);
            }
        }
    }

    fn numbered_leaves(&mut self, now: Instant, place: Place, whole: Bytes) {
        let key = (place.lane.index(), place.number.value());
        let next = self.next.entry(key.0).or_default();
        if key.1 == *next {
            *next += 1;
            self.places.insert(id_of(&whole), key);
            self.sent.insert(key, Numbered { datagram: whole, first_sent: now, times_sent: 1 });
            return;
        }
        let sent = self.sent.get_mut(&key).unwrap_or_else(|| panic!("{key:?} skips a number"));
        assert_eq!(sent.datagram, whole, "{key:?} has two datagrams");
        sent.times_sent += 1;
        self.repair_bytes += whole.len() as f64;
        match (place.lane.is_ordered(), sent.times_sent) {
            (true, 2) => self.repairs += 1,
            (true, 3) => {
                self.repairs += 1;
                self.copies.insert(key, now + COPY_AFTER + PATIENCE);
            }
            (true, 4) => {
                self.copies.remove(&key).unwrap();
            }
            (false, 2) => {
                self.repairs += 1;
                assert!(now < sent.first_sent + FRESH + PATIENCE, "{key:?} is stale");
            }
            (_, times) => panic!("{key:?} was sent {times} times"),
        }
    }

    /// A packet is framed to be sent for the first time.
    pub(super) fn framed(&mut self, bytes: usize) {
        self.first_bytes += bytes as f64;
        self.budget = (self.budget + bytes as f64 * MOST).min(SAVED);
    }

    /// The sender decided to send a lost datagram again.
    pub(super) fn repaired(&mut self, bytes: usize) {
        self.budget -= bytes as f64;
        assert!(self.budget >= 0.0, "more is repaired than the budget allows");
    }

    /// The sender decided to give up a lost datagram.
    pub(super) fn given_up(&mut self, now: Instant, mut datagram: Bytes) {
        let Ok(Numbering::Numbered(place)) = Numbering::cut(&mut datagram) else { panic!("it has no place") };
        if place.lane.is_ordered() {
            self.words.insert((place.lane.index(), place.number.value()), now + PATIENCE);
        }
    }

    /// Checks that nothing is overdue.
    pub(super) fn check_time(&self, now: Instant) {
        let overdue = |due: &BTreeMap<Key, Instant>| due.values().any(|due| *due < now);
        assert!(!overdue(&self.copies), "the last repair was not sent again");
        assert!(!overdue(&self.words), "the peer was not told of a datagram that was given up");
    }

    /// A datagram arrives for the first time at the other side, which may hold it.
    pub(super) fn arrives(&mut self, place: Place) {
        self.held.insert((place.lane.index(), place.number.value()));
    }

    /// The other side delivers a packet. No packet is delivered twice.
    pub(super) fn released(&mut self, id: u64) {
        assert!(self.arrived.insert(id), "{id} came twice");
        let Some(key) = self.places.get(&id) else { return };
        self.held.remove(key);
        let highest = self.released.entry(key.0).or_default();
        let is_overtaken = u64::from(key.1 < *highest);
        if key.0 == Lane::UNORDERED.index() {
            self.overtaken.1 += is_overtaken;
        } else {
            self.overtaken.0 += is_overtaken;
        }
        *highest = key.1.max(*highest);
    }

    /// Checks that the other side holds nothing below a place, once it was told that nothing comes below that place.
    pub(super) fn check_freed(&self, place: Place) {
        let lane = place.lane.index();
        let below = (lane, 0)..(lane, place.number.value());
        assert_eq!(self.held.range(below).next(), None, "a lane was not freed");
    }

    /// Checks what must hold when nothing is under way any more.
    pub(super) fn check_end(&self) {
        assert!(self.copies.is_empty() && self.words.is_empty() && self.held.is_empty());
        let most = self.first_bytes * MOST + SAVED;
        assert!(self.repair_bytes <= most, "{} bytes are sent again, {most} may be", self.repair_bytes);
    }

    /// How many datagrams were numbered in ordered lanes or the unordered one, and how many of these never arrived.
    pub(super) fn lost(&self, is_ordered: bool) -> (u64, u64) {
        let (mut all, mut lost) = (0, 0);
        for (id, key) in &self.places {
            if (key.0 != Lane::UNORDERED.index()) == is_ordered {
                all += 1;
                lost += u64::from(!self.arrived.contains(id));
            }
        }
        (all, lost)
    }
}

/// The packet's number, which is in a datagram behind its header byte.
pub(super) fn id_of(datagram: &[u8]) -> u64 {
    u64::from_be_bytes(datagram[1..9].try_into().unwrap())
}
