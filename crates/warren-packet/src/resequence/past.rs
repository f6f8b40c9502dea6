//! What one lane remembers of the numbers below its next one: a window as in RFC 6479.

use super::planted::{Bug, is_planted};
use crate::datagram::Number;

/// How many numbers below a lane's next one are remembered.
pub const REMEMBERED: u32 = 2_048;
const WORD: u32 = u64::BITS;
const WORDS: usize = (REMEMBERED / WORD) as usize;

/// A lane's next number, and a ring of bits for the numbers below it: whether each has arrived.
#[derive(Debug, Default)]
pub(super) struct Past {
    next: Number,
    arrived: [u64; WORDS],
}

/// The position of a number relative to the next number of its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Position {
    /// The number is this far above the next number, or the next number itself (0).
    Ahead(u32),
    /// The number is below the next number and has not arrived.
    Missing,
    /// The number is below the next number, and has arrived or is too far below to be remembered.
    Passed,
}

impl Past {
    pub(super) fn next(&self) -> Number {
        self.next
    }

    pub(super) fn position(&self, number: Number) -> Position {
        let ahead = number.since(self.next);
        // Numbers wrap, so half of them are ahead and the other half behind.
        if ahead < Number::COUNT / 2 {
            return Position::Ahead(ahead);
        }
        let is_remembered = Number::COUNT - ahead <= REMEMBERED;
        if is_remembered && (!self.has_arrived(number) || is_planted(Bug::RepetitionReleased)) {
            Position::Missing
        } else {
            Position::Passed
        }
    }

    /// Records that a missing number below the next one has arrived.
    pub(super) fn fill(&mut self, number: Number) {
        let (word, bit) = bit_of(number);
        self.arrived[word] |= bit;
    }

    /// Records that the next number has arrived, and moves on to the one after it.
    pub(super) fn pass(&mut self) {
        self.fill(self.next);
        self.next = self.next.plus(1);
        if self.next == Number::ZERO && is_planted(Bug::WrapMissed) {
            self.next = self.next.plus(1);
        }
    }

    /// Skips the next `count` numbers.
    pub(super) fn skip(&mut self, count: u32) {
        if count >= REMEMBERED {
            self.arrived = [0; WORDS];
            self.next = self.next.plus(count);
            return;
        }
        let mut left = count;
        while left > 0 {
            let (word, lowest) = bit_of(self.next);
            let span = left.min(WORD - lowest.trailing_zeros());
            let ones = u64::MAX >> (WORD - span);
            // `lowest` has one bit set, so the product shifts the ones to that bit.
            self.arrived[word] &= !(ones * lowest);
            self.next = self.next.plus(span);
            left -= span;
        }
    }

    fn has_arrived(&self, number: Number) -> bool {
        let (word, bit) = bit_of(number);
        self.arrived[word] & bit != 0
    }
}

/// The index of the word that holds a number's bit, and the mask of that bit. The ring's size divides 2^26,
/// so wrapping numbers keep their order.
fn bit_of(number: Number) -> (usize, u64) {
    let slot = number.value() % REMEMBERED;
    ((slot / WORD) as usize, 1 << (slot % WORD))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(next: u32) -> Past {
        Past { next: Number::new(next), ..Past::default() }
    }

    #[test]
    fn a_number_is_remembered_for_2048_more() {
        for first in [0, 1_000, Number::COUNT - 1, Number::COUNT - 2_000] {
            let (mut past, number) = (at(first), Number::new(first));
            assert_eq!(past.position(number), Position::Ahead(0));
            past.pass();
            assert_eq!(past.position(number), Position::Passed);
            past.skip(REMEMBERED - 1);
            assert_eq!(past.position(number), Position::Passed);
            assert_eq!(past.position(number.plus(1)), Position::Missing);
            past.skip(1);
            assert_eq!(past.position(number), Position::Passed, "it is forgotten");
            assert_eq!(past.position(number.plus(1)), Position::Missing);
        }
    }

    #[test]
    fn a_skip_clears_its_numbers_and_no_other() {
        for (start, count) in [(0, 1), (60, 3), (60, 4), (63, 66), (0, 64), (1, 128), (2_040, 20), (5, 2_047)]
        {
            let mut past = at(start);
            for _ in 0..REMEMBERED {
                past.pass();
            }
            past.skip(count);
            let first = Number::new(start).plus(REMEMBERED);
            for step in 0..count {
                assert_eq!(past.position(first.plus(step)), Position::Missing, "{start} {count} {step}");
            }
            for step in 1..=REMEMBERED - count {
                let below = first.plus(Number::COUNT - step);
                assert_eq!(past.position(below), Position::Passed, "{start} {count} -{step}");
            }
            assert_eq!(past.next(), first.plus(count));
        }
    }

    #[test]
    fn a_skip_beyond_the_window_forgets_everything() {
        let mut past = at(7);
        for _ in 0..REMEMBERED {
            past.pass();
        }
        past.skip(REMEMBERED * 3);
        for step in 1..=REMEMBERED {
            assert_eq!(past.position(past.next().plus(Number::COUNT - step)), Position::Missing);
        }
        assert_eq!(past.position(past.next().plus(Number::COUNT - REMEMBERED - 1)), Position::Passed);
    }

    #[test]
    fn half_of_all_numbers_are_ahead() {
        let past = at(10);
        assert_eq!(past.position(Number::new(9 + Number::COUNT / 2)), Position::Ahead(Number::COUNT / 2 - 1));
        assert_eq!(past.position(Number::new(10 + Number::COUNT / 2)), Position::Passed);
    }
}
