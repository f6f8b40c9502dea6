//! Puts the numbered datagrams of one connection back in order, in bounded memory and time.
//!
//! Each lane has numbers of its own. In an ordered lane, the datagrams after a missing number are held back until it arrives.
//! The lane skips the number when the peer says that it never comes, at its deadline, or when there is no room to hold more.
//! Held datagrams are always released, never dropped. The unordered lane holds nothing. Its numbers only reveal repetitions.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::datagram::{self, Number, Place};
use crate::reason::DropReason;

mod ahead;
mod counters;
mod lane;
mod past;
mod planted;
#[cfg(test)]
mod tests;

pub use ahead::MAX_AHEAD;
pub use counters::Counters;
pub use past::REMEMBERED;

use lane::{Lane, Outlet};
use past::{Past, Position};
use planted::{Bug, is_planted};

/// Longest time for which a missing number holds back its lane, whatever the caller asks for.
pub const MAX_HOLD: Duration = Duration::from_millis(400);

/// Limits on the datagrams that a [`Resequencer`] holds. Above them, the fullest lane skips its oldest missing numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum bytes of held datagrams, including the memory that keeps track of them.
    pub max_bytes: usize,
    /// Maximum number of held datagrams.
    pub max_datagrams: usize,
}

impl Default for Limits {
    /// 8 MiB and 32,768 datagrams: 300 ms at 200 Mbit/s.
    fn default() -> Self {
        Self { max_bytes: 8 * 1024 * 1024, max_datagrams: 32_768 }
    }
}

/// Restores the order of one connection's numbered datagrams. Allocates nothing before the first one arrives.
///
/// Each datagram is released exactly once, or refused when it arrives. The datagrams of an ordered lane are released in the order
/// of their numbers, except for those that arrive after their lane has skipped them.
#[derive(Debug)]
pub struct Resequencer {
    limits: Limits,
    unordered: Option<Box<Past>>,
    /// Empty before the first use of an ordered lane. Then it has an entry for each lane.
    lanes: Vec<Option<Box<Lane>>>,
    /// A bit for each lane that holds datagrams.
    waiting: u64,
    /// Memory of all lanes, as [`Limits::max_bytes`] counts it.
    size: usize,
    counters: Counters,
}

impl Resequencer {
    /// Makes a resequencer whose lanes begin at number 0.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            unordered: None,
            lanes: Vec::new(),
            waiting: 0,
            size: 0,
            counters: Counters::default(),
        }
    }

    /// Handles a datagram that arrived at `now`, with its trailer cut off. Appends to `released` the datagrams that need not
    /// wait: this one, those that waited for it, and others if there is no more room.
    ///
    /// If numbers before the datagram are found missing, they hold it back for `hold`, at most [`MAX_HOLD`]. A held datagram is
    /// copied: a slice would keep the whole receive buffer in memory.
    ///
    /// # Errors
    /// [`DropReason::Repeated`] if the number has arrived before, or is more than [`REMEMBERED`] below the lane's next one.
    pub fn take(
        &mut self,
        now: Instant,
        place: Place,
        datagram: Bytes,
        hold: Duration,
        released: &mut VecDeque<Bytes>,
    ) -> Result<(), DropReason> {
        let taken = if place.lane.is_ordered() {
            let deadline = now + hold.min(MAX_HOLD);
            self.change(place.lane, released, |lane, outlet| {
                lane.take(place.number, datagram, deadline, outlet)
            })
        } else {
            self.take_unordered(place.number, datagram, released)
        };
        if taken.is_err() {
            self.counters.repeated += 1;
        }
        self.make_room(released);
        taken
    }

    /// Skips the numbers below this place, because the peer says that they never come.
    pub fn nothing_below(&mut self, place: Place, released: &mut VecDeque<Bytes>) {
        if place.lane.is_ordered() && !is_planted(Bug::NothingBelowIgnored) {
            self.change(place.lane, released, |lane, outlet| lane.nothing_below(place.number, outlet));
        }
    }

    /// Skips the missing numbers whose deadline has passed.
    pub fn expire(&mut self, now: Instant, released: &mut VecDeque<Bytes>) {
        for lane in self.waiting_lanes() {
            let is_due = self.lane(lane).and_then(Lane::deadline).is_some_and(|deadline| deadline <= now);
            if is_due && !is_planted(Bug::HoleNeverGivenUp) {
                self.change(lane, released, |lane, outlet| lane.expire(now, outlet));
            }
        }
    }

    /// When [`Self::expire`] must be called next. `None` if nothing is held.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.waiting_lanes().filter_map(|lane| self.lane(lane)?.deadline()).min()
    }

    /// Releases everything that is held, in order. The connection has ended.
    pub fn release_all(&mut self, released: &mut VecDeque<Bytes>) {
        for lane in self.waiting_lanes() {
            self.change(lane, released, Lane::release_all);
        }
    }

    /// Memory of the held datagrams in bytes, including the memory that keeps track of them.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The counts so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    fn take_unordered(
        &mut self,
        number: Number,
        datagram: Bytes,
        released: &mut VecDeque<Bytes>,
    ) -> Result<(), DropReason> {
        let past = self.unordered.get_or_insert_default();
        match past.position(number) {
            Position::Ahead(steps) => {
                // A larger step does not count as loss: the peer lies, or it has started to count again.
                if steps <= MAX_AHEAD {
                    self.counters.given_up += u64::from(steps);
                }
                past.skip(steps);
                past.pass();
            }
            Position::Missing => {
                self.counters.late += 1;
                past.fill(number);
            }
            Position::Passed => return Err(DropReason::Repeated),
        }
        released.push_back(datagram);
        Ok(())
    }

    /// Makes the fullest lane skip missing numbers until the limits hold.
    fn make_room(&mut self, released: &mut VecDeque<Bytes>) {
        while (self.size > self.limits.max_bytes || self.counters.held_datagrams > self.limits.max_datagrams)
            && !is_planted(Bug::LimitsIgnored)
        {
            let fullest = self.waiting_lanes().max_by_key(|lane| self.lane(*lane).map(Lane::size));
            let Some(fullest) = fullest else { return };
            self.change(fullest, released, Lane::step_over);
        }
    }

    fn lane(&self, lane: datagram::Lane) -> Option<&Lane> {
        self.lanes.get(lane.index())?.as_deref()
    }

    /// The lanes that hold datagrams now.
    fn waiting_lanes(&self) -> impl Iterator<Item = datagram::Lane> + use<> {
        // A copy of the bits, so that the caller may change lanes while it iterates.
        let mut waiting = self.waiting;
        std::iter::from_fn(move || {
            // If no bit is left, the index is 64. No lane has it, so the iterator ends.
            let index = u8::try_from(waiting.trailing_zeros()).ok()?;
            waiting &= waiting.wrapping_sub(1);
            datagram::Lane::new(index)
        })
    }

    /// Changes a lane, and updates the sums over all lanes.
    fn change<T>(
        &mut self,
        lane: datagram::Lane,
        released: &mut VecDeque<Bytes>,
        act: impl FnOnce(&mut Lane, &mut Outlet<'_>) -> T,
    ) -> T {
        if self.lanes.is_empty() {
            self.lanes.resize_with(datagram::Lane::COUNT, || None);
        }
        let index = lane.index();
        let lane = self.lanes[index].get_or_insert_default();
        self.size -= lane.size();
        self.counters.held_datagrams -= lane.held_datagrams();
        self.counters.held_bytes -= lane.held_bytes();
        let done = act(lane, &mut Outlet { released, counters: &mut self.counters });
        self.size += lane.size();
        self.counters.held_datagrams += lane.held_datagrams();
        self.counters.held_bytes += lane.held_bytes();
        let bit = 1 << index;
        if lane.held_datagrams() > 0 {
            self.waiting |= bit;
        } else {
            self.waiting &= !bit;
        }
        done
    }
}
