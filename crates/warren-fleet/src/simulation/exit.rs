//! An exit: the real state machine of sessions, and what the exit's daemon does around it (`warren-exit/src/fleet.rs`).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant, SystemTime};

use warren_fleet_link::{ExitMessage, ExitState, FleetMessage, Load, Outcome, StoreLink};
use warren_session::PublicKey;
use warren_session::clients::{ClientRegistry, RowChange, RowId};
use warren_session::exit::{
    ExitAction, ExitSessions, SessionConfig, SessionId, StoreRefusal, StoreRequest, StoreRequestId,
    UnsentRow, WholeCopy,
};
use warren_session::goodbye::Goodbye;
use warren_session::message::{Message, MessageDecoder};
use warren_session::pool::Lease;
use warren_simulation::Random;

/// How long the clients of a removed exit have to leave it.
const LEAVING: Duration = Duration::from_secs(2);

/// A message to a client, or the end of its connection.
#[derive(Debug)]
pub(super) enum ToClient {
    Said(Box<Message>),
    Closed,
}

/// A session that is open.
#[derive(Clone, Debug)]
pub(super) struct Open {
    pub(super) key: PublicKey,
    pub(super) lease: Lease,
    pub(super) since: Instant,
    nonce: Vec<u8>,
}

/// What is left on the disk if the exit is killed.
#[derive(Debug, Default)]
struct Disk {
    rows: BTreeMap<RowId, RowChange>,
    unsent: Vec<UnsentRow>,
    revision: i64,
    is_removed: bool,
}

pub(super) struct Exit {
    pub(super) sessions: ExitSessions,
    pub(super) open: BTreeMap<SessionId, Open>,
    pub(super) to_clients: VecDeque<(u64, ToClient)>,
    pub(super) to_link: VecDeque<ExitMessage>,
    /// The outcomes of requests.
    pub(super) outcomes: VecDeque<(StoreRequestId, Result<(), StoreRefusal>)>,
    disk: Disk,
    asked: BTreeSet<u64>,
    store: StoreLink,
    whole: Option<(i64, WholeCopy)>,
    follows: bool,
    revision: i64,
    has_failed: bool,
    /// Whether the store has said that this exit was removed from the fleet.
    pub(super) is_removed: bool,
    /// When an exit that was removed ends the sessions that are left.
    cut_off: Option<Instant>,
    is_leaving: bool,
}

impl Exit {
    pub(super) fn new(random: &mut Random, now: Instant) -> Self {
        Self::start(Disk::default(), random, now)
    }

    /// Starts an exit with the disk of an earlier one.
    fn start(disk: Disk, random: &mut Random, now: Instant) -> Self {
        let registry = ClientRegistry::from_rows(disk.rows.values().cloned()).unwrap();
        let config = SessionConfig {
            // So few addresses that exits often choose the same ones.
            ipv4: Some("10.66.0.0/27".parse().unwrap()),
            max_connections: 2,
            ..SessionConfig::default()
        };
        let mut entropy = random.clone();
        random.draw();
        let entropy = Box::new(move |bytes: &mut [u8]| entropy.fill(bytes));
        let wall = SystemTime::UNIX_EPOCH;
        let mut sessions = ExitSessions::new(config, registry, now, wall, entropy).unwrap();
        sessions.keep_copy();
        sessions.resume(disk.unsent.clone());
        Self {
            sessions,
            open: BTreeMap::new(),
            to_clients: VecDeque::new(),
            to_link: VecDeque::new(),
            outcomes: VecDeque::new(),
            asked: BTreeSet::new(),
            store: away(),
            whole: None,
            follows: false,
            revision: disk.revision,
            has_failed: false,
            is_removed: disk.is_removed,
            cut_off: None,
            is_leaving: false,
            disk,
        }
    }

    /// Kills the exit and starts it again.
    pub(super) fn restart(&mut self, random: &mut Random, now: Instant) {
        let disk = std::mem::take(&mut self.disk);
        *self = Self::start(disk, random, now);
    }

    /// Handles a new connection of the link.
    pub(super) fn link_connected(&mut self, now: Instant, hello: ExitMessage) {
        self.to_link.clear();
        (self.whole, self.follows, self.store) = (None, false, away());
        for id in std::mem::take(&mut self.asked) {
            self.answered(now, id, Outcome::Unavailable);
        }
        self.to_link.push_back(hello);
        if self.is_leaving {
            let (load, state) = (Load::default(), ExitState::Draining);
            self.to_link.push_back(ExitMessage::Load { load, state, roster: None });
        }
        let opened = self.sessions.sessions().map(opened);
        self.to_link.extend(opened);
    }

    fn is_reachable(&self) -> bool {
        self.follows && self.store == StoreLink::Reachable
    }

    pub(super) fn link_said(&mut self, now: Instant, message: FleetMessage) {
        match message {
            FleetMessage::Store(link) => {
                let was_reachable = self.is_reachable();
                self.is_removed = match &link {
                    StoreLink::Reachable => false,
                    StoreLink::Refused { is_removed: true, .. } => true,
                    StoreLink::Away { .. } | StoreLink::Refused { .. } => self.is_removed,
                };
                self.store = link;
                if self.is_reachable() && (std::mem::take(&mut self.has_failed) || !was_reachable) {
                    self.sessions.store_answers();
                }
            }
            FleetMessage::Whole { revision, rows, is_last } => {
                self.take_whole(now, (revision, is_last), rows)
            }
            FleetMessage::Changes { revision, rows } => {
                assert!(self.follows && revision >= self.revision, "changes out of order");
                // A client whose row does not fit is left out.
                self.sessions.apply(now, rows);
                self.applied(revision);
            }
            FleetMessage::Answer { id, outcome } => {
                assert!(self.asked.remove(&id), "an answer to a request that is not open");
                self.answered(now, id, outcome);
                if let Outcome::Stored { revision } = outcome {
                    self.applied(revision);
                }
            }
            FleetMessage::Elsewhere { key, nonce, claim, .. } => {
                self.sessions.elsewhere(now, key, &nonce, claim)
            }
            FleetMessage::Answered { .. }
            | FleetMessage::Exits { .. }
            | FleetMessage::StoreAddresses { .. }
            | FleetMessage::Certificates { .. }
            | FleetMessage::Roster { .. }
            | FleetMessage::Refused { .. }
            | FleetMessage::Drain { .. } => {}
        }
    }

    fn take_whole(&mut self, now: Instant, (revision, is_last): (i64, bool), rows: Vec<RowChange>) {
        let (_, whole) = self.whole.get_or_insert_with(|| (revision, WholeCopy::default()));
        whole.add(&self.sessions, rows).unwrap();
        if !is_last {
            return;
        }
        let Some((_, whole)) = self.whole.take() else { return };
        // A link's copy on disk may be older than the exit's registry.
        let is_old = self.store != StoreLink::Reachable && revision < self.revision;
        if !is_old {
            self.sessions.take_whole(now, whole);
        }
        self.revision = revision;
        let was_reachable = self.is_reachable();
        self.follows = true;
        if !is_old {
            self.applied(revision);
        }
        if !was_reachable && self.is_reachable() {
            self.sessions.store_answers();
        }
    }

    fn applied(&mut self, revision: i64) {
        self.revision = self.revision.max(revision);
        self.to_link.push_back(ExitMessage::Applied { revision: self.revision });
    }

    fn answered(&mut self, now: Instant, id: u64, outcome: Outcome) {
        let result = match outcome {
            Outcome::Stored { .. } => Ok(()),
            Outcome::Conflict => Err(StoreRefusal::Conflict),
            Outcome::Unavailable => Err(StoreRefusal::Unavailable),
        };
        self.has_failed |= outcome == Outcome::Unavailable;
        self.sessions.stored(now, StoreRequestId(id), result);
        self.outcomes.push_back((StoreRequestId(id), result));
    }

    /// Stops serving if the exit was removed, and begins again (`warren-exit/src/fleet/serving.rs`).
    pub(super) fn follow(&mut self, now: Instant) {
        if self.is_removed && !self.is_leaving {
            self.sessions.drain(now);
            self.cut_off = Some(now + LEAVING);
        } else if self.is_leaving && !self.is_removed && self.is_reachable() {
            self.sessions.serve_again();
            self.cut_off = None;
        } else if self.cut_off.is_some_and(|at| at <= now) {
            self.cut_off = None;
            self.sessions.shutdown(now, Goodbye::Draining);
            return;
        } else {
            return;
        }
        self.is_leaving = self.is_removed;
        let state = if self.is_leaving { ExitState::Draining } else { ExitState::Serving };
        self.to_link.push_back(ExitMessage::Load { load: Load::default(), state, roster: None });
    }

    /// Carries out the actions of the state machine.
    pub(super) fn act(&mut self, now: Instant) {
        while let Some(action) = self.sessions.poll_action() {
            match action {
                ExitAction::Store(request) => self.ask(now, request),
                ExitAction::Send { connection, bytes } => {
                    let mut decoder = MessageDecoder::new();
                    decoder.push(&bytes);
                    let said = decoder.next().unwrap().unwrap();
                    self.to_clients.push_back((connection, ToClient::Said(Box::new(said))));
                }
                ExitAction::Close { connection, .. } => {
                    self.to_clients.push_back((connection, ToClient::Closed));
                }
                ExitAction::Open { session, key, lease, .. } => {
                    let Some(opened) = self.sessions.session(session) else { continue };
                    let nonce = opened.nonce().to_vec();
                    self.to_link.push_back(self::opened(opened));
                    self.open.insert(session, Open { key, lease, since: now, nonce });
                }
                ExitAction::Stays { session, .. } => {
                    self.to_link.extend(self.sessions.session(session).map(opened));
                }
                ExitAction::End { session, .. } => {
                    let Some(Open { key, nonce, .. }) = self.open.remove(&session) else { continue };
                    self.to_link.push_back(ExitMessage::Closed { key, nonce });
                }
                ExitAction::Enrolled { .. }
                | ExitAction::Attach { .. }
                | ExitAction::Detach { .. }
                | ExitAction::SetWireGuard { .. } => {}
            }
        }
    }

    fn ask(&mut self, now: Instant, request: StoreRequest) {
        // Everything in force is saved before the store is asked, so that it survives if the exit is killed.
        self.save();
        let StoreRequest { id, changes: rows } = request;
        if self.is_reachable() {
            self.asked.insert(id.0);
            self.to_link.push_back(ExitMessage::Request { id: id.0, rows });
        } else {
            self.answered(now, id.0, Outcome::Unavailable);
        }
    }

    pub(super) fn save(&mut self) {
        self.disk.unsent = self.sessions.unsent();
        for row in self.sessions.take_uncopied() {
            if row.is_set() {
                self.disk.rows.insert(row.id(), row);
            } else {
                self.disk.rows.remove(&row.id());
            }
        }
        (self.disk.revision, self.disk.is_removed) = (self.revision, self.is_removed);
    }
}

fn away() -> StoreLink {
    StoreLink::Away { silent: Duration::ZERO, reason: "no link".to_owned() }
}

fn opened(session: &warren_session::exit::Session) -> ExitMessage {
    ExitMessage::Opened { key: session.key(), nonce: session.nonce().to_vec(), claim: session.claim() }
}
