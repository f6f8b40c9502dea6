//! Decides when to return to an exit listed earlier in the profile. One answer from it is not enough.

use std::time::{Duration, Instant};

/// How often the exits listed earlier are probed.
const ASK_EVERY: Duration = Duration::from_secs(5);

/// Consecutive answers needed for a return, at first and at most.
const ANSWERS: u32 = 3;
const MOST_ANSWERS: u32 = 96;

/// A return that lasts less than this was premature. The next return needs twice as many answers.
const WORTH: Duration = Duration::from_secs(60);

/// Progress of the return to an exit listed earlier in the profile.
#[derive(Debug)]
pub struct Homing {
    answers_wanted: u32,
    answers: u32,
    /// When to probe next. Set while there is an exit to return to.
    ask_at: Option<Instant>,
    returned: Option<Instant>,
}

impl Homing {
    /// Makes the state of a client that uses its first exit, or no exit yet.
    pub fn new() -> Self {
        Self { answers_wanted: ANSWERS, answers: 0, ask_at: None, returned: None }
    }

    /// Records that the client now uses the exit at this position in the profile.
    pub fn uses(&mut self, now: Instant, exit: usize) {
        if exit == 0 {
            // Using the first exit is a return only if the client was at another exit. `ask_at` is set exactly while the client
            // is at another exit.
            self.returned = self.ask_at.take().map(|_| now);
            return;
        }
        if let Some(returned) = self.returned.take() {
            let worth = now.saturating_duration_since(returned) >= WORTH;
            self.answers_wanted = if worth { ANSWERS } else { (self.answers_wanted * 2).min(MOST_ANSWERS) };
        }
        self.answers = 0;
        self.ask_at = Some(now + ASK_EVERY);
    }

    /// When to probe the exits listed earlier.
    pub fn timeout(&self) -> Option<Instant> {
        self.ask_at
    }

    /// Records that a probe has begun.
    pub fn asking(&mut self, now: Instant) {
        self.ask_at = self.ask_at.map(|_| now + ASK_EVERY);
    }

    /// Handles the result of a probe. Returns whether it is time to return.
    pub fn answered(&mut self, answered: bool) -> bool {
        self.answers = if answered { self.answers + 1 } else { 0 };
        self.answers >= self.answers_wanted
    }
}

impl Default for Homing {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_takes_three_answers_in_a_row_to_go_back() {
        let mut homing = Homing::new();
        let now = Instant::now();
        assert_eq!(homing.timeout(), None);
        homing.uses(now, 1);
        assert_eq!(homing.timeout(), Some(now + ASK_EVERY));
        assert!(!homing.answered(true) && !homing.answered(true));
        assert!(!homing.answered(false));
        assert!(!homing.answered(true) && !homing.answered(true));
        assert!(homing.answered(true));
        homing.uses(now, 0);
        assert_eq!(homing.timeout(), None);
    }

    #[test]
    fn a_return_that_does_not_last_makes_the_next_one_harder() {
        let mut homing = Homing::new();
        let mut now = Instant::now();
        for wanted in [3, 6, 12, 24, 48, 96, 96] {
            homing.uses(now, 1);
            let needed = (1..).find(|_| homing.answered(true)).unwrap();
            assert_eq!(needed, wanted);
            homing.uses(now, 0);
            now += Duration::from_secs(10);
        }
        now += WORTH;
        homing.uses(now, 1);
        assert_eq!((1..).find(|_| homing.answered(true)), Some(ANSWERS));
    }
}
