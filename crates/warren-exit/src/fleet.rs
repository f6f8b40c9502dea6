//! The exit as a member of a fleet: its link to the store that all exits share, and what follows from the
//! store's state.
//!
//! `warren-fleet` connects to a socket (`socket.rs`, `link.rs`) and reports what is in the store. `warren-fleet` also gets the
//! requests of the sessions' state machine, and answers them (`requests.rs`). The state that must survive a restart is in a file
//! (`file.rs`). `serving.rs` decides when the exit sends its clients to other exits. `view.rs` describes the state of the fleet.

mod exits;
mod file;
mod link;
mod requests;
mod serving;
mod socket;
#[cfg(test)]
mod tests;
mod view;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::mpsc;
use warren_config::{ClientStore, FleetSettings};
use warren_daemon::output;
use warren_fleet_link::{
    ExitMessage, FleetExit, FleetMessage, KnownRoster, Load, MAX_ADDRESSES, MAX_EXITS, MAX_ROWS, Outcome,
    StoreCertificate, StoreLink, StoreMembers,
};
use warren_session::PublicKey;
use warren_session::clients::RowChange;
use warren_session::exit::{AdminError, ExitSessions, StoreRefusal, StoreRequest, WholeCopy};
use warren_session::message::ExitLoad;
use warren_session::roster::MAX_ROSTER_LENGTH;

use self::exits::Exits;
use self::file::{FleetFile, Kept};
pub(crate) use self::link::{LinkEvent, LinkEvents};
pub(crate) use self::requests::Verdict;
use self::requests::{Asked, Counts, Requests};
use self::serving::Serving;
pub(crate) use self::socket::FleetSocket;

/// The longest time until the exit's copy on disk contains changes made elsewhere.
const COPY_WITHIN: Duration = Duration::from_millis(200);

/// Maximum number of the store's certificates that a message may contain.
const MOST_CERTIFICATES: usize = 100;

/// The exit's side of its fleet.
pub(crate) struct Fleet {
    settings: FleetSettings,
    /// `None` while `warren-fleet` is not connected.
    link: Option<Link>,
    store: StoreLink,
    /// The whole copy that is arriving, with its revision.
    whole: Option<(i64, WholeCopy)>,
    /// Whether the registry follows the link. The registry begins to follow the link when a whole copy is in force.
    follows: bool,
    /// The revision up to which the store's changes are in the registry.
    revision: i64,
    requests: Requests,
    serving: Serving,
    exits: Exits,
    clock_offset_ms: i64,
    around: AroundTheStore,
    counts: Counts,
    file: FleetFile,
    /// When the copy on disk must be up to date with the registry.
    copy_due: Option<Instant>,
    /// Whether the copy could not be written the last time.
    is_failing: bool,
}

/// What operators have set up in addition to the clients: the roster, the certificates, and the addresses of the store's members.
#[derive(Debug, Default)]
struct AroundTheStore {
    /// The length of the signed roster.
    roster_bytes: usize,
    certificates: Vec<StoreCertificate>,
    addresses: StoreAddresses,
}

/// The addresses of the store's members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoreAddresses(StoreMembers);

impl StoreAddresses {
    pub(crate) fn new(members: StoreMembers) -> Self {
        Self(members)
    }

    /// The addresses of all members. `None` if no member is known, or if no address of a member was ever found, because that member
    /// could be in any network.
    pub(crate) fn all(&self) -> Option<Vec<IpAddr>> {
        let is_known = !self.0.is_empty() && self.0.values().all(|addresses| !addresses.is_empty());
        is_known.then(|| self.0.values().flatten().copied().collect())
    }

    /// Takes the list of members. A member that has no address now keeps its earlier ones. A member that has left the list is
    /// forgotten, so that its addresses are not taken for another member's.
    fn take(&mut self, mut members: StoreMembers) {
        for (endpoint, addresses) in &mut members {
            if addresses.is_empty() {
                *addresses = self.0.remove(endpoint).unwrap_or_default();
            }
        }
        self.0 = members;
    }
}

/// A connection of `warren-fleet`.
struct Link {
    number: u64,
    to: mpsc::Sender<ExitMessage>,
    /// The exit's key that `warren-fleet` knows.
    key: PublicKey,
}

/// The changes that a message has made.
#[derive(Debug, Default)]
pub(crate) struct Followed {
    /// The clients whose rows have changed.
    pub(crate) clients: Vec<PublicKey>,
    /// Whether the message completed a whole copy, so that every other client is gone.
    pub(crate) is_whole: bool,
    /// Clients that do not fit this exit, and are therefore not in its registry.
    pub(crate) unfit: Vec<AdminError>,
    /// The signed roster, if it has changed in the store.
    pub(crate) roster: Option<Vec<u8>>,
}

impl Fleet {
    /// Loads the state that an earlier run has left beside the clients' store.
    ///
    /// # Errors
    /// When the file of the earlier run cannot be read.
    pub(crate) fn resume(
        settings: FleetSettings,
        store: &ClientStore,
        sessions: &mut ExitSessions,
    ) -> anyhow::Result<Self> {
        let (file, kept) = FleetFile::read(store.path(), settings.max_staleness)?;
        sessions.keep_copy();
        sessions.resume(kept.unsent.clone());
        let age = kept.age(SystemTime::now());
        let serving = Serving::new(settings.max_staleness, Instant::now(), age, &kept);
        let addresses = StoreAddresses::new(kept.members);
        Ok(Self {
            serving,
            settings,
            link: None,
            store: StoreLink::Away {
                silent: age.unwrap_or_default(),
                reason: "warren-fleet has not connected yet".to_owned(),
            },
            whole: None,
            follows: false,
            revision: kept.revision,
            requests: Requests::default(),
            exits: Exits::default(),
            clock_offset_ms: 0,
            around: AroundTheStore { addresses, ..AroundTheStore::default() },
            counts: Counts::default(),
            file,
            copy_due: None,
            is_failing: false,
        })
    }

    /// Handles a new connection of `warren-fleet`. Sends the exit's name and key, and the sessions that it has.
    pub(crate) fn connected(
        &mut self,
        number: u64,
        to: mpsc::Sender<ExitMessage>,
        (hello, key): (ExitMessage, PublicKey),
        sessions: &mut ExitSessions,
    ) {
        self.lose("another connection has replaced it", sessions);
        tracing::info!("warren-fleet has connected");
        self.link = Some(Link { number, to, key });
        self.say(hello, sessions);
        let opened: Vec<ExitMessage> = sessions
            .sessions()
            .map(|session| ExitMessage::Opened {
                key: session.key(),
                nonce: session.nonce().to_vec(),
                claim: session.claim(),
            })
            .collect();
        opened.into_iter().for_each(|opened| self.say(opened, sessions));
    }

    /// Whether an event belongs to the connection in use.
    pub(crate) fn is_current(&self, number: u64) -> bool {
        self.link.as_ref().is_some_and(|link| link.number == number)
    }

    /// Handles the end of the connection, or ends it. Each request that has no answer yet is answered once, as unavailable.
    pub(crate) fn lose(&mut self, why: &str, sessions: &mut ExitSessions) {
        if self.link.take().is_none() {
            return;
        }
        tracing::warn!("the link to the fleet is lost: {why}; {}", self.without_store());
        let reason = format!("there is no link to it: {why}");
        self.store = StoreLink::Away { silent: self.serving.silent(Instant::now()), reason };
        (self.whole, self.follows) = (None, false);
        self.exits.lose();
        for id in self.requests.lose_all() {
            self.counts.unavailable += 1;
            sessions.stored(Instant::now(), id, Err(StoreRefusal::Unavailable));
        }
    }

    /// What the exit does while requests do not reach the store, as part of a sentence.
    fn without_store(&self) -> &'static str {
        match self.serving.is_removed() {
            true => "this exit serves nobody, because it was removed from its fleet",
            false => "clients are still served, but nobody is enrolled until the store answers again",
        }
    }

    /// Ends the link if the exit's key has changed, so that `warren-fleet` connects again and learns the new key.
    pub(crate) fn introduce(&mut self, key: PublicKey, sessions: &mut ExitSessions) {
        if self.link.as_ref().is_some_and(|link| link.key != key) {
            self.lose("the exit has another key now", sessions);
        }
    }

    /// Sends a message to `warren-fleet`, if it is connected and reads.
    pub(crate) fn say(&mut self, message: ExitMessage, sessions: &mut ExitSessions) {
        if let Some(link) = &self.link
            && link.to.try_send(message).is_err()
        {
            self.lose("warren-fleet does not read the exit's messages", sessions);
        }
    }

    /// Reports how busy the exit is, and its roster.
    pub(crate) fn say_load(&mut self, load: Load, sessions: &mut ExitSessions) {
        let state = self.serving.state();
        let roster = sessions.fleet().map(|fleet| {
            let roster = fleet.roster();
            KnownRoster { fleet: roster.fleet.to_string(), serial: roster.serial }
        });
        self.say(ExitMessage::Load { load, state, roster }, sessions);
    }

    /// The addresses of the store's members.
    pub(crate) fn store_addresses(&self) -> &StoreAddresses {
        &self.around.addresses
    }

    /// Whether requests reach the store.
    pub(crate) fn is_reachable(&self) -> bool {
        self.follows && self.store == StoreLink::Reachable
    }

    /// Whether the store has said that this exit was removed from the fleet.
    pub(crate) fn is_removed(&self) -> bool {
        self.serving.is_removed()
    }

    /// Why requests do not reach the store, as part of a sentence.
    pub(crate) fn why_away(&self) -> String {
        match &self.store {
            _ if self.is_removed() => "this exit was removed from its fleet".to_owned(),
            StoreLink::Reachable if self.follows => "its answers take too long".to_owned(),
            StoreLink::Reachable => "this exit has not read its clients yet".to_owned(),
            StoreLink::Away { reason, .. } | StoreLink::Refused { reason, .. } => reason.clone(),
        }
    }

    /// Asks the store for changes. Changes that are already in force are saved to disk first.
    pub(crate) fn ask(
        &mut self,
        request: StoreRequest,
        store: &mut ClientStore,
        sessions: &mut ExitSessions,
    ) {
        self.copy(store, sessions);
        let now = Instant::now();
        let StoreRequest { id, changes: rows } = request;
        if !self.is_reachable() {
            self.requests.not_asked(id);
            self.answer(now, id.0, Outcome::Unavailable, sessions);
            return;
        }
        self.requests.asked(id, rows.clone(), now);
        if self.requests.are_too_many() {
            return self.lose("warren-fleet does not answer requests", sessions);
        }
        self.say(ExitMessage::Request { id: id.0, rows }, sessions);
    }

    /// Handles a message of `warren-fleet`.
    ///
    /// Returns an error that says why the message is invalid. The caller must then end the link. A new link begins with a whole
    /// copy.
    pub(crate) fn take(
        &mut self,
        now: Instant,
        message: FleetMessage,
        sessions: &mut ExitSessions,
    ) -> Result<Followed, String> {
        let mut followed = Followed::default();
        match message {
            FleetMessage::Store(link) => self.take_store(link, sessions),
            FleetMessage::Answered { ago } => {
                if self.serving.heard(now, ago) {
                    // The time of this answer must reach the disk, even if nothing else changes.
                    self.copy_due.get_or_insert(now + self.file.lag());
                }
            }
            FleetMessage::Whole { revision, rows, is_last } => {
                followed = self.take_whole(now, (revision, is_last), rows, sessions)?;
            }
            FleetMessage::Changes { revision, rows } => {
                self.check_order(revision)?;
                check_count(rows.len(), MAX_ROWS, "rows")?;
                followed = self.apply(now, rows, sessions);
                self.act_by(revision, sessions);
            }
            FleetMessage::Answer { id, outcome } => {
                followed = self.take_answer(now, (id, outcome), sessions)?
            }
            FleetMessage::Elsewhere { key, nonce, claim, exit } => {
                tracing::debug!("a client has a newer session at {exit}");
                sessions.elsewhere(now, key, &nonce, claim);
            }
            FleetMessage::Exits { own_clock_offset_ms, changed, exits, removed } => {
                check_count(exits.len(), MAX_EXITS, "exits")?;
                check_count(removed.len(), MAX_EXITS, "removed exits")?;
                self.exits.set_removed(removed);
                sessions.set_loads(exits.iter().filter(|exit| exit.is_alive).map(load_of).collect());
                self.exits.take(now, changed, exits);
                self.look_at_clock(own_clock_offset_ms, sessions);
            }
            FleetMessage::Certificates { certificates } => {
                check_count(certificates.len(), MOST_CERTIFICATES, "certificates")?;
                check_names(&certificates)?;
                self.around.certificates = certificates;
            }
            FleetMessage::StoreAddresses { members } => {
                check_count(members.len(), MAX_ADDRESSES, "members of the store")?;
                let addresses = members.values().map(BTreeSet::len).sum();
                check_count(addresses, MAX_ADDRESSES, "addresses of the store")?;
                self.around.addresses.take(members);
                // After a restart, the exit needs these addresses before the link repeats them, so they go into the copy.
                self.copy_due.get_or_insert(now + COPY_WITHIN);
            }
            FleetMessage::Roster { bytes } => {
                check_count(bytes.len(), MAX_ROSTER_LENGTH, "bytes of a roster")?;
                self.around.roster_bytes = bytes.len();
                followed.roster = Some(bytes);
            }
            FleetMessage::Drain { on } => self.serving.ask_to_drain(on),
            // The connection has ended with this message (`link.rs`).
            FleetMessage::Refused { .. } => {}
        }
        Ok(followed)
    }

    fn take_answer(
        &mut self,
        now: Instant,
        (id, outcome): (u64, Outcome),
        sessions: &mut ExitSessions,
    ) -> Result<Followed, String> {
        if !self.requests.is_asked(id) {
            return Err(format!("request {id} is answered, but is not open"));
        }
        if let Outcome::Stored { revision } = outcome {
            self.check_order(revision)?;
        }
        let followed = self.answer(now, id, outcome, sessions);
        if let Outcome::Stored { revision } = outcome {
            self.act_by(revision, sessions);
        }
        Ok(followed)
    }

    fn take_store(&mut self, mut link: StoreLink, sessions: &mut ExitSessions) {
        if let StoreLink::Away { reason, .. } | StoreLink::Refused { reason, .. } = &mut link {
            *reason = one_line(reason);
        }
        let was_reachable = self.is_reachable();
        let is_news = std::mem::discriminant(&self.store) != std::mem::discriminant(&link);
        match &link {
            StoreLink::Reachable if is_news => tracing::info!("the fleet's store answers"),
            StoreLink::Away { reason, .. } if is_news => {
                tracing::warn!("the fleet's store does not answer: {reason}; {}", self.without_store());
            }
            StoreLink::Refused { reason, .. } if is_news => {
                tracing::error!("the fleet's store must not be used: {reason}");
            }
            StoreLink::Reachable | StoreLink::Away { .. } | StoreLink::Refused { .. } => {}
        }
        if link != StoreLink::Reachable {
            self.exits.lose();
        }
        // Only the store itself says that this exit was removed, or is in the fleet again. Without an answer, nothing changes.
        let is_removed = match &link {
            StoreLink::Reachable => false,
            StoreLink::Refused { is_removed: true, .. } => true,
            StoreLink::Away { .. } | StoreLink::Refused { .. } => self.serving.is_removed(),
        };
        if self.serving.set_removed(is_removed) {
            // A restart must not forget this.
            self.copy_due = Some(Instant::now());
        }
        self.store = link;
        // While another member of the store takes over, requests fail although the store counts as reachable. Once the store
        // answers again, a failed removal is sent again at once.
        if self.is_reachable() && (self.requests.take_failed() || !was_reachable) {
            sessions.store_answers();
        }
    }

    fn take_whole(
        &mut self,
        now: Instant,
        (revision, is_last): (i64, bool),
        rows: Vec<RowChange>,
        sessions: &mut ExitSessions,
    ) -> Result<Followed, String> {
        check_count(rows.len(), MAX_ROWS, "rows")?;
        let (begun, copy) = self.whole.get_or_insert_with(|| (revision, WholeCopy::default()));
        if *begun != revision {
            return Err(format!("a whole copy of revision {begun} continues with revision {revision}"));
        }
        copy.add(sessions, rows).map_err(|error| error.to_string())?;
        if !is_last {
            return Ok(Followed::default());
        }
        let Some((_, copy)) = self.whole.take() else { return Ok(Followed::default()) };
        // While the store does not answer, `warren-fleet` sends its copy from disk, which may be older than this exit's registry. The exit
        // does not believe an empty copy from disk either, because a file proves nothing. A copy from the store itself is always right.
        let is_empty = copy.is_empty() && !sessions.registry().is_empty();
        // After an older copy has arrived, `self.revision` is the revision of that copy.
        let own = self.revision.max(self.file.floor());
        let is_old = self.store != StoreLink::Reachable && (revision < own || is_empty);
        let mut followed = Followed::default();
        if is_old {
            tracing::warn!(
                "warren-fleet has an older or empty copy of the clients, and this exit keeps its own"
            );
            // Until the link has caught up, this exit's copy on disk is newer than the link's.
            self.file.stay_at(own);
        } else {
            self.file.stay_at(0);
            let unfit = sessions.take_whole(now, copy);
            let clients = sessions.registry().iter().map(|client| client.public_key).collect();
            followed = Followed { clients, is_whole: true, unfit, roster: None };
            self.copy_due.get_or_insert(now + COPY_WITHIN);
        }
        // The revision may become lower than before, because the changes that follow build on this copy.
        self.revision = revision;
        let was_reachable = self.is_reachable();
        self.follows = true;
        if !is_old {
            // An old copy is not confirmed. Otherwise the link would compare the store with its old copy, and report only the
            // differences from that copy.
            self.say(ExitMessage::Applied { revision: self.revision }, sessions);
        }
        if !was_reachable && self.is_reachable() {
            sessions.store_answers();
        }
        Ok(followed)
    }

    fn check_order(&self, revision: i64) -> Result<(), String> {
        if self.whole.is_some() {
            return Err("a whole copy is interrupted by a change".to_owned());
        }
        if !self.follows {
            return Err("a change comes before the whole copy".to_owned());
        }
        if revision < self.revision {
            return Err(format!("revision {revision} comes after revision {}", self.revision));
        }
        Ok(())
    }

    /// Records that the registry contains everything up to this revision.
    fn act_by(&mut self, revision: i64, sessions: &mut ExitSessions) {
        self.revision = self.revision.max(revision);
        self.say(ExitMessage::Applied { revision: self.revision }, sessions);
    }

    fn apply(&mut self, now: Instant, rows: Vec<RowChange>, sessions: &mut ExitSessions) -> Followed {
        let clients = rows.iter().filter_map(key_of).collect();
        let unfit = sessions.apply(now, rows);
        self.copy_due.get_or_insert(now + COPY_WITHIN);
        Followed { clients, unfit, ..Followed::default() }
    }

    /// Handles the outcome of a request.
    fn answer(&mut self, now: Instant, id: u64, outcome: Outcome, sessions: &mut ExitSessions) -> Followed {
        let (id, asked) = self.requests.answered(id, outcome, now);
        let result = match outcome {
            Outcome::Stored { .. } => Ok(()),
            Outcome::Conflict => Err(StoreRefusal::Conflict),
            Outcome::Unavailable => Err(StoreRefusal::Unavailable),
        };
        let clients = asked.iter().flat_map(|asked| asked.rows.iter().filter_map(key_of)).collect();
        // The state machine has given this request up. The state machine gets the change as if another exit had made it.
        if let Some(Asked { rows, is_late: true, .. }) = asked {
            return match result {
                Ok(()) => self.apply(now, rows, sessions),
                Err(_) => Followed::default(),
            };
        }
        match result {
            Ok(()) => self.counts.stored += 1,
            Err(StoreRefusal::Conflict) => self.counts.conflicts += 1,
            Err(StoreRefusal::Unavailable) => self.counts.unavailable += 1,
        }
        self.copy_due.get_or_insert(now + COPY_WITHIN);
        sessions.stored(now, id, result);
        Followed { clients, ..Followed::default() }
    }

    fn look_at_clock(&mut self, offset_ms: i64, sessions: &mut ExitSessions) {
        let (was_wrong, is_wrong) = (self.is_clock_wrong(), is_wrong(offset_ms));
        self.clock_offset_ms = offset_ms;
        sessions.set_clock_wrong(is_wrong);
        if is_wrong && !was_wrong {
            tracing::error!(
                "this host's clock differs from the fleet's by {} s: no invitation is redeemed here until the clock is right; check this host's time service, such as chrony, and with only two exits also the other's",
                offset_ms / 1_000
            );
        } else if was_wrong && !is_wrong {
            tracing::info!("this host's clock is right again: invitations are redeemed here");
        }
    }

    fn is_clock_wrong(&self) -> bool {
        is_wrong(self.clock_offset_ms)
    }

    /// When [`Self::handle_timeout`] is due.
    pub(crate) fn due(&self) -> Option<Instant> {
        let away = self.serving.due();
        [self.requests.due(), self.copy_due, away].into_iter().flatten().min()
    }

    /// Does everything that is due: gives up requests, writes the copy, sends clients to other exits or accepts them again.
    pub(crate) fn handle_timeout(
        &mut self,
        now: Instant,
        store: &mut ClientStore,
        sessions: &mut ExitSessions,
    ) {
        for id in self.requests.give_up(now) {
            self.counts.unavailable += 1;
            sessions.stored(now, id, Err(StoreRefusal::Unavailable));
        }
        if self.copy_due.is_some_and(|due| due <= now) {
            self.copy(store, sessions);
        }
    }

    /// Whether the clients cannot be written to the disk.
    pub(crate) fn is_disk_failing(&self) -> bool {
        self.is_failing
    }

    /// Sends the exit's clients to other exits for good, because the exit ends.
    pub(crate) fn drain(&mut self) {
        self.serving.end();
    }

    /// Serves the exit's clients, or sends them to other exits. This depends on how long the store has been silent and on the
    /// operators' wishes.
    pub(crate) fn serve(&mut self, now: Instant, sessions: &mut ExitSessions) -> bool {
        let (is_back, had_to_hear) = (self.is_reachable(), self.serving.must_hear());
        let has_changed = self.serving.follow(now, is_back, sessions);
        if had_to_hear && !self.serving.must_hear() {
            self.copy_due.get_or_insert(now + COPY_WITHIN);
        }
        has_changed
    }

    /// Saves everything that has changed since the last time: first the list of rows that the store may lack, then the rows.
    pub(crate) fn copy(&mut self, store: &mut ClientStore, sessions: &mut ExitSessions) {
        self.copy_due = None;
        if self.file.was_replaced() {
            self.serving.read_first();
        }
        let rows = sessions.take_uncopied();
        let written = self.file.keep(self.kept(sessions, !rows.is_empty()));
        let written = written.and_then(|()| match rows.is_empty() {
            true => Ok(()),
            false => store.save(&rows, || sessions.registry().rows()),
        });
        match written {
            Ok(()) => {
                self.file.has_saved_all();
                if std::mem::take(&mut self.is_failing) {
                    tracing::info!("clients are saved again");
                }
                if self.file.revision() < self.revision || self.file.must_hear() != self.serving.must_hear() {
                    // The rows are on disk now, so the file may follow them.
                    self.copy_due = Some(Instant::now() + COPY_WITHIN);
                }
            }
            Err(error) => {
                if rows.iter().any(shuts_out) {
                    self.file.set_aside();
                }
                sessions.copy_again(&rows);
                self.copy_due = Some(Instant::now() + Duration::from_secs(5));
                if !std::mem::replace(&mut self.is_failing, true) {
                    tracing::error!("{error}; clients are kept in memory, and saved as soon as that works");
                }
            }
        }
    }

    /// Saves everything, because the exit ends.
    pub(crate) fn end(&mut self, store: &mut ClientStore, sessions: &mut ExitSessions) {
        self.copy(store, sessions);
        if let Err(error) = self.file.write(self.kept(sessions, self.is_failing)) {
            tracing::error!("{error}");
        }
    }

    /// What the file must contain. `is_ahead`: the registry has rows that are not on the disk yet. Until they are, the file says what is
    /// true of the rows on the disk.
    fn kept(&self, sessions: &ExitSessions, is_ahead: bool) -> Kept {
        let (revision, must_hear) = (self.revision, self.serving.must_hear());
        Kept {
            answered: self.serving.answered(),
            is_removed: self.serving.is_removed(),
            revision: if is_ahead { revision.min(self.file.revision()) } else { revision },
            must_hear: must_hear || (is_ahead && self.file.must_hear()),
            unsent: sessions.unsent(),
            members: self.around.addresses.0.clone(),
        }
    }
}

fn is_wrong(offset_ms: i64) -> bool {
    /// Above this difference, no invitation is redeemed.
    const MOST: u64 = 60_000;
    offset_ms.unsigned_abs() > MOST
}

/// Another program's reason, made safe for the log and reports.
fn one_line(reason: &str) -> String {
    const MOST: usize = 500;
    let short: String = reason.chars().take(MOST).map(|c| if c == '\n' { ' ' } else { c }).collect();
    output::harmless(&short).into_owned()
}

/// Converts an exit's load to the form for clients. The load is how full the exit's pool is or how busy its cores are, whichever is
/// greater.
fn load_of(exit: &FleetExit) -> ExitLoad {
    /// Clients read a load some time after it was measured, and busy cores may be idle when clients read it. So busy cores always
    /// leave an exit at least a tenth of its share. Only a full pool leaves nothing.
    const BUSIEST: u32 = 900;
    let Load { sessions, max_sessions, busy_permille, .. } = exit.load;
    let full = u64::from(sessions) * 1000 / u64::from(max_sessions).max(1);
    let full = u32::try_from(full).unwrap_or(u32::MAX);
    ExitLoad { exit: exit.exit.to_string(), permille: full.max(busy_permille.min(BUSIEST)) }
}

fn check_count(count: usize, most: usize, what: &str) -> Result<(), String> {
    if count > most {
        return Err(format!("a message has {count} {what}, but may have at most {most}"));
    }
    Ok(())
}

/// Checks the certificates' names, because they become labels of metrics, and labels are not escaped.
fn check_names(certificates: &[StoreCertificate]) -> Result<(), String> {
    let is_good = |name: &str| {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b" .:-_[]".contains(&byte);
        (1..=300).contains(&name.len()) && name.bytes().all(allowed)
    };
    match certificates.iter().find(|certificate| !is_good(&certificate.name)) {
        Some(certificate) => Err(format!("a certificate has the name {:?}", certificate.name)),
        None => Ok(()),
    }
}

/// Whether a row says that a client is removed or disabled.
fn shuts_out(row: &RowChange) -> bool {
    match row {
        RowChange::Client { client, .. } => client.as_ref().is_none_or(|client| client.disabled),
        RowChange::Removed { removed, .. } => removed.is_some(),
        RowChange::Invitation { .. } => false,
    }
}

fn key_of(row: &RowChange) -> Option<PublicKey> {
    match row {
        RowChange::Client { key, .. } | RowChange::Removed { key, .. } => Some(*key),
        RowChange::Invitation { .. } => None,
    }
}
