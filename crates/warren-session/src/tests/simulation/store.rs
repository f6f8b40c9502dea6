//! The store that keeps the exit's registry. It may answer late, refuse, lose requests that it has not acknowledged, and have other
//! writers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

use crate::PublicKey;
use crate::clients::{ClientRegistry, Invitation, RowChange, RowId};
use crate::exit::{StoreRefusal, StoreRequest, StoreRequestId};
use crate::invite::TokenDigest;

/// How fast the store answers, and whether it accepts requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mood {
    /// The store answers at once.
    Prompt,
    /// The store works only when a step says so.
    Slow,
    /// The store works only when a step says so, and refuses everything.
    Down,
}

/// An answer or a change from the store. They arrive in the order of the store's history.
#[derive(Clone, Debug)]
pub(super) enum News {
    Stored(StoreRequestId, Result<(), StoreRefusal>),
    Changed(Vec<RowChange>),
}

#[derive(Debug)]
pub(super) struct Store {
    pub(super) mood: Mood,
    /// Whether the store has other writers, and checks each request against their changes.
    pub(super) is_shared: bool,
    /// Whether the exit is linked to the store. The link to a shared store begins with a whole copy.
    pub(super) is_linked: bool,
    /// Whether the next request is refused.
    pub(super) refuses_next: bool,
    pub(super) registry: ClientRegistry,
    requests: VecDeque<(StoreRequest, usize)>,
    news: VecDeque<News>,
    /// Number of changes by other writers that the exit has received, and number of all such changes.
    heard: usize,
    made: usize,
    /// The number of the latest change of a row by another writer.
    changed_by_others: BTreeMap<RowId, usize>,
    /// Every key that has ever belonged to a client.
    ever: BTreeSet<PublicKey>,
    /// Every address that a client has ever had, with the client's name.
    leased: BTreeSet<(IpAddr, String)>,
    /// For each token, the key that its client was told is enrolled.
    acknowledged: BTreeMap<TokenDigest, PublicKey>,
}

impl Store {
    pub(super) fn new(registry: ClientRegistry, is_shared: bool) -> Self {
        let mut store = Self {
            mood: Mood::Prompt,
            is_shared,
            is_linked: true,
            refuses_next: false,
            registry,
            requests: VecDeque::new(),
            news: VecDeque::new(),
            heard: 0,
            made: 0,
            changed_by_others: BTreeMap::new(),
            ever: BTreeSet::new(),
            leased: BTreeSet::new(),
            acknowledged: BTreeMap::new(),
        };
        store.remember();
        store
    }

    fn remember(&mut self) {
        for client in self.registry.iter() {
            self.ever.insert(client.public_key);
            self.leased.extend(client.lease().addresses().map(|address| (address, client.name.clone())));
        }
    }

    /// Whether the client of this name has ever had the address. Only the store changes a client's name.
    pub(super) fn has_leased(&self, address: IpAddr, name: &str) -> bool {
        self.leased.contains(&(address, name.to_owned()))
    }

    /// Whether no request and no answer or change is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.requests.is_empty() && self.news.is_empty()
    }

    pub(super) fn ask(&mut self, request: StoreRequest) {
        self.requests.push_back((request, self.heard));
    }

    /// Carries out the oldest request. Returns it if it was written.
    pub(super) fn work(&mut self) -> Option<StoreRequest> {
        let (request, heard) = self.requests.pop_front()?;
        let refuses = std::mem::take(&mut self.refuses_next) || self.mood == Mood::Down || !self.is_linked;
        let outcome = if refuses { Err(StoreRefusal::Unavailable) } else { self.write(&request, heard) };
        self.news.push_back(News::Stored(request.id, outcome));
        outcome.is_ok().then_some(request)
    }

    fn write(&mut self, request: &StoreRequest, heard: usize) -> Result<(), StoreRefusal> {
        assert!(!request.changes.is_empty(), "a request for nothing");
        let ids: BTreeSet<_> = request.changes.iter().map(RowChange::id).collect();
        assert_eq!(ids.len(), request.changes.len(), "a row twice");
        let is_late = |id: &RowId| self.changed_by_others.get(id).is_some_and(|change| *change > heard);
        if self.is_shared && ids.iter().any(is_late) {
            return Err(StoreRefusal::Conflict);
        }
        let rows = self.registry.rows().chain(request.changes.iter().cloned());
        let written = ClientRegistry::from_rows(rows.collect::<Vec<_>>());
        let fits = |written: &ClientRegistry| {
            request.changes.iter().all(|change| written.row(change.id()) == *change)
                && self.registry.rows().all(|row| ids.contains(&row.id()) || written.row(row.id()) == row)
        };
        let written = match written {
            Ok(written) if fits(&written) => written,
            _ if self.is_shared => return Err(StoreRefusal::Conflict),
            written => panic!("contradicts what is stored: {request:?}, {written:?}"),
        };
        self.registry = written;
        self.remember();
        Ok(())
    }

    /// Another writer makes a change.
    pub(super) fn change_elsewhere<E>(&mut self, change: impl FnOnce(&mut ClientRegistry) -> Result<(), E>) {
        let Ok(((), before)) = self.registry.transact(change) else { return };
        let changes = self.registry.changes_since(&before);
        if changes.is_empty() {
            return;
        }
        self.made += 1;
        self.changed_by_others.extend(changes.iter().map(|change| (change.id(), self.made)));
        self.remember();
        // An exit that is not linked gets the change with the whole copy.
        if self.is_linked {
            self.news.push_back(News::Changed(changes));
        }
    }

    pub(super) fn hear(&mut self) -> Option<News> {
        let news = self.news.pop_front()?;
        self.heard += usize::from(matches!(news, News::Changed(_)));
        Some(news)
    }

    /// Cuts the link. The exit gets no answer to requests that are under way. These requests are lost, or written without an
    /// answer.
    pub(super) fn unlink(&mut self, loses: bool) -> Vec<StoreRequestId> {
        let unheard = self.news.iter().filter_map(|news| match news {
            News::Stored(id, _) => Some(*id),
            News::Changed(_) => None,
        });
        let unanswered = unheard.chain(self.requests.iter().map(|(request, _)| request.id)).collect();
        self.lose_exit(loses);
        self.news.clear();
        self.is_linked = false;
        unanswered
    }

    /// Links the exit, which gets a whole copy.
    pub(super) fn link(&mut self) -> Vec<RowChange> {
        self.is_linked = true;
        self.heard = self.made;
        self.registry.rows().collect()
    }

    /// Starts an exit with the content of the store.
    pub(super) fn restart(&mut self, registry: ClientRegistry) {
        self.news.clear();
        self.heard = self.made;
        self.registry = registry;
    }

    /// Records that the exit is gone. Its unanswered requests are lost, or written without an answer.
    pub(super) fn lose_exit(&mut self, loses: bool) {
        while let Some((request, heard)) = self.requests.pop_front() {
            if !loses && self.mood != Mood::Down {
                let _ = self.write(&request, heard);
            }
        }
    }

    /// Whether the row may be different at the exit, because a change has not reached the exit or the store yet.
    pub(super) fn is_unheard(&self, id: RowId) -> bool {
        let asked = self.requests.iter().flat_map(|(request, _)| &request.changes);
        asked
            .chain(self.news.iter().flat_map(|news| match news {
                News::Changed(changes) => changes.as_slice(),
                News::Stored(..) => &[],
            }))
            .any(|change| change.id() == id)
            || self.news.iter().any(|news| matches!(news, News::Stored(..)))
    }

    /// Records that a client was told that a token has enrolled it.
    pub(super) fn acknowledge(&mut self, token: TokenDigest, key: PublicKey) {
        assert!(self.ever.contains(&key), "acknowledged, and not stored");
        let first = *self.acknowledged.entry(token).or_insert(key);
        // If the client has got another key since it enrolled, the invitation names the new key.
        let is_used_by = |invitation: &Invitation| invitation.used_by == Some(key);
        let RowChange::Invitation { invitation, .. } = self.registry.row(RowId::Invitation(token)) else {
            unreachable!()
        };
        assert!(first == key || invitation.is_some_and(|used| is_used_by(&used)), "a token of two keys");
    }
}
