//! Checks a recorded history.
//!
//! etcd gives each transaction a revision, which orders all operations. So the checker need not search for an order, unlike
//! linearizability checkers that know only the answers. It verifies this order: each operation took place between its request and
//! its answer (`check_order`), did what was answered (`check_answers`), and was allowed in the store's state at that moment
//! (`State::write`). Together this is linearizability of the whole registry, and not only of each key. Exits read their own
//! copies, which may be late. For removals, `check_removals` checks how late they are.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt::{Display, Formatter};
use std::time::{Duration, Instant};

use warren_fleet_link::Outcome;
use warren_session::PublicKey;
use warren_session::clients::{Client, RowChange, RowId};

use super::history::{Epoch, Run};
use super::store_log::Writes;
use super::workload::{Done, What};

/// The time within which every exit has to know of a removal.
const REMOVED_WITHIN: Duration = Duration::from_secs(2);

#[derive(Default, Debug)]
pub(crate) struct Figures {
    pub(crate) operations: usize,
    enrolled: usize,
    removed: usize,
    conflicts: usize,
    unavailable: usize,
    /// Operations that were answered as unavailable and have taken place.
    late: usize,
    revisions: usize,
    /// How long exits took to learn of removals, not counting removals during a fault.
    removals: Vec<Duration>,
}

impl Figures {
    pub(crate) fn tests_something(&self) -> bool {
        [self.enrolled, self.removed, self.conflicts, self.unavailable].iter().all(|count| *count > 0)
    }
}

impl Display for Figures {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let part = |hundredths: usize| self.removals.get(self.removals.len() * hundredths / 100);
        write!(
            f,
            "{} operations in {} revisions: {} enrolled, {} removed, {} conflicts, {} unavailable ({} of them stored); \
             removals known at another exit after {:?} (median), {:?} (99th percentile), {:?} (longest)",
            self.operations,
            self.revisions,
            self.enrolled,
            self.removed,
            self.conflicts,
            self.unavailable,
            self.late,
            part(50).unwrap_or(&Duration::ZERO),
            part(99).unwrap_or(&Duration::ZERO),
            self.removals.last().unwrap_or(&Duration::ZERO),
        )
    }
}

/// Checks the whole history of a run.
///
/// # Errors
/// The first violation.
pub(crate) fn check(run: &Run, epochs: &[Epoch]) -> Result<Figures, String> {
    let mut figures = Figures::default();
    let mut state = State::default();
    let tried = Tried::of(epochs);
    for epoch in epochs {
        state.begin(&epoch.log.base)?;
        for (revision, writes) in &epoch.log.revisions {
            state.write(*revision, writes).map_err(|wrong| format!("revision {revision}: {wrong}"))?;
        }
        figures.revisions += epoch.log.revisions.len();
        check_answers(&epoch.done, &state, &mut figures)?;
        check_order(&epoch.done, &state)?;
    }
    tried.explain(&state)?;
    state.check_claims()?;
    check_exits(run, &state)?;
    check_removals(run, epochs, &mut figures)?;
    Ok(figures)
}

/// The state of the store according to its log.
#[derive(Default)]
struct State {
    /// Rows by key.
    rows: BTreeMap<String, RowChange>,
    claims: BTreeMap<String, Vec<u8>>,
    names: HashMap<String, String>,
    addresses: HashMap<std::net::IpAddr, String>,
    /// Facts that outlast even a restore: the key that used each token, and removed keys.
    used: HashMap<String, PublicKey>,
    removed: HashSet<PublicKey>,
    /// The revisions at which clients were added and deleted in this epoch.
    came: HashMap<PublicKey, i64>,
    went: HashMap<PublicKey, i64>,
    /// Every client that ever existed, as it was when it was added.
    ever: HashMap<PublicKey, Client>,
}

impl State {
    /// Begins an epoch. Only unused invitations may be lost with the store.
    fn begin(&mut self, base: &Writes) -> Result<(), String> {
        let before = std::mem::take(&mut self.rows);
        (self.claims, self.names, self.addresses) = Default::default();
        self.write(0, base).map_err(|wrong| format!("after a restore: {wrong}"))?;
        (self.came, self.went) = Default::default();
        for (key, row) in before {
            let may_be_lost = matches!(&row, RowChange::Invitation { invitation: Some(invitation), .. } if invitation.used_by.is_none());
            if !may_be_lost && self.rows.get(&key) != Some(&row) {
                return Err(format!("lost with a restore: {row:?} is {:?}", self.rows.get(&key)));
            }
        }
        Ok(())
    }

    /// Applies the writes of a revision, which must be allowed.
    fn write(&mut self, revision: i64, writes: &Writes) -> Result<(), String> {
        // Names and addresses that a revision gives up may be claimed in the same revision.
        for (key, value) in writes {
            if let Some(RowChange::Client { key: client, client: Some(was) }) = self.rows.get(key) {
                self.names.remove(&was.name);
                was.lease().addresses().for_each(|address| drop(self.addresses.remove(&address)));
                if value.is_none() {
                    self.went.insert(*client, revision);
                }
            }
            let kind = key.split('/').nth(3).unwrap_or_default();
            match (kind, value) {
                ("cl" | "in" | "rv", None) => drop(self.rows.remove(key)),
                ("na" | "ad" | "nk", None) => drop(self.claims.remove(key)),
                ("na" | "ad" | "nk", Some(value)) => drop(self.claims.insert(key.clone(), value.clone())),
                _ => {}
            }
        }
        let rows = writes.iter().filter_map(|(key, value)| {
            let kind = key.split('/').nth(3)?;
            let is_row = ["cl", "in", "rv"].contains(&kind);
            let row = serde_json::from_slice(value.as_ref().filter(|_| is_row)?);
            Some((key, row.map_err(|error| format!("{key}: {error}"))))
        });
        let mut clients = Vec::new();
        for (key, row) in rows {
            let row: RowChange = row?;
            match &row {
                RowChange::Client { client: Some(client), .. } => clients.push((key.clone(), client.clone())),
                RowChange::Invitation { invitation: Some(invitation), .. } => {
                    self.use_token(key, invitation.used_by)?;
                }
                RowChange::Removed { key: removed, .. } => drop(self.removed.insert(*removed)),
                RowChange::Client { .. } | RowChange::Invitation { .. } => {}
            }
            self.rows.insert(key.clone(), row);
        }
        clients.into_iter().try_for_each(|(key, client)| self.come(revision, key, client))
    }

    fn use_token(&mut self, token: &str, used_by: Option<PublicKey>) -> Result<(), String> {
        let first = self.used.get(token).copied();
        if let Some(first) = first
            && used_by != Some(first)
        {
            return Err(format!("the token {token} has two keys: {first}, then {used_by:?}"));
        }
        if let Some(used_by) = used_by {
            self.used.insert(token.to_owned(), used_by);
        }
        Ok(())
    }

    fn come(&mut self, revision: i64, key: String, client: Client) -> Result<(), String> {
        let public_key = client.public_key;
        if self.removed.contains(&public_key) {
            return Err(format!("the removed key {public_key} is a client's"));
        }
        if let Some(other) = self.names.insert(client.name.clone(), key.clone()) {
            return Err(format!("{} is the name of {key} and {other}", client.name));
        }
        for address in client.lease().addresses() {
            if let Some(other) = self.addresses.insert(address, key.clone()) {
                return Err(format!("{address} belongs to {key} and {other}"));
            }
        }
        if self.ever.insert(public_key, client).is_none() {
            self.came.insert(public_key, revision);
        }
        Ok(())
    }

    /// Checks that each name and address is claimed by the client that has it, and that nothing else is claimed.
    fn check_claims(&self) -> Result<(), String> {
        let mut wanted = BTreeSet::new();
        for row in self.rows.values() {
            let RowChange::Client { client: Some(client), .. } = row else { continue };
            wanted.insert(format!("/warren/fleet/na/{}", client.name));
            wanted.extend(client.lease().addresses().map(|address| format!("/warren/fleet/ad/{address}")));
        }
        let claimed: BTreeSet<_> = self.claims.keys().cloned().collect();
        if claimed == wanted {
            Ok(())
        } else {
            Err("claims in the store are not those of its clients".to_owned())
        }
    }
}

/// The changes that exits have asked for.
struct Tried {
    enrolments: HashSet<PublicKey>,
    removals: HashSet<PublicKey>,
}

impl Tried {
    fn of(epochs: &[Epoch]) -> Self {
        let all = || epochs.iter().flat_map(|epoch| &epoch.done);
        let enrolments = all().filter_map(|done| match done.what {
            What::Enrol { key, .. } => Some(key),
            What::Invite | What::Remove { .. } => None,
        });
        let removals = all().filter_map(|done| match done.what {
            What::Remove { key } => Some(key),
            What::Invite | What::Enrol { .. } => None,
        });
        Self { enrolments: enrolments.collect(), removals: removals.collect() }
    }

    /// Checks that no client was enrolled and no key was removed unless an exit asked for that.
    fn explain(&self, state: &State) -> Result<(), String> {
        let is_ours = |client: &Client| {
            self.enrolments.contains(&client.public_key) || client.name.starts_with("level")
        };
        if let Some(client) = state.ever.values().find(|client| !is_ours(client)) {
            return Err(format!("nobody has enrolled {client:?}"));
        }
        match state.removed.iter().find(|key| !self.removals.contains(key)) {
            Some(key) => Err(format!("nobody has removed {key}")),
            None => Ok(()),
        }
    }
}

/// Checks that each answer is true: what was acknowledged is stored, and what was refused is not.
fn check_answers(done: &[Done], state: &State, figures: &mut Figures) -> Result<(), String> {
    figures.operations += done.len();
    for done in done {
        let count = match (done.outcome, done.what) {
            (Outcome::Conflict, _) => &mut figures.conflicts,
            (Outcome::Unavailable, _) => &mut figures.unavailable,
            (Outcome::Stored { .. }, What::Enrol { .. }) => &mut figures.enrolled,
            (Outcome::Stored { .. }, What::Remove { .. }) => &mut figures.removed,
            (Outcome::Stored { .. }, What::Invite) => continue,
        };
        *count += 1;
        match (done.what, done.outcome) {
            (What::Enrol { token, key }, Outcome::Stored { revision }) => {
                if state.came.get(&key).is_none_or(|came| *came > revision) {
                    return Err(format!("the enrolment of {key} was acknowledged and is lost"));
                }
                if !state.used.values().any(|user| *user == key) {
                    return Err(format!("the token {token} has enrolled {key} and does not know it"));
                }
            }
            (What::Enrol { key, .. }, Outcome::Conflict) if state.ever.contains_key(&key) => {
                return Err(format!("the enrolment of {key} was refused and is stored"));
            }
            (What::Enrol { key, .. }, Outcome::Unavailable) if state.came.contains_key(&key) => {
                figures.late += 1
            }
            (What::Remove { key }, Outcome::Stored { revision }) => {
                let is_gone =
                    state.removed.contains(&key) && state.went.get(&key).is_none_or(|went| *went <= revision);
                if !is_gone {
                    return Err(format!("the removal of {key} was acknowledged and is lost"));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Checks that an operation that began after an answer also comes later in the store.
fn check_order(done: &[Done], state: &State) -> Result<(), String> {
    let mut answers: Vec<(Instant, i64)> = done
        .iter()
        .filter_map(|done| match done.outcome {
            Outcome::Stored { revision } => Some((done.answered, revision)),
            Outcome::Conflict | Outcome::Unavailable => None,
        })
        .collect();
    answers.sort();
    // The latest revision that anybody knew of.
    let mut latest = 0;
    answers.iter_mut().for_each(|(_, revision)| {
        latest = latest.max(*revision);
        *revision = latest;
    });
    let mut removals: HashMap<PublicKey, usize> = HashMap::new();
    for done in done.iter().filter(|done| done.outcome != Outcome::Conflict) {
        if let What::Remove { key } = done.what {
            *removals.entry(key).or_default() += 1;
        }
    }
    for done in done {
        let before = answers.partition_point(|(answered, _)| *answered < done.asked);
        let known = before.checked_sub(1).map_or(0, |last| answers[last].1);
        let took_place = match done.what {
            What::Enrol { key, .. } => state.came.get(&key).copied(),
            What::Invite | What::Remove { .. } => None,
        };
        if took_place.is_some_and(|revision| revision <= known) {
            return Err(format!(
                "an enrolment took place at {took_place:?}, and was asked for after {known}"
            ));
        }
        // The removal of a client that somebody else has already removed may be answered with an older revision.
        let is_done_before = matches!(done.what, What::Remove { key } if removals.get(&key) != Some(&1));
        if let Outcome::Stored { revision } = done.outcome
            && revision < known
            && !is_done_before
        {
            return Err(format!("an answer of revision {revision} was asked for after {known}"));
        }
    }
    Ok(())
}

/// Checks that every exit has the same rows as the store.
fn check_exits(run: &Run, state: &State) -> Result<(), String> {
    let rows: BTreeMap<RowId, RowChange> = state.rows.values().map(|row| (row.id(), row.clone())).collect();
    let fleet = run.fleet.read().unwrap();
    for exit in &fleet.exits {
        exit.seen(|seen| {
            let differs = rows.iter().find(|(id, row)| seen.rows.get(*id) != Some(row));
            let extra = seen.rows.iter().find(|(id, _)| !rows.contains_key(*id));
            match differs.or(extra) {
                Some((id, row)) => Err(format!("an exit has {:?} and not {row:?}", seen.rows.get(id))),
                None => Ok(()),
            }
        })?;
    }
    Ok(())
}

/// Checks that no exit admits a removed client later than two seconds after the answer. A fault extends this time.
fn check_removals(run: &Run, epochs: &[Epoch], figures: &mut Figures) -> Result<(), String> {
    let allowances = run.allowances.lock().unwrap();
    let fleet = run.fleet.read().unwrap();
    for (number, exit) in fleet.exits.iter().enumerate() {
        let gone = exit.seen(|seen| seen.gone.clone());
        for done in epochs.iter().flat_map(|epoch| &epoch.done) {
            let (What::Remove { key }, Outcome::Stored { .. }) = (done.what, done.outcome) else { continue };
            // An exit may never have learned of the client.
            let Some(&gone) = gone.get(&key) else { continue };
            let due = done.answered + REMOVED_WITHIN;
            let later = allowances.iter().filter(|allowance| {
                allowance.exit.is_none_or(|exit| exit == number)
                    && allowance.from < due
                    && done.answered < allowance.until
            });
            let due = later.map(|allowance| allowance.until.max(due)).max();
            let took = gone.saturating_duration_since(done.answered);
            if gone > due.unwrap_or(done.answered + REMOVED_WITHIN) {
                return Err(format!(
                    "exit {number} lets {key} in for {took:?} after the answer to its removal"
                ));
            }
            if due.is_none() && number != done.exit {
                figures.removals.push(took);
            }
        }
    }
    figures.removals.sort();
    Ok(())
}
