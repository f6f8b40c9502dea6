//! A simple model of a resequencer without memory limits. It uses numbers that do not wrap, sets and maps.

use std::collections::{BTreeMap, HashSet};
use std::time::Instant;

use warren_packet::resequence::{MAX_AHEAD, REMEMBERED};

use super::START;

/// The lanes by index, the serial numbers released since the last call of [`Expected::released`], and the counters.
#[derive(Default)]
pub(super) struct Expected {
    lanes: BTreeMap<u8, ExpectedLane>,
    released: Vec<u64>,
    pub(super) filled: u64,
    pub(super) given_up: u64,
    pub(super) late: u64,
}

struct ExpectedLane {
    next: u64,
    arrived: HashSet<u64>,
    held: BTreeMap<u64, u64>,
    /// Each number that was higher than all earlier ones, with the deadline for the missing numbers below it.
    highest: Vec<(u64, Instant)>,
}

impl Default for ExpectedLane {
    fn default() -> Self {
        Self { next: START, arrived: HashSet::new(), held: BTreeMap::new(), highest: Vec::new() }
    }
}

impl ExpectedLane {
    /// Returns the deadline of the gap that starts at `next`.
    fn deadline(&self) -> Option<Instant> {
        self.highest.iter().find(|(number, _)| *number > self.next).map(|(_, deadline)| *deadline)
    }
}

impl Expected {
    /// Takes a datagram. Returns false if it is refused.
    pub(super) fn take(&mut self, index: u8, number: u64, serial: u64, deadline: Instant) -> bool {
        let lane = self.lanes.entry(index).or_default();
        if lane.arrived.contains(&number) || number + u64::from(REMEMBERED) < lane.next {
            return false;
        }
        lane.arrived.insert(number);
        if number < lane.next {
            self.late += 1;
            self.released.push(serial);
            return true;
        }
        // If the number is too far ahead, the lane continues at this number. The gap directly before it does not count as given
        // up.
        let is_far = number - lane.next > u64::from(MAX_AHEAD);
        if is_far {
            self.go_to(index, number, false);
        }
        let lane = self.lanes.entry(index).or_default();
        if lane.held.last_key_value().is_some_and(|(highest, _)| number < *highest) {
            self.filled += 1;
        } else {
            lane.highest.push((number, deadline));
        }
        lane.held.insert(number, serial);
        // Lane 0 is unordered, so its datagrams are released immediately.
        if index == 0 {
            self.go_to(index, number, true);
        }
        self.release_run(index);
        true
    }

    pub(super) fn nothing_below(&mut self, index: u8, number: u64) {
        let lane = self.lanes.entry(index).or_default();
        if number > lane.next {
            let is_near = number - lane.next <= u64::from(MAX_AHEAD);
            self.go_to(index, number, is_near);
            self.release_run(index);
        }
    }

    pub(super) fn expire(&mut self, now: Instant) {
        // 64 is `Lane::COUNT`.
        for index in 0..64 {
            while let Some(lane) = self.lanes.get(&index)
                && let Some(lowest) = lane.held.keys().next().copied()
                && lane.deadline().is_some_and(|deadline| deadline <= now)
            {
                self.go_to(index, lowest, true);
                self.release_run(index);
            }
        }
    }

    /// Returns the serial numbers of the datagrams released since the last call.
    pub(super) fn released(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.released)
    }

    /// Releases the held datagrams below `number`, and makes the lane continue at `number`. The gap directly before `number`
    /// counts as given up only if `counts_last` is set.
    fn go_to(&mut self, index: u8, number: u64, counts_last: bool) {
        let lane = self.lanes.entry(index).or_default();
        while let Some((held, serial)) = lane.held.pop_first() {
            if held >= number {
                lane.held.insert(held, serial);
                break;
            }
            self.given_up += held - lane.next;
            self.released.push(serial);
            lane.next = held + 1;
        }
        if counts_last {
            self.given_up += number - lane.next;
        }
        lane.next = number;
    }

    fn release_run(&mut self, index: u8) {
        let lane = self.lanes.entry(index).or_default();
        while let Some(serial) = lane.held.remove(&lane.next) {
            self.released.push(serial);
            lane.next += 1;
        }
    }
}
