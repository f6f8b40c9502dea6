//! The rules that must hold in a fleet, whatever happens.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use warren_session::PublicKey;
use warren_session::clients::{Client, RowChange, RowId};
use warren_session::invite::TokenDigest;

use super::site::Site;
use super::store::MapStore;
use crate::keys::{Key, Keys, SessionRecord};
use crate::link::{Pair, rows_of};

/// An exit that has reached the store for this long has no session of a client whose removal was acknowledged longer ago, and no
/// two such exits have sessions older than this with the same address.
const BOUND: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(super) struct Checks {
    /// The key that each token has enrolled, as its client was told.
    told: BTreeMap<TokenDigest, PublicKey>,
    /// The keys of clients that were told that they are enrolled.
    enrolled: BTreeSet<PublicKey>,
    /// Open invitations, with their names.
    invited: BTreeMap<TokenDigest, String>,
    /// How often each name was given to another client or invitation.
    replaced: BTreeMap<String, u32>,
    /// Keys and tokens whose removal somebody has asked for.
    removing: BTreeSet<PublicKey>,
    withdrawing: BTreeSet<TokenDigest>,
    /// When each removal was acknowledged.
    removed: BTreeMap<PublicKey, Instant>,
    withdrawn: BTreeSet<TokenDigest>,
    /// Names that a recovery said it could not put back.
    left_out: BTreeSet<String>,
    /// The revision up to which the store's events were seen, and the store's state at that revision.
    seen: i64,
    addresses: BTreeMap<IpAddr, PublicKey>,
    leases: BTreeMap<PublicKey, Vec<IpAddr>>,
    used_by: BTreeMap<TokenDigest, PublicKey>,
    names: BTreeMap<PublicKey, String>,
}

impl Checks {
    /// Records that a client was told that it is enrolled.
    pub(super) fn acknowledged(&mut self, key: PublicKey, token: Option<TokenDigest>) {
        if let Some(token) = token {
            assert_eq!(*self.told.entry(token).or_insert(key), key, "one token, two keys");
        }
        self.enrolled.insert(key);
    }

    /// Records that an invitation is stored. `number`: see [`Self::replaces_invitations`].
    pub(super) fn invited(&mut self, token: TokenDigest, name: &str, number: u32) {
        // Two exits may have invited or enrolled a client of this name at the same time, and one of them has replaced the other's
        // client or invitation.
        let is_alone = self.replaced.get(name) == Some(&number);
        if !is_alone || self.invited.values().any(|other| other == name) {
            self.withdrawing.insert(token);
            self.replaces_invitations(name);
        }
        self.invited.insert(token, name.to_owned());
    }

    /// Records that somebody invites or enrols another client of this name, which may withdraw earlier invitations. Returns how
    /// often this has happened.
    pub(super) fn replaces_invitations(&mut self, name: &str) -> u32 {
        let of_name = self.invited.iter().filter(|(_, other)| *other == name).map(|(token, _)| *token);
        self.withdrawing.extend(of_name);
        let number = self.replaced.entry(name.to_owned()).or_default();
        *number += 1;
        *number
    }

    pub(super) fn removal_began(&mut self, name: &str, key: Option<PublicKey>, withdrawn: &[TokenDigest]) {
        self.removing.extend(key);
        self.withdrawing.extend(withdrawn);
        // A client that enrols itself at this moment may be removed with its invitation.
        let of_name = self.invited.iter().filter(|(_, other)| *other == name).map(|(token, _)| *token);
        let tokens: Vec<_> = of_name.collect();
        self.removing.extend(tokens.iter().filter_map(|token| self.used_by.get(token)));
        self.withdrawing.extend(tokens);
    }

    pub(super) fn removed(&mut self, key: Option<PublicKey>, withdrawn: &[TokenDigest], now: Instant) {
        self.removed.extend(key.map(|key| (key, now)));
        self.withdrawn.extend(withdrawn);
    }

    pub(super) fn left_out(&mut self, names: Vec<String>) {
        self.left_out.extend(names);
    }

    /// Records that open invitations may be lost. The operator is told to make them again.
    pub(super) fn invitations_are_lost(&mut self) {
        self.withdrawing.extend(self.invited.keys());
    }

    /// Records that the store has another history from here on.
    pub(super) fn restored(&mut self) {
        (self.seen, self.addresses, self.leases) = (0, BTreeMap::new(), BTreeMap::new());
        // The store may have lost an enrolment before anybody heard of it.
        self.used_by.retain(|token, key| self.told.get(token) == Some(key));
    }

    /// Checks each change of the store.
    pub(super) fn follow_store(&mut self, store: &MapStore, keys: &Keys) {
        if self.seen < store.compacted {
            (self.addresses, self.leases) = (BTreeMap::new(), BTreeMap::new());
            self.follow(&store.all_pairs(), keys);
        } else {
            for (_, pairs) in store.events_after(self.seen) {
                self.follow(pairs, keys);
            }
        }
        self.seen = store.revision;
    }

    fn follow(&mut self, pairs: &[Pair], keys: &Keys) {
        let rows: Vec<_> = pairs
            .iter()
            .filter_map(|pair| match keys.parse(&pair.key)? {
                Key::Row(id) if pair.value.is_none() => Some(id.deletion()),
                Key::Row(_) => pair.parse::<RowChange>("row"),
                _ => None,
            })
            .collect();
        for row in &rows {
            if let RowChange::Client { key, .. } = row {
                for address in self.leases.remove(key).unwrap_or_default() {
                    self.addresses.remove(&address);
                }
            }
        }
        for row in rows {
            match row {
                RowChange::Client { key, client: Some(client) } => {
                    self.names.insert(key, client.name.clone());
                    let addresses: Vec<_> = client.lease().addresses().collect();
                    for address in &addresses {
                        let other = self.addresses.insert(*address, key);
                        assert_eq!(other, None, "{address} belongs to two keys");
                    }
                    self.leases.insert(key, addresses);
                }
                RowChange::Invitation { token, invitation: Some(invitation) } => {
                    if let Some(key) = invitation.used_by {
                        assert_eq!(*self.used_by.entry(token).or_insert(key), key, "a token was used twice");
                        if self.withdrawing.contains(&token) {
                            self.removing.insert(key);
                        }
                    }
                }
                RowChange::Client { .. } | RowChange::Invitation { .. } | RowChange::Removed { .. } => {}
            }
        }
    }

    /// Checks the sessions of exits that reach the store.
    pub(super) fn look_at_sessions(&self, sites: &[Site], now: Instant) {
        let is_old = |since: Instant| now.duration_since(since) > BOUND;
        let mut holders: BTreeMap<IpAddr, PublicKey> = BTreeMap::new();
        for site in sites.iter().filter(|site| site.is_healthy_for(BOUND, now)) {
            for open in site.exit.open.values() {
                let removed = self.removed.get(&open.key);
                assert!(!removed.is_some_and(|at| is_old(*at)), "{} has a removed client", site.me);
                for address in open.lease.addresses().filter(|_| is_old(open.since)) {
                    let holder = *holders.entry(address).or_insert(open.key);
                    assert_eq!(holder, open.key, "two clients have sessions with {address}");
                }
            }
        }
    }

    /// Checks the rules that must hold when nothing has gone wrong for a while.
    pub(super) fn look_at_the_end(&self, store: &MapStore, keys: &Keys, sites: &[Site]) {
        let rows = rows_of(keys, &store.all_pairs());
        let contents: BTreeMap<RowId, RowChange> =
            rows.iter().map(|(id, row)| (id, as_written(&row.content))).collect();
        for site in sites {
            let registry = site.exit.sessions.registry();
            let own: BTreeMap<_, _> = registry.rows().map(|row| (row.id(), as_written(&row))).collect();
            let differs = |id: &&RowId| own.get(*id) != contents.get(*id);
            let differing = own.keys().chain(contents.keys()).find(differs);
            let rows = differing.map(|id| (own.get(id), contents.get(id)));
            assert_eq!(rows, None, "{} differs from the store", site.me);
            assert!(!site.exit.sessions.owes(), "{} has something that the store lacks", site.me);
        }
        for key in self.enrolled.difference(&self.removing) {
            let is_reported = self.names.get(key).is_some_and(|name| self.left_out.contains(name));
            assert!(rows.client(*key).is_some() || is_reported, "an enrolment is lost: {key}");
        }
        for key in self.removed.keys() {
            assert!(rows.client(*key).is_none() && rows.has(RowId::Removed(*key)), "{key} is back");
        }
        for token in &self.withdrawn {
            // Another exit may have redeemed the token before it heard of the withdrawal.
            let client = self.used_by.get(token).and_then(|key| rows.client(*key));
            assert!(client.is_none(), "a withdrawn invitation has enrolled {client:?}");
        }
        for (token, name) in &self.invited {
            let is_there = rows.has(RowId::Invitation(*token));
            let is_used = self.used_by.contains_key(token);
            let is_open = is_there && !is_used;
            assert!(!self.withdrawn.contains(token) || !is_open, "a withdrawn invitation is open: {name}");
            let may_be_gone = is_used || self.withdrawing.contains(token) || self.left_out.contains(name);
            assert!(is_there || may_be_gone, "an invitation is lost: {name}");
        }
        check_records(store, keys, sites);
    }

    /// Checks that every client that should be served is served.
    pub(super) fn everybody_is_online(&self, online: &BTreeSet<PublicKey>) {
        for key in self.enrolled.difference(&self.removing) {
            let is_reported = self.names.get(key).is_some_and(|name| self.left_out.contains(name));
            assert!(online.contains(key) || is_reported, "{key} has no session");
        }
    }
}

/// A row as it is written, with dates in seconds, and without the date that an exit writes later.
fn as_written(row: &RowChange) -> RowChange {
    match serde_json::from_slice(&serde_json::to_vec(row).unwrap()).unwrap() {
        RowChange::Client { key, client: Some(client) } => {
            RowChange::Client { key, client: Some(Client { last_seen: None, ..client }) }
        }
        row => row,
    }
}

/// Checks that the store has a record of each open session, and no other records.
fn check_records(store: &MapStore, keys: &Keys, sites: &[Site]) {
    let open: BTreeMap<PublicKey, Vec<String>> = sites.iter().fold(BTreeMap::new(), |mut open, site| {
        for session in site.exit.open.values() {
            open.entry(session.key).or_insert_with(Vec::new).push(site.me.to_string());
        }
        open
    });
    let mut recorded = BTreeSet::new();
    for pair in store.all_pairs() {
        let Some(Key::Session(key)) = keys.parse(&pair.key) else { continue };
        let record = pair.parse::<SessionRecord>("session").unwrap();
        let exits = open.get(&key).cloned().unwrap_or_default();
        assert!(
            exits.contains(&record.exit.to_string()),
            "{key} is recorded at {} and is at {exits:?}",
            record.exit
        );
        recorded.insert(key);
    }
    assert_eq!(recorded, open.keys().copied().collect(), "a session is not recorded");
}
