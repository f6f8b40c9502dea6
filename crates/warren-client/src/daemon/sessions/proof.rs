//! The proof that the session in use carries packets: an echo from the exit's inner address. A waiting `up` waits for the proof,
//! but only for a short time. If an exit does not answer, for instance because its operator has turned pings off, the client uses
//! the exit nevertheless. Users are then told that there is no proof.

use std::time::{Duration, Instant};

/// How long to wait for an echo. Five requests are sent in this time. On a path that loses a tenth of the packets, at least one
/// of them is almost certainly answered.
const WITHIN: Duration = Duration::from_secs(2);

/// How long echo requests are sent in total.
const ASKED_FOR: Duration = Duration::from_secs(30);

/// The state of the proof for the session in use.
#[derive(Debug, Default)]
pub(in crate::daemon) struct UpProof {
    stage: Stage,
    /// Whether the exit left the latest echo requests unanswered. The next session then does not wait for an echo.
    is_mute: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// The client waits for no answer, because no request was sent, a request was answered, or none can be sent.
    #[default]
    Over,
    /// Requests are being sent. At `until`, the session counts as up even without an answer, provided that other packets arrive
    /// from the exit.
    Asked { since: Instant, until: Instant },
    /// The session counts as up without a proof. Requests are sent for a while.
    Missing { since: Instant },
    /// The session counts as up without a proof.
    GivenUp,
}

/// A timer of the proof that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    Nothing,
    /// The session counts as up. `is_news` says whether users must be told that the proof is missing. They need not be told if
    /// the exit did not answer in the previous session either.
    Up {
        is_news: bool,
    },
    /// Send no more requests.
    GiveUp,
}

impl UpProof {
    /// Records that echo requests are sent from now on.
    pub(super) fn asks(&mut self, now: Instant) {
        let wait = if self.is_mute { Duration::ZERO } else { WITHIN };
        self.stage = Stage::Asked { since: now, until: now + wait };
    }

    /// A move already sends requests for this session. From now on, this proof waits for their answer too.
    pub(super) fn inherits(&mut self, now: Instant) {
        if self.stage == Stage::Over {
            self.asks(now);
        }
    }

    /// Resets the proof, because the session is lost or another one takes its place.
    pub(super) fn forget(&mut self) {
        self.stage = Stage::Over;
    }

    /// Records that an echo request was answered, or that none can be sent. Returns whether the session had counted as up without
    /// a proof.
    pub(super) fn end(&mut self, is_answered: bool) -> bool {
        self.is_mute &= !is_answered;
        matches!(std::mem::take(&mut self.stage), Stage::Missing { .. } | Stage::GivenUp)
    }

    /// Whether the session counts as up and nothing has proven it.
    pub(super) fn is_missing(&self) -> bool {
        matches!(self.stage, Stage::Missing { .. } | Stage::GivenUp)
    }

    /// When [`Self::take_due`] has something to do.
    pub(super) fn due(&self) -> Option<Instant> {
        match self.stage {
            Stage::Asked { until, .. } => Some(until),
            Stage::Missing { since } => Some(since + ASKED_FOR),
            Stage::Over | Stage::GivenUp => None,
        }
    }

    /// Handles the timer that is due. If `is_silent`, because nothing arrives from the exit, the wait continues and the session
    /// does not count as up.
    pub(super) fn take_due(&mut self, now: Instant, is_silent: bool) -> Due {
        if self.due().is_none_or(|due| now < due) {
            return Due::Nothing;
        }
        let (stage, due) = match self.stage {
            Stage::Asked { since, .. } if is_silent => {
                self.stage = Stage::Asked { since, until: now + WITHIN };
                return Due::Nothing;
            }
            Stage::Asked { since, .. } => (Stage::Missing { since }, Due::Up { is_news: !self.is_mute }),
            Stage::Missing { .. } | Stage::GivenUp | Stage::Over => (Stage::GivenUp, Due::GiveUp),
        };
        (self.stage, self.is_mute) = (stage, true);
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_without_an_answer_is_used_after_two_seconds_and_asked_no_longer_than_half_a_minute() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut proof = UpProof::default();
        assert_eq!((proof.due(), proof.take_due(at(99), false)), (None, Due::Nothing));

        proof.asks(start);
        assert_eq!(
            (proof.due(), proof.take_due(at(1), false), proof.is_missing()),
            (Some(at(2)), Due::Nothing, false)
        );
        assert_eq!((proof.take_due(at(2), false), proof.is_missing()), (Due::Up { is_news: true }, true));
        assert_eq!((proof.due(), proof.take_due(at(29), false)), (Some(at(30)), Due::Nothing));
        assert_eq!((proof.take_due(at(30), false), proof.is_missing()), (Due::GiveUp, true));
        assert_eq!((proof.due(), proof.take_due(at(99), false)), (None, Due::Nothing));

        // The exit has left the requests of the first session unanswered, so the next session does not wait for an answer.
        proof.forget();
        proof.asks(at(100));
        assert_eq!((proof.take_due(at(100), false), proof.is_missing()), (Due::Up { is_news: false }, true));
        // As a control, after an exit has answered, the client waits for its echo again.
        assert!(proof.end(true) && !proof.is_missing());
        proof.asks(at(200));
        assert_eq!((proof.due(), proof.take_due(at(201), false)), (Some(at(202)), Due::Nothing));
        assert!(!proof.end(true) && proof.due().is_none());
    }

    #[test]
    fn a_silent_exit_is_waited_for_and_requests_of_a_move_count() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut proof = UpProof::default();
        proof.inherits(start);
        assert_eq!((proof.take_due(at(2), true), proof.due()), (Due::Nothing, Some(at(4))));
        // A wait that has begun is not restarted.
        proof.inherits(at(3));
        assert_eq!(proof.take_due(at(4), false), Due::Up { is_news: true });
        proof.inherits(at(5));
        assert_eq!(proof.due(), Some(at(30)));

        // The client does not wait for an echo if the exit is known not to answer. But the session does not count as up while
        // nothing arrives from the exit.
        proof.forget();
        proof.asks(at(40));
        assert_eq!((proof.take_due(at(40), true), proof.due()), (Due::Nothing, Some(at(42))));
        assert_eq!(proof.take_due(at(42), false), Due::Up { is_news: false });
    }
}
