//! The exit's requests on their way to the store.
//!
//! Only one transaction is under way at a time, with as many independent requests as fit. Each transaction writes the link's own
//! key `wr/EXIT`, whether it succeeds or not, and requires that this key has not changed. So the watch reports the result of each
//! transaction in the order of revisions, even after a lost answer. Once the result of a later transaction is known, an earlier
//! one that was given up can no longer succeed.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use warren_fleet_link::{FleetMessage, Outcome};
use warren_session::clients::RowChange;

use crate::planted::{Bug, is_planted};
use crate::transaction::{Conflict, Draft, Known, draft};

/// How long a request may wait. The link must answer before the exit gives up, which happens after three seconds
/// (`STORE_TIMEOUT`).
const PATIENCE: Duration = Duration::from_millis(2300);

/// How often a request is tried. A try fails only if somebody else has changed something in the meantime.
const TRIES: u32 = 12;

/// Maximum number of waiting requests. An exit has far fewer under way.
const MAX_WAITING: usize = 4096;

/// Maximum number of waiting rows, in all requests together: half of the largest registry.
const MAX_WAITING_ROWS: usize = 65_536;

/// The value of `wr/EXIT`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Written {
    /// The name of the process that has written the value.
    pub(crate) link: String,
    /// The number of the transaction, counted by that process.
    pub(crate) number: u64,
    /// Whether the transaction has succeeded.
    pub(crate) held: bool,
}

/// All requests without an answer.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    last: u64,
    waiting: VecDeque<Waiting>,
    /// Transactions whose result is not known.
    sent: BTreeMap<u64, Vec<Part>>,
    /// The transaction that the next one waits for.
    under_way: Option<u64>,
    /// Whether the next transaction contains only one request, because a transaction with several requests has failed.
    is_alone: bool,
}

#[derive(Debug)]
struct Waiting {
    id: u64,
    /// The rows, deletions first. A request in several transactions thus gives names up before it claims them.
    rows: Vec<RowChange>,
    basis: i64,
    until: Instant,
    /// How many of the rows are stored.
    stored: usize,
    /// Rows that are stored differently from what the exit wanted.
    corrected: Vec<RowChange>,
    tries: u32,
}

/// The part of a request that a transaction contains.
#[derive(Debug)]
struct Part {
    /// `None` if the exit that has made the request is gone. The next exit numbers its requests from the beginning.
    id: Option<u64>,
    count: usize,
    rows: Vec<RowChange>,
    corrected: Vec<RowChange>,
}

/// The watch's report about a transaction that has succeeded.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Held {
    /// Rows of requests that were given up. The exit must be told of them.
    pub(crate) unexpected: Vec<RowChange>,
    pub(crate) messages: Vec<FleetMessage>,
}

impl Requests {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Queues a request. `basis` is the revision up to which the exit had seen the rows.
    ///
    /// # Errors
    /// If too many requests wait.
    pub(crate) fn take(
        &mut self,
        id: u64,
        mut rows: Vec<RowChange>,
        basis: i64,
        now: Instant,
    ) -> Result<(), Outcome> {
        let waiting_rows: usize = self.waiting.iter().map(|request| request.rows.len()).sum();
        if self.waiting.len() >= MAX_WAITING || waiting_rows + rows.len() > MAX_WAITING_ROWS {
            return Err(Outcome::Unavailable);
        }
        rows.sort_by_key(RowChange::is_set);
        let until = now + PATIENCE;
        self.waiting.push_back(Waiting {
            id,
            rows,
            basis,
            until,
            stored: 0,
            corrected: Vec::new(),
            tries: 0,
        });
        Ok(())
    }

    /// The oldest basis of all waiting requests.
    pub(crate) fn oldest_basis(&self) -> Option<i64> {
        self.waiting.iter().map(|request| request.basis).min()
    }

    /// Forgets all requests, because their exit has gone. Transactions under way may still succeed.
    pub(crate) fn abandon(&mut self) {
        self.waiting.clear();
        if !is_planted(Bug::NumbersConfused) {
            self.sent.values_mut().flatten().for_each(|part| part.id = None);
        }
    }

    /// Answers the requests that have waited too long, or all requests if `now` is `None`.
    pub(crate) fn expire(&mut self, now: Option<Instant>) -> Vec<FleetMessage> {
        let mut answers = Vec::new();
        // All requests have the same patience, so the first one expires first.
        while self.waiting.front().is_some_and(|request| now.is_none_or(|now| now >= request.until)) {
            let expired = self.waiting.pop_front();
            answers.extend(
                expired.map(|request| FleetMessage::Answer { id: request.id, outcome: Outcome::Unavailable }),
            );
        }
        answers
    }

    /// Records that the connection to the store is lost. Transactions that were sent may or may not succeed.
    pub(crate) fn lose(&mut self) {
        self.under_way = None;
    }

    /// Makes the next transaction from the oldest requests, unless one is under way. Answers requests that need no transaction.
    pub(crate) fn next(
        &mut self,
        known: Known<'_>,
        revision: i64,
    ) -> (Vec<FleetMessage>, Option<(u64, Draft)>) {
        let mut messages = Vec::new();
        if self.under_way.is_some() {
            return (messages, None);
        }
        let mut joined = Draft::default();
        let mut parts: Vec<Part> = Vec::new();
        while let Some(request) = self.waiting.get(parts.len()) {
            match request.part(known) {
                Err(Conflict) if parts.is_empty() => messages.extend(self.refuse(revision)),
                Ok((_, part)) if parts.is_empty() && part.is_whole_without_writing(request) => {
                    messages.extend(self.finish_first(revision));
                }
                // Answers come in the order of requests, so the remaining requests wait for the earlier ones.
                Err(Conflict) => break,
                Ok((draft, part)) => {
                    if !draft.is_apart_from(&joined) || !joined.has_room_for(&draft) {
                        break;
                    }
                    let has_more = request.stored + part.count < request.rows.len();
                    joined.join(draft);
                    parts.push(part);
                    if has_more || self.is_alone {
                        break;
                    }
                }
            }
        }
        if parts.is_empty() {
            return (messages, None);
        }
        self.last += 1;
        self.sent.insert(self.last, parts);
        self.under_way = Some(self.last);
        (messages, Some((self.last, joined)))
    }

    fn refuse(&mut self, revision: i64) -> Vec<FleetMessage> {
        let Some(request) = self.waiting.pop_front() else { return Vec::new() };
        // Rows of earlier transactions of this request are in the store and stay there.
        let stored: Vec<_> = request.rows.into_iter().take(request.stored).collect();
        let told = (!stored.is_empty()).then_some(FleetMessage::Changes { revision, rows: stored });
        let answer = FleetMessage::Answer { id: request.id, outcome: Outcome::Conflict };
        told.into_iter().chain([answer]).collect()
    }

    fn finish_first(&mut self, revision: i64) -> Vec<FleetMessage> {
        let Some(request) = self.waiting.pop_front() else { return Vec::new() };
        let answer = FleetMessage::Answer { id: request.id, outcome: Outcome::Stored { revision } };
        let corrected = request.corrected;
        let told = (!corrected.is_empty()).then_some(FleetMessage::Changes { revision, rows: corrected });
        // When the exit gets the answer, it applies the rows as it requested them. So the corrections must follow the answer.
        [answer].into_iter().chain(told).collect()
    }

    /// Handles a transaction that has succeeded.
    pub(crate) fn held(&mut self, number: u64, revision: i64) -> Held {
        let mut held = Held::default();
        self.is_alone = false;
        for part in self.settle(number) {
            let Some(request) = self.waiting.front_mut().filter(|request| Some(request.id) == part.id) else {
                if !is_planted(Bug::LateTransactionMissed) {
                    held.unexpected.extend(part.rows);
                }
                continue;
            };
            request.stored += part.count;
            request.corrected.extend(part.corrected);
            request.tries = 0;
            if request.stored >= request.rows.len() {
                held.messages.extend(self.finish_first(revision));
            }
        }
        held
    }

    /// Handles a transaction that has failed. Its requests are tried again.
    pub(crate) fn failed(&mut self, number: u64, revision: i64) -> Vec<FleetMessage> {
        let parts = self.settle(number);
        self.is_alone = parts.len() > 1;
        for request in
            self.waiting.iter_mut().filter(|request| parts.iter().any(|part| part.id == Some(request.id)))
        {
            request.tries += 1;
        }
        let is_hopeless = self.waiting.front().is_some_and(|request| request.tries >= TRIES);
        if is_hopeless { self.refuse(revision) } else { Vec::new() }
    }

    /// Records that the result of a transaction is known, so that earlier ones can no longer succeed.
    fn settle(&mut self, number: u64) -> Vec<Part> {
        self.under_way = self.under_way.filter(|under_way| *under_way > number);
        let parts = self.sent.remove(&number).unwrap_or_default();
        self.sent.retain(|sent, _| *sent > number);
        parts
    }
}

impl Waiting {
    /// Returns the next rows that fit into one transaction. As a rule, these are all rows of the request.
    fn part(&self, known: Known<'_>) -> Result<(Draft, Part), Conflict> {
        let known = Known { basis: self.basis, ..known };
        let rest = self.rows.get(self.stored..).unwrap_or_default();
        let mut count = rest.len();
        loop {
            let rows = rest.get(..count).unwrap_or_default();
            let draft = draft(known, rows, &self.rows)?;
            // One row always fits, because a client claims at most a name, four addresses and a next key.
            if draft.fits() || count <= 1 {
                let part = Part {
                    id: Some(self.id),
                    count,
                    rows: draft.rows.clone(),
                    corrected: draft.corrected.clone(),
                };
                return Ok((draft, part));
            }
            count /= 2;
        }
    }
}

impl Part {
    /// Whether the store already has all remaining rows of a request.
    fn is_whole_without_writing(&self, request: &Waiting) -> bool {
        self.rows.is_empty() && self.corrected.is_empty() && request.stored + self.count >= request.rows.len()
    }
}
