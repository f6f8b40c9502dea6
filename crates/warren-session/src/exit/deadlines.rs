//! The timers of an exit.

use std::collections::BTreeSet;
use std::time::Instant;

use super::SessionId;
use crate::PublicKey;

/// A timer's action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Deadline {
    /// Close a connection that has sent no first message.
    Handshake(u64),
    /// End a session without connections.
    Session(SessionId),
    /// End a session whose client has moved to another exit.
    Leaving(SessionId),
    /// Reset the count of how often a client has kept its session.
    Stays(PublicKey),
    /// Update `last_seen` of online clients.
    LastSeen,
    /// Tell the store of ended sessions.
    Ends,
    /// Send again the rows that the store has refused.
    Again,
}

/// Deadlines, sorted by time. Each is contained at most once.
#[derive(Debug, Default)]
pub(super) struct Deadlines(BTreeSet<(Instant, Deadline)>);

impl Deadlines {
    pub(super) fn add(&mut self, at: Instant, deadline: Deadline) {
        self.0.insert((at, deadline));
    }

    pub(super) fn remove(&mut self, at: Instant, deadline: Deadline) {
        // Most deadlines are removed before they are due, which a heap could not do cheaply.
        self.0.remove(&(at, deadline));
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.0.first().map(|(at, _)| *at)
    }

    pub(super) fn pop_due(&mut self, now: Instant) -> Option<Deadline> {
        self.next().filter(|at| *at <= now)?;
        self.0.pop_first().map(|(_, deadline)| deadline)
    }
}
