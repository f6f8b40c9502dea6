//! A model of the exit built from its actions alone, and the checks that each action must pass.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ipnet::IpNet;

use crate::clients::{ClientRegistry, RowId};
use crate::exit::{ExitAction, ExitSessions, SESSION_TIMEOUT, SessionId};
use crate::message::{Message, MessageDecoder};
use crate::pool::Lease;
use crate::{Goodbye, PublicKey};

use super::clients_model::{ClientsModel, client_of, network_behind};

/// The end of a session must be persisted within this time.
const WRITTEN_WITHIN: Duration = Duration::from_secs(10);

/// The sessions of one run of an exit.
#[derive(Debug, Default)]
pub(super) struct ExitModel {
    open: BTreeMap<SessionId, Opened>,
    ended: BTreeSet<SessionId>,
    /// Connections that have ever carried traffic.
    pub(super) ever_attached: BTreeSet<u64>,
    closed: BTreeMap<u64, Goodbye>,
    /// Connections whose keys were enrolled, with the names that they were told.
    pub(super) enrolled: BTreeMap<u64, String>,
    /// The key of a session that has ended, and the time since which the store lacks that session's date.
    unwritten: Option<(Instant, PublicKey)>,
    /// The code of the latest Goodbye sent on each connection.
    told: BTreeMap<u64, u32>,
}

#[derive(Debug)]
struct Opened {
    key: PublicKey,
    name: String,
    lease: Lease,
    connections: u32,
    attached: BTreeMap<u32, u64>,
    /// When the session last had a connection. Unset while it has one.
    empty_since: Option<Instant>,
}

impl ExitModel {
    /// The model of a restarted exit, which knows no session. Messages of the previous run may still be in flight.
    pub(super) fn restarted(&self) -> Self {
        Self { ever_attached: self.ever_attached.clone(), ..Self::default() }
    }

    /// Checks an action and records it. `disk` is the registry that a restart would find, and `lacks` says which clients' rows
    /// that registry may lack.
    pub(super) fn take(
        &mut self,
        now: Instant,
        action: &ExitAction,
        clients: &ClientsModel,
        disk: &ClientRegistry,
        lacks: impl Fn(PublicKey) -> bool,
    ) {
        match action {
            ExitAction::Open { session, key, name, lease, prefixes, connections, .. } => {
                let client = clients.by_key(*key).expect("a session of a key that is enrolled");
                assert!(!client.disabled && client.name == *name);
                assert!(
                    !self.ended.contains(session) && !self.open.contains_key(session),
                    "a number used twice"
                );
                assert!(self.open.values().all(|other| other.key != *key), "two sessions of one key");
                assert!(self.open.values().all(|other| other.name != *name), "two sessions of one client");
                let wanted = network_behind(client_of(*key));
                let is_set = client.prefixes.iter().any(|set| set.contains(&wanted));
                assert_eq!(*prefixes, Vec::from_iter(is_set.then_some(wanted)), "what is wanted and set");
                let mut addresses = self.open.values().flat_map(|other| other.lease.addresses());
                assert!(addresses.all(|address| !lease.contains(address)), "an address of two sessions");
                assert!(lease.ipv4.is_some() && lease.ipv6.is_some(), "one address of each network");
                for reserved in ["10.66.0.0", "10.66.0.1", "10.66.0.7", "fd66::", "fd66::1"] {
                    assert!(!lease.contains(reserved.parse::<IpAddr>().unwrap()));
                }
                let kept = disk.by_key(*key).map(|client| client.lease());
                let is_kept = kept == Some(*lease) || lacks(*key);
                assert!(is_kept, "a lease is on the disk before the client has it");
                let opened = Opened {
                    key: *key,
                    name: name.clone(),
                    lease: *lease,
                    connections: *connections,
                    attached: BTreeMap::new(),
                    empty_since: None,
                };
                self.open.insert(*session, opened);
            }
            ExitAction::Attach { session, connection, index } => {
                assert!(!self.is_attached(*connection) && !self.closed.contains_key(connection));
                let opened = self.open.get_mut(session).expect("opened before attached");
                assert!(*index < opened.connections);
                assert_eq!(
                    opened.attached.insert(*index, *connection),
                    None,
                    "the older one is detached first"
                );
                self.ever_attached.insert(*connection);
            }
            ExitAction::Detach { session, connection, index } => {
                let opened = self.open.get_mut(session).expect("detached before ended");
                assert_eq!(opened.attached.remove(index), Some(*connection));
            }
            ExitAction::End { session, .. } => {
                let opened = self.open.remove(session).expect("ended once, and only what was opened");
                assert!(opened.attached.is_empty(), "ended with connections attached");
                self.ended.insert(*session);
                // A removed client has no row, so no date has to be stored.
                if clients.by_key(opened.key).is_some() {
                    self.unwritten.get_or_insert((now, opened.key));
                }
            }
            ExitAction::Send { connection, bytes } => {
                assert!(!self.closed.contains_key(connection), "said after closing");
                match said(bytes) {
                    Message::Welcome(_) | Message::Attached(_) | Message::Update(_) | Message::Roster(_) => {
                        assert!(self.is_attached(*connection), "told before attached");
                    }
                    Message::Goodbye(goodbye) => drop(self.told.insert(*connection, goodbye.reason)),
                    Message::Enrolled(enrolled) => {
                        self.enrolled.insert(*connection, enrolled.name);
                    }
                    Message::Hello(_) | Message::Attach(_) | Message::Enrol(_) | Message::Stay(_) => {}
                }
            }
            ExitAction::Close { connection, reason } => {
                let told = self.told.remove(connection);
                assert_eq!(told, Some(reason.code()), "closed without a word");
                assert!(!self.is_attached(*connection), "closed while attached");
                assert_eq!(self.closed.insert(*connection, *reason), None, "closed twice");
            }
            ExitAction::Store(_)
            | ExitAction::Enrolled { .. }
            | ExitAction::Stays { .. }
            | ExitAction::SetWireGuard { .. } => {}
        }
    }

    /// Allows the exit to save a date late, because the store answers late.
    pub(super) fn excuse(&mut self) {
        self.unwritten = None;
    }

    /// Compares the model with the exit's own state.
    pub(super) fn compare(&mut self, exit: &ExitSessions, now: Instant) {
        self.unwritten = self.unwritten.filter(|(_, key)| exit.lacks(RowId::Client(*key)));
        let unwritten_for = self.unwritten.map(|(since, _)| now - since);
        assert!(
            unwritten_for.is_none_or(|time| time < WRITTEN_WITHIN),
            "that a session ended is not written"
        );
        for opened in self.open.values_mut() {
            let is_empty = opened.attached.is_empty();
            opened.empty_since = is_empty.then(|| opened.empty_since.unwrap_or(now));
            let empty_for = opened.empty_since.map(|since| now - since);
            assert!(
                empty_for.is_none_or(|time| time < SESSION_TIMEOUT),
                "a session without connections goes on"
            );
        }
        let said: Vec<_> = exit
            .sessions()
            .map(|session| {
                (session.id(), session.key(), session.lease(), session.attached().collect::<Vec<_>>())
            })
            .collect();
        let believed: Vec<_> = self
            .open
            .iter()
            .map(|(id, opened)| {
                (
                    *id,
                    opened.key,
                    opened.lease,
                    opened.attached.iter().map(|(index, wire)| (*index, *wire)).collect(),
                )
            })
            .collect();
        assert_eq!(said, believed);
        for session in exit.sessions() {
            let client = exit.registry().by_key(session.key()).expect("a removed key has no session");
            assert!(!client.disabled, "a disabled client has no session");
            assert_eq!(client.lease(), session.lease(), "the registry knows the lease");
            let is_set = |granted: &IpNet| client.prefixes.iter().any(|set| set.contains(granted));
            assert!(session.prefixes().iter().all(is_set), "a prefix is taken back with its session");
        }
    }

    /// The key of an open session.
    pub(super) fn key_of(&self, session: SessionId) -> Option<PublicKey> {
        self.open.get(&session).map(|opened| opened.key)
    }

    /// The reason with which the exit closed a connection.
    pub(super) fn closed_with(&self, connection: u64) -> Option<Goodbye> {
        self.closed.get(&connection).copied()
    }

    pub(super) fn is_attached(&self, connection: u64) -> bool {
        self.open.values().any(|opened| opened.attached.values().any(|attached| *attached == connection))
    }

    pub(super) fn has_attached(&self, connection: u64, index: u32) -> bool {
        self.open.values().any(|opened| opened.attached.get(&index) == Some(&connection))
    }
}

fn said(bytes: &[u8]) -> Message {
    let mut decoder = MessageDecoder::new();
    decoder.push(bytes);
    decoder.next().expect("an exit sends what decodes").expect("and whole messages")
}
