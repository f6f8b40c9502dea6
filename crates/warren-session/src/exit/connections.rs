//! The connections of an exit: whose they are, and what may come next on them.

use std::collections::{BTreeMap, btree_map::Entry};
use std::net::IpAddr;
use std::time::Instant;

use super::{Absence, Deadline, ExitSessions, SessionId};
use crate::PublicKey;
use crate::goodbye::{Goodbye, Violation};
use crate::message::{Message, MessageDecoder, MessageError};
use crate::planted::{Bug, is_planted};

/// Most connections of keys that are not enrolled, all together, that may wait to say what they want.
const MAX_STRANGERS: u32 = 256;

/// The same of one network, which so leaves room for others.
const MAX_STRANGERS_OF_NETWORK: u32 = 128;

/// Longest message of a key that is not enrolled, in bytes.
const MAX_STRANGERS_MESSAGE: usize = 4_096;

/// Received bytes are decoded in pieces of this size, so that the decoder's buffer stays within its bound.
const PIECE: usize = 16 * 1_024;

/// All connections of an exit, with bounds for those that have not said yet what they want.
#[derive(Clone, Debug)]
pub(super) struct Connections {
    connections: BTreeMap<u64, PeerConnection>,
    max_waiting_per_key: u32,
    /// Number of waiting connections of each enrolled key.
    waiting: BTreeMap<PublicKey, u32>,
    /// Number of waiting connections of all other keys together, and of those of each network.
    strangers: u32,
    strangers_of: BTreeMap<IpAddr, u32>,
}

#[derive(Clone, Debug)]
struct PeerConnection {
    key: PublicKey,
    /// The first address of the network it came from.
    network: IpAddr,
    decoder: MessageDecoder,
    phase: Phase,
}

/// Where a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// It must say what it wants by the deadline.
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

    /// Moves a waiting connection to a session; returns the deadline that is void now.
    pub(super) fn attach(&mut self, connection: u64, session: SessionId, index: u32) -> Option<Instant> {
        let connection = self.connections.get_mut(&connection)?;
        let before = std::mem::replace(&mut connection.phase, Phase::Attached { session, index });
        let (key, network) = (connection.key, connection.network);
        self.leave(key, network, before)
    }

    /// Forgets a connection. The outer `None` means it was not there, the inner that it has no deadline.
    pub(super) fn remove(&mut self, connection: u64) -> Option<Option<Instant>> {
        let removed = self.connections.remove(&connection)?;
        Some(self.leave(removed.key, removed.network, removed.phase))
    }

    /// Returns false, and takes nothing, if too many wait already.
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

/// Takes one off a number, and forgets it where none is left.
fn one_less<K: Ord>(numbers: &mut BTreeMap<K, u32>, of: K) {
    if let Entry::Occupied(mut number) = numbers.entry(of) {
        *number.get_mut() -= 1;
        if *number.get() == 0 {
            number.remove();
        }
    }
}

impl ExitSessions {
    /// A connection is there whose TLS handshake proved `key`, from a network with this first address. Its number names no other
    /// connection that is open.
    pub fn connected(&mut self, now: Instant, connection: u64, key: PublicKey, network: IpAddr) {
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

    /// Bytes came on the connection's control stream.
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

    /// The connection is gone: closed by the client, or lost.
    pub fn closed(&mut self, now: Instant, connection: u64) {
        self.forget(now, connection, Absence::Fresh);
    }

    /// The connection is gone because its client has said nothing for the idle timeout.
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

    /// Tells a connection why it is closed, taking it away from its session if it has one.
    pub(super) fn refuse(&mut self, now: Instant, connection: u64, reason: Goodbye) {
        let Some((key, phase)) = self.connections.phase(connection) else { return };
        // Whatever a stranger says wrong, it learns only that it is one, or that its invitation is void.
        let hears = self.is_known(key) || reason == Goodbye::InvitationVoid;
        let reason = if hears { reason } else { Goodbye::NotEnrolled };
        if let Phase::Attached { session, index } = phase {
            self.detach(now, session, connection, index, Absence::Fresh);
        }
        self.dismiss(connection, reason);
    }

    /// What a connection is told that let its time pass.
    pub(super) fn silent_reason(&self, connection: u64) -> Goodbye {
        let enrolled = self.connections.phase(connection).is_some_and(|(key, _)| self.is_known(key));
        if enrolled { Goodbye::TimedOut } else { Goodbye::NotEnrolled }
    }

    /// Whether a key may open a session: it is a client's that is not disabled, or will be with its first Hello.
    pub fn is_client(&self, key: PublicKey) -> bool {
        self.is_known(key) && self.registry.by_key(key).is_none_or(|client| !client.disabled)
    }

    /// Whether a key is a client's, or will be with its first Hello: who is about to be a client is no stranger.
    fn is_known(&self, key: PublicKey) -> bool {
        let will_be = || self.registry.by_next_key(key).is_some_and(|client| !client.disabled);
        self.registry.by_key(key).is_some() || will_be()
    }

    /// Closes a connection that was never taken in.
    fn turn_away(&mut self, connection: u64, reason: Goodbye) {
        let bytes = crate::message::encode(&reason.to_message());
        self.actions.push_back(super::ExitAction::Send { connection, bytes });
        self.actions.push_back(super::ExitAction::Close { connection, reason });
    }
}
