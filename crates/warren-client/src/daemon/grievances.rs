//! Saying over and over what keeps being wrong, ever less often.

use std::time::{Duration, Instant};

/// The first pause before the same sentence is said again; each is twice the one before.
const FIRST_PAUSE: Duration = Duration::from_secs(60);
const LONGEST_PAUSE: Duration = Duration::from_secs(3_600);
/// Sentences that are remembered; there are few kinds of them.
const MOST: usize = 16;

/// What was said since all was well.
#[derive(Debug, Default)]
pub(super) struct Grievances {
    said: Vec<Said>,
}

#[derive(Debug)]
struct Said {
    sentence: String,
    again: Instant,
    pause: Duration,
}

impl Grievances {
    /// Whether a sentence is to be said now: it is new, or was not said for long.
    pub(super) fn is_due(&mut self, now: Instant, sentence: &str) -> bool {
        if let Some(said) = self.said.iter_mut().find(|said| said.sentence == sentence) {
            let is_due = now >= said.again;
            if is_due {
                said.pause = (2 * said.pause).min(LONGEST_PAUSE);
                said.again = now + said.pause;
            }
            return is_due;
        }
        if self.said.len() == MOST {
            self.said.remove(0);
        }
        self.said.push(Said { sentence: sentence.to_owned(), again: now + FIRST_PAUSE, pause: FIRST_PAUSE });
        true
    }

    /// All is well again.
    pub(super) fn forget(&mut self) {
        self.said.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_sentence_is_said_ever_less_often_and_another_one_at_once() {
        let start = Instant::now();
        let mut grievances = Grievances::default();
        // A day of attempts, two sentences in turn.
        let attempts = (0..5_760).map(|attempt| start + Duration::from_secs(15 * attempt));
        let said = attempts
            .filter(|now| grievances.is_due(*now, "no answer") | grievances.is_due(*now, "why"))
            .count();

        assert!((20..40).contains(&said), "{said}");
        assert!(grievances.is_due(start, "no network"));
        grievances.forget();
        assert!(grievances.is_due(start, "no answer"));
    }
}
