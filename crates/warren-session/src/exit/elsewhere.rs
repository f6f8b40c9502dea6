//! Clients of a fleet with sessions at two exits: one that the client moves from, and one that it moves to.

use std::collections::btree_map::Entry;
use std::time::{Duration, Instant};

use super::session::Nonce;
use super::{Deadline, EndReason, ExitAction, ExitSessions, SessionId};
use crate::PublicKey;
use crate::planted::{Bug, is_planted};
use crate::planted_moves;

/// How long a session continues after its client has moved to another exit.
const LEAVING_TIME: Duration = Duration::from_secs(30);

impl ExitSessions {
    /// Handles the message that a client has a session at another exit, with the number `claim`. If the same client process has
    /// opened that session, the session here continues for a while, for packets that are still on their way. If the session here is
    /// the newer one, it continues. If another process has opened the other session, another host has replaced this client, and the
    /// session here ends.
    pub fn elsewhere(&mut self, now: Instant, key: PublicKey, nonce: &[u8], claim: u64) {
        let Some(session) = self.by_key.get(&key).and_then(|id| self.sessions.get(id)) else { return };
        let (id, own): (_, Nonce) = (session.id, session.process.nonce);
        // Exits of earlier versions send no number.
        if own == nonce
            && claim > 0
            && session.process.claim > claim
            && !planted_moves::is_planted(planted_moves::Bug::NewerSessionLeft)
            && self.fleet.may_stay(&mut self.deadlines, now, key)
        {
            // The client has come back or stayed, and the message about the other session is late.
            return self.actions.push_back(ExitAction::Stays { session: id, key });
        }
        if own != nonce || is_planted(Bug::MovedCutOff) {
            if !is_planted(Bug::ElsewhereIgnored) {
                self.predecessors.entry(key).or_default().add(id, own);
                self.end(now, id, EndReason::Replaced);
            }
        } else if let Entry::Vacant(leaving) = self.fleet.leaving.entry(id) {
            let until = *leaving.insert(now + LEAVING_TIME);
            self.deadlines.add(until, Deadline::Leaving(id));
        }
    }

    /// Records that the client keeps a session, although it has opened another one at another exit.
    pub(super) fn stays(&mut self, now: Instant, id: SessionId, claim: u64) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        // Every connection delivers this message, and only the first copy counts.
        if claim <= session.process.claim || planted_moves::is_planted(planted_moves::Bug::StayIgnored) {
            return;
        }
        let key = session.key;
        // The store has the session already, unless the session is leaving.
        let is_leaving = self.fleet.leaving.contains_key(&id);
        if is_leaving && !self.fleet.may_stay(&mut self.deadlines, now, key) {
            return;
        }
        session.process.claim = claim;
        if let Some(until) = self.fleet.leaving.remove(&id) {
            self.deadlines.remove(until, Deadline::Leaving(id));
            // According to the store, the client is at another exit.
            self.actions.push_back(ExitAction::Stays { session: id, key });
        }
    }

    /// How many times a client was not allowed to keep a session, because it had kept sessions too often shortly before. Such a
    /// session ends as a leaving session does.
    pub fn stays_refused(&self) -> u64 {
        self.fleet.stays_refused
    }
}
