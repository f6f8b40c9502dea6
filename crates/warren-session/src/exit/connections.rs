//! The connections of an exit: the key of each, and the messages that each may send next.

use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};
use std::net::IpAddr;
use std::time::Instant;

use super::{SessionId, StoreRequestId};
use crate::PublicKey;
use crate::message::{Message, MessageDecoder, MessageError};

/// Maximum number of connections of unknown keys that may wait for their first message, in total.
const MAX_STRANGERS: u32 = 256;

/// Maximum number of connections of unknown keys from one network, so that other networks have room too.
const MAX_STRANGERS_OF_NETWORK: u32 = 128;

/// Longest message of an unknown key, in bytes.
// The longest valid message, a Hello with 64 prefixes, takes less than half of this length.
const MAX_STRANGERS_MESSAGE: usize = 4_096;

/// All connections of an exit. The number of connections that wait for their first message is bounded.
#[derive(Debug)]
pub(super) struct Connections {
    connections: BTreeMap<u64, PeerConnection>,
    by_key: BTreeSet<(PublicKey, u64)>,
    max_waiting_per_key: u32,
    /// Number of waiting connections of each enrolled key.
    waiting: BTreeMap<PublicKey, u32>,
    /// Number of waiting connections of unknown keys, in total and per network.
    strangers: u32,
    strangers_of: BTreeMap<IpAddr, u32>,
}

#[derive(Debug)]
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
    /// The connection's first message is due by the deadline.
    Waiting { deadline: Instant, enrolled: bool },
    /// The connection waits until `patience` for the store to confirm an enrolment or a lease. The connection's next message is
    /// due by `deadline`.
    Storing { request: StoreRequestId, patience: Instant, deadline: Instant, enrolled: bool },
    /// The connection carries traffic of a session.
    Attached { session: SessionId, index: u32 },
}

impl Phase {
    /// When the connection is closed unless something happens before.
    pub(super) fn deadline(self) -> Option<Instant> {
        match self {
            Self::Waiting { deadline, .. } | Self::Storing { patience: deadline, .. } => Some(deadline),
            Self::Attached { .. } => None,
        }
    }
}

impl Connections {
    pub(super) fn new(max_waiting_per_key: u32) -> Self {
        Self {
            connections: BTreeMap::new(),
            by_key: BTreeSet::new(),
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

    // The set is sorted by key, so this does not visit the connections of other keys.
    pub(super) fn of_key(&self, key: PublicKey) -> Vec<u64> {
        self.by_key.range((key, 0)..=(key, u64::MAX)).map(|(_, number)| *number).collect()
    }

    pub(super) fn phase(&self, connection: u64) -> Option<(PublicKey, Phase)> {
        self.connections.get(&connection).map(|connection| (connection.key, connection.phase))
    }

    /// Moves a waiting connection to a session. Returns the deadline that no longer applies.
    pub(super) fn attach(&mut self, connection: u64, session: SessionId, index: u32) -> Option<Instant> {
        let connection = self.connections.get_mut(&connection)?;
        // The connection no longer counts as waiting, so another connection of its key or network may wait.
        let before = std::mem::replace(&mut connection.phase, Phase::Attached { session, index });
        let (key, network) = (connection.key, connection.network);
        self.leave(key, network, before);
        before.deadline()
    }

    /// Makes a waiting connection wait for the store, or ends that wait.
    pub(super) fn set_phase(&mut self, connection: u64, phase: Phase) {
        if let Some(connection) = self.connections.get_mut(&connection) {
            connection.phase = phase;
        }
    }

    /// Forgets a connection. Returns its phase.
    pub(super) fn remove(&mut self, connection: u64) -> Option<Phase> {
        let removed = self.connections.remove(&connection)?;
        self.by_key.remove(&(removed.key, connection));
        self.leave(removed.key, removed.network, removed.phase);
        Some(removed.phase)
    }

    /// Adds a waiting connection. Returns false, and adds nothing, if too many wait already.
    pub(super) fn add(
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
            // Strangers are counted separately, so that they never take a place from a client.
            let neighbours = self.strangers_of.get(&network).copied().unwrap_or_default();
            if self.strangers >= MAX_STRANGERS || neighbours >= MAX_STRANGERS_OF_NETWORK {
                return false;
            }
            self.strangers += 1;
            self.strangers_of.insert(network, neighbours + 1);
        }
        let decoder =
            if enrolled { MessageDecoder::new() } else { MessageDecoder::with_limit(MAX_STRANGERS_MESSAGE) };
        self.by_key.insert((key, connection));
        self.connections.insert(
            connection,
            PeerConnection { key, network, decoder, phase: Phase::Waiting { deadline, enrolled } },
        );
        true
    }

    pub(super) fn next_message(&mut self, connection: u64) -> Result<Option<Message>, MessageError> {
        self.connections.get_mut(&connection).map_or(Ok(None), |connection| connection.decoder.next())
    }

    /// Whether a connection that is not read has sent more than one short message.
    pub(super) fn has_too_much(&self, connection: u64) -> bool {
        let connection = self.connections.get(&connection);
        connection.is_some_and(|connection| connection.decoder.unread() > MAX_STRANGERS_MESSAGE)
    }

    pub(super) fn push(&mut self, connection: u64, piece: &[u8]) {
        if let Some(connection) = self.connections.get_mut(&connection) {
            connection.decoder.push(piece);
        }
    }

    fn leave(&mut self, key: PublicKey, network: IpAddr, phase: Phase) {
        // A connection that waits for the store counts as one that waits for its first message.
        let (Phase::Waiting { enrolled, .. } | Phase::Storing { enrolled, .. }) = phase else { return };
        if enrolled {
            one_less(&mut self.waiting, key);
        } else {
            self.strangers -= 1;
            one_less(&mut self.strangers_of, network);
        }
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
