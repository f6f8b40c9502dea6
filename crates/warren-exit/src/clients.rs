//! The exit's clients: who is enrolled, which sessions they have, and what each may send.

mod actions;
mod admin;
mod edited;
mod figures;
mod fleet;
mod limits;

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Instant, SystemTime};

use warren_packet::reason::DropCounters;
use warren_quic::driver::{CloseReason, ConnectionId};
use warren_quic::strangers::Network;
use warren_session::PublicKey;
use warren_session::clients::{Client, ClientRegistry};
use warren_session::exit::{Announced, ExitSessions, SessionId, StoreRequestId};
use warren_session::goodbye::Goodbye;
use warren_session::pool::Lease;
use warren_session::roster::{FollowedFleet, RosterNews, RosterRefusal};

pub(crate) use self::admin::Proposed;
pub(crate) use self::edited::Edited;
pub(crate) use self::fleet::{Awaited, look_again_at};
use self::limits::ClientLimits;
use crate::fleet::Fleet;
use crate::metrics::EventCounts;
use warren_config::{ClientStore, ConfigError, counted};
use warren_tunnel::Snapshot;

/// The sessions' state machine, and the daemon's further knowledge of each session and client.
pub(crate) struct Clients {
    sessions: ExitSessions,
    /// The file that `[clients] file` names, which is imported if it exists.
    path: PathBuf,
    /// The registry on disk, which this process has locked.
    store: ClientStore,
    /// Whether the latest request to the store failed.
    is_failing: bool,
    /// The request that an operator waits for.
    watched: Option<Watched>,
    live: HashMap<SessionId, LiveSession>,
    /// The session of each client that has one.
    by_key: HashMap<PublicKey, SessionId>,
    limits: ClientLimits,
    events: EventCounts,
    /// The number of datagrams that each connection had received at the last call of [`Clients::hear`].
    received: HashMap<ConnectionId, u64>,
    /// The clients that have used their invitations since the daemon last asked.
    joined: Vec<String>,
    /// Whether a client with forwards has opened a session since the daemon last asked. The client may have another address now.
    has_moved: bool,
    /// The fleet that the exit belongs to, if any.
    fleet: Option<Box<Fleet>>,
    /// The clients of a fleet that have prefixes or forwards. The host's rules and routes depend on them.
    on_host: HashSet<PublicKey>,
}

/// A request to the store, the way to carry it out, and its failure if it failed.
#[derive(Debug)]
struct Watched {
    id: StoreRequestId,
    /// Set for an import: the whole store is replaced, and marked with the inner value.
    import: Option<Option<String>>,
    failure: Option<ConfigError>,
}

/// The parts of a session that reports show.
pub(crate) struct LiveSession {
    name: String,
    key: PublicKey,
    lease: Lease,
    pub(crate) since: Instant,
    /// The indices of the session's connections, in order.
    pub(crate) connections: Vec<u32>,
    /// The nonce of the session's client process. Empty unless the exit belongs to a fleet.
    nonce: Vec<u8>,
}

impl Clients {
    /// The clients of an exit that is starting. `sessions` contains the registry that was read from `store`.
    pub(crate) fn new(sessions: ExitSessions, store: ClientStore, path: PathBuf) -> Self {
        Self {
            sessions,
            path,
            store,
            is_failing: false,
            watched: None,
            live: HashMap::new(),
            by_key: HashMap::new(),
            limits: ClientLimits::default(),
            events: EventCounts::default(),
            received: HashMap::new(),
            joined: Vec::new(),
            has_moved: false,
            fleet: None,
            on_host: HashSet::new(),
        }
    }

    /// Records which clients have sent something since the last call. Call it about once a second.
    pub(crate) fn hear(&mut self, now: Instant, snapshot: &Snapshot) {
        // A new map is made at each call, so that ended connections are forgotten.
        let mut received = HashMap::with_capacity(snapshot.connections.len());
        for connection in &snapshot.connections {
            let Some(quic) = &connection.quic else { continue };
            let count = quic.udp_datagrams_received;
            received.insert(connection.connection, count);
            if let Some(session) = connection.session
                && self.received.get(&connection.connection).is_none_or(|before| *before < count)
            {
                self.sessions.heard(now, session);
            }
        }
        self.received = received;
    }

    /// When a client's latest packet arrived, to the second.
    pub(crate) fn last_seen(&self, client: &Client) -> Option<SystemTime> {
        let session = self.by_key.get(&client.public_key).and_then(|session| self.sessions.session(*session));
        session.map(|session| self.sessions.seen_at(session)).or(client.last_seen)
    }

    /// Whether forwards may lead to other addresses than when the daemon last asked.
    pub(crate) fn have_forwards_moved(&mut self) -> bool {
        std::mem::take(&mut self.has_moved)
    }

    /// The names of the clients that have used their invitations since the daemon last asked.
    pub(crate) fn take_joined(&mut self) -> Vec<String> {
        std::mem::take(&mut self.joined)
    }

    /// How many of a client's packets were dropped since the exit started, by reason.
    pub(crate) fn drops_of(&self, client: &Client) -> DropCounters {
        self.limits.drops(client.public_key)
    }

    /// The registry of all enrolled clients.
    pub(crate) fn registry(&self) -> &ClientRegistry {
        self.sessions.registry()
    }

    /// The registry on disk.
    pub(crate) fn store(&self) -> &ClientStore {
        &self.store
    }

    /// Whether changes of clients cannot be written to the disk.
    pub(crate) fn is_disk_failing(&self) -> bool {
        self.is_failing || self.fleet.as_ref().is_some_and(|fleet| fleet.is_disk_failing())
    }

    /// Returns the counts of events of sessions and connections since the start.
    pub(crate) fn events(&self) -> &EventCounts {
        &self.events
    }

    /// Whether any client has a session.
    pub(crate) fn has_sessions(&self) -> bool {
        !self.live.is_empty()
    }

    /// Passes the wall-clock time to the sessions. Invitations expire by this time, and somebody may have set the clock.
    pub(crate) fn look_at_clock(&mut self) {
        self.sessions.set_wall_clock(Instant::now(), SystemTime::now());
    }

    /// Whether a key is the current or the next key of a client that is enabled.
    pub(crate) fn is_client(&self, key: PublicKey) -> bool {
        self.sessions.is_client(key)
    }

    /// Tells the sessions that a peer has proven its key on a new connection. The sessions decide whether the key belongs to a
    /// client.
    ///
    /// `proven` is the exit's own key that it has proven to the peer.
    pub(crate) fn connected(
        &mut self,
        connection: u64,
        peer: PublicKey,
        remote: SocketAddr,
        proven: Option<PublicKey>,
    ) {
        self.events.connected();
        let key = peer;
        if self.registry().by_key(key).is_none() {
            tracing::debug!(connection, %key, "a key that is not enrolled has connected");
        }
        let now = Instant::now();
        self.sessions.connected(now, connection, key, Network::of(remote).address());
        if let Some(proven) = proven {
            let has_new_key = self.sessions.proved(now, key, proven);
            if let Some(client) = self.registry().by_key(key).filter(|_| has_new_key) {
                tracing::info!(client = client.name, "connected with the exit's new key");
            }
        }
    }

    /// Tells the sessions that a WireGuard client has connected and needs a session.
    pub(crate) fn wireguard_up(&mut self, connection: u64, key: PublicKey) {
        self.events.connected();
        self.sessions.wireguard_up(Instant::now(), connection, key);
    }

    /// Tells the sessions that bytes have arrived on a connection's control stream.
    pub(crate) fn received(&mut self, connection: u64, data: &[u8]) {
        self.sessions.received(Instant::now(), connection, data);
    }

    /// Tells the sessions that a connection has ended.
    pub(crate) fn closed(&mut self, connection: u64, reason: &CloseReason) {
        tracing::debug!(connection, "connection closed: {reason}");
        // After an idle timeout, the client has already been silent for that time, and the sessions count this time as absence.
        if *reason == CloseReason::TimedOut {
            self.sessions.timed_out(Instant::now(), connection);
        } else {
            self.sessions.closed(Instant::now(), connection);
        }
    }

    /// When to call [`Self::handle_timeout`], if at all.
    pub(crate) fn timeout(&self) -> Option<Instant> {
        let of_fleet = self.fleet.as_ref().and_then(|fleet| fleet.due());
        [self.sessions.timeout(), of_fleet].into_iter().flatten().min()
    }

    /// Does everything that is due by now, such as ending sessions whose clients have not come back.
    pub(crate) fn handle_timeout(&mut self) {
        let now = Instant::now();
        self.sessions.handle_timeout(now);
        if let Some(fleet) = &mut self.fleet {
            fleet.handle_timeout(now, &mut self.store, &mut self.sessions);
        }
    }

    /// Tells clients to move to another exit. Their sessions continue until they have moved.
    pub(crate) fn drain(&mut self) {
        if let Some(fleet) = &mut self.fleet {
            // Without this, the exit would accept clients again once the store answers.
            fleet.drain();
        }
        self.sessions.drain(Instant::now());
    }

    /// Ends every session because the exit's key is retired. Returns the number of sessions.
    pub(crate) fn retire_key(&mut self) -> usize {
        // The sessions are counted first, because afterwards none is left.
        let ended = self.sessions.sessions().count();
        self.sessions.retire_key(Instant::now());
        ended
    }

    /// Ends every session because the exit ends.
    pub(crate) fn shut_down(&mut self, goodbye: Goodbye) {
        self.sessions.shutdown(Instant::now(), goodbye);
    }

    /// Saves the state that is only in memory, because the exit ends.
    pub(crate) fn end(&mut self) {
        if let Some(fleet) = &mut self.fleet {
            fleet.end(&mut self.store, &mut self.sessions);
        }
    }

    /// Checks that clients could use these announcements.
    ///
    /// # Errors
    /// If clients could not use one of the values.
    pub(crate) fn check_announced(&self, announced: &Announced) -> anyhow::Result<()> {
        Ok(self.sessions.check_announced(announced)?)
    }

    /// The fleet whose roster clients get.
    pub(crate) fn fleet(&self) -> Option<&FollowedFleet> {
        self.sessions.fleet()
    }

    /// Sends a signed roster to clients.
    ///
    /// # Errors
    /// Why it is not accepted.
    pub(crate) fn set_roster(&mut self, signed: &[u8]) -> Result<RosterNews, RosterRefusal> {
        self.sessions.set_roster(signed)
    }

    /// Tells clients about other resolvers, routes or keys from now on, including the clients that are
    /// connected.
    ///
    /// # Errors
    /// As [`Self::check_announced`].
    pub(crate) fn announce(&mut self, announced: Announced) -> anyhow::Result<()> {
        if announced == self.sessions.announced() {
            return Ok(());
        }
        let (hearing, deaf) = self.sessions.announce(announced)?;
        let clients = |count| counted(count, "connected client");
        if hearing > 0 {
            tracing::info!("sent the change to {}", clients(hearing));
        }
        if deaf > 0 {
            tracing::info!("{} with an older version will get the change in the next session", clients(deaf));
        }
        Ok(())
    }

    /// Updates a client's limit and the name of its session from the registry.
    fn follow(&mut self, key: PublicKey) {
        let registry = self.sessions.registry();
        self.limits.follow(registry, key);
        // A session continues when its client is renamed.
        if let Some(client) = registry.by_key(key)
            && let Some(live) = self.by_key.get(&key).and_then(|session| self.live.get_mut(session))
        {
            live.name.clone_from(&client.name);
        }
    }
}
