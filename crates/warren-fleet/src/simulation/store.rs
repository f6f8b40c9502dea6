//! A linearizable store in memory, like etcd: revisions, a history that can be compacted, leases and backups.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use warren_fleet_link::ExitId;

use crate::exits::{Member, Removed};
use crate::keys::{Key, Keys};
use crate::link::{Pair, Transaction};
use crate::meta::{Found, Meta};
use crate::recovery::ExitsInStore;
use crate::store::{ReadExits, Transact, joined_at};
use crate::transaction::Expected;

/// How long a lease lasts.
const LEASE_TIME: Duration = Duration::from_secs(10);

/// A lease, and which keys get it.
type Lease<'a> = (i64, &'a dyn Fn(&str) -> bool);

/// Everything in the store.
#[derive(Clone, Debug, Default)]
pub(crate) struct MapStore {
    pub(crate) revision: i64,
    /// Values with the revisions of their latest changes.
    pub(crate) pairs: BTreeMap<String, (Vec<u8>, i64)>,
    /// The revision at which each key was created.
    created: BTreeMap<String, i64>,
    /// The events of each revision since the latest compaction or restore.
    pub(crate) log: Vec<(i64, Vec<Pair>)>,
    pub(crate) compacted: i64,
    pub(crate) cluster: u64,
    last_lease: i64,
    /// When each lease ends.
    leases: BTreeMap<i64, Instant>,
    /// The keys that have a lease.
    leased: BTreeMap<String, i64>,
}

impl MapStore {
    /// An empty store.
    pub(crate) fn new(revision: i64, cluster: u64) -> Self {
        Self { revision, cluster, ..Self::default() }
    }

    /// Carries out a transaction. Returns whether every key was as expected.
    pub(crate) fn apply(&mut self, transaction: &Transaction) -> bool {
        self.apply_leased(transaction, None)
    }

    /// As [`Self::apply`]. Keys for which the function returns true are attached to the lease.
    pub(crate) fn apply_leased(&mut self, transaction: &Transaction, lease: Option<Lease<'_>>) -> bool {
        let holds = transaction.expected.iter().all(|(key, expected)| {
            let pair = self.pairs.get(key);
            match expected {
                Expected::Modified(revision) => pair.map_or(0, |(_, modified)| *modified) == *revision,
                Expected::Value(value) => pair.is_some_and(|(found, _)| found == value),
                Expected::Present => pair.is_some(),
            }
        });
        let operations = if holds { &transaction.then } else { &transaction.otherwise };
        let is_cleared = |key: &&String| holds && transaction.cleared.iter().any(|it| key.starts_with(it));
        let cleared: Vec<_> = self.pairs.keys().filter(is_cleared).map(|key| (key.clone(), None)).collect();
        let written = operations.iter().map(|(key, value)| (key.clone(), value.clone()));
        self.write(cleared.into_iter().chain(written), lease);
        holds
    }

    fn write(
        &mut self,
        operations: impl Iterator<Item = (String, Option<Vec<u8>>)>,
        lease: Option<Lease<'_>>,
    ) {
        let modified = self.revision + 1;
        let mut events = Vec::new();
        for (key, value) in operations {
            self.leased.remove(&key);
            match &value {
                Some(value) => {
                    self.pairs.insert(key.clone(), (value.clone(), modified));
                    self.created.entry(key.clone()).or_insert(modified);
                    if let Some((lease, _)) = lease.filter(|(_, is_leased)| is_leased(&key)) {
                        self.leased.insert(key.clone(), lease);
                    }
                }
                // etcd has no event for the deletion of a key that did not exist.
                None if self.pairs.remove(&key).is_none() => continue,
                None => drop(self.created.remove(&key)),
            }
            events.push(Pair { key: key.into_bytes(), value, modified });
        }
        if !events.is_empty() {
            self.revision = modified;
            self.log.push((modified, events));
        }
    }

    pub(crate) fn all_pairs(&self) -> Vec<Pair> {
        self.pairs
            .iter()
            .map(|(key, (value, modified))| Pair::new(key.as_str(), value.clone(), *modified))
            .collect()
    }

    /// The events after a revision.
    pub(crate) fn events_after(&self, revision: i64) -> &[(i64, Vec<Pair>)] {
        let first = self.log.partition_point(|(other, _)| *other <= revision);
        &self.log[first..]
    }

    pub(crate) fn compact(&mut self) {
        self.compacted = self.revision;
        self.log.clear();
    }

    pub(crate) fn grant(&mut self, now: Instant) -> i64 {
        self.last_lease += 1;
        self.leases.insert(self.last_lease, now + LEASE_TIME);
        self.last_lease
    }

    /// Renews a lease. Returns false if it has ended.
    pub(crate) fn keep(&mut self, lease: i64, now: Instant) -> bool {
        self.leases.get_mut(&lease).map(|ends| *ends = now + LEASE_TIME).is_some()
    }

    pub(crate) fn has_lease(&self, lease: i64) -> bool {
        self.leases.contains_key(&lease)
    }

    pub(crate) fn revoke(&mut self, lease: i64) {
        self.leases.remove(&lease);
        let keys: Vec<_> =
            self.leased.iter().filter(|(_, of)| **of == lease).map(|(key, _)| key.clone()).collect();
        self.write(keys.into_iter().map(|key| (key, None)), None);
    }

    /// Ends the leases that nobody has renewed.
    pub(crate) fn end_leases(&mut self, now: Instant) {
        let ended: Vec<_> =
            self.leases.iter().filter(|(_, ends)| **ends <= now).map(|(lease, _)| *lease).collect();
        ended.into_iter().for_each(|lease| self.revoke(lease));
    }

    /// Replaces the content of the store with a backup. A backup contains no history of events. Leases begin again.
    pub(crate) fn restore(&mut self, backup: &Self, cluster: u64, now: Instant) {
        let last_lease = self.last_lease;
        *self = backup.clone();
        (self.cluster, self.last_lease) = (cluster, last_lease);
        self.compact();
        self.leases.values_mut().for_each(|ends| *ends = now + LEASE_TIME);
    }

    /// Returns the state of the store that a link checks before it uses the store.
    pub(crate) fn find(&self, keys: &Keys, me: &ExitId) -> Found {
        let modified = |key: Key| self.pairs.get(&keys.name(&key)).map_or(0, |(_, modified)| *modified);
        let meta = self.pairs.get(&keys.name(&Key::Meta));
        let created = self.created.get(&keys.name(&Key::Member(me.clone()))).copied().unwrap_or(0);
        let granted = self.pairs.get(&keys.grant(me)).map_or(0, |(_, modified)| *modified);
        Found {
            meta: meta.and_then(|(value, _)| serde_json::from_slice::<Meta>(value).ok()),
            cluster: self.cluster,
            revision: self.revision,
            own: modified(Key::Position(me.clone())).max(modified(Key::Written(me.clone()))),
            is_member: modified(Key::Member(me.clone())) > 0,
            membership: self
                .pairs
                .get(&keys.name(&Key::Member(me.clone())))
                .and_then(|(value, _)| serde_json::from_slice::<Member>(value).ok()?.membership),
            joined: joined_at(created, granted),
            removed: self
                .pairs
                .get(&keys.name(&Key::RemovedExit(me.clone())))
                .map(|(value, at)| Removed::read(value, *at)),
            began: modified(Key::Meta),
        }
    }
}

impl Transact for MapStore {
    async fn all(&mut self, _: &Keys) -> anyhow::Result<(i64, Vec<Pair>)> {
        Ok((self.revision, self.all_pairs()))
    }

    async fn some(&mut self, key: &str, prefix: &str) -> anyhow::Result<Vec<Pair>> {
        let mut pairs = self.all_pairs();
        pairs.retain(|pair| pair.key == key.as_bytes() || pair.key.starts_with(prefix.as_bytes()));
        Ok(pairs)
    }

    async fn transact(&mut self, transaction: &Transaction) -> anyhow::Result<Option<i64>> {
        Ok(self.apply(transaction).then_some(self.revision))
    }
}

impl ReadExits for MapStore {
    async fn exits(&mut self, keys: &Keys) -> anyhow::Result<ExitsInStore> {
        let mut exits = ExitsInStore::default();
        for pair in self.all_pairs() {
            match keys.parse(&pair.key) {
                Some(Key::Member(exit)) => {
                    let joined = self.created[std::str::from_utf8(&pair.key)?];
                    exits.add(exit, (joined, pair.modified), pair.parse("exit"));
                }
                Some(Key::RemovedExit(exit)) => exits.removed.extend(pair.removed().map(|it| (exit, it))),
                _ => {}
            }
        }
        Ok(exits)
    }

    async fn found(&mut self, keys: &Keys, me: &ExitId) -> anyhow::Result<Found> {
        Ok(self.find(keys, me))
    }
}

/// Returns the result of a future that uses only a [`MapStore`]. Such a future never waits.
pub(crate) fn at_once<T>(work: impl Future<Output = T>) -> T {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(work).poll(&mut context) {
        std::task::Poll::Ready(result) => result,
        std::task::Poll::Pending => unreachable!("nothing here waits"),
    }
}
