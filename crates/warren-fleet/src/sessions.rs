//! Decides which exit has a client's session.
//!
//! An exit does not wait for the store before it welcomes a client. So a fresh session takes the record from any other exit. If a
//! session could not be recorded for a while, because the store was unreachable, it yields to a record that another exit has made
//! since. It does not yield to the record that it has itself replaced, which an old backup of the store may bring back.
//!
//! A client process numbers its sessions. Between two sessions of one process, the numbers decide, no matter when the store
//! receives them.
//!
//! A client that keeps opening sessions or reporting that it stays causes a limited number of writes to the store ([`MOST_WRITES`]).

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use warren_fleet_link::{ExitId, FleetMessage};
use warren_session::PublicKey;

use crate::keys::{Key, Keys, SessionRecord};
use crate::planted::{Bug, is_planted};
use crate::transaction::{Expected, MAX_OPERATIONS};

/// Only a session younger than this may take a client's record from another exit.
const FRESH: Duration = Duration::from_secs(2);

/// Maximum number of writes of one client's record within [`PACE`]. Later changes are written together when that time is over.
const MOST_WRITES: u32 = 8;

/// How long a write of a client's record counts towards [`MOST_WRITES`].
const PACE: Duration = Duration::from_secs(10);

/// How long the link waits before it writes a refused record again, unless somebody else changes the record.
const PUT_OFF: Duration = Duration::from_secs(1);

/// After this many refusals of one record, the link logs a warning.
const MANY_REFUSALS: u32 = 10;

/// Records with the revisions of their latest changes. `None` stands for a record that cannot be read.
pub(crate) type Records = BTreeMap<PublicKey, (i64, Option<SessionRecord>)>;

/// Records, and this exit's own sessions.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    records: Records,
    own: BTreeMap<PublicKey, Own>,
    /// Nonces of sessions that are over and whose records may still exist.
    closed: BTreeMap<PublicKey, Vec<u8>>,
    /// The keys whose records may have to be written, each with the number of its latest change.
    unsent: BTreeMap<PublicKey, u64>,
    /// The number of the latest change.
    change: u64,
    /// The clients whose records were written within [`PACE`]: the start of the count, and the number of writes.
    written: BTreeMap<PublicKey, (Instant, u32)>,
    /// Maximum number of records of the next batch, if a batch was refused. One record that the store refuses must not delay
    /// others.
    narrowed: Option<usize>,
    refused: BTreeMap<PublicKey, Refusal>,
}

/// A record that the store has refused in a batch without other records.
#[derive(Debug)]
struct Refusal {
    /// The revision that was expected.
    modified: i64,
    times: u32,
    until: Instant,
}

#[derive(Debug)]
struct Own {
    nonce: Vec<u8>,
    claim: u64,
    opened: Instant,
    /// The client's record when the session was opened. A revision would not do, because a recovered store counts its revisions from the
    /// backup's revision again.
    replaced: Option<SessionRecord>,
}

impl Own {
    /// Whether the client's session counts as being at the exit of this record, and no longer here.
    fn yields(&self, record: &SessionRecord, now: Instant) -> bool {
        match self.by_claim(record) {
            Ordering::Less => true,
            Ordering::Greater => false,
            // An old session does not take a record that another exit has made since.
            Ordering::Equal => {
                self.replaced.as_ref() != Some(record) && now.duration_since(self.opened) > FRESH
            }
        }
    }

    /// Compares this session with that of a record. Sessions of different client processes compare as equal.
    fn by_claim(&self, record: &SessionRecord) -> Ordering {
        // Clients and exits of earlier versions give no numbers.
        let are_numbered = self.claim > 0 && record.claim > 0;
        match record.nonce() == self.nonce && are_numbered && !is_planted(Bug::ClaimsIgnored) {
            true => self.claim.cmp(&record.claim),
            false => Ordering::Equal,
        }
    }
}

/// Records to write.
#[derive(Debug, Default)]
pub(crate) struct SessionBatch {
    pub(crate) expected: BTreeMap<String, Expected>,
    /// A record's new value, or `None` to delete it; and the link's position.
    pub(crate) operations: BTreeMap<String, Option<Vec<u8>>>,
    /// The sessions, each with the number of its latest change.
    pub(crate) sessions: Vec<(PublicKey, u64)>,
}

impl Sessions {
    /// Records that a client has opened or kept a session here. `nonce` is that of the client's process, and `claim` is the
    /// session's number.
    pub(crate) fn open(&mut self, key: PublicKey, (nonce, claim): (Vec<u8>, u64), now: Instant) {
        let replaced = self.records.get(&key).and_then(|(_, record)| record.clone());
        self.own.insert(key, Own { nonce, claim, opened: now, replaced });
        self.closed.remove(&key);
        self.changed(key);
    }

    /// Remembers that a key's record may have to be written, no matter what is being written now.
    fn changed(&mut self, key: PublicKey) {
        self.change += 1;
        self.unsent.insert(key, self.change);
    }

    /// Records that a session here is over. The exit reports this before it reports another session of the key, which may have the
    /// same nonce.
    pub(crate) fn close(&mut self, key: PublicKey, nonce: Vec<u8>) {
        if self.own.get(&key).is_some_and(|own| own.nonce == nonce) {
            self.own.remove(&key);
            self.closed.insert(key, nonce);
            self.changed(key);
        }
    }

    /// Forgets the exit's sessions, because the exit has gone. The store deletes their records with the lease.
    pub(crate) fn forget_own(&mut self) {
        self.own.clear();
        self.closed.clear();
        self.unsent.clear();
        self.refused.clear();
    }

    /// Writes all records again, because they were deleted with an earlier lease, or will be soon.
    pub(crate) fn send_all_again(&mut self) {
        self.own.keys().copied().collect::<Vec<_>>().into_iter().for_each(|key| self.changed(key));
    }

    /// Replaces all records.
    pub(crate) fn replace(&mut self, me: &ExitId, records: Records) {
        self.records = records;
        // An old backup of the store has records of sessions that are over. Such records would last as long as this exit's lease.
        let own = self.records.iter().filter_map(|(key, (_, record))| Some((*key, record.as_ref()?)));
        let over: Vec<_> = own
            .filter(|(key, record)| record.exit == *me && !self.own.contains_key(key))
            .map(|(key, record)| (key, record.nonce()))
            .collect();
        for (key, nonce) in over {
            self.closed.insert(key, nonce);
            self.changed(key);
        }
    }

    /// Remembers that a record cannot be read. If the client's session is here, the record is written again.
    pub(crate) fn cannot_read(&mut self, key: PublicKey, modified: i64) {
        self.records.insert(key, (modified, None));
        if self.own.contains_key(&key) {
            self.changed(key);
        }
    }

    fn revision(&self, key: &PublicKey) -> i64 {
        self.records.get(key).map_or(0, |(modified, _)| *modified)
    }

    /// Applies a record from the store. Returns a message for the exit if a session has moved from here to another exit.
    pub(crate) fn record(
        &mut self,
        me: &ExitId,
        key: PublicKey,
        modified: i64,
        record: Option<SessionRecord>,
    ) -> Option<FleetMessage> {
        let Some(record) = record else {
            self.records.remove(&key);
            // The link's own lease has ended, while the session continues.
            if self.own.contains_key(&key) {
                self.changed(key);
            }
            return None;
        };
        let is_elsewhere = record.exit != *me;
        if !is_elsewhere && !self.own.contains_key(&key) {
            // The session was over before its record appeared.
            self.closed.insert(key, record.nonce());
            self.changed(key);
        }
        self.records.insert(key, (modified, Some(record.clone())));
        // If a record of this exit must still be written, the decision is made when it is written.
        if !is_elsewhere || self.unsent.contains_key(&key) {
            return None;
        }
        if self.own.get(&key)?.by_claim(&record) == Ordering::Greater {
            // The other exit's record is late and belongs to an older session of the client.
            self.changed(key);
            return None;
        }
        self.own.remove(&key)?;
        Some(elsewhere(key, record))
    }

    /// Returns the next records to write, and a message for each session that another exit has taken over.
    pub(crate) fn batch(
        &mut self,
        me: &ExitId,
        keys: &Keys,
        now: Instant,
    ) -> (SessionBatch, Vec<FleetMessage>) {
        let mut batch = SessionBatch::default();
        let mut lost = Vec::new();
        self.refused.retain(|key, _| self.unsent.contains_key(key));
        self.written.retain(|_, (since, _)| now.duration_since(*since) < PACE);
        let may_write = |key: &PublicKey| self.written.get(key).is_none_or(|(_, count)| *count < MOST_WRITES);
        let is_put_off = |key: &PublicKey| {
            self.refused
                .get(key)
                .is_some_and(|refusal| now < refusal.until && refusal.modified == self.revision(key))
        };
        let due: Vec<(PublicKey, u64)> = self
            .unsent
            .iter()
            .map(|(key, change)| (*key, *change))
            .filter(|(key, _)| may_write(key) || is_planted(Bug::RecordsWithoutPace))
            .filter(|(key, _)| !is_put_off(key))
            // Each record needs one comparison and one operation of the transaction.
            .take(self.narrowed.unwrap_or(MAX_OPERATIONS))
            .collect();
        for (key, change) in due {
            let modified = self.revision(&key);
            let record = self.records.get(&key).and_then(|(_, record)| record.as_ref());
            let others = record.filter(|record| record.exit != *me);
            let value = match (self.own.get(&key), others) {
                (Some(own), Some(record))
                    if own.yields(record, now) && !is_planted(Bug::QueuedClaimOverwrites) =>
                {
                    lost.push(elsewhere(key, record.clone()));
                    self.own.remove(&key);
                    self.unsent.remove(&key);
                    continue;
                }
                (Some(own), _) => serde_json::to_vec(&SessionRecord::new(me, &own.nonce, own.claim)).ok(),
                (None, _) => {
                    // The session is over. Its record is deleted only if it still belongs to this session.
                    let nonce = self.closed.get(&key);
                    let is_there =
                        record.is_some_and(|record| record.exit == *me && nonce == Some(&record.nonce()));
                    if !is_there {
                        self.unsent.remove(&key);
                        self.closed.remove(&key);
                        continue;
                    }
                    None
                }
            };
            let name = keys.name(&Key::Session(key));
            batch.expected.insert(name.clone(), Expected::Modified(modified));
            batch.operations.insert(name, value);
            batch.sessions.push((key, change));
        }
        (batch, lost)
    }

    /// Handles the store's refusal of a batch: one of its records has changed since this link last saw it. As a rule, the change
    /// arrives soon. Batches become smaller until the refused record is found.
    pub(crate) fn refused(&mut self, batch: &SessionBatch, now: Instant) {
        // The store does not say which record it refuses, so batches are halved until only that record is left.
        let [(key, _)] = batch.sessions[..] else {
            self.narrowed = Some((batch.sessions.len() / 2).max(1));
            return;
        };
        let expected = batch.expected.values().next();
        let Some(Expected::Modified(modified)) = expected.cloned() else { return };
        let times = self.refused.get(&key).map_or(0, |refusal| refusal.times) + 1;
        if times == MANY_REFUSALS {
            tracing::warn!(
                "the store has refused the session record of the client {key} {times} times; all other records are stored; if it stays \
                 like this, restart warren-fleet"
            );
        }
        self.refused.insert(key, Refusal { modified, times, until: now + PUT_OFF });
    }

    /// Records that a batch is stored. If a key has changed again since, it stays unsent, even if its session has the same nonce:
    /// the session may have another number, or an earlier lease.
    pub(crate) fn stored(&mut self, batch: &SessionBatch, now: Instant) {
        // After each stored batch, the next one may be larger again.
        self.narrowed = self.narrowed.map(|most| most * 2).filter(|most| *most < MAX_OPERATIONS);
        for (key, change) in &batch.sessions {
            self.written.entry(*key).or_insert((now, 0)).1 += 1;
            self.refused.remove(key);
            if self.unsent.get(key) == Some(change) || is_planted(Bug::LaterChangeForgotten) {
                self.unsent.remove(key);
                self.closed.remove(key);
            }
        }
    }

    pub(crate) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }
}

fn elsewhere(key: PublicKey, record: SessionRecord) -> FleetMessage {
    FleetMessage::Elsewhere { key, nonce: record.nonce(), claim: record.claim, exit: record.exit }
}
