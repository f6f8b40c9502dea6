//! When the upkeep of each connection runs: four times a second, a few connections in each turn.

use std::time::{Duration, Instant};

/// How often the upkeep of each connection runs.
pub(crate) const ROUND: Duration = Duration::from_millis(250);
/// Maximum number of connections in one upkeep turn, so that a turn does not get longer with their number.
pub(crate) const CONNECTIONS_PER_TURN: usize = 64;
/// Time until the next turn of a round that is not finished. Other work may start it sooner.
const NEXT_TURN: Duration = Duration::from_millis(1);

/// The progress of the present round.
pub(crate) struct Upkeep {
    began: Instant,
    /// The slot that comes next; `None` between two rounds.
    next: Option<usize>,
    /// Whether some pump may have an unfinished assembly.
    assembling: bool,
    /// Whether this round has found an unfinished assembly, or one has begun since the round began.
    found_assembly: bool,
}

impl Upkeep {
    pub(crate) fn new(now: Instant) -> Self {
        Self { began: now, next: None, assembling: false, found_assembly: false }
    }

    /// Records that an assembly has begun.
    pub(crate) fn note_assembly(&mut self) {
        self.assembling = true;
        self.found_assembly = true;
    }

    /// Returns how long the worker may sleep until it must continue the upkeep. `None` if the worker need not wake for the upkeep.
    pub(crate) fn due(&self) -> Option<Duration> {
        match self.next {
            Some(_) => Some(NEXT_TURN),
            None => self.assembling.then_some(ROUND),
        }
    }

    /// Returns the first slot of this turn, if the turn has any.
    pub(crate) fn first(&mut self, now: Instant) -> Option<usize> {
        if self.next.is_none() && now.duration_since(self.began) >= ROUND {
            self.began = now;
            self.next = Some(0);
            self.found_assembly = false;
        }
        self.next
    }

    /// Ends this turn before slot `next` of `count`.
    pub(crate) fn go_on(&mut self, next: usize, count: usize) {
        self.next = Some(next).filter(|next| *next < count);
        if self.next.is_none() {
            // This includes assemblies that began in a slot after the round had passed it.
            self.assembling = self.found_assembly;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_comes_to_every_slot_once_and_ends() {
        let start = Instant::now();
        let mut upkeep = Upkeep::new(start);
        assert_eq!((upkeep.first(start), upkeep.due()), (None, None));

        let mut firsts = Vec::new();
        while let Some(first) = upkeep.first(start + ROUND) {
            firsts.push(first);
            upkeep.go_on(first + CONNECTIONS_PER_TURN, 2 * CONNECTIONS_PER_TURN + 1);
            assert_eq!(upkeep.due(), (firsts.len() < 3).then_some(NEXT_TURN));
        }

        assert_eq!(firsts, [0, CONNECTIONS_PER_TURN, 2 * CONNECTIONS_PER_TURN]);
    }

    #[test]
    fn assembly_that_begins_behind_the_round_is_not_forgotten() {
        let start = Instant::now();
        let mut upkeep = Upkeep::new(start);
        assert_eq!(upkeep.first(start + ROUND), Some(0));
        upkeep.go_on(1, 2);
        upkeep.note_assembly();
        upkeep.go_on(2, 2);
        assert_eq!(upkeep.due(), Some(ROUND));

        assert_eq!(upkeep.first(start + 2 * ROUND), Some(0));
        upkeep.go_on(2, 2);
        assert_eq!(upkeep.due(), None, "the next round finds none");
    }
}
