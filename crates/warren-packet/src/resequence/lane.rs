//! One ordered lane: its next number, the datagrams that it holds above that number, and until when it waits.

use std::collections::VecDeque;
use std::time::Instant;

use bytes::Bytes;

use super::ahead::{Ahead, MAX_AHEAD};
use super::counters::Counters;
use super::past::{Past, Position};
use super::planted::{Bug, is_planted};
use crate::datagram::Number;
use crate::reason::DropReason;

/// The state of an ordered lane.
#[derive(Debug, Default)]
pub(super) struct Lane {
    past: Past,
    ahead: Ahead,
    /// The number after the highest that is held. It has no meaning if nothing is held.
    end: Number,
    /// The missing numbers between the next number and the end, lowest first. Each gap was found by one held datagram.
    gaps: VecDeque<Gap>,
}

/// Numbers that were found missing together.
#[derive(Clone, Copy, Debug)]
struct Gap {
    /// The number whose arrival showed that lower ones are missing.
    end: Number,
    /// When the lane skips the missing numbers.
    deadline: Instant,
}

/// The destination of released datagrams, and the counters for them.
pub(super) struct Outlet<'a> {
    pub released: &'a mut VecDeque<Bytes>,
    pub counters: &'a mut Counters,
}

impl Lane {
    pub(super) fn held_datagrams(&self) -> usize {
        self.ahead.datagrams()
    }

    pub(super) fn held_bytes(&self) -> usize {
        self.ahead.bytes()
    }

    /// Returns the bytes of memory that depend on the held datagrams.
    pub(super) fn size(&self) -> usize {
        self.ahead.size()
    }

    /// When the lane skips its lowest missing numbers. `None` if nothing waits for them.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.gaps.front().map(|gap| gap.deadline)
    }

    /// Handles a datagram. If numbers before it are found missing, the lane waits for them until `deadline`.
    pub(super) fn take(
        &mut self,
        number: Number,
        datagram: Bytes,
        deadline: Instant,
        outlet: &mut Outlet<'_>,
    ) -> Result<(), DropReason> {
        match self.past.position(number) {
            Position::Ahead(0) => {
                // If the lane holds anything, it waited for this number.
                outlet.counters.filled += u64::from(self.holds_any());
                self.past.pass();
                outlet.released.push_back(datagram);
                self.release_run(outlet);
            }
            Position::Ahead(steps) if steps > MAX_AHEAD => {
                self.leap(number, outlet);
                self.past.pass();
                outlet.released.push_back(datagram);
            }
            Position::Ahead(_) if is_planted(Bug::OrderNotKept) => outlet.released.push_back(datagram),
            Position::Ahead(_) => return self.hold(number, &datagram, deadline, outlet),
            Position::Missing if is_planted(Bug::LateDropped) => {}
            Position::Missing => {
                self.past.fill(number);
                outlet.counters.late += 1;
                outlet.released.push_back(datagram);
            }
            Position::Passed => return Err(DropReason::Repeated),
        }
        Ok(())
    }

    /// Skips to `number`, because the peer will send no lower numbers.
    pub(super) fn nothing_below(&mut self, number: Number, outlet: &mut Outlet<'_>) {
        match self.past.position(number) {
            Position::Ahead(steps) if steps > MAX_AHEAD => self.leap(number, outlet),
            Position::Ahead(_) => {
                self.go_to(number, outlet);
                self.release_run(outlet);
            }
            Position::Missing | Position::Passed => {}
        }
    }

    /// Skips the missing numbers whose deadline has passed.
    pub(super) fn expire(&mut self, now: Instant, outlet: &mut Outlet<'_>) {
        while self.deadline().is_some_and(|deadline| deadline <= now) {
            self.step_over(outlet);
        }
    }

    /// Skips the missing numbers before the lowest datagram that is held.
    pub(super) fn step_over(&mut self, outlet: &mut Outlet<'_>) {
        let Some(lowest) = self.ahead.lowest() else { return };
        self.skip_to(lowest, outlet);
        self.release_run(outlet);
    }

    /// Releases everything that is held.
    pub(super) fn release_all(&mut self, outlet: &mut Outlet<'_>) {
        while self.holds_any() {
            self.step_over(outlet);
        }
    }

    fn holds_any(&self) -> bool {
        self.ahead.datagrams() > 0
    }

    fn hold(
        &mut self,
        number: Number,
        datagram: &[u8],
        deadline: Instant,
        outlet: &mut Outlet<'_>,
    ) -> Result<(), DropReason> {
        let next = self.past.next();
        if !self.holds_any() {
            self.end = next;
        }
        let is_above = number.since(next) >= self.end.since(next);
        if !self.ahead.insert(next, number, datagram) {
            return Err(DropReason::Repeated);
        }
        if is_above {
            // A number right after the highest held one waits for the same missing numbers, so it needs no gap of its own.
            if number != self.end {
                self.gaps.push_back(Gap { end: number, deadline });
            }
            self.end = number.plus(1);
        } else {
            outlet.counters.filled += 1;
        }
        Ok(())
    }

    /// Releases everything that is held, and skips to a number above all of it. The numbers in between do not count as given
    /// up: the peer lies, or it has started to count again.
    fn leap(&mut self, number: Number, outlet: &mut Outlet<'_>) {
        if !is_planted(Bug::HeldDroppedOnJump) {
            self.release_all(outlet);
        }
        self.past.skip(number.since(self.past.next()));
    }

    /// Releases all held datagrams below `number`, and skips to `number`.
    fn go_to(&mut self, number: Number, outlet: &mut Outlet<'_>) {
        let next = self.past.next();
        let target = number.since(next);
        while let Some(lowest) = self.ahead.lowest()
            && lowest.since(next) < target
        {
            self.step_over(outlet);
        }
        // A run of held datagrams may have taken the lane beyond `number`.
        if self.past.next().since(next) < target {
            self.skip_to(number, outlet);
        }
    }

    /// Skips to `number`. None of the numbers in between is held.
    fn skip_to(&mut self, number: Number, outlet: &mut Outlet<'_>) {
        let missing = number.since(self.past.next());
        outlet.counters.given_up += u64::from(missing);
        self.past.skip(missing);
        self.forget_gaps();
    }

    /// Releases held datagrams from the next number on, up to the next one that is missing.
    fn release_run(&mut self, outlet: &mut Outlet<'_>) {
        while let Some(datagram) = self.ahead.take(self.past.next()) {
            self.past.pass();
            outlet.released.push_back(datagram);
        }
        self.forget_gaps();
    }

    /// Forgets the gaps before the next number.
    fn forget_gaps(&mut self) {
        if !self.holds_any() {
            self.gaps.clear();
            self.gaps.shrink_to(KEPT_GAPS);
            return;
        }
        let next = self.past.next();
        // The lane has passed a gap if the gap's end is the next number or below it. `since` is then 0, or a huge value
        // because it wraps.
        while self.gaps.front().is_some_and(|gap| !(1..=MAX_AHEAD).contains(&gap.end.since(next))) {
            self.gaps.pop_front();
        }
    }
}

/// Maximum number of gaps for which a lane keeps memory while it holds nothing.
const KEPT_GAPS: usize = 64;
