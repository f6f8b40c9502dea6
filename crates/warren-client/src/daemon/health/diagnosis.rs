//! Owns the search for the reason why an exit does not answer.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

use crate::daemon::task::finished;
use crate::diagnose::{Cause, KillSwitches, diagnose};

/// The diagnosis under way, and the result of the last one.
#[derive(Default)]
pub(in crate::daemon) struct Diagnosis {
    running: Option<JoinHandle<Option<Cause>>>,
    begun: Option<Instant>,
    /// The cause that was found since the tunnel was last up.
    cause: Option<Cause>,
}

impl Diagnosis {
    /// Begins to find out why `tried` does not answer, unless a diagnosis has begun recently.
    pub(in crate::daemon) fn start(
        &mut self,
        tried: Option<SocketAddr>,
        kill_switches: impl FnOnce() -> KillSwitches,
    ) {
        let now = Instant::now();
        let is_due = self.begun.is_none_or(|last| now.duration_since(last) >= EVERY);
        if is_due && self.running.is_none() {
            self.begun = Some(now);
            self.running = Some(tokio::spawn(diagnose(tried, kill_switches())));
        }
    }

    /// Waits for the end of the diagnosis. Without a diagnosis, waits for ever. Cancelling the wait loses nothing.
    pub(in crate::daemon) async fn finished(&mut self) -> Option<Cause> {
        let outcome = finished(&mut self.running).await;
        self.running = None;
        outcome.ok().flatten()
    }

    /// Whether a diagnosis is under way.
    pub(super) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Returns the cause that was found, unless it is so old that it may have changed.
    pub(super) fn recent_cause(&self) -> Option<&Cause> {
        let is_recent = self.begun.is_some_and(|last| last.elapsed() < EVERY);
        self.cause.as_ref().filter(|_| is_recent)
    }

    pub(super) fn set_cause(&mut self, cause: Cause) {
        self.cause = Some(cause);
    }

    /// Forgets the cause, because the exit answers.
    pub(super) fn forget_cause(&mut self) {
        self.cause = None;
    }
}

/// The shortest time between two diagnoses.
const EVERY: Duration = Duration::from_secs(15);
