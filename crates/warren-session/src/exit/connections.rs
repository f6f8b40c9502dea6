//! The connections of an exit: the key of each, and the messages that it may send next.

use std::collections::{BTreeMap, btree_map::Entry};
use std::net::IpAddr;
use std::time::Instant;

use super::{Absence, Deadline, ExitSessions, SessionId};
use crate::PublicKey;
use crate::goodbye::{Goodbye, Violation};
use crate::message::{Message, MessageDecoder, MessageError};
use crate::planted::{Bug, is_planted};

/// Most connections of unknown keys that may wait for their first message, in total.
const MAX_STRANGERS: u32 = 256;

/// Most of them from one network, which leaves room for other networks.
const MAX_STRANGERS_OF_NETWORK: u32 = 128;

/// Longest message of an unknown key, in bytes.
const MAX_STRANGERS_MESSAGE: usize = 4_096;

/// Received bytes are decoded in pieces of this size, which keeps the decoder's buffer within its bound.
const PIECE: usize = 16 * 1_024;

/// All connections of an exit. Those that wait for their first message are bounded.
#[derive(Clone, Debug)]
pub(super) struct Connections {
    connections: BTreeMap<u64, PeerConnection>,
    max_waiting_per_key: u32,
    /// Number of waiting connections of each enrolled key.
    waiting: BTreeMap<PublicKey, u32>,
    /// Number of waiting connections of unknown keys, in total and per network.
    strangers: u32,
    strangers_of: BTreeMap<IpAddr, u32>,
}

#[derive(Clone, Debug)]
struct PeerConnection {
    key: PublicKey,
    /// The first address of the client's outer network.
    network: IpAddr,
    decoder: MessageDecoder,
    phase: Phase,
}

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Its first message is due by the deadline.
    Waiting { deadline: Instant, enrolled: bool },
    /// It carries traffic of a session.
    Attached { session: SessionId, index: u32 },
}

impl Connections {
    pub(super) fn new(max_waiting_per_key: u32) -> Self {
        Self {
            connections: BTreeMap::new(),
            max_waiting_per_key,
            waiting: BTreeMap::new(),
            strangers: 0,
            strangers_of: BTreeMap::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.connections.len()
    }

    pub(super) fn all(&self) -> Vec<u64> {
        self.connections.keys().copied().collect()
    }

    pub(super) fn of_key(&self, key: PublicKey) -> Vec<u64> {
        let own = self.connections.iter().filter(|(_, connection)| connection.key == key);
        own.map(|(number, _)| *number).collect()
    }

    pub(super) fn phase(&self, connection: u64) -> Option<(PublicKey, Phase)> {
        self.connections.get(&connection).map(|connection| (connection.key, connection.phase))
    }

    /// Moves a waiting connection to a session. Returns the deadline that no longer applies.
    pub(super) fn attach(&mut self, connection: u64, session: SessionId, index: u32) -> Option<Instant> {
        let connection = self.connections.get_mut(&connection)?;
        let before = std::mem::replace(&mut connection.phase, Phase::Attached { session, index });
        let (key, network) = (connection.key, connection.network);
        self.leave(key, network, before)
    }

    /// Forgets a connection. The outer `None` means that it is unknown, the inner `None` that it has no deadline.
    pub(super) fn remove(&mut self, connection: u64) -> Option<Option<Instant>> {
        let removed = self.connections.remove(&connection)?;
        Some(self.leave(removed.key, removed.network, removed.phase))
    }

    /// Adds a waiting connection. Returns false, and adds nothing, if too many wait already.
    fn add(
        &mut self,
        connection: u64,
        key: PublicKey,
        network: IpAddr,
        enrolled: bool,
        deadline: Instant,
    ) -> bool {
        if enrolled {
            let waiting = self.waiting.entry(key).or_default();
            if *waiting >= self.max_waiting_per_key {
                return false;
            }
            *waiting += 1;
        } else {
            let neighbours = self.strangers_of.get(&network).copied().unwrap_or_default();
            if self.strangers >= MAX_STRANGERS || neighbours >= MAX_STRANGERS_OF_NETWORK {
                return false;
            }
            self.strangers += 1;
            self.strangers_of.insert(network, neighbours + 1);
        }
        let decoder =
            if enrolled { MessageDecoder::new() } else { MessageDecoder::with_limit(MAX_STRANGERS_MESSAGE) };
        self.connections.insert(
            connection,
            PeerConnection { key, network, decoder, phase: Phase::Waiting { deadline, enrolled } },
        );
        true
    }

    fn next_message(&mut self, connection: u64) -> Result<Option<Message>, MessageError> {
        self.connections.get_mut(&connection).map_or(Ok(None), |connection| connection.decoder.next())
    }

    fn push(&mut self, connection: u64, piece: &[u8]) {
        if let Some(connection) = self.connections.get_mut(&connection) {
            connection.decoder.push(piece);
        }
    }

    fn leave(&mut self, key: PublicKey, network: IpAddr, phase: Phase) -> Option<Instant> {
        let Phase::Waiting { deadline, enrolled } = phase else { return None };
        if enrolled {
            one_less(&mut self.waiting, key);
        } else {
            self.strangers -= 1;
            one_less(&mut self.strangers_of, network);
        }
        Some(deadline)
    }
}

/// Decrements a count, and removes it at zero.
fn one_less<K: Ord>(numbers: &mut BTreeMap<K, u32>, of: K) {
    if let Entry::Occupied(mut number) = numbers.entry(of) {
        *number.get_mut() -= 1;
        if *number.get() == 0 {
            number.remove();
        }
    }
}

impl ExitSessions {
    /// Adds a connection whose TLS handshake proved `key`. `network` is the first address of the client's outer network. No other
    /// open connection may have the same number.
    pub fn connected(&mut self, now: Instant, connection: u64, key: PublicKey, network: IpAddr) {
        // A caller that reuses a number must not leave a session attached to the old connection.
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

    /// Takes bytes from a connection's control stream.
    pub fn received(&mut self, now: Instant, connection: u64, bytes: &[u8]) {
        for piece in bytes.chunks(PIECE) {
            self.connections.push(connection, piece);
            loop {
                match self.connections.next_message(connection) {
                    Ok(Some(message)) => self.handle(now, connection, message),
                    Ok(None) => break,
                    Err(error) => return self.refuse(now, connection, Goodbye::Protocol(error.into())),
                }
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
        let Some((_, phase)) = self.connections.phase(connection) else { return };
        if let Some(Some(deadline)) = self.connections.remove(connection) {
            self.deadlines.remove(deadline, Deadline::Handshake(connection));
        }
        if let Phase::Attached { session, index } = phase {
            self.detach(now, session, connection, index, absence);
        }
    }

    fn handle(&mut self, now: Instant, connection: u64, message: Message) {
        let Some((key, phase)) = self.connections.phase(connection) else { return };
        match (phase, message) {
            (Phase::Attached { session, .. }, Message::Goodbye(goodbye)) => {
                match Goodbye::from_message(&goodbye) {
                    Some(Goodbye::ClientStopped) => self.end(now, session, super::EndReason::ClientStopped),
                    _ => self.refuse(now, connection, Goodbye::ClientStopped),
                }
            }
            (Phase::Attached { .. }, _) => {
                self.refuse(now, connection, Goodbye::Protocol(Violation::OutOfOrder));
            }
            (Phase::Waiting { .. }, message) => self.greet(now, connection, key, message),
        }
    }

    /// Closes a connection with a reason, and detaches it from its session if it has one.
    pub(super) fn refuse(&mut self, now: Instant, connection: u64, reason: Goodbye) {
        let Some((key, phase)) = self.connections.phase(connection) else { return };
        // A stranger learns only that its key is unknown or its invitation void, whatever it did wrong.
        let hears = self.is_known(key) || reason == Goodbye::InvitationVoid;
        let reason = if hears { reason } else { Goodbye::NotEnrolled };
        if let Phase::Attached { session, index } = phase {
            self.detach(now, session, connection, index, Absence::Fresh);
        }
        self.dismiss(connection, reason);
    }

    /// The reason for closing a connection that missed its deadline.
    pub(super) fn silent_reason(&self, connection: u64) -> Goodbye {
        let enrolled = self.connections.phase(connection).is_some_and(|(key, _)| self.is_known(key));
        if enrolled { Goodbye::TimedOut } else { Goodbye::NotEnrolled }
    }

    /// Whether a key belongs to a client, either as its current key or as the next key of one that is enabled.
    fn is_known(&self, key: PublicKey) -> bool {
        let will_be = || self.registry.by_next_key(key).is_some_and(|client| !client.disabled);
        self.registry.by_key(key).is_some() || will_be()
    }

    /// Closes a connection that was never added.
    fn turn_away(&mut self, connection: u64, reason: Goodbye) {
        let bytes = crate::message::encode(&reason.to_message());
        self.actions.push_back(super::ExitAction::Send { connection, bytes });
        self.actions.push_back(super::ExitAction::Close { connection, reason });
    }
}
