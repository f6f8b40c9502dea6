//! The link between one exit and the store, without I/O: messages, events and time go in, messages and transactions come out.

mod copy;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use warren_fleet_link::{
    ExitId, ExitMessage, ExitState, FleetMessage, LINK_VERSION, Load, Outcome, Pools, StoreCertificate,
    StoreLink, StoreMembers,
};
use warren_session::clients::RowChange;

use self::copy::Copy;
pub(crate) use self::copy::{Contents, Pair, read};
use crate::exits::{Exits, Heartbeat, Member, Removed, milliseconds};
use crate::keys::{Key, Keys};
use crate::meta::{Meta, Mismatch, Position};
use crate::planted::{Bug, is_planted};
use crate::recovery::BesideRows;
use crate::requests::{Requests, Written};
use crate::rows::Rows;
use crate::sessions::{SessionBatch, Sessions};
use crate::transaction::{Expected, Known};

/// How long the store may be silent before the exit is told. As a rule, another member of the store answers sooner.
const SILENCE: Duration = Duration::from_millis(2000);

/// Above this difference in milliseconds, this host's clock counts as wrong, as at the exit (`is_wrong` in warren-exit/src/fleet.rs).
const MOST_CLOCK_OFFSET: u64 = 60_000;

/// One exit's link.
#[derive(Debug)]
pub(crate) struct Link {
    keys: Keys,
    me: ExitId,
    /// A random name of this process.
    process: String,
    copy: Copy,
    requests: Requests,
    sessions: Sessions,
    exits: Exits,
    exit: Option<Exit>,
    store: Store,
    /// When the store last answered.
    answered: Option<Instant>,
    meta: Option<Meta>,
    certificates: Vec<StoreCertificate>,
    /// The store's members with their addresses. Empty until [`Self::set_addresses`] is called.
    addresses: StoreMembers,
    out: Vec<FleetMessage>,
    /// Whether the exit takes the store for reachable.
    is_said_reachable: bool,
}

/// The exit that is connected.
#[derive(Debug)]
struct Exit {
    member: Member,
    pools: Pools,
    release: String,
    load: Load,
    state: ExitState,
    /// The serial of the fleet's newest roster that the exit has accepted. 0 if it has none.
    roster: u64,
    /// The revision up to which the exit has applied all changes.
    applied: i64,
    /// The revision of the full copy that the exit got. `None` until it got one.
    whole: Option<i64>,
    /// The revision of the latest change that the exit got.
    told: i64,
    /// Whether the other exits should get a heartbeat soon, because the applied revision, the load or the state has changed.
    is_news: bool,
}

/// The connection to the store.
#[derive(Debug)]
enum Store {
    Up {
        /// Events after this revision arrive right after they were written.
        live_from: i64,
    },
    Down {
        since: Instant,
        reason: String,
    },
    Refused {
        reason: String,
        is_removed: bool,
    },
}

/// A transaction for the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Transaction {
    pub(crate) expected: BTreeMap<String, Expected>,
    /// Written if every key is as expected: new values by key, or `None` to delete a key.
    pub(crate) then: BTreeMap<String, Option<Vec<u8>>>,
    /// Written otherwise.
    pub(crate) otherwise: BTreeMap<String, Option<Vec<u8>>>,
    /// If every key is as expected, all keys with these prefixes are deleted.
    pub(crate) cleared: Vec<String>,
}

impl Link {
    pub(crate) fn new(keys: Keys, me: ExitId, process: String, now: Instant) -> Self {
        let store = Store::Down { since: now, reason: "it has not answered yet".to_owned() };
        Self {
            copy: Copy::new(),
            requests: Requests::default(),
            sessions: Sessions::default(),
            exits: Exits::of(me.clone()),
            exit: None,
            answered: None,
            meta: None,
            certificates: Vec::new(),
            addresses: StoreMembers::new(),
            out: Vec::new(),
            is_said_reachable: false,
            keys,
            me,
            process,
            store,
        }
    }

    /// Removes and returns the messages for the exit, in the order in which to send them.
    pub(crate) fn take_messages(&mut self) -> Vec<FleetMessage> {
        // An exit that waits for its whole copy gets the list of exits together with it (`send_whole`).
        if self.exit.as_ref().is_none_or(|exit| exit.whole.is_none() && self.copy.is_filled()) {
            self.exits.take_changed();
        } else if self.exits.take_changed() {
            self.tell_exits();
        }
        let messages = std::mem::take(&mut self.out);
        if self.exit.is_some() { messages } else { Vec::new() }
    }

    /// Handles a message from the exit.
    ///
    /// # Errors
    /// If this link cannot serve the exit. In that case the connection must end.
    pub(crate) fn exit_said(&mut self, message: ExitMessage, now: Instant) -> Result<(), String> {
        let is_known = self.exit.is_some();
        match message {
            ExitMessage::Hello { .. } => return self.hello(message, now),
            _ if !is_known => return Err("the exit's first message is not Hello".to_owned()),
            ExitMessage::Request { id, rows } => self.request(id, rows, now),
            ExitMessage::Opened { key, nonce, claim } => self.sessions.open(key, (nonce, claim), now),
            ExitMessage::Closed { key, nonce } => self.sessions.close(key, nonce),
            ExitMessage::Load { load, state, roster } => {
                if let Some(exit) = &mut self.exit {
                    exit.is_news |= exit.state != state;
                    (exit.load, exit.state) = (load, state);
                    let own = roster.filter(|roster| roster.fleet == self.keys.name_of_fleet());
                    exit.roster = own.map_or(0, |roster| roster.serial);
                }
            }
            ExitMessage::Applied { revision } => self.applied(revision),
        }
        Ok(())
    }

    /// Records that the exit's connection has ended.
    pub(crate) fn exit_gone(&mut self) {
        self.exit = None;
        self.requests.abandon();
        self.sessions.forget_own();
        self.copy.forget_unseen(i64::MAX);
        self.out.clear();
    }

    fn hello(&mut self, hello: ExitMessage, now: Instant) -> Result<(), String> {
        let ExitMessage::Hello { version, release, exit, key, endpoints, pools, max_staleness } = hello
        else {
            return Ok(());
        };
        if version != LINK_VERSION {
            return Err(format!(
                "the exit's release {release} differs from this program's; install the same release of both"
            ));
        }
        if exit != self.me {
            return Err(format!(
                "the exit is called {exit} in exit.toml and {} in fleet.toml; correct one of them",
                self.me
            ));
        }
        self.exit_gone();
        let member = Member { key: Some(key), endpoints, max_staleness, ..Member::default() }.bounded();
        let (load, state) = (Load::default(), ExitState::Serving);
        self.exit = Some(Exit {
            member,
            pools,
            release,
            load,
            state,
            roster: 0,
            applied: 0,
            whole: None,
            told: 0,
            is_news: true,
        });
        self.tell_certificates();
        // The addresses are sent before the clients, because no client's network may contain one of them.
        self.tell_addresses();
        self.tell_store(now);
        Ok(())
    }

    /// Sends the whole copy, if there is one and the exit may have it.
    fn send_whole(&mut self) {
        self.tell_reachable();
        // The exit must not mistake a copy from the disk for the store's own copy, which it always accepts.
        let is_posing = self.copy.is_from_disk() && self.is_said_reachable;
        // If an operator removes an exit whose key the store does not have, the exit counts as stopped, unless it has brought its
        // clients. So it gets no clients before the store has its key.
        let is_fitting = self.refusal().is_none() && !is_posing && !self.exits.may_not_serve(&self.me);
        let Some(exit) = self.exit.as_mut().filter(|_| self.copy.is_filled() && is_fitting) else { return };
        let revision = self.copy.revision();
        (exit.whole, exit.told, exit.applied) = (Some(revision), revision, 0);
        self.copy.forget_unseen(i64::MAX);
        self.out.extend(self.copy.whole());
        // A drain is sent even if it is over, because it may have ended while the exit was not connected.
        self.tell_roster_and_drain(None, None);
        self.exits.take_changed();
        self.tell_exits();
    }

    /// Tells the exit that the store answers, if the exit has waited only until the store was read. The exit takes a copy of a lower
    /// revision only if it knows that the store answers.
    fn tell_reachable(&mut self) {
        if self.is_up() && !self.copy.is_from_disk() && !self.is_said_reachable && self.refusal().is_none() {
            self.is_said_reachable = true;
            self.out.push(FleetMessage::Store(StoreLink::Reachable));
        }
    }

    /// Tells the exit the roster, and whether it is drained. Leaves out unknown values, and values that the exit already has.
    fn tell_roster_and_drain(&mut self, roster: Option<&[u8]>, drains: Option<bool>) {
        let newer = self.copy.roster().filter(|newer| Some(*newer) != roster);
        self.out.extend(newer.map(|bytes| FleetMessage::Roster { bytes: bytes.to_vec() }));
        let newer = self.copy.drains().filter(|newer| Some(*newer) != drains);
        self.out.extend(newer.map(|on| FleetMessage::Drain { on }));
    }

    /// Sets the certificates of the store, and tells the exit.
    pub(crate) fn set_certificates(&mut self, certificates: Vec<StoreCertificate>) {
        self.certificates = certificates;
        self.tell_certificates();
    }

    fn tell_certificates(&mut self) {
        if !self.certificates.is_empty() {
            self.out.push(FleetMessage::Certificates { certificates: self.certificates.clone() });
        }
    }

    /// Sets the addresses of the store's members, and tells the exit.
    pub(crate) fn set_addresses(&mut self, members: StoreMembers) {
        self.addresses = members;
        self.tell_addresses();
    }

    fn tell_addresses(&mut self) {
        if !self.addresses.is_empty() {
            self.out.push(FleetMessage::StoreAddresses { members: self.addresses.clone() });
        }
    }

    fn tell_exits(&mut self) {
        let own_clock_offset_ms = self.exits.own_clock_offset(&self.me);
        let (changed, exits, removed) =
            (self.copy.latest_change(), self.exits.list(), self.exits.lingering());
        self.out.push(FleetMessage::Exits { own_clock_offset_ms, changed, exits, removed });
    }

    fn request(&mut self, id: u64, rows: Vec<RowChange>, now: Instant) {
        // A request is checked against the rows that the exit has seen. Without its whole copy, the exit has seen none.
        let basis = self
            .exit
            .as_ref()
            .and_then(|exit| exit.whole.filter(|whole| exit.applied >= *whole).map(|_| exit.applied));
        let is_away = match &self.store {
            Store::Up { .. } => self.refusal().is_some(),
            Store::Down { since, .. } => now.duration_since(*since) >= SILENCE,
            Store::Refused { .. } => true,
        };
        let taken = match basis.filter(|_| !is_away) {
            Some(basis) => self.requests.take(id, rows, basis, now),
            None => Err(Outcome::Unavailable),
        };
        if let Err(outcome) = taken {
            // Answers come in the order of requests.
            let earlier = self.requests.expire(None);
            self.out.extend(earlier);
            self.out.push(FleetMessage::Answer { id, outcome });
        }
    }

    fn applied(&mut self, revision: i64) {
        let Some(exit) = &mut self.exit else { return };
        exit.applied = exit.applied.max(revision);
        // Waiting requests are checked against older rows than those that the exit has now.
        let needed = self.requests.oldest_basis().map_or(exit.applied, |basis| basis.min(exit.applied));
        self.copy.forget_unseen(needed);
        exit.is_news |= exit.applied >= exit.told && self.copy.take_revoked();
    }

    /// Records that the store answers, and its revision.
    pub(crate) fn store_up(&mut self, meta: Meta, revision: i64, now: Instant) {
        self.meta = Some(meta);
        self.store = Store::Up { live_from: revision };
        self.tell_store(now);
    }

    fn send_whole_if_missing(&mut self) {
        if self.exit.as_ref().is_some_and(|exit| exit.whole.is_none()) {
            self.send_whole();
        }
    }

    /// Records that the store no longer answers.
    pub(crate) fn store_down(&mut self, reason: String, now: Instant) {
        self.requests.lose();
        let since = match &self.store {
            // Several members may fail one after the other. The exit learns the time since which no member has answered.
            Store::Down { since, .. } => *since,
            Store::Up { .. } => now,
            // What the store has said holds until it answers again.
            Store::Refused { .. } => return,
        };
        self.store = Store::Down { since, reason };
    }

    /// Records that the store must not be used.
    /// `is_removed`: the exit was removed, so it must stop serving.
    pub(crate) fn store_refused(&mut self, (reason, is_removed): (String, bool), now: Instant) {
        self.requests.lose();
        self.store = Store::Refused { reason, is_removed };
        let answers = self.requests.expire(None);
        self.out.extend(answers);
        self.tell_store(now);
    }

    /// Records that the store says that this exit was removed. A store that was restored from an older backup must not make the exit
    /// serve again.
    pub(crate) fn was_removed(&mut self, removed: Removed) {
        if self.exits.removed().get(&self.me) == Some(&removed) {
            return;
        }
        self.exits.member(self.me.clone(), None);
        self.exits.note_removed(self.me.clone(), Some(removed));
        // The removal has deleted what this link has written, and counts as its latest write.
        self.copy.positioned(removed.at.max(self.copy.position()));
    }

    /// Whether the exit was removed, and stops serving because it was told so.
    pub(crate) fn has_stopped(&self) -> bool {
        let is_draining = self.exit.as_ref().is_some_and(|exit| exit.state == ExitState::Draining);
        is_draining && self.is_removed()
    }

    /// Whether the store says that the exit was removed and must stop serving.
    pub(crate) fn is_removed(&self) -> bool {
        matches!(self.store, Store::Refused { is_removed: true, .. })
    }

    /// Tells the exit whether the store answers, and sends it the copy that it has missed. Call this every second.
    pub(crate) fn tell_store(&mut self, now: Instant) {
        let link = self.store_link(now);
        // An answer of a store that must not be used does not count.
        if let (StoreLink::Reachable | StoreLink::Away { .. }, Some(at)) = (&link, self.answered) {
            self.out.push(FleetMessage::Answered { ago: now.saturating_duration_since(at) });
        }
        self.is_said_reachable = link == StoreLink::Reachable;
        self.out.push(FleetMessage::Store(link));
        self.send_whole_if_missing();
    }

    /// Records when the store last answered.
    pub(crate) fn store_answered(&mut self, at: Option<Instant>) {
        self.answered = at;
    }

    pub(crate) fn store_link(&self, now: Instant) -> StoreLink {
        // An exit that was removed must stop, no matter which pools it has.
        if let Some(reason) = self.refusal().filter(|_| !self.is_removed()) {
            return StoreLink::Refused { reason, is_removed: false };
        }
        // The copy from the disk may lack changes. The exit must not take it for the store's content.
        let is_read = !self.copy.is_from_disk();
        match &self.store {
            Store::Up { .. } if is_read => StoreLink::Reachable,
            Store::Up { .. } => StoreLink::Away {
                silent: now.saturating_duration_since(self.answered.unwrap_or(now)),
                reason: "the fleet's clients are being read".to_owned(),
            },
            // The store still counts as reachable, because another member may answer soon.
            Store::Down { since, .. }
                if now.duration_since(*since) < SILENCE && self.meta.is_some() && is_read =>
            {
                StoreLink::Reachable
            }
            Store::Down { since, reason } => {
                let since = self.answered.unwrap_or(*since);
                StoreLink::Away { silent: now.saturating_duration_since(since), reason: reason.clone() }
            }
            Store::Refused { reason, is_removed } => {
                StoreLink::Refused { reason: reason.clone(), is_removed: *is_removed }
            }
        }
    }

    /// Why this exit cannot belong to the fleet.
    fn refusal(&self) -> Option<String> {
        let (exit, meta) = (self.exit.as_ref()?, self.meta.as_ref()?);
        if exit.pools == meta.pools {
            return None;
        }
        let [own, fleet] = [&exit.pools, &meta.pools].map(pools_text);
        Some(Mismatch::Pools { own, fleet }.to_string())
    }

    /// Answers requests that have waited too long.
    pub(crate) fn expire(&mut self, now: Instant) {
        let answers = match &self.store {
            Store::Down { since, .. } if now.duration_since(*since) >= SILENCE => self.requests.expire(None),
            Store::Up { .. } | Store::Down { .. } | Store::Refused { .. } => self.requests.expire(Some(now)),
        };
        self.out.extend(answers);
    }

    /// Sets the number of the membership with which this host has joined, for a link that has never read the store.
    pub(crate) fn joined_as(&mut self, number: Option<u64>) {
        self.exits.joined_as(number);
    }

    /// Applies the copy that an earlier process has left on the disk.
    pub(crate) fn resume(&mut self, revision: i64, pairs: &[Pair]) {
        self.whole(revision, pairs);
        self.copy.note_from_disk();
    }

    /// Continues as the link of a removed exit, if the disk says that the store has said so. The exit is told again, because it may have
    /// restarted as well, and its own disk may not say so. `position`: the position that the earlier process has left.
    pub(crate) fn stay_removed(&mut self, position: &Position) {
        let is_own = |removed: &Removed| removed.stops(position.membership);
        if position.is_removed || self.exits.removed().get(&self.me).is_some_and(is_own) {
            let reason = Mismatch::Removed { must_stop: true }.to_string();
            self.store = Store::Refused { reason, is_removed: true };
        }
    }

    /// Applies everything that the store contains, read at one revision.
    pub(crate) fn whole(&mut self, revision: i64, pairs: &[Pair]) {
        // The result of a transaction under way is either in the data that was just read, or follows as an event.
        self.requests.lose();
        let contents = read(&self.keys, Some(&self.me), pairs);
        let (roster, drains) = (self.copy.roster().map(<[u8]>::to_vec), self.copy.drains());
        // In a store that was recovered from an old backup, revisions continue from the backup's revision. The exit takes lower
        // ones only with a full copy. An exit that has not confirmed the copy that it got keeps its own, which may be newer.
        let is_set_back = revision < self.copy.revision();
        let is_unsure = |exit: &Exit| is_set_back || exit.whole.is_some_and(|whole| exit.applied < whole);
        let changes = self.copy.replace(revision, contents.rows, contents.others);
        self.sessions.replace(&self.me, contents.sessions);
        self.sessions.send_all_again();
        self.exits.replace(contents.members, contents.heartbeats);
        self.exits.replace_removed(contents.removed);
        match &mut self.exit {
            Some(Exit { whole: Some(_), .. }) if is_planted(Bug::CompactionIgnored) => {}
            Some(exit) if is_unsure(exit) => {
                exit.whole = None;
                self.send_whole();
            }
            Some(Exit { whole: Some(_), told, .. }) => {
                // The exit confirms only changes that it is told.
                if !changes.is_empty() {
                    *told = revision;
                }
                self.out.extend(copy::in_parts(revision, changes));
                self.tell_roster_and_drain(roster.as_deref(), drains);
            }
            _ => self.send_whole_if_missing(),
        }
        self.tell_reachable();
    }

    /// Applies all events of one revision.
    pub(crate) fn events(&mut self, revision: i64, pairs: &[Pair], now: SystemTime) {
        let mut changed = Changed::default();
        for pair in pairs {
            self.event(pair, now, &mut changed);
        }
        self.copy.advance(revision);
        let own = changed.written.filter(|written| written.link == self.process);
        let mut answers = Vec::new();
        let rows = match own {
            None => changed.rows,
            Some(Written { number, held: true, .. }) => {
                // The exit learns the result of its own requests from the answers. So only rows of requests that were given up must
                // be sent.
                let held = self.requests.held(number, revision);
                answers = held.messages;
                held.unexpected
            }
            Some(Written { number, held: false, .. }) => {
                answers = self.requests.failed(number, revision);
                Vec::new()
            }
        };
        if let Some(exit) = self.exit.as_mut().filter(|exit| exit.whole.is_some() && !rows.is_empty()) {
            exit.told = revision;
            self.copy.note_unseen(revision, changed.before);
            self.copy.note_revoked(&rows);
            self.out.extend(copy::in_parts(revision, rows));
        }
        self.out.extend(answers);
        self.send_whole_if_missing();
    }

    fn event(&mut self, pair: &Pair, now: SystemTime, changed: &mut Changed) {
        let Some(key) = self.keys.parse(&pair.key) else { return };
        match key {
            Key::Row(_) | Key::Prefixes | Key::Forwards => {
                if let Some((before, row)) = self.copy.event(&key, pair) {
                    changed.before.push(before);
                    changed.rows.extend(row);
                }
            }
            Key::Session(client) => {
                let record = pair.parse("session");
                if record.is_none() && pair.value.is_some() {
                    return self.sessions.cannot_read(client, pair.modified);
                }
                self.out.extend(self.sessions.record(&self.me, client, pair.modified, record));
            }
            Key::Heartbeat(exit) => {
                let is_live = matches!(self.store, Store::Up { live_from } if pair.modified > live_from);
                self.exits.heartbeat(exit, pair.parse("heartbeat"), is_live, now);
            }
            Key::Member(exit) => match (pair.parse("exit"), &pair.value) {
                (None, Some(_)) => self.exits.cannot_read_member(exit),
                (member, _) => self.exits.member(exit, member),
            },
            Key::RemovedExit(exit) => self.exits.note_removed(exit, pair.removed()),
            Key::Written(exit) if exit == self.me => {
                self.copy.wrote(pair.modified);
                changed.written = pair.parse("transaction's mark");
            }
            Key::Position(exit) if exit == self.me => self.copy.positioned(pair.modified),
            Key::Drain(exit) if exit == self.me => {
                self.copy.drain(pair.value.is_some());
                self.out.push(FleetMessage::Drain { on: pair.value.is_some() });
            }
            Key::Roster => {
                let roster = pair.roster();
                self.copy.set_roster(roster.clone());
                // A deleted roster is not announced: exits and clients keep the one that they have.
                self.out.extend(roster.map(|bytes| FleetMessage::Roster { bytes }));
            }
            // If the stored agreement is damaged or deleted, a running link keeps the one that it has.
            Key::Meta => self.meta = pair.parse("agreement").or(self.meta.take()),
            Key::Written(_) | Key::Position(_) | Key::Drain(_) => {}
        }
    }

    /// Returns the next transaction for the exit's requests, if none is under way.
    pub(crate) fn next_transaction(&mut self) -> Option<Transaction> {
        if !matches!(self.store, Store::Up { .. }) || self.requests.is_empty() {
            return None;
        }
        // Each request has its own basis (`Waiting::part`), so the basis given here is not used.
        let known = Known { keys: &self.keys, rows: self.copy.rows(), unseen: self.copy.unseen(), basis: 0 };
        let (answers, next) = self.requests.next(known, self.copy.revision());
        self.out.extend(answers);
        let (number, draft) = next?;
        let written = self.keys.name(&Key::Written(self.me.clone()));
        let mark = |held| {
            let written = Written { link: self.process.clone(), number, held };
            Some(serde_json::to_vec(&written).unwrap_or_default())
        };
        let mut transaction =
            Transaction { expected: draft.expected, then: draft.operations, ..Transaction::default() };
        // Of this link's transactions, only one can succeed while the link's mark (`wr/EXIT`) has this revision.
        transaction.expected.insert(written.clone(), Expected::Modified(self.copy.written()));
        transaction.then.insert(written.clone(), mark(true));
        transaction.otherwise.insert(written, mark(false));
        Some(transaction)
    }

    /// Returns the next session records to write. All of them are attached to the exit's lease.
    pub(crate) fn next_sessions(&mut self, now: Instant) -> Option<SessionBatch> {
        if !self.is_up() || self.exit.is_none() || !self.sessions.has_unsent() {
            return None;
        }
        let (mut batch, lost) = self.sessions.batch(&self.me, &self.keys, now);
        self.out.extend(lost);
        if batch.sessions.is_empty() {
            return None;
        }
        // The batch also writes the link's position. If a restored store lacks this write, the link notices.
        let position = self.keys.name(&Key::Position(self.me.clone()));
        batch.operations.insert(position, Some(self.process.clone().into()));
        Some(batch)
    }

    pub(crate) fn sessions_stored(&mut self, batch: &SessionBatch, now: Instant) {
        self.sessions.stored(batch, now);
    }

    /// Records that the store has refused a batch, because one of its records differs from this link's knowledge.
    pub(crate) fn sessions_refused(&mut self, batch: &SessionBatch, now: Instant) {
        self.sessions.refused(batch, now);
    }

    /// Records that the exit's records have a new lease, so that all of them are written again.
    pub(crate) fn has_new_lease(&mut self) {
        self.sessions.send_all_again();
    }

    /// Whether the other exits should get a heartbeat before it is due.
    pub(crate) fn take_news(&mut self) -> bool {
        self.exit.as_mut().is_some_and(|exit| std::mem::take(&mut exit.is_news))
    }

    /// Returns the heartbeat: the transaction, and the key to attach to the lease. `None` while there is no exit that may serve.
    pub(crate) fn heartbeat(&self, now: SystemTime) -> Option<(Transaction, String)> {
        let exit = self.exit.as_ref().filter(|_| self.refusal().is_none())?;
        // Most revisions change no row, and the exit is not told of them. If the exit has applied everything that it was told, it
        // is as recent as the copy.
        let is_level = exit.whole.is_some() && exit.applied >= exit.told;
        let applied = if is_level { self.copy.revision() } else { exit.applied };
        let (load, state, roster, release) = (exit.load, exit.state, exit.roster, exit.release.clone());
        let heartbeat = Heartbeat { load, state, roster, applied, clock: milliseconds(now), release };
        let name = self.keys.name(&Key::Heartbeat(self.me.clone()));
        let member = self.keys.name(&Key::Member(self.me.clone()));
        let mut transaction = Transaction::default();
        // An exit that was removed must not come back by itself.
        transaction.expected.insert(member.clone(), Expected::Present);
        transaction.then.insert(name.clone(), serde_json::to_vec(&heartbeat).ok());
        transaction
            .then
            .insert(self.keys.name(&Key::Position(self.me.clone())), Some(self.process.clone().into()));
        // The store has the number of the membership, which the exit does not know. So the exit's value is written only after the link has
        // read it.
        if let Some(stored) = self.exits.get(&self.me) {
            let own = Member { membership: stored.membership, ..exit.member.clone() };
            if !self.exits.is_member(&self.me, &own) {
                transaction.then.insert(member, serde_json::to_vec(&own).ok());
            }
        }
        Some((transaction, name))
    }

    /// The store's epoch, as the link last read it.
    pub(crate) fn epoch(&self) -> Option<u64> {
        self.meta.as_ref().map(|meta| meta.epoch)
    }

    /// Whether this host's clock differs little from those of the other exits.
    pub(crate) fn is_clock_right(&self) -> bool {
        self.exits.own_clock_offset(&self.me).unsigned_abs() <= MOST_CLOCK_OFFSET
    }

    pub(crate) fn is_up(&self) -> bool {
        matches!(self.store, Store::Up { .. })
    }

    /// Counts changes of the data that is saved to disk.
    pub(crate) fn changes(&self) -> u64 {
        self.copy.changes() + self.exits.changes()
    }

    pub(crate) fn rows(&self) -> &Arc<Rows> {
        self.copy.rows()
    }

    /// The revision of the copy, and that of the link's own latest write.
    pub(crate) fn revisions(&self) -> (i64, i64) {
        (self.copy.revision(), self.copy.position().max(self.copy.written()))
    }

    /// The number of this exit's membership. `saved` is the number on the disk.
    pub(crate) fn membership(&self, saved: Option<u64>) -> Option<u64> {
        self.exits.membership(saved)
    }

    /// All data to save to disk.
    pub(crate) fn pairs(&self) -> Vec<Pair> {
        let mut pairs = self.copy.pairs(&self.keys, &self.me);
        pairs.extend(self.exits.members().filter_map(|(exit, member)| {
            let value = serde_json::to_vec(member).ok()?;
            Some(Pair::new(self.keys.name(&Key::Member(exit.clone())), value, 0))
        }));
        // A recovery with this copy must repeat each removal with its own value, which says whether the exit must stop.
        pairs.extend(self.exits.removed().iter().filter_map(|(exit, removed)| {
            let value = removed.value().ok()?;
            Some(Pair::new(self.keys.name(&Key::RemovedExit(exit.clone())), value, removed.at))
        }));
        pairs
    }

    /// Returns the content of the copy other than its rows. This content is replayed if the store was recovered.
    pub(crate) fn beside_rows(&self) -> BesideRows {
        BesideRows {
            removed: self.exits.removed().clone(),
            member: self.exits.get(&self.me).filter(|_| self.exits.has(&self.me)).cloned(),
            roster: self.copy.roster().map(<[u8]>::to_vec),
        }
    }
}

/// The changes that the events of one revision have made.
#[derive(Default)]
struct Changed {
    before: Vec<crate::rows::Before>,
    rows: Vec<RowChange>,
    written: Option<Written>,
}

/// Returns the rows of a full reading.
pub(crate) fn rows_of(keys: &Keys, pairs: &[Pair]) -> Rows {
    read(keys, None, pairs).rows
}

pub(crate) fn pools_text(pools: &Pools) -> String {
    let ipv4 = pools.ipv4.map(|pool| pool.to_string());
    let ipv6 = pools.ipv6.map(|pool| pool.to_string());
    let all: Vec<_> = ipv4.into_iter().chain(ipv6).collect();
    if all.is_empty() { "none".to_owned() } else { all.join(" and ") }
}
