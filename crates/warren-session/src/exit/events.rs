//! The events of an exit's connections: a new connection, received bytes, and the end of a connection.

use std::net::IpAddr;
use std::time::Instant;

use super::connections::Phase;
use super::{Absence, Deadline, EndReason, ExitAction, ExitSessions, SessionId};
use crate::PublicKey;
use crate::goodbye::{Goodbye, Violation};
use crate::message::{self, Message};
use crate::planted::{Bug, is_planted};

/// Received bytes are decoded in pieces of this size, which keeps the decoder's buffer within its bound.
const PIECE: usize = 16 * 1_024;

impl ExitSessions {
    /// Adds a connection whose TLS handshake proved `key`. `network` is the first address of the client's outer network. No other
    /// open connection may have the same number.
    pub fn connected(&mut self, now: Instant, connection: u64, key: PublicKey, network: IpAddr) {
        // If the caller reuses a number, no session may stay attached to the earlier connection.
        self.closed(now, connection);
        let enrolled = self.is_known(key);
        let deadline = now + crate::FIRST_WORD_TIMEOUT;
        if let Some(reason) = self.leaving {
            return self.turn_away(connection, reason);
        }
        if !self.connections.add(connection, key, network, enrolled, deadline) {
            return self.turn_away(connection, Goodbye::Full);
        }
        if !is_planted(Bug::HandshakeNeverTimesOut) {
            self.deadlines.add(deadline, Deadline::Handshake(connection));
        }
    }

    /// Handles bytes from a connection's control stream.
    pub fn received(&mut self, now: Instant, connection: u64, bytes: &[u8]) {
        if let Some((_, Phase::Attached { session, .. })) = self.connections.phase(connection) {
            self.heard(now, session);
        }
        for piece in bytes.chunks(PIECE) {
            self.connections.push(connection, piece);
            self.read(now, connection);
        }
    }

    /// Handles the messages that have arrived on a connection. A connection that waits for the store is not read
    /// further.
    pub(super) fn read(&mut self, now: Instant, connection: u64) {
        loop {
            if let Some((_, Phase::Storing { .. })) = self.connections.phase(connection) {
                if self.connections.has_too_much(connection) {
                    self.refuse(now, connection, Goodbye::Protocol(Violation::OutOfOrder));
                }
                return;
            }
            match self.connections.next_message(connection) {
                Ok(Some(message)) => self.handle(now, connection, message),
                Ok(None) => return,
                Err(error) => return self.refuse(now, connection, Goodbye::Protocol(error.into())),
            }
        }
    }

    /// Reports that the connection was closed by the client or lost.
    pub fn closed(&mut self, now: Instant, connection: u64) {
        self.forget(now, connection, Absence::Fresh);
    }

    /// Reports that the connection ended because the client was silent for the idle timeout.
    pub fn timed_out(&mut self, now: Instant, connection: u64) {
        self.forget(now, connection, Absence::Long);
    }

    fn forget(&mut self, now: Instant, connection: u64, absence: Absence) {
        if let Some(Phase::Attached { session, index }) = self.drop_connection(connection) {
            self.detach(now, session, connection, index, absence);
        }
    }

    fn handle(&mut self, now: Instant, connection: u64, message: Message) {
        let Some((key, phase)) = self.connections.phase(connection) else { return };
        match (phase, message) {
            (Phase::Attached { session, .. }, Message::Goodbye(goodbye)) => {
                match Goodbye::from_message(&goodbye) {
                    Some(Goodbye::ClientStopped) => self.end(now, session, EndReason::ClientStopped),
                    // Any other reason ends this connection alone.
                    _ => self.refuse(now, connection, Goodbye::ClientStopped),
                }
            }
            (Phase::Attached { session, .. }, Message::Stay(stay)) => self.stays(now, session, stay.claim),
            (Phase::Attached { .. }, _) => {
                self.refuse(now, connection, Goodbye::Protocol(Violation::OutOfOrder));
            }
            (Phase::Waiting { .. }, message) => self.greet(now, connection, key, message),
            // A connection in this phase is not read, so no message can come.
            (Phase::Storing { .. }, _) => {}
        }
    }

    /// The reason for closing a connection that missed its deadline.
    pub(super) fn silent_reason(&self, connection: u64) -> Goodbye {
        match self.connections.phase(connection) {
            Some((_, Phase::Storing { .. })) => Goodbye::NotStored,
            Some((key, _)) if self.is_known(key) => Goodbye::TimedOut,
            Some(_) | None => Goodbye::NotEnrolled,
        }
    }

    /// Closes a connection that was never added.
    fn turn_away(&mut self, connection: u64, reason: Goodbye) {
        let bytes = message::encode(&reason.to_message());
        self.actions.push_back(ExitAction::Send { connection, bytes });
        self.actions.push_back(ExitAction::Close { connection, reason });
    }

    /// Records that the client of a session has sent something. The driver need not report every packet, but it must
    /// report the keep-alives of an idle client.
    pub fn heard(&mut self, now: Instant, session: SessionId) {
        if let Some(session) = self.sessions.get_mut(&session) {
            session.heard = session.heard.max(now);
        }
    }
}
