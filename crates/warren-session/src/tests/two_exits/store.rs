//! The client's record in the fleet's store, and the two exits' links to it. The rules are those of `warren-fleet/src/sessions.rs`.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Only a session younger than this may take the client's record from another exit.
const FRESH: Duration = Duration::from_secs(2);

/// Which exit has the client's session.
#[derive(Clone, Debug, PartialEq)]
struct Record {
    exit: usize,
    nonce: Vec<u8>,
    claim: u64,
    revision: u64,
}

/// A link's message to its exit that the client is at another exit, with the nonce and the number of the session there.
pub(super) type Elsewhere = (Vec<u8>, u64);

#[derive(Debug, Default)]
pub(super) struct Store {
    record: Option<Record>,
    revision: u64,
    links: [Link; 2],
    /// Whether the store cannot be reached.
    pub(super) is_away: bool,
}

#[derive(Debug, Default)]
struct Link {
    own: Option<Own>,
    closed: Option<Vec<u8>>,
    is_unsent: bool,
    known: Option<Record>,
    events: VecDeque<Option<Record>>,
}

#[derive(Debug)]
struct Own {
    nonce: Vec<u8>,
    claim: u64,
    opened: Instant,
    basis: u64,
}

impl Own {
    fn by_claim(&self, record: &Record) -> Ordering {
        if record.nonce == self.nonce { self.claim.cmp(&record.claim) } else { Ordering::Equal }
    }
}

impl Store {
    /// The exit that has the client according to the store.
    pub(super) fn holder(&self) -> Option<usize> {
        self.record.as_ref().map(|record| record.exit)
    }

    pub(super) fn opened(&mut self, now: Instant, exit: usize, (nonce, claim): (Vec<u8>, u64)) {
        let link = &mut self.links[exit];
        let basis = link.known.as_ref().map_or(0, |record| record.revision);
        link.own = Some(Own { nonce, claim, opened: now, basis });
        (link.closed, link.is_unsent) = (None, true);
    }

    pub(super) fn closed(&mut self, exit: usize, nonce: Vec<u8>) {
        let link = &mut self.links[exit];
        if link.own.as_ref().is_some_and(|own| own.nonce == nonce) {
            link.own = None;
            (link.closed, link.is_unsent) = (Some(nonce), true);
        }
    }

    /// Deletes the record of a crashed exit, as the end of the exit's lease does.
    pub(super) fn crashed(&mut self, exit: usize) {
        let link = &mut self.links[exit];
        (link.own, link.closed, link.is_unsent) = (None, None, false);
        if self.holder() == Some(exit) {
            self.set(None);
        }
    }

    /// Lets an exit's link take the store's next event, or write a row that waits.
    pub(super) fn work(&mut self, now: Instant, exit: usize) -> Option<Elsewhere> {
        if self.is_away {
            return None;
        }
        match self.links[exit].events.pop_front() {
            Some(record) => self.hear(exit, record),
            None => self.write(now, exit),
        }
    }

    /// Number of events and rows that are under way.
    pub(super) fn size(&self) -> usize {
        self.links.iter().map(|link| link.events.len() + usize::from(link.is_unsent)).sum()
    }

    fn hear(&mut self, exit: usize, record: Option<Record>) -> Option<Elsewhere> {
        let link = &mut self.links[exit];
        link.known.clone_from(&record);
        let Some(record) = record else {
            link.is_unsent |= link.own.is_some();
            return None;
        };
        if record.exit == exit {
            if link.own.is_none() {
                (link.closed, link.is_unsent) = (Some(record.nonce), true);
            }
            return None;
        }
        if link.is_unsent {
            return None;
        }
        if link.own.as_ref()?.by_claim(&record) == Ordering::Greater {
            link.is_unsent = true;
            return None;
        }
        link.own = None;
        Some((record.nonce, record.claim))
    }

    fn write(&mut self, now: Instant, exit: usize) -> Option<Elsewhere> {
        let link = &mut self.links[exit];
        if !std::mem::take(&mut link.is_unsent) {
            return None;
        }
        let others = link.known.as_ref().filter(|record| record.exit != exit);
        let value = match (&link.own, others) {
            (Some(own), Some(record)) if yields(own, record, now) => {
                let elsewhere = (record.nonce.clone(), record.claim);
                link.own = None;
                return Some(elsewhere);
            }
            (Some(own), _) => {
                Some(Record { exit, nonce: own.nonce.clone(), claim: own.claim, revision: self.revision + 1 })
            }
            (None, _) => {
                let closed = link.closed.clone();
                let is_there =
                    |record: &Record| record.exit == exit && Some(&record.nonce) == closed.as_ref();
                if !link.known.as_ref().is_some_and(is_there) {
                    return None;
                }
                None
            }
        };
        // A transaction succeeds only if the record is as the link knows it. Otherwise the link first gets the event that it lacks,
        // and then tries again.
        if self.links[exit].known == self.record {
            self.links[exit].closed = None;
            self.set(value);
        } else {
            self.links[exit].is_unsent = true;
        }
        None
    }

    fn set(&mut self, record: Option<Record>) {
        self.revision += 1;
        self.record.clone_from(&record);
        self.links.iter_mut().for_each(|link| link.events.push_back(record.clone()));
    }
}

fn yields(own: &Own, record: &Record, now: Instant) -> bool {
    match own.by_claim(record) {
        Ordering::Less => true,
        Ordering::Greater => false,
        Ordering::Equal => record.revision > own.basis && now.duration_since(own.opened) > FRESH,
    }
}
