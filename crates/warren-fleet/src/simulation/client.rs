//! A client of the fleet.

use std::time::Instant;

use warren_session::invite::InviteToken;
use warren_session::message::{Enrol, Hello, Message, encode};
use warren_session::{PROTOCOL_VERSION, PublicKey};

use super::exit::Exit;

/// A connection to an exit: the exit's number and the connection's.
pub(super) type At = (usize, u64);

/// One machine with one key.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) key: PublicKey,
    /// The invitation with which the client enrols itself.
    pub(super) token: Option<InviteToken>,
    pub(super) is_enrolled: bool,
    /// The connection of the client's session.
    pub(super) at: Option<At>,
    /// The connection on which the client waits for an answer.
    pub(super) waits: Option<At>,
    /// The connection of the client's previous session, and when the client closes this connection.
    pub(super) previous: Option<(At, Instant)>,
    claim: u64,
}

impl Client {
    pub(super) fn new(key: PublicKey, token: Option<InviteToken>) -> Self {
        let is_enrolled = token.is_none();
        Self { key, token, is_enrolled, at: None, waits: None, previous: None, claim: 0 }
    }

    /// Connects to an exit, and enrols itself or asks for a session.
    pub(super) fn connect(&mut self, now: Instant, at: At, exit: &mut Exit) {
        let message = match &self.token {
            Some(token) if !self.is_enrolled => {
                Message::Enrol(Enrol { token: token.to_wire(), name: String::new() })
            }
            _ => {
                self.claim += 1;
                Message::Hello(Hello {
                    version: PROTOCOL_VERSION,
                    connections_wanted: 1,
                    nonce: self.key.0.get(..16).unwrap_or_default().to_vec(),
                    has_other_exit: Some(true),
                    claim: self.claim,
                    ..Hello::default()
                })
            }
        };
        self.waits = Some(at);
        exit.sessions.connected(now, at.1, self.key, [192, 0, 2, 0].into());
        exit.sessions.received(now, at.1, &encode(&message));
        exit.act(now);
    }

    /// Forgets connections that are lost.
    pub(super) fn lost(&mut self, is_lost: impl Fn(At) -> bool) {
        self.at = self.at.filter(|at| !is_lost(*at));
        self.waits = self.waits.filter(|at| !is_lost(*at));
        self.previous = self.previous.filter(|(at, _)| !is_lost(*at));
    }

    pub(super) fn has(&self, at: At) -> bool {
        [self.at, self.waits, self.previous.map(|(at, _)| at)].contains(&Some(at))
    }
}
