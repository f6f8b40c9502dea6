//! Makes transactions of etcd from the rows that an exit wants.
//!
//! A transaction succeeds only under two conditions. Each row that it writes must be as the link knows it, and nobody may have
//! taken what it newly claims: names, addresses, next keys, and keys that were removed. So at most one of several exits gets each
//! of these.

use std::collections::{BTreeMap, BTreeSet};

use warren_session::PublicKey;
use warren_session::clients::{Client, Invitation, RowChange, RowId};

use crate::keys::{Key, Keys, holder_text};
use crate::planted::{Bug, is_planted};
use crate::rows::{Claim, Rows, Subject, Unseen};

/// Maximum number of comparisons, and of operations, of one transaction. etcd allows 128 (`--max-txn-ops`). The link itself needs a
/// few of these.
pub(crate) const MAX_OPERATIONS: usize = 120;

/// The state of a key that a transaction requires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// The key's latest change was at this revision. 0 if there is no such key.
    Modified(i64),
    /// The key has this value.
    Value(Vec<u8>),
    /// The key has any value.
    Present,
}

/// Comparisons and operations by key, and the rows that result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Draft {
    pub(crate) expected: BTreeMap<String, Expected>,
    /// A key's new value, or `None` to delete it.
    pub(crate) operations: BTreeMap<String, Option<Vec<u8>>>,
    /// The rows as they will be stored.
    pub(crate) rows: Vec<RowChange>,
    /// The rows that will be stored differently from what the exit wants.
    pub(crate) corrected: Vec<RowChange>,
    /// The subjects that the transaction touches besides its rows.
    pub(crate) touched: BTreeSet<Subject>,
}

/// Somebody else has the claimed name, address or key, or has changed the same row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Conflict;

impl Draft {
    pub(crate) fn fits(&self) -> bool {
        self.expected.len() <= MAX_OPERATIONS && self.operations.len() <= MAX_OPERATIONS
    }

    /// Whether both drafts can be in one transaction, because neither depends on the other.
    pub(crate) fn is_apart_from(&self, other: &Self) -> bool {
        let mut keys = self.expected.keys().chain(self.operations.keys());
        !keys.any(|key| other.expected.contains_key(key) || other.operations.contains_key(key))
    }

    /// Whether a draft with no key in common with this one still fits.
    pub(crate) fn has_room_for(&self, other: &Self) -> bool {
        self.expected.len() + other.expected.len() <= MAX_OPERATIONS
            && self.operations.len() + other.operations.len() <= MAX_OPERATIONS
    }

    pub(crate) fn join(&mut self, other: Self) {
        self.expected.extend(other.expected);
        self.operations.extend(other.operations);
        self.rows.extend(other.rows);
        self.corrected.extend(other.corrected);
        self.touched.extend(other.touched);
    }
}

/// The state against which a request is checked.
#[derive(Clone, Copy)]
pub(crate) struct Known<'a> {
    pub(crate) keys: &'a Keys,
    pub(crate) rows: &'a Rows,
    pub(crate) unseen: &'a Unseen,
    /// The revision up to which the exit had seen the rows when it made the request.
    pub(crate) basis: i64,
}

/// Makes the transaction for some of a request's rows. `request` contains all rows of the request.
///
/// # Errors
/// If somebody else has a name, address or key that the rows claim, or has changed more than a date in a row since the exit saw
/// it.
pub(crate) fn draft(known: Known<'_>, rows: &[RowChange], request: &[RowChange]) -> Result<Draft, Conflict> {
    let mut drafting = Drafting {
        known,
        request,
        draft: Draft::default(),
        claims: BTreeMap::new(),
        releases: BTreeMap::new(),
    };
    for row in rows {
        drafting.add(row)?;
    }
    drafting.finish()
}

struct Drafting<'a> {
    known: Known<'a>,
    request: &'a [RowChange],
    draft: Draft,
    claims: BTreeMap<Claim, PublicKey>,
    releases: BTreeMap<Claim, PublicKey>,
}

impl Drafting<'_> {
    fn add(&mut self, wanted: &RowChange) -> Result<(), Conflict> {
        let id = wanted.id();
        let row = self.merged(wanted)?;
        if row != *wanted {
            self.draft.corrected.push(row.clone());
        }
        let current = self.known.rows.content(id);
        if row == current && !self.known.rows.is_unreadable(id) {
            // In a transaction with other requests, the answer comes later. Until then, nobody else may change the row.
            self.expect(Subject::Row(id));
            return Ok(());
        }
        // This check does not depend on the rows that the exit has seen. An invitation belongs to the first key that used it, and
        // to the key that replaces that key.
        if let (Some(user), Some(invitation)) = (used_by(&current), invitation_of(&row))
            && invitation.used_by != Some(user)
            && !self.request.contains(&RowId::Client(user).deletion())
            && !is_planted(Bug::NewestBasis)
        {
            return Err(Conflict);
        }
        self.expect(Subject::Row(id));
        let value = row.is_set().then(|| serde_json::to_vec(&row).map_err(|_| Conflict)).transpose()?;
        self.draft.operations.insert(self.known.keys.name(&Key::Row(id)), value);
        match &row {
            RowChange::Client { key, client } => self.client(*key, client.as_ref())?,
            RowChange::Removed { key, removed: Some(_) } => self.must_be_missing(RowId::Client(*key))?,
            RowChange::Removed { .. } | RowChange::Invitation { .. } => {}
        }
        self.draft.rows.push(row);
        Ok(())
    }

    /// Returns the row to store. If others have changed the row since the exit saw it, merges the changes if only dates differ.
    fn merged(&self, wanted: &RowChange) -> Result<RowChange, Conflict> {
        let id = wanted.id();
        let current = self.known.rows.content(id);
        let basis = if is_planted(Bug::NewestBasis) { i64::MAX } else { self.known.basis };
        let Some(seen) = self.known.unseen.seen(id, basis) else {
            return Ok(wanted.clone());
        };
        // The others' changes have cancelled each other, or have already made the wanted change.
        if *seen == current || *wanted == current {
            return Ok(wanted.clone());
        }
        match (client_of(wanted), client_of(seen), client_of(&current)) {
            // No matter who else has changed the client, its key is removed for good.
            (None, _, _) if self.is_revocation(id) => Ok(wanted.clone()),
            (Some(wanted), Some(seen), Some(current)) => Ok(merged_client(wanted, seen, current)?.into()),
            (None, Some(seen), Some(current)) if without_dates(seen) == without_dates(current) => {
                Ok(wanted.clone())
            }
            // Somebody else has removed the key already.
            _ if is_tombstone(wanted) && is_tombstone(&current) => Ok(current),
            // A client that is gone needs no date.
            (Some(wanted), Some(seen), None) if without_dates(wanted) == without_dates(seen) => Ok(current),
            _ => Err(Conflict),
        }
    }

    /// Whether the request removes a client for good, and no other client takes its place.
    fn is_revocation(&self, id: RowId) -> bool {
        let RowId::Client(removed) = id else { return false };
        let name = self.known.rows.client(removed).map(|client| client.name.as_str());
        let is_tombstone =
            |row: &RowChange| matches!(row, RowChange::Removed { key, removed: Some(_) } if *key == removed);
        let takes_its_place =
            |row: &RowChange| client_of(row).is_some_and(|client| Some(client.name.as_str()) == name);
        self.request.iter().any(is_tombstone) && !self.request.iter().any(takes_its_place)
    }

    fn client(&mut self, key: PublicKey, client: Option<&Client>) -> Result<(), Conflict> {
        let before = self.known.rows.client(key);
        let had = before.map(Claim::of).unwrap_or_default();
        let has = client.map(Claim::of).unwrap_or_default();
        self.releases
            .extend(had.iter().filter(|claim| !has.contains(claim)).map(|claim| (claim.clone(), key)));
        for claim in has.into_iter().filter(|claim| !had.contains(claim)) {
            if self.claims.insert(claim, key).is_some() {
                return Err(Conflict);
            }
        }
        let Some(client) = client else { return Ok(()) };
        if before.is_none() {
            self.must_be_missing(RowId::Removed(key))?;
        }
        let gets_prefixes = before.map_or(&[][..], |before| &before.prefixes) != client.prefixes;
        if gets_prefixes && !client.prefixes.is_empty() {
            self.touch(Subject::Prefixes, key)?;
        }
        let gets_forwards = before.map_or(&[][..], |before| &before.forwards) != client.forwards;
        if gets_forwards && !client.forwards.is_empty() {
            self.touch(Subject::Forwards, key)?;
        }
        Ok(())
    }

    /// Requires that a row is missing, unless the same request deletes it. A client cannot have a removed key, and a removed key
    /// cannot be a client's.
    fn must_be_missing(&mut self, id: RowId) -> Result<(), Conflict> {
        if self.known.rows.is_there(id) && !self.request.contains(&id.deletion()) {
            return Err(Conflict);
        }
        self.expect(Subject::Row(id));
        Ok(())
    }

    /// Requires that all clients' prefixes, or forwards, are as the exit knew them, because the prefixes, or forwards, of
    /// different clients must not overlap.
    fn touch(&mut self, subject: Subject, key: PublicKey) -> Result<(), Conflict> {
        if self.known.unseen.has_changed(subject, self.known.basis) {
            return Err(Conflict);
        }
        self.expect(subject);
        self.draft.operations.insert(self.subject_name(subject), Some(holder_text(key)));
        self.draft.touched.insert(subject);
        Ok(())
    }

    fn expect(&mut self, subject: Subject) {
        let revision = self.known.rows.modified(subject);
        self.draft.expected.insert(self.subject_name(subject), Expected::Modified(revision));
    }

    fn subject_name(&self, subject: Subject) -> String {
        self.known.keys.name(&match subject {
            Subject::Row(id) => Key::Row(id),
            Subject::Prefixes => Key::Prefixes,
            Subject::Forwards => Key::Forwards,
        })
    }

    fn finish(mut self) -> Result<Draft, Conflict> {
        for (claim, key) in std::mem::take(&mut self.claims) {
            let name = self.claim_name(&claim);
            let expected = match (self.releases.remove(&claim), self.known.rows.holder(&claim)) {
                // Links do not watch the keys of claims. So a claim's revision is not known, but its value is.
                (Some(holder), _) => Expected::Value(holder_text(holder)),
                (None, None) => Expected::Modified(0),
                (None, Some(_)) => return Err(Conflict),
            };
            if let Claim::NextKey(next) = claim {
                // The next key must not be another client's key already, nor a removed key.
                self.must_be_missing(RowId::Client(next))?;
                self.must_be_missing(RowId::Removed(next))?;
            }
            self.draft.expected.insert(name.clone(), expected);
            self.draft.operations.insert(name, Some(holder_text(key)));
        }
        for claim in std::mem::take(&mut self.releases).into_keys() {
            // Releasing a claim needs no condition of its own, because the transaction already requires that the row of the
            // claim's holder has not changed.
            self.draft.operations.insert(self.claim_name(&claim), None);
        }
        self.keys_are_nobodys_next()?;
        if is_planted(Bug::ReadThenPut) {
            self.draft.expected.clear();
        }
        Ok(self.draft)
    }

    /// Requires that a new client's key, or a removed key, is not another client's next key.
    fn keys_are_nobodys_next(&mut self) -> Result<(), Conflict> {
        let mut keys = BTreeSet::new();
        for row in &self.draft.rows {
            match row {
                RowChange::Client { key, client: Some(_) } if self.known.rows.client(*key).is_none() => {
                    keys.insert(*key)
                }
                RowChange::Removed { key, removed: Some(_) } => keys.insert(*key),
                RowChange::Client { .. } | RowChange::Removed { .. } | RowChange::Invitation { .. } => false,
            };
        }
        for key in keys {
            let name = self.known.keys.next_key(key);
            match self.draft.operations.get(&name) {
                // The same request releases the next key.
                Some(None) => {}
                Some(Some(_)) => return Err(Conflict),
                None if self.known.rows.holder(&Claim::NextKey(key)).is_some() => return Err(Conflict),
                None => drop(self.draft.expected.insert(name, Expected::Modified(0))),
            }
        }
        Ok(())
    }

    fn claim_name(&self, claim: &Claim) -> String {
        match claim {
            Claim::Name(name) => self.known.keys.client_name(name),
            Claim::Address(address) => self.known.keys.address(*address),
            Claim::NextKey(key) => self.known.keys.next_key(*key),
        }
    }
}

fn is_tombstone(row: &RowChange) -> bool {
    matches!(row, RowChange::Removed { removed: Some(_), .. })
}

fn invitation_of(row: &RowChange) -> Option<&Invitation> {
    match row {
        RowChange::Invitation { invitation, .. } => invitation.as_ref(),
        RowChange::Client { .. } | RowChange::Removed { .. } => None,
    }
}

fn used_by(row: &RowChange) -> Option<PublicKey> {
    invitation_of(row)?.used_by
}

fn client_of(row: &RowChange) -> Option<&Client> {
    match row {
        RowChange::Client { client, .. } => client.as_ref(),
        RowChange::Invitation { .. } | RowChange::Removed { .. } => None,
    }
}

/// Merges two exits' versions of one client, if one of the exits has changed only dates.
fn merged_client(wanted: &Client, seen: &Client, current: &Client) -> Result<Client, Conflict> {
    let base = if without_dates(wanted) == without_dates(seen) {
        current
    } else if without_dates(current) == without_dates(seen) {
        wanted
    } else {
        return Err(Conflict);
    };
    let exit_key = if wanted.exit_key == seen.exit_key { current.exit_key } else { wanted.exit_key };
    Ok(Client { last_seen: wanted.last_seen.max(current.last_seen), exit_key, ..base.clone() })
}

/// Returns the client without the values that each exit writes while the client is connected.
fn without_dates(client: &Client) -> Client {
    Client { last_seen: None, exit_key: None, ..client.clone() }
}
