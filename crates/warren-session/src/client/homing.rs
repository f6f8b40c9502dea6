//! When to go back from another exit to one that stands before it in the profile: not at its first sign of life.

use std::time::{Duration, Instant};

/// How often the exits that stand before are asked.
const ASK_EVERY: Duration = Duration::from_secs(5);

/// Answers in a row that it takes, at least and at most.
const ANSWERS: u32 = 3;
const MOST_ANSWERS: u32 = 96;

/// An exit that is left sooner than this after the return was not worth it: the next return takes twice as many answers.
const WORTH: Duration = Duration::from_secs(60);

/// The way back to the first exit.
#[derive(Debug)]
pub struct Homing {
    answers_wanted: u32,
    answers: u32,
    /// When to ask next; set while there is an exit to go back to.
    ask_at: Option<Instant>,
    returned: Option<Instant>,
}

impl Homing {
    /// Makes the state of a client that uses its first exit, or none yet.
    pub fn new() -> Self {
        Self { answers_wanted: ANSWERS, answers: 0, ask_at: None, returned: None }
    }

    /// The client uses the exit at this place in the profile from now on.
    pub fn uses(&mut self, now: Instant, exit: usize) {
        if exit == 0 {
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

    /// When the exits that stand before are to be asked.
    pub fn timeout(&self) -> Option<Instant> {
        self.ask_at
    }

    /// They are being asked.
    pub fn asking(&mut self, now: Instant) {
        self.ask_at = self.ask_at.map(|_| now + ASK_EVERY);
    }

    /// Whether one of them answered; true if it is time to go back to it.
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
