//! The link's copy of the registry's rows, each with the revision of its latest change. Also the changes by others that the exit
//! may not have seen yet.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::IpAddr;

use warren_session::PublicKey;
use warren_session::clients::{Client, RowChange, RowId};

/// A row, or a group of rows, whose changes a request depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    /// A row.
    Row(RowId),
    /// The prefixes of all clients together.
    Prefixes,
    /// The forwards of all clients together.
    Forwards,
}

/// A row and the revision of its latest change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) modified: i64,
    pub(crate) content: RowChange,
}

/// All rows of the store.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rows {
    rows: BTreeMap<RowId, Row>,
    /// The latest revisions of rows whose values cannot be read now. `rows` has these rows as they were when they could be read.
    unreadable: BTreeMap<RowId, i64>,
    holders: Holders,
    prefixes: i64,
    forwards: i64,
}

/// The client that holds each name, address and next key.
#[derive(Clone, Debug, Default)]
struct Holders {
    names: HashMap<String, PublicKey>,
    addresses: HashMap<IpAddr, PublicKey>,
    next_keys: HashMap<PublicKey, PublicKey>,
}

/// Something that at most one client can have.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Claim {
    Name(String),
    Address(IpAddr),
    NextKey(PublicKey),
}

impl Claim {
    /// All that a client claims.
    pub(crate) fn of(client: &Client) -> Vec<Self> {
        let mut claims = vec![Self::Name(client.name.clone())];
        let ipv4 = [client.ipv4, client.leased_ipv4].into_iter().flatten().map(IpAddr::V4);
        let ipv6 = [client.ipv6, client.leased_ipv6].into_iter().flatten().map(IpAddr::V6);
        claims.extend(ipv4.chain(ipv6).map(Self::Address));
        claims.extend(client.next_public_key.map(Self::NextKey));
        claims.sort();
        claims.dedup();
        claims
    }
}

impl Rows {
    pub(crate) fn client(&self, key: PublicKey) -> Option<&Client> {
        match &self.rows.get(&RowId::Client(key))?.content {
            RowChange::Client { client, .. } => client.as_ref(),
            RowChange::Invitation { .. } | RowChange::Removed { .. } => None,
        }
    }

    /// The row's content, or its deletion if there is no such row.
    pub(crate) fn content(&self, id: RowId) -> RowChange {
        self.rows.get(&id).map_or_else(|| id.deletion(), |row| row.content.clone())
    }

    pub(crate) fn has(&self, id: RowId) -> bool {
        self.rows.contains_key(&id)
    }

    /// Whether the store has a value for this row, even one that cannot be read.
    pub(crate) fn is_there(&self, id: RowId) -> bool {
        self.has(id) || self.is_unreadable(id)
    }

    pub(crate) fn is_unreadable(&self, id: RowId) -> bool {
        self.unreadable.contains_key(&id)
    }

    /// Returns the revision of the latest change as etcd compares it: 0 if there is no such key.
    pub(crate) fn modified(&self, subject: Subject) -> i64 {
        match subject {
            Subject::Row(id) => {
                let readable = self.rows.get(&id).map_or(0, |row| row.modified);
                // An unreadable value is newer than the kept content, so its revision counts.
                self.unreadable.get(&id).copied().unwrap_or(readable)
            }
            Subject::Prefixes => self.prefixes,
            Subject::Forwards => self.forwards,
        }
    }

    /// The client that has the claimed value.
    pub(crate) fn holder(&self, claim: &Claim) -> Option<PublicKey> {
        match claim {
            Claim::Name(name) => self.holders.names.get(name),
            Claim::Address(address) => self.holders.addresses.get(address),
            Claim::NextKey(key) => self.holders.next_keys.get(key),
        }
        .copied()
    }

    /// All rows in order: removed keys, clients, invitations.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (RowId, &Row)> {
        self.rows.iter().map(|(id, row)| (*id, row))
    }

    /// The revision of the latest change among the rows that still exist. A removed client leaves the row of its removed key.
    pub(crate) fn latest_change(&self) -> i64 {
        self.rows.values().map(|row| row.modified).max().unwrap_or(0)
    }

    /// Sets or deletes a row.
    pub(crate) fn put(&mut self, content: RowChange, modified: i64) {
        let id = content.id();
        self.unreadable.remove(&id);
        // The old claims are released first, because the new content may contain some of them again.
        let before = self.rows.remove(&id);
        if let Some(Row { content: RowChange::Client { client: Some(client), key }, .. }) = &before {
            self.holders.release(client, *key);
        }
        if let RowChange::Client { client: Some(client), key } = &content {
            self.holders.take(client, *key);
        }
        if content.is_set() {
            self.rows.insert(id, Row { modified, content });
        }
    }

    /// Records that a row has a value that cannot be read. A transaction that changes the row must expect this
    /// revision.
    pub(crate) fn cannot_read(&mut self, id: RowId, modified: i64) {
        self.unreadable.insert(id, modified);
    }

    /// Keeps the contents that an earlier reading found in rows that cannot be read now.
    pub(crate) fn keep_unreadable(&mut self, earlier: &Self) {
        for (id, modified) in self.unreadable.clone() {
            if let Some(row) = earlier.rows.get(&id).filter(|_| !self.rows.contains_key(&id)) {
                self.put(row.content.clone(), row.modified);
                // `put` has marked the row as readable.
                self.cannot_read(id, modified);
            }
        }
    }

    /// Records that all prefixes, or all forwards, have a newer revision.
    pub(crate) fn touch(&mut self, subject: Subject, modified: i64) {
        match subject {
            Subject::Prefixes => self.prefixes = modified,
            Subject::Forwards => self.forwards = modified,
            Subject::Row(_) => {}
        }
    }

    /// Returns the changes that turn these rows into the newer ones.
    pub(crate) fn changes_to(&self, newer: &Self) -> Vec<RowChange> {
        let gone = self.rows.keys().filter(|id| !newer.rows.contains_key(*id)).map(|id| id.deletion());
        let set = newer
            .rows
            .iter()
            .filter(|(id, row)| self.rows.get(*id).is_none_or(|before| before.content != row.content));
        gone.chain(set.map(|(_, row)| row.content.clone())).collect()
    }
}

impl Holders {
    fn take(&mut self, client: &Client, key: PublicKey) {
        for claim in Claim::of(client) {
            match claim {
                Claim::Name(name) => self.names.insert(name, key),
                Claim::Address(address) => self.addresses.insert(address, key),
                Claim::NextKey(next) => self.next_keys.insert(next, key),
            };
        }
    }

    /// Forgets what a client claims. If another client has already claimed something in the same transaction, that client keeps it.
    fn release(&mut self, client: &Client, key: PublicKey) {
        for claim in Claim::of(client) {
            match claim {
                Claim::Name(name) => remove_own(&mut self.names, &name, key),
                Claim::Address(address) => remove_own(&mut self.addresses, &address, key),
                Claim::NextKey(next) => remove_own(&mut self.next_keys, &next, key),
            }
        }
    }
}

fn remove_own<K: Eq + std::hash::Hash>(holders: &mut HashMap<K, PublicKey>, claim: &K, key: PublicKey) {
    if holders.get(claim) == Some(&key) {
        holders.remove(claim);
    }
}

/// The rows that others have changed, with their content before the change, in the order of revisions. A request is checked against
/// the rows that the exit had seen.
#[derive(Debug, Default)]
pub(crate) struct Unseen {
    changes: VecDeque<(i64, Vec<Before>)>,
}

/// Rows that others have changed, with their content before the change.
pub(crate) type Before = (Subject, Option<RowChange>);

impl Unseen {
    /// Records a change by others.
    pub(crate) fn note(&mut self, revision: i64, before: Vec<Before>) {
        if !before.is_empty() {
            self.changes.push_back((revision, before));
        }
    }

    /// Forgets changes up to this revision, because no request needs them any more.
    pub(crate) fn forget(&mut self, up_to: i64) {
        while self.changes.front().is_some_and(|(revision, _)| *revision <= up_to) {
            self.changes.pop_front();
        }
    }

    /// The row as the exit had seen it, if others have changed it since then.
    pub(crate) fn seen(&self, id: RowId, basis: i64) -> Option<&RowChange> {
        self.later(basis)
            // The first change after the basis has the content that the exit saw at the basis.
            .find(|(other, _)| *other == Subject::Row(id))
            .and_then(|(_, before)| before.as_ref())
    }

    /// Whether others have changed a subject since the exit saw it.
    pub(crate) fn has_changed(&self, subject: Subject, basis: i64) -> bool {
        self.later(basis).any(|(other, _)| *other == subject)
    }

    fn later(&self, basis: i64) -> impl Iterator<Item = &Before> {
        self.changes.iter().filter(move |(revision, _)| *revision > basis).flat_map(|(_, before)| before)
    }
}

/// Names a row in a message.
pub(crate) fn named(row: &RowChange) -> String {
    match row {
        RowChange::Client { client: Some(client), .. } => format!("the client {}", client.name),
        RowChange::Client { key, client: None } => format!("the client {key}"),
        RowChange::Invitation { invitation: Some(invitation), .. } => {
            format!("the invitation {}", invitation.name)
        }
        RowChange::Invitation { invitation: None, .. } => "a withdrawn invitation".to_owned(),
        RowChange::Removed { key, .. } => format!("the removed key {key}"),
    }
}
