//! The exit's side of sessions, without I/O: connections, bytes and time go in, [`ExitAction`]s come out.
//!
//! The caller numbers connections and never reuses a number. It reports their events, and after each call it carries out every
//! action in order. The caller has no other duties: bytes may be hostile, and events of closed connections are ignored.

mod action;
mod admin;
mod answers;
mod apart;
mod claims;
mod config;
mod connections;
mod deadlines;
mod elsewhere;
mod ending;
mod enrolment;
mod events;
mod fleet;
mod fleet_news;
mod fleet_rules;
mod follow;
mod handshake;
mod requests;
mod roster;
mod session;
mod store;
#[cfg(test)]
mod tests;
mod updates;
mod wireguard;

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant, SystemTime};

pub use self::action::{EndReason, ExitAction};
pub use self::admin::AdminError;
pub use self::config::{SessionConfig, SessionConfigError, check_clients};
pub use self::fleet::{BadWhole, UnsentRow, WholeCopy};
pub use self::fleet_news::FleetNews;
pub use self::session::{Session, SessionId};
pub use self::store::{StoreRefusal, StoreRequest, StoreRequestId};
pub use self::updates::Announced;

pub(crate) use self::config::KEEP_ALIVE;

use self::connections::Connections;
use self::deadlines::{Deadline, Deadlines};
use self::fleet_rules::FleetRules;
use self::session::Predecessors;
use self::store::StoreState;
use crate::clients::{ClientRegistry, RowId};
use crate::goodbye::Goodbye;
use crate::message;
use crate::planted::{Bug, is_planted};
use crate::pool::AddressPool;
use crate::{Entropy, PublicKey};

/// How long a session without connections stays attachable. A session whose last connection ended at the idle timeout, which is
/// longer, ends at once.
pub const SESSION_TIMEOUT: Duration = Duration::from_secs(30);

/// Interval of `last_seen` updates for online clients. An exit that restarts after a crash knows only these dates. If its pool is
/// full, the clients with the oldest dates lose their leases first.
const LAST_SEEN_INTERVAL: Duration = Duration::from_secs(600);

/// How many connections of one key may wait for their first message, in addition to those of one full session. These extra
/// connections cover attempts that the client abandoned without a close.
const WAITING_SLACK: u32 = 8;

/// Every session of one exit.
pub struct ExitSessions {
    config: SessionConfig,
    registry: ClientRegistry,
    pool: AddressPool,
    clock: WallClock,
    entropy: Entropy,
    sessions: BTreeMap<SessionId, Session>,
    by_key: BTreeMap<PublicKey, SessionId>,
    predecessors: BTreeMap<PublicKey, Predecessors>,
    connections: Connections,
    deadlines: Deadlines,
    store: StoreState,
    actions: VecDeque<ExitAction>,
    next_session: u64,
    fleet: FleetRules,
    /// Set by [`Self::shutdown`] and [`Self::drain`]: the reason for refusing every later connection.
    leaving: Option<Goodbye>,
}

/// How long a client has been silent when its connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Absence {
    /// The client was heard a moment ago.
    Fresh,
    /// The client has been silent for an idle timeout.
    Long,
}

/// One moment on both clocks. It converts the monotonic time of calls into dates for the registry.
#[derive(Clone, Copy, Debug)]
struct WallClock {
    instant: Instant,
    wall: SystemTime,
}

impl WallClock {
    fn at(self, now: Instant) -> SystemTime {
        // The wall clock is read only now and then, so `now` may be before the latest reading.
        let at = match now.checked_duration_since(self.instant) {
            Some(later) => self.wall.checked_add(later),
            None => self.wall.checked_sub(self.instant.saturating_duration_since(now)),
        };
        at.unwrap_or(self.wall)
    }
}

impl ExitSessions {
    /// Makes the state of an exit that starts at `now`, which is `wall` on the wall clock. The registry is that of earlier runs.
    ///
    /// # Errors
    ///
    /// If the configuration is invalid, or a client's static address is outside the networks, reserved or already taken.
    pub fn new(
        config: SessionConfig,
        registry: ClientRegistry,
        now: Instant,
        wall: SystemTime,
        mut entropy: Entropy,
    ) -> Result<Self, SessionConfigError> {
        config.check()?;
        let mut registry = registry;
        let (mut pool, lost) = config.fill_pool(&mut registry)?;
        registry.compact();
        pool.compact();
        let mut store = StoreState::default();
        // The store still has the leases that no longer fit, so it must learn that they are gone.
        lost.into_iter().for_each(|key| store.owe(RowId::Client(key)));
        // Session numbers start at a random number, so that a session of an earlier run is not mistaken for one of this run.
        let mut first_session = [0; 8];
        entropy(&mut first_session);
        let mut deadlines = Deadlines::default();
        deadlines.add(now + LAST_SEEN_INTERVAL, Deadline::LastSeen);
        Ok(Self {
            connections: Connections::new(config.max_connections.saturating_add(WAITING_SLACK)),
            config,
            registry,
            pool,
            clock: WallClock { instant: now, wall },
            entropy,
            sessions: BTreeMap::new(),
            by_key: BTreeMap::new(),
            predecessors: BTreeMap::new(),
            deadlines,
            store,
            actions: VecDeque::new(),
            // JSON numbers are exact up to 2^53 (RFC 8259 section 6). Starting below 2^52 leaves room to count.
            next_session: u64::from_be_bytes(first_session) >> 12,
            fleet: FleetRules::default(),
            leaving: None,
        })
    }

    /// Sets the wall clock to `wall` at `now`. Call it after the system's clock was stepped.
    pub fn set_wall_clock(&mut self, now: Instant, wall: SystemTime) {
        if is_planted(Bug::ClockStepEndsSessions) {
            let sessions: Vec<_> = self.sessions.keys().copied().collect();
            sessions.into_iter().for_each(|session| self.end(now, session, EndReason::TimedOut));
        }
        if !is_planted(Bug::ClockStepIgnored) {
            self.clock = WallClock { instant: now, wall };
        }
    }

    /// Returns the next action to carry out, in order. `None` if there is none.
    pub fn poll_action(&mut self) -> Option<ExitAction> {
        loop {
            let mut action = self.actions.pop_front()?;
            // A batch is filled only when it is returned here, so that it contains all changes made until then. An empty batch is
            // dropped.
            if let ExitAction::Store(request) = &mut action
                && !self.store.fill_batch(request, &self.registry)
            {
                continue;
            }
            return Some(action);
        }
    }

    /// The inner addresses that clients have lost since the last call, whether the clients are online or not. Call it after carrying
    /// out all actions, and remove the tracked flows of these addresses. Otherwise the next clients with these addresses would
    /// get the flows' packets. A client that only changes its key keeps its addresses.
    pub fn take_lost_addresses(&mut self) -> Vec<IpAddr> {
        self.pool.take_lost()
    }

    /// When [`Self::handle_timeout`] must be called next, if no other event comes before.
    pub fn timeout(&self) -> Option<Instant> {
        self.deadlines.next()
    }

    /// Handles every timer that is due by `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(deadline) = self.deadlines.pop_due(now) {
            match deadline {
                Deadline::Handshake(connection) => {
                    let reason = self.silent_reason(connection);
                    self.dismiss(connection, reason);
                }
                Deadline::Session(session) => self.end(now, session, EndReason::TimedOut),
                Deadline::Leaving(session) => self.end(now, session, EndReason::Superseded),
                Deadline::Stays(key) => self.fleet.forget_stays(key),
                Deadline::LastSeen => self.stamp_online(now),
                Deadline::Ends => self.save_ends(),
                Deadline::Again => {
                    self.store.again_at = None;
                    self.store.try_again();
                    self.save();
                }
            }
        }
    }

    /// The enrolled clients with their leases.
    pub fn registry(&self) -> &ClientRegistry {
        &self.registry
    }

    /// Whether the store lacks a change of a row that is in force.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn lacks(&self, row: RowId) -> bool {
        self.store.lacks(row)
    }

    /// Number of entries that this exit keeps in memory, apart from its clients.
    #[cfg(test)]
    pub(crate) fn kept(&self) -> usize {
        let lists = self.sessions.len() + self.by_key.len() + self.predecessors.len() + self.actions.len();
        lists + self.fleet.leaving.len() + self.deadlines.len() + self.connections.len()
    }

    /// Every open session.
    pub fn sessions(&self) -> impl Iterator<Item = &Session> {
        self.sessions.values()
    }

    /// The open session with this number.
    pub fn session(&self, session: SessionId) -> Option<&Session> {
        self.sessions.get(&session)
    }

    /// The address pool. It also knows the exit's own inner addresses.
    pub fn pool(&self) -> &AddressPool {
        &self.pool
    }

    /// Tells every client to move to another exit and refuses new connections. Each session ends when its client has left.
    pub fn drain(&mut self, now: Instant) {
        self.leaving = Some(Goodbye::Draining);
        let bytes = message::encode(&Goodbye::Draining.to_message());
        let mut empty = Vec::new();
        for session in self.sessions.values() {
            let before = self.actions.len();
            let is_deaf = self.is_wireguard(session);
            for (_, connection) in session.attached().filter(|_| !is_deaf) {
                self.actions.push_back(ExitAction::Send { connection, bytes: bytes.clone() });
            }
            // The exit cannot send anything to the client of a session without connections. Such a session would only delay the
            // end of the drain.
            if self.actions.len() == before {
                empty.push(session.id);
            }
        }
        for session in empty {
            self.end(now, session, EndReason::Shutdown(Goodbye::Draining));
        }
    }

    /// Ends every session, closes every connection with `reason`, and refuses new connections.
    pub fn shutdown(&mut self, now: Instant, reason: Goodbye) {
        self.leaving = Some(reason);
        self.end_all(now, EndReason::Shutdown(reason));
    }

    /// Ends every session and closes every connection after a key was retired. Clients that pin the remaining key reconnect.
    pub fn retire_key(&mut self, now: Instant) {
        self.end_all(now, EndReason::KeyRetired);
    }

    fn end_all(&mut self, now: Instant, reason: EndReason) {
        let sessions: Vec<_> = self.sessions.keys().copied().collect();
        for session in sessions {
            self.end(now, session, reason);
        }
        for connection in self.connections.all() {
            self.dismiss(connection, reason.goodbye());
        }
        // The ends are saved at once, because the exit may stop before `ENDED_INTERVAL` is over.
        self.save_ends();
    }

    fn stamp_online(&mut self, now: Instant) {
        let online: Vec<_> =
            self.sessions.values().map(|session| (session.key, self.seen_at(session))).collect();
        online.iter().for_each(|(key, seen)| self.record_seen(*key, *seen));
        if !online.is_empty() {
            self.save();
        }
        self.deadlines.add(now + LAST_SEEN_INTERVAL, Deadline::LastSeen);
    }
}

impl std::fmt::Debug for ExitSessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExitSessions")
            .field("sessions", &self.sessions.len())
            .field("connections", &self.connections.len())
            .finish_non_exhaustive()
    }
}
