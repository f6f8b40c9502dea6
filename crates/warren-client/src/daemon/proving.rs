//! The proof that the session in use carries packets: an echo of the exit's inner address. A waiting `up` waits for it, but not for long: an
//! exit whose operator has turned pings off is used all the same, and users are told that nothing is proven.

use std::time::Instant;

use super::Daemon;
use super::connections::Which;
use super::proof::Due;
use crate::probe::Probe;
use warren_control::status::State;

impl Daemon {
    /// When [`Self::look_at_proof`] has something to do.
    pub(super) fn proof_due(&self) -> Option<Instant> {
        self.session.proof.due()
    }

    /// Whether the session in use has to show first that it carries packets, and still may.
    pub(super) fn awaits_proof(&self) -> bool {
        self.moves.plan.is_asking(Which::InUse) && !self.session.proof.is_missing()
    }

    /// Uses a session that has not been proven in time, and later gives the proof up.
    pub(super) fn look_at_proof(&mut self, now: Instant) {
        match self.session.proof.take_due(now) {
            Due::Nothing => {}
            Due::Up { is_news } => {
                if let Some(warning) = self.unproven().filter(|_| is_news) {
                    tracing::warn!("{warning}");
                }
                if self.health.state() != State::Up {
                    self.up();
                }
            }
            Due::GiveUp => {
                self.session.abort_probe();
                self.moves.plan.unanswered(now, Which::InUse);
            }
        }
    }

    /// The session in use has answered an echo, or none can be sent through it.
    pub(super) fn take_proof(&mut self, is_answered: bool) {
        let was_missing = self.session.proof.end(is_answered);
        if self.health.state() != State::Up {
            self.up();
        } else if was_missing && is_answered {
            tracing::info!("the exit answers pings now, so traffic flows");
        }
    }

    /// What users are told of a session that counts as up and that nothing has proven.
    pub(super) fn unproven(&self) -> Option<String> {
        let probe = self.session.welcome().and_then(Probe::of).filter(|_| self.session.proof.is_missing())?;
        Some(format!(
            "connected, but the exit does not answer pings to {}, so it is not proven that traffic flows; if nothing gets through, see the \
             exit's log",
            probe.gateway
        ))
    }
}
