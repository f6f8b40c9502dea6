//! One exit with its link, and the link's connection to the store: what `run.rs` and `store/session.rs` do.

use std::collections::VecDeque;
use std::time::{Duration, Instant, SystemTime};

use warren_fleet_link::{ExitId, ExitMessage, FleetMessage, LINK_VERSION};
use warren_session::PublicKey;
use warren_simulation::Random;

use super::exit::Exit;
use super::store::{MapStore, at_once};
use crate::exits::Removed;
use crate::keys::{Key, Keys};
use crate::link::tests::meta;
use crate::link::{Link, Pair, Transaction};
use crate::membership::confirm_removal;
use crate::meta::{Mismatch, check};
use crate::run::{HEARTBEAT, REFUSED_PAUSE, SAVE, SOONEST_HEARTBEAT};
use crate::sessions::SessionBatch;
use crate::snapshot::{Owner, Snapshot};
use crate::store::replay::{Returning, replay};
use crate::store_history::StoreHistory;

/// The pause before the next connection to the store.
const PAUSE: Duration = Duration::from_millis(250);

/// A link's message to the store.
enum ToStore {
    Transaction(Transaction),
    Sessions(SessionBatch, i64),
    Heartbeat(Transaction, String, i64),
}

pub(super) struct Site {
    pub(super) me: ExitId,
    pub(super) exit: Exit,
    pub(super) link: Link,
    /// Until when the path to the store is cut.
    pub(super) cut_until: Option<Instant>,
    /// Since when the link has used the right store without interruption.
    pub(super) used_since: Option<Instant>,
    /// Until when messages are slow.
    pub(super) slow_until: Option<Instant>,
    /// When the link notices that the path is cut.
    pub(super) breaks_at: Option<Instant>,
    /// Names that a recovery could not put back. The recovery reports these names to the operator.
    pub(super) left_out: Vec<String>,
    pub(super) disk: Option<Snapshot>,
    to_exit: VecDeque<FleetMessage>,
    to_store: VecDeque<ToStore>,
    /// The outcome of a batch of sessions, on its way back.
    recorded: Option<(SessionBatch, Recorded)>,
    keys: Keys,
    history: StoreHistory,
    is_recording: bool,
    lease: i64,
    /// The revision up to which the watch has come, while there is a connection.
    seen: Option<i64>,
    due: Due,
    processes: u32,
    saved_changes: u64,
}

#[derive(Clone, Copy, PartialEq)]
enum Recorded {
    Stored,
    Conflict,
    LeaseEnded,
}

struct Due {
    connect: Instant,
    heartbeat: Instant,
    beaten: Instant,
    report: Instant,
    save: Instant,
}

impl Site {
    pub(super) fn new(number: u8, keys: &Keys, random: &mut Random, now: Instant) -> Self {
        let me = ExitId::try_from(format!("exit{number}")).unwrap();
        let mut site = Self {
            exit: Exit::new(random, now),
            link: Link::new(keys.clone(), me.clone(), format!("{me}-0"), now),
            me,
            cut_until: None,
            used_since: None,
            slow_until: None,
            breaks_at: None,
            left_out: Vec::new(),
            disk: None,
            to_exit: VecDeque::new(),
            to_store: VecDeque::new(),
            recorded: None,
            keys: keys.clone(),
            history: StoreHistory::default(),
            is_recording: false,
            lease: 0,
            seen: None,
            due: Due { connect: now, heartbeat: now, beaten: now, report: now, save: now + SAVE },
            processes: 0,
            saved_changes: 0,
        };
        site.meet(now);
        site
    }

    /// Connects the exit and the link to each other.
    fn meet(&mut self, now: Instant) {
        self.to_exit.clear();
        self.exit.link_connected(
            now,
            ExitMessage::Hello {
                version: LINK_VERSION,
                release: "test".to_owned(),
                exit: self.me.clone(),
                key: PublicKey([9; 32]),
                endpoints: Vec::new(),
                pools: meta().pools,
                max_staleness: None,
            },
        );
    }

    /// Begins anew on an empty host, because the exit has joined the fleet again.
    pub(super) fn join_again(&mut self, store: &mut MapStore, random: &mut Random, now: Instant) {
        self.lose_store(store, random, now);
        self.disk = None;
        self.exit = Exit::new(random, now);
        self.restart_link(store, random, now);
    }

    /// Kills the link, and starts it again with the content of its disk.
    pub(super) fn restart_link(&mut self, store: &mut MapStore, random: &mut Random, now: Instant) {
        self.lose_store(store, random, now);
        self.processes += 1;
        self.link =
            Link::new(self.keys.clone(), self.me.clone(), format!("{}-{}", self.me, self.processes), now);
        if let Some(disk) = &self.disk {
            self.link.resume(disk.revision, &disk.pairs);
            self.link.stay_removed(&disk.position);
        }
        self.history = StoreHistory::resumed(self.disk.as_ref());
        (self.lease, self.saved_changes) = (0, self.link.changes());
        self.due = Due { connect: now, heartbeat: now, beaten: now, report: now, save: now + SAVE };
        self.meet(now);
    }

    /// Kills the exit, and starts it again with the content of its disk.
    pub(super) fn restart_exit(&mut self, store: &mut MapStore, random: &mut Random, now: Instant) {
        self.exit.restart(random, now);
        self.link.exit_gone();
        if self.is_connected() {
            store.revoke(self.lease);
        }
        self.lease = 0;
        self.meet(now);
    }

    /// The epoch of the store that the link uses.
    pub(super) fn epoch(&self) -> Option<u64> {
        self.history.epoch()
    }

    pub(super) fn is_connected(&self) -> bool {
        self.seen.is_some()
    }

    /// Ends the connection to the store. Some of the messages under way still arrive.
    pub(super) fn lose_store(&mut self, store: &mut MapStore, random: &mut Random, now: Instant) {
        for _ in 0..random.below(1 + self.to_store.len() as u64) {
            self.deliver_to_store(store, now);
        }
        if self.is_connected() {
            self.break_connection(now, PAUSE);
            self.link.store_down("cut".to_owned(), now);
        }
    }

    fn break_connection(&mut self, now: Instant, pause: Duration) {
        self.to_store.clear();
        (self.seen, self.recorded, self.is_recording, self.used_since) = (None, None, false, None);
        self.due.connect = now + pause;
    }

    /// Lets some time pass.
    pub(super) fn step(&mut self, store: &mut MapStore, random: &mut Random, now: Instant) {
        self.follow_trouble(store, random, now);
        self.exit.sessions.handle_timeout(now);
        self.exit.follow(now);
        self.exit.act(now);
        self.tick(store, now);
        // Each message is delayed at random, but messages in one direction stay in order.
        let percent = if self.slow_until.is_some() { 5 } else { 75 };
        let mut arrives = || random.below(100) < percent;
        while arrives() && self.deliver_to_link(now) {}
        while arrives() && self.cut_until.is_none() && self.deliver_to_store(store, now) {}
        while arrives() && self.cut_until.is_none() && self.deliver_event(store, now) {}
        if let Some((batch, outcome)) = self.recorded.take() {
            self.recorded(&batch, outcome, now);
        }
        self.pump();
        while arrives() && self.deliver_to_exit(now) {}
        self.exit.act(now);
    }

    fn follow_trouble(&mut self, store: &mut MapStore, random: &mut Random, now: Instant) {
        let was_in_trouble = self.is_in_trouble();
        self.cut_until = self.cut_until.filter(|until| *until > now);
        self.slow_until = self.slow_until.filter(|until| *until > now);
        if self.cut_until.is_none() {
            self.breaks_at = None;
        } else if self.breaks_at.is_some_and(|at| at <= now) {
            self.breaks_at = None;
            self.lose_store(store, random, now);
        }
        if was_in_trouble && !self.is_in_trouble() && self.is_connected() {
            self.used_since = Some(now);
        }
    }

    fn is_in_trouble(&self) -> bool {
        self.cut_until.is_some() || self.slow_until.is_some()
    }

    /// Whether the exit has been without trouble for at least this time.
    pub(super) fn is_healthy_for(&self, time: Duration, now: Instant) -> bool {
        !self.is_in_trouble() && self.used_since.is_some_and(|since| now.duration_since(since) >= time)
    }

    fn tick(&mut self, store: &mut MapStore, now: Instant) {
        if !self.is_connected() && now >= self.due.connect && self.cut_until.is_none() {
            self.connect(store, now);
        }
        self.link.expire(now);
        if now >= self.due.report {
            self.due.report = now + Duration::from_secs(1);
            self.link.tell_store(now);
        }
        let is_news = now >= self.due.beaten + SOONEST_HEARTBEAT && self.link.take_news();
        if now >= self.due.heartbeat || is_news {
            (self.due.heartbeat, self.due.beaten) = (now + HEARTBEAT, now);
            if let Some((transaction, leased)) = self.link.heartbeat(SystemTime::UNIX_EPOCH)
                && self.is_connected()
                && self.link.is_up()
            {
                let lease = self.own_lease(store, now);
                self.to_store.push_back(ToStore::Heartbeat(transaction, leased, lease));
            }
        }
        if !self.is_recording
            && self.is_connected()
            && let Some(batch) = self.link.next_sessions(now)
        {
            let lease = self.own_lease(store, now);
            self.to_store.push_back(ToStore::Sessions(batch, lease));
            self.is_recording = true;
        }
        if now >= self.due.save {
            self.due.save = now + SAVE;
            self.exit.save();
            self.save();
        }
    }

    fn own_lease(&mut self, store: &mut MapStore, now: Instant) -> i64 {
        if self.lease == 0 {
            self.lease = store.grant(now);
            self.link.has_new_lease();
        }
        self.lease
    }

    /// Connects, and checks whether the store is the right one.
    fn connect(&mut self, store: &mut MapStore, now: Instant) {
        let position = self.history.position(&self.link);
        let mut live_from = self.history.live_from(&self.link);
        let found = store.find(&self.keys, &self.me);
        let (meta, is_recovered) = match check(self.keys.name_of_fleet(), position.as_ref(), &found) {
            Ok(checked) => checked,
            Err(mismatch) => return self.refused(mismatch, found.removed, store, now),
        };
        if is_recovered && let Some(position) = &position {
            let (rows, beside) = (self.link.rows().clone(), self.link.beside_rows());
            let copy = Returning { me: &self.me, position, rows: &rows, beside: &beside };
            match at_once(replay(store, &self.keys, copy, (&meta, &found))).unwrap() {
                Ok(replayed) => self.left_out.extend(replayed.brought.left_out),
                Err(mismatch) => return self.refused(mismatch, None, store, now),
            }
            live_from = None;
        }
        self.history.found(&self.link, meta.clone(), found.cluster);
        self.link.store_up(meta, found.revision, now);
        self.due.heartbeat = now;
        self.used_since = Some(now);
        if live_from.is_some_and(|revision| revision < store.compacted) {
            return self.start_over(now, "compacted");
        }
        let seen = live_from.unwrap_or_else(|| {
            self.link.whole(store.revision, &store.all_pairs());
            self.history.has_read_all();
            store.revision
        });
        self.seen = Some(seen);
        self.pump();
    }

    /// Handles a store that must not be used.
    fn refused(&mut self, mismatch: Mismatch, removed: Option<Removed>, store: &mut MapStore, now: Instant) {
        let is_removed = mismatch.must_stop();
        if is_removed {
            removed.into_iter().for_each(|removed| self.link.was_removed(removed));
            self.history.must_stop(removed);
            if let Some((position, disk)) = self.history.removal().zip(self.disk.as_mut()) {
                disk.position = position.clone();
            }
        }
        if is_removed && self.link.has_stopped() {
            let own = self.history.position(&self.link).and_then(|position| position.membership);
            at_once(confirm_removal(store, &self.keys, &self.me, own)).unwrap();
        }
        self.break_connection(now, REFUSED_PAUSE);
        self.link.store_refused((mismatch.to_string(), is_removed), now);
        self.save();
    }

    /// Makes the link read the whole store again.
    fn start_over(&mut self, now: Instant, why: &str) {
        self.history.must_read_all(&self.link);
        self.break_connection(now, Duration::ZERO);
        self.link.store_down(why.to_owned(), now);
    }

    pub(super) fn save(&mut self) {
        let Some((position, meta)) = self.history.to_save(&self.link) else { return };
        let is_same = self.saved_changes == self.link.changes();
        match &mut self.disk {
            // Only the position is newer.
            Some(disk) if is_same => disk.position = position,
            disk => {
                let (revision, pairs) = (position.revision, self.link.pairs());
                let owner = Owner { fleet: self.keys.name_of_fleet().to_owned(), exit: self.me.clone() };
                *disk = Some(Snapshot { owner, meta: meta.clone(), position, revision, pairs });
            }
        }
        self.saved_changes = self.link.changes();
    }

    fn pump(&mut self) {
        if self.is_connected() {
            let next = self.link.next_transaction();
            self.to_store.extend(next.map(ToStore::Transaction));
        }
        self.to_exit.extend(self.link.take_messages());
    }

    fn deliver_to_link(&mut self, now: Instant) -> bool {
        let Some(message) = self.exit.to_link.pop_front() else { return false };
        self.link.exit_said(message, now).unwrap();
        true
    }

    fn deliver_to_exit(&mut self, now: Instant) -> bool {
        let Some(message) = self.to_exit.pop_front() else { return false };
        self.exit.link_said(now, message);
        self.exit.act(now);
        true
    }

    fn deliver_to_store(&mut self, store: &mut MapStore, now: Instant) -> bool {
        match self.to_store.pop_front() {
            None => return false,
            Some(ToStore::Transaction(transaction)) => _ = store.apply(&transaction),
            Some(ToStore::Sessions(batch, lease)) => {
                let transaction = Transaction {
                    expected: batch.expected.clone(),
                    then: batch.operations.clone(),
                    ..Transaction::default()
                };
                let outcome = if !store.has_lease(lease) {
                    self.forget_lease(lease);
                    Recorded::LeaseEnded
                } else if store
                    .apply_leased(&transaction, Some((lease, &|key| batch.expected.contains_key(key))))
                {
                    Recorded::Stored
                } else {
                    Recorded::Conflict
                };
                self.recorded = Some((batch, outcome));
            }
            Some(ToStore::Heartbeat(transaction, leased, lease)) => {
                if store.keep(lease, now) {
                    if !store.apply_leased(&transaction, Some((lease, &|key| key == leased))) {
                        // The next connection finds out why this exit is not in the fleet.
                        self.break_connection(now, PAUSE);
                        self.link.store_down("not in the fleet".to_owned(), now);
                        return false;
                    }
                } else {
                    self.forget_lease(lease);
                }
            }
        }
        true
    }

    fn forget_lease(&mut self, lease: i64) {
        if self.lease == lease {
            self.lease = 0;
        }
    }

    fn recorded(&mut self, batch: &SessionBatch, outcome: Recorded, now: Instant) {
        self.is_recording = false;
        match outcome {
            Recorded::Stored => self.link.sessions_stored(batch, now),
            Recorded::Conflict => self.link.sessions_refused(batch, now),
            Recorded::LeaseEnded => {}
        }
    }

    fn deliver_event(&mut self, store: &mut MapStore, now: Instant) -> bool {
        let Some(seen) = self.seen else { return false };
        if seen < store.compacted {
            self.start_over(now, "compacted");
            return false;
        }
        let Some((revision, pairs)) = store.events_after(seen).first().cloned() else { return false };
        let own = self.keys.name(&Key::RemovedExit(self.me.clone()));
        let membership = self.history.position(&self.link).and_then(|position| position.membership);
        self.link.events(revision, &pairs, SystemTime::UNIX_EPOCH);
        self.seen = Some(revision);
        // As `store/session.rs` does.
        let mut removed = pairs.iter().filter(|pair| pair.key == own.as_bytes()).filter_map(Pair::removed);
        if removed.any(|it| it.must_stop() && !it.is_of_another(membership)) {
            self.refused(Mismatch::Removed { must_stop: true }, None, store, now);
            return false;
        }
        if self.link.epoch() != self.epoch() {
            self.start_over(now, "recovered");
            return false;
        }
        self.pump();
        true
    }
}
