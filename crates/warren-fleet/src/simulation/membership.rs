//! Operators remove exits, and exits join again. Also the rules for that.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use warren_fleet_link::ExitId;
use warren_simulation::Random;

use super::site::Site;
use super::store::{MapStore, at_once};
use super::world::{EXITS, World};
use crate::exits::{Member, Removed};
use crate::keys::{Key, Keys};
use crate::link::{Transaction, read};
use crate::membership::take_out;
use crate::snapshot::Snapshot;
use crate::transaction::Expected;

/// An exit that has confirmed its removal has no session after this time.
const LEFT: Duration = Duration::from_millis(2_500);

/// An exit that hears of its removal confirms it within this time.
const CONFIRMS: Duration = Duration::from_secs(8);

/// Which exits belong to the fleet, as operators know it.
#[derive(Debug, Default)]
pub(super) struct Memberships {
    /// The number of each exit's latest membership.
    latest: BTreeMap<ExitId, u64>,
    /// The memberships that an operator has ended.
    ended: BTreeSet<u64>,
    /// When exits have confirmed their removal.
    confirmed: BTreeMap<ExitId, Instant>,
}

impl Memberships {
    /// Returns the first value of an exit that joins.
    pub(super) fn join(&mut self, exit: &ExitId) -> Vec<u8> {
        let number = u64::try_from(self.ended.len() + self.latest.len()).unwrap() + 1_000;
        self.latest.insert(exit.clone(), number);
        self.confirmed.remove(exit);
        serde_json::to_vec(&Member { membership: Some(number), ..Member::default() }).unwrap()
    }

    /// Whether an operator has removed the exit.
    pub(super) fn is_removed(&self, exit: &ExitId) -> bool {
        self.ended.contains(&self.latest[exit])
    }

    /// Forgets removals that nobody knows any more, because the store was restored before another exit heard of them.
    fn restored(&mut self, disks: &[&Snapshot], keys: &Keys) {
        let known: BTreeSet<u64> = disks
            .iter()
            .flat_map(|disk| read(keys, None, &disk.pairs).removed.into_values())
            .filter_map(|removed| removed.membership)
            .collect();
        let latest: BTreeSet<u64> = self.latest.values().copied().collect();
        self.ended.retain(|number| known.contains(number) || !latest.contains(number));
    }

    /// Checks the rules for removed exits.
    pub(super) fn look(&mut self, store: &MapStore, keys: &Keys, sites: &[Site], now: Instant) {
        for site in sites {
            let is_removed = self.is_removed(&site.me);
            // An exit that has never read the store does not know its own membership yet, and serves nobody.
            let is_stopped = site.exit.is_removed && site.disk.is_some();
            assert!(is_removed || !is_stopped, "{} is not removed, and has stopped", site.me);
            let key = keys.name(&Key::RemovedExit(site.me.clone()));
            let removed = store.pairs.get(&key).map(|(value, at)| Removed::read(value, *at));
            let removed = removed.filter(|it| it.membership == self.latest.get(&site.me).copied());
            let has_stopped = removed.and_then(|it| it.removal).is_some_and(|removal| removal.has_stopped);
            // Without a copy, a link cannot notice that a store was restored from a backup that lacks its removal.
            if is_removed && has_stopped && site.disk.is_some() {
                self.confirmed.entry(site.me.clone()).or_insert(now);
            }
            let Some(at) = self.confirmed.get(&site.me).filter(|_| is_removed) else { continue };
            for open in site.exit.open.values() {
                assert!(open.since <= *at, "{} has confirmed its removal, and admits a client", site.me);
                assert!(now.duration_since(*at) < LEFT, "{} has confirmed its removal, and serves", site.me);
            }
        }
    }

    /// Checks that the store has exactly the exits that nobody has removed.
    pub(super) fn look_at_the_end(&self, store: &MapStore, keys: &Keys) {
        let all = read(keys, None, &store.all_pairs());
        for exit in self.latest.keys() {
            let (is_there, is_removed) = (all.members.contains_key(exit), self.is_removed(exit));
            assert_eq!(is_there, !is_removed, "{exit} is a member; the second says whether it should be one");
            assert_eq!(all.removed.contains_key(exit), is_removed, "{exit} has `xr`");
        }
    }
}

impl World {
    /// The exit that is out of the fleet.
    fn exit_that_is_out(&self) -> Option<usize> {
        (0..EXITS).find(|exit| self.memberships.is_removed(&self.sites[*exit].me))
    }

    /// Lets an operator remove an exit, which may be cut off from the store.
    pub(super) fn remove_exit(&mut self, exit: usize, random: &mut Random) {
        let settled = |site: &Site| site.is_healthy_for(Duration::from_secs(2), self.now);
        // What only the removed exit knows is lost, so another exit must know everything. At most one exit is out at a time.
        let has_witness = (0..EXITS).any(|other| other != exit && settled(&self.sites[other]));
        if self.is_recovering || self.exit_that_is_out().is_some() || !has_witness {
            return;
        }
        if random.once_in(3) {
            let until = self.now + Duration::from_millis(random.below(20_000));
            self.cut(exit, until, random);
        }
        let (me, is_forced) = (self.sites[exit].me.clone(), !random.once_in(4));
        let is_alive = self.store.pairs.contains_key(&self.keys.name(&Key::Heartbeat(me.clone())));
        let taken = at_once(take_out(&mut self.store, &self.keys, &me, is_forced));
        assert_eq!(taken.is_ok(), is_forced || !is_alive, "{taken:?}");
        if taken.is_ok() {
            let number = self.memberships.latest[&me];
            self.memberships.ended.insert(number);
        }
        if random.once_in(3) {
            self.back_up();
        }
        // A link recognises an old backup by the heartbeats that it has written itself. So a backup is restored only if it is older than a
        // heartbeat.
        self.wait(2_500);
    }

    /// Lets an operator remove an exit, or lets the one that is out join again and read the store.
    pub(super) fn remove_or_join(&mut self, exit: usize, random: &mut Random) {
        if self.exit_that_is_out().is_none() {
            self.remove_exit(exit, random);
        } else {
            self.join_again();
            self.wait(2_500);
        }
    }

    /// Lets the exit that is out join again, with a new ticket.
    pub(super) fn join_again(&mut self) {
        if let Some(exit) = self.exit_that_is_out().filter(|_| !self.is_recovering) {
            self.use_ticket(exit);
        }
    }

    /// As `commands/join.rs` does.
    fn use_ticket(&mut self, exit: usize) {
        let me = self.sites[exit].me.clone();
        let [member, removed] =
            [Key::Member(me.clone()), Key::RemovedExit(me.clone())].map(|key| self.keys.name(&key));
        let transaction = Transaction {
            expected: [(member.clone(), Expected::Modified(0))].into(),
            then: [
                (member, Some(self.memberships.join(&me))),
                (removed, None),
                (self.keys.grant(&me), Some(Vec::new())),
            ]
            .into(),
            ..Transaction::default()
        };
        assert!(self.store.apply(&transaction), "{me} is still a member");
        self.sites[exit].join_again(&mut self.store, &mut self.random, self.now);
        self.exit_was_lost(exit);
    }

    /// Records which removals are lost with the store's latest changes.
    pub(super) fn removals_are_lost(&mut self) {
        let disks: Vec<&Snapshot> = self.sites.iter().filter_map(|site| site.disk.as_ref()).collect();
        self.memberships.restored(&disks, &self.keys);
    }

    /// Whether an exit that should be in the fleet uses the store.
    pub(super) fn is_back(&self, exit: usize, epoch: Option<u64>) -> bool {
        let site = &self.sites[exit];
        self.memberships.is_removed(&site.me) || (site.is_connected() && site.epoch() == epoch)
    }

    /// Gives a new ticket to each exit that a recovery has not put back, as the recovery advises.
    pub(super) fn invite_exits_left_out(&mut self, left_out: &[ExitId]) {
        for exit in 0..EXITS {
            let me = &self.sites[exit].me;
            let member = self.keys.name(&Key::Member(me.clone()));
            // An exit that had not read the store yet has no copy with which it could come back.
            let needs_ticket = left_out.contains(me) || self.sites[exit].disk.is_none();
            if needs_ticket && !self.memberships.is_removed(me) && !self.store.pairs.contains_key(&member) {
                let number = self.memberships.latest[me];
                self.memberships.ended.insert(number);
                self.use_ticket(exit);
            }
        }
    }

    /// Waits until an exit that was removed has confirmed its removal, and lets it join again.
    pub(super) fn settle_exits(&mut self) {
        self.wait(u64::try_from(CONFIRMS.as_millis()).unwrap());
        self.memberships.look_at_the_end(&self.store, &self.keys);
        let Some(exit) = self.exit_that_is_out() else { return };
        let me = &self.sites[exit].me;
        let has_confirmed = self.memberships.confirmed.contains_key(me) || self.sites[exit].disk.is_none();
        assert!(has_confirmed, "{me} was removed, and does not confirm that");
        assert!(self.sites[exit].exit.open.is_empty(), "{me} was removed, and serves");
        self.use_ticket(exit);
    }
}
