//! Ends sessions, closes connections, and decides which reason a client is told.

use std::time::{Instant, SystemTime};

use super::connections::Phase;
use super::{Absence, Deadline, EndReason, ExitAction, ExitSessions, SESSION_TIMEOUT, Session, SessionId};
use crate::PublicKey;
use crate::goodbye::Goodbye;
use crate::message::{self, Message};
use crate::planted::{Bug, is_planted};

impl ExitSessions {
    /// Ends the session of a key and closes the key's other connections.
    pub(super) fn cut_off(&mut self, now: Instant, key: PublicKey, reason: EndReason) {
        if let Some(session) = self.by_key.get(&key).copied()
            && !is_planted(Bug::RevokedSessionKept)
        {
            self.end(now, session, reason);
        }
        let goodbye: Goodbye = reason.goodbye();
        for connection in self.connections.of_key(key) {
            self.dismiss(connection, goodbye);
        }
    }

    /// Ends a session and closes its connections. The key keeps its lease.
    pub(super) fn end(&mut self, now: Instant, session: SessionId, reason: EndReason) {
        let Some(ended) = self.sessions.remove(&session) else { return };
        if let Some(deadline) = ended.offline_deadline {
            self.deadlines.remove(deadline, Deadline::Session(session));
        }
        if let Some(deadline) = self.fleet.leaving.remove(&session) {
            self.deadlines.remove(deadline, Deadline::Leaving(session));
        }
        self.by_key.remove(&ended.key);
        for (index, connection) in ended.attached() {
            self.actions.push_back(ExitAction::Detach { session, connection, index });
        }
        self.actions.push_back(ExitAction::End { session, reason });
        // The connections are closed after `End`, because the driver must stop routing packets to the session before the client
        // learns the reason.
        for (_, connection) in ended.attached() {
            self.dismiss(connection, reason.goodbye());
        }
        // From now on, a full pool may take the lease back.
        self.pool.set_offline(ended.key, self.clock.at(now));
        self.record_seen(ended.key, self.seen_at(&ended));
        self.save_soon(now);
    }

    /// Closes a connection with a reason, and detaches it from its session if it has one.
    pub(super) fn refuse(&mut self, now: Instant, connection: u64, reason: Goodbye) {
        let Some((key, phase)) = self.connections.phase(connection) else { return };
        // Whatever a stranger did wrong, it learns only that its key is unknown, or that its invitation was not accepted.
        let hears = self.is_known(key) || matches!(reason, Goodbye::InvitationVoid | Goodbye::NotStored);
        let reason = if hears { reason } else { Goodbye::NotEnrolled };
        if let Phase::Attached { session, index } = phase {
            self.detach(now, session, connection, index, Absence::Fresh);
        }
        self.dismiss(connection, reason);
    }

    /// Detaches a connection from its session. If it was the session's last connection, the session stays attachable for
    /// [`SESSION_TIMEOUT`], or ends at once after a long absence.
    pub(super) fn detach(
        &mut self,
        now: Instant,
        session: SessionId,
        connection: u64,
        index: u32,
        absence: Absence,
    ) {
        let Some(state) = self.sessions.get_mut(&session) else { return };
        // A newer connection already has this index.
        if !state.detach(connection, index) {
            return;
        }
        self.actions.push_back(ExitAction::Detach { session, connection, index });
        if state.attached().next().is_some() {
            return;
        }
        // Later connections are refused, so the session need not wait for one.
        if let Some(reason) = self.leaving {
            self.end(now, session, EndReason::Shutdown(reason));
            return;
        }
        if is_planted(Bug::SessionNeverTimesOut) {
            return;
        }
        if absence == Absence::Long {
            self.end(now, session, EndReason::TimedOut);
        } else if let Some(state) = self.sessions.get_mut(&session) {
            let deadline = now + SESSION_TIMEOUT;
            state.offline_deadline = Some(deadline);
            self.deadlines.add(deadline, Deadline::Session(session));
        }
    }

    /// Sends the reason on a connection, then closes it. The connection must be detached from its session already.
    pub(super) fn dismiss(&mut self, connection: u64, reason: Goodbye) {
        if self.drop_connection(connection).is_none() {
            return;
        }
        let bytes = message::encode(&reason.to_message());
        if !is_planted(Bug::LostGoodbye) {
            self.actions.push_back(ExitAction::Send { connection, bytes });
        }
        self.actions.push_back(ExitAction::Close { connection, reason });
    }

    /// Forgets a connection and its deadline. Returns its phase.
    pub(super) fn drop_connection(&mut self, connection: u64) -> Option<Phase> {
        let phase = self.connections.remove(connection)?;
        if let Some(deadline) = phase.deadline() {
            self.deadlines.remove(deadline, Deadline::Handshake(connection));
        }
        if let Phase::Storing { request, .. } = phase
            && let Some(awaited) = self.store.awaited(request)
        {
            awaited.waiting.remove(&connection);
        }
        Some(phase)
    }

    /// Sends a message on a connection.
    pub(super) fn send(&mut self, connection: u64, message: &Message) {
        self.actions.push_back(ExitAction::Send { connection, bytes: message::encode(message) });
    }

    /// Whether a key may open a session, as the current or the next key of a client that is enabled.
    pub fn is_client(&self, key: PublicKey) -> bool {
        self.is_known(key) && self.registry.by_key(key).is_none_or(|client| !client.disabled)
    }

    /// Whether a key belongs to a client, either as the current key, or as the next key of an enabled client.
    pub(super) fn is_known(&self, key: PublicKey) -> bool {
        // A client that uses its next key for the first time must not be turned away as a stranger before its Hello.
        let will_be = || self.registry.by_next_key(key).is_some_and(|client| !client.disabled);
        self.registry.by_key(key).is_some() || will_be()
    }

    /// The time of a session's latest packet on the wall clock.
    pub fn seen_at(&self, session: &Session) -> SystemTime {
        self.clock.at(session.heard)
    }
}
