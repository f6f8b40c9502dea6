//! Everything that is due at some time.

use std::collections::BTreeSet;
use std::time::Instant;

use super::SessionId;

/// What happens when its time has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Deadline {
    /// A connection that has not said what it wants is closed.
    Handshake(u64),
    /// A session without connections ends.
    Session(SessionId),
    /// The registry is told who is online.
    LastSeen,
    /// It is written that sessions have ended.
    Ends,
}

/// Deadlines by time. Each is in at most once.
#[derive(Clone, Debug, Default)]
pub(super) struct Deadlines(BTreeSet<(Instant, Deadline)>);

impl Deadlines {
    pub(super) fn add(&mut self, at: Instant, deadline: Deadline) {
        self.0.insert((at, deadline));
    }

    pub(super) fn remove(&mut self, at: Instant, deadline: Deadline) {
        self.0.remove(&(at, deadline));
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.0.first().map(|(at, _)| *at)
    }

    pub(super) fn pop_due(&mut self, now: Instant) -> Option<Deadline> {
        self.next().filter(|at| *at <= now)?;
        self.0.pop_first().map(|(_, deadline)| deadline)
    }
}
