//! Requests to the store that are unanswered, and requests whose outcome a caller waits for.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use warren_fleet_link::Outcome;
use warren_session::clients::RowChange;
use warren_session::exit::StoreRequestId;

/// How long the exit waits for the answer to a request. `warren-fleet` answers within 2.5 s.
const PATIENCE: Duration = Duration::from_secs(3);

/// Maximum number of unanswered requests. `warren-fleet` answers each request in time, so more unanswered requests mean that
/// `warren-fleet` is broken.
pub(super) const MOST_OPEN: usize = 4_096;

/// A request without an answer.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) rows: Vec<RowChange>,
    since: Instant,
    /// When the exit gives the request up.
    until: Instant,
    /// Whether the exit has given the request up. If the store makes the change after all, its rows arrive as a change.
    pub(super) is_late: bool,
}

/// The state of a request that a caller waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The store has not answered yet.
    Open,
    /// The store was not asked, because it cannot be reached.
    NotAsked,
    /// The store's answer.
    Given(Outcome),
}

/// How many requests had each outcome since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(super) stored: u64,
    pub(super) conflicts: u64,
    pub(super) unavailable: u64,
}

#[derive(Debug, Default)]
pub(super) struct Requests {
    asked: BTreeMap<StoreRequestId, Asked>,
    watched: BTreeMap<StoreRequestId, Verdict>,
    took: BTreeMap<Operation, Took>,
    /// Whether a request has failed because the store did not answer in time.
    has_failed: bool,
}

/// The purpose of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Operation {
    /// A client redeems an invitation.
    Enrol,
    Invite,
    /// Any other change of clients, such as a rate limit or an address.
    Change,
    Remove,
}

impl Operation {
    fn of(rows: &[RowChange]) -> Self {
        let has = |is: fn(&RowChange) -> bool| rows.iter().any(is);
        let (client, invitation) = (
            has(|row| matches!(row, RowChange::Client { .. })),
            has(|row| matches!(row, RowChange::Invitation { .. })),
        );
        match (has(|row| matches!(row, RowChange::Removed { .. })), client, invitation) {
            (true, ..) => Self::Remove,
            // An enrolment changes both rows: it adds the client, and marks the invitation as used.
            (false, true, true) => Self::Enrol,
            (false, false, true) => Self::Invite,
            (false, _, false) => Self::Change,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Enrol => "enrol",
            Self::Invite => "invite",
            Self::Change => "change",
            Self::Remove => "remove",
        }
    }
}

/// How many requests of one kind were answered, and how long they took in total.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Took {
    pub(super) time: Duration,
    pub(super) count: u64,
}

impl Requests {
    /// Records that a request cannot reach the store.
    pub(super) fn not_asked(&mut self, id: StoreRequestId) {
        if let Some(verdict @ Verdict::Open) = self.watched.get_mut(&id) {
            *verdict = Verdict::NotAsked;
        }
    }

    pub(super) fn asked(&mut self, id: StoreRequestId, rows: Vec<RowChange>, now: Instant) {
        self.asked.insert(id, Asked { rows, since: now, until: now + PATIENCE, is_late: false });
    }

    /// Whether so many requests are unanswered that `warren-fleet` must be broken.
    pub(super) fn are_too_many(&self) -> bool {
        self.asked.len() > MOST_OPEN
    }

    /// Whether a request of this number is open.
    pub(super) fn is_asked(&self, id: u64) -> bool {
        self.asked.contains_key(&StoreRequestId(id))
    }

    /// Removes an answered request.
    pub(super) fn answered(
        &mut self,
        id: u64,
        outcome: Outcome,
        now: Instant,
    ) -> (StoreRequestId, Option<Asked>) {
        let id = StoreRequestId(id);
        self.tell(id, outcome);
        self.has_failed |= outcome == Outcome::Unavailable;
        let asked = self.asked.remove(&id);
        if let Some(asked) = &asked {
            let took = self.took.entry(Operation::of(&asked.rows)).or_default();
            took.time += now.saturating_duration_since(asked.since);
            took.count += 1;
        }
        (id, asked)
    }

    /// How long answers took since the start.
    pub(super) fn took(&self) -> impl Iterator<Item = (Operation, Took)> {
        let of = |operation| (operation, self.took.get(&operation).copied().unwrap_or_default());
        [Operation::Enrol, Operation::Invite, Operation::Change, Operation::Remove].into_iter().map(of)
    }

    /// Gives up the requests whose time is over. Returns each of them only once.
    pub(super) fn give_up(&mut self, now: Instant) -> Vec<StoreRequestId> {
        let mut given_up = Vec::new();
        for (id, asked) in &mut self.asked {
            if !asked.is_late && asked.until <= now {
                asked.is_late = true;
                given_up.push(*id);
            }
        }
        given_up.iter().for_each(|id| self.tell(*id, Outcome::Unavailable));
        self.has_failed |= !given_up.is_empty();
        given_up
    }

    /// Whether a request has failed since the last call because the store did not answer in time.
    pub(super) fn take_failed(&mut self) -> bool {
        std::mem::take(&mut self.has_failed)
    }

    /// Forgets all requests, because the link is lost. Returns those that were not given up before.
    pub(super) fn lose_all(&mut self) -> Vec<StoreRequestId> {
        let lost: Vec<_> = self.asked.iter().filter(|(_, asked)| !asked.is_late).map(|(id, _)| *id).collect();
        self.asked.clear();
        lost.iter().for_each(|id| self.tell(*id, Outcome::Unavailable));
        lost
    }

    pub(super) fn due(&self) -> Option<Instant> {
        // A late request only waits for its answer, so it needs no timer.
        self.asked.values().filter(|asked| !asked.is_late).map(|asked| asked.until).min()
    }

    /// Requests that have no answer yet and were not given up.
    pub(super) fn open(&self) -> usize {
        self.asked.values().filter(|asked| !asked.is_late).count()
    }

    pub(super) fn watch(&mut self, id: StoreRequestId) {
        self.watched.insert(id, Verdict::Open);
    }

    pub(super) fn forget(&mut self, id: StoreRequestId) {
        self.watched.remove(&id);
    }

    pub(super) fn verdict(&self, id: StoreRequestId) -> Verdict {
        self.watched.get(&id).copied().unwrap_or(Verdict::Open)
    }

    // Only the first outcome counts. A late answer must not contradict what an operator may have been told.
    fn tell(&mut self, id: StoreRequestId, outcome: Outcome) {
        if let Some(verdict @ Verdict::Open) = self.watched.get_mut(&id) {
            *verdict = Verdict::Given(outcome);
        }
    }
}
