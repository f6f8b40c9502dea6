//! One session, and the record of the sessions that it replaced.

use std::collections::VecDeque;
use std::fmt;
use std::time::Instant;

use ipnet::IpNet;

use crate::pool::Lease;
use crate::{AttachToken, PublicKey};

/// Number of a session at one exit. It is unique within a run of the exit, and almost certainly across runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Length in bytes of the nonce that a client process puts into its Hello.
pub(crate) const NONCE_LENGTH: usize = 16;

/// Random bytes that identify a client process.
pub(crate) type Nonce = [u8; NONCE_LENGTH];

/// One client's attachment to this exit.
#[derive(Clone, Debug)]
pub struct Session {
    pub(super) id: SessionId,
    pub(super) key: PublicKey,
    pub(super) name: String,
    pub(super) host: String,
    pub(super) lease: Lease,
    pub(super) prefixes: Vec<IpNet>,
    pub(super) features: u64,
    pub(super) has_other_exit: Option<bool>,
    pub(super) opened: Instant,
    /// When the client's latest packet came, according to the driver.
    pub(super) heard: Instant,
    pub(super) token: AttachToken,
    pub(super) process: Process,
    /// The connection at each index.
    pub(super) connections: Vec<Option<u64>>,
    /// When the session ends unless a connection is attached. Set while no connection is attached.
    pub(super) offline_deadline: Option<Instant>,
    pub(super) told: Told,
}

/// The client process that has a session.
#[derive(Clone, Copy, Debug)]
pub(super) struct Process {
    pub(super) nonce: Nonce,
    /// The session's number among the sessions of its client process.
    pub(super) claim: u64,
}

/// Counts and flags of the messages that a client was sent since its `Welcome`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Told {
    /// How often the client was told of changes.
    pub(super) updates: u64,
    /// Whether the client was told of a newer roster than the one that its `Hello` named.
    pub(super) roster: bool,
}

impl Session {
    /// The session's number.
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// The client's key.
    pub fn key(&self) -> PublicKey {
        self.key
    }

    /// The client's name in the registry.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The client's own host name, which may be empty.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The client's inner addresses.
    pub fn lease(&self) -> Lease {
        self.lease
    }

    /// Networks behind the client that were granted.
    pub fn prefixes(&self) -> &[IpNet] {
        &self.prefixes
    }

    /// Whether the client can go to another exit. `None` if it does not say.
    pub fn has_other_exit(&self) -> Option<bool> {
        self.has_other_exit
    }

    /// The random bytes that identify the client process.
    pub fn nonce(&self) -> &[u8] {
        &self.process.nonce
    }

    /// The session's number among the sessions of its client process. Of sessions at two exits, the one with the higher number
    /// counts.
    pub fn claim(&self) -> u64 {
        self.process.claim
    }

    /// When the client's latest packet came.
    pub fn heard(&self) -> Instant {
        self.heard
    }

    /// Bit set of the features that both sides have.
    pub fn features(&self) -> u64 {
        self.features
    }

    /// When the session was opened.
    pub fn opened(&self) -> Instant {
        self.opened
    }

    /// Number of connections that the session may have.
    pub fn connections(&self) -> u32 {
        u32::try_from(self.connections.len()).expect("at most MAX_CONNECTIONS")
    }

    /// The connections that the session has, with their indices.
    pub fn attached(&self) -> impl Iterator<Item = (u32, u64)> {
        (0..).zip(&self.connections).filter_map(|(index, connection)| Some((index, (*connection)?)))
    }

    /// Puts a connection at an index of the session. Returns the connection that it replaces, or `None` if the index is out of
    /// range.
    pub(super) fn attach(&mut self, connection: u64, index: u32) -> Option<Option<u64>> {
        let slot = self.connections.get_mut(usize::try_from(index).ok()?)?;
        Some(slot.replace(connection))
    }

    /// Removes a connection from its index. Returns whether it was there.
    pub(super) fn detach(&mut self, connection: u64, index: u32) -> bool {
        let slot = usize::try_from(index).ok().and_then(|index| self.connections.get_mut(index));
        // A connection that was replaced no longer owns the index, and must not detach the one that replaced it.
        let Some(slot) = slot.filter(|slot| **slot == Some(connection)) else { return false };
        *slot = None;
        true
    }
}

/// The latest client processes of one key that another host replaced. Each of them learns of the replacement when it connects
/// again, even if it was offline at the time.
#[derive(Clone, Debug, Default)]
pub(super) struct Predecessors(VecDeque<(SessionId, Nonce)>);

impl Predecessors {
    /// Maximum number of processes remembered per key.
    // An entry is added each time another host opens a session with the key, so there must be a bound.
    const MOST: usize = 8;

    pub(super) fn add(&mut self, session: SessionId, nonce: Nonce) {
        if self.0.len() == Self::MOST {
            self.0.pop_front();
        }
        self.0.push_back((session, nonce));
    }

    pub(super) fn has_session(&self, session: SessionId) -> bool {
        self.0.iter().any(|(replaced, _)| *replaced == session)
    }

    pub(super) fn has_nonce(&self, nonce: Nonce) -> bool {
        self.0.iter().any(|(_, replaced)| *replaced == nonce)
    }
}
