//! Owns the record of logged warnings. A warning that stays true is repeated less and less often.

use std::time::{Duration, Instant};

/// The pause before a message is logged for the second time. Each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(60);
const LONGEST_PAUSE: Duration = Duration::from_secs(3_600);
/// How many messages are remembered. There are few kinds of them.
const MOST: usize = 16;

/// The warnings since the tunnel was last up.
#[derive(Debug, Default)]
pub(super) struct RepeatedWarnings {
    logged: Vec<Logged>,
}

#[derive(Debug)]
struct Logged {
    sentence: String,
    again: Instant,
    pause: Duration,
}

impl RepeatedWarnings {
    /// Whether to log a message now, because it is new or its pause has passed.
    pub(super) fn is_due(&mut self, now: Instant, sentence: &str) -> bool {
        if let Some(logged) = self.logged.iter_mut().find(|logged| logged.sentence == sentence) {
            let is_due = now >= logged.again;
            if is_due {
                logged.pause = (2 * logged.pause).min(LONGEST_PAUSE);
                logged.again = now + logged.pause;
            }
            return is_due;
        }
        if self.logged.len() == MOST {
            // Forgets the oldest message. If it comes again, it is logged again, which does no harm.
            self.logged.remove(0);
        }
        self.logged.push(Logged {
            sentence: sentence.to_owned(),
            again: now + FIRST_PAUSE,
            pause: FIRST_PAUSE,
        });
        true
    }

    /// Forgets all messages, because the tunnel is up again.
    pub(super) fn forget(&mut self) {
        self.logged.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_sentence_is_logged_ever_less_often_and_another_one_at_once() {
        let start = Instant::now();
        let mut warnings = RepeatedWarnings::default();
        // For a day, there is an attempt every 15 s, and two messages alternate.
        let attempts = (0..5_760).map(|attempt| start + Duration::from_secs(15 * attempt));
        let logged =
            attempts.filter(|now| warnings.is_due(*now, "no answer") | warnings.is_due(*now, "why")).count();

        assert!((20..40).contains(&logged), "{logged}");
        assert!(warnings.is_due(start, "no network"));
        warnings.forget();
        assert!(warnings.is_due(start, "no answer"));
    }
}
