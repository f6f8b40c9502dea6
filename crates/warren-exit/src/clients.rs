//! The exit's clients: who is enrolled, which sessions they have, and what each may send.

mod actions;
mod admin;
mod figures;
mod limits;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant, SystemTime};

use anyhow::bail;
use warren_quic::driver::CloseReason;
use warren_quic::strangers::Network;
use warren_session::PublicKey;
use warren_session::clients::ClientRegistry;
use warren_session::exit::{ExitSessions, SessionId};
use warren_session::goodbye::Goodbye;
use warren_session::pool::Lease;

use self::limits::ClientLimits;
use crate::metrics::EventCounts;
use warren_config::{ConfigError, RegistryFile};

/// How soon a registry that could not be saved is saved again.
const SAVE_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// The sessions' state machine, and what the daemon knows about each session and client beyond it.
pub(crate) struct Clients {
    sessions: ExitSessions,
    /// The registry's file, which this process has locked.
    file: RegistryFile,
    live: HashMap<SessionId, LiveSession>,
    limits: ClientLimits,
    events: EventCounts,
    /// When to try again to save the registry, after it could not be saved.
    save_again: Option<Instant>,
}

/// What is shown of a session.
pub(crate) struct LiveSession {
    name: String,
    key: PublicKey,
    lease: Lease,
    pub(crate) since: Instant,
    /// The indices of its connections, in order.
    pub(crate) connections: Vec<u32>,
}

impl Clients {
    /// The clients of an exit that starts: the registry is in `sessions`, and was read from `file`.
    pub(crate) fn new(sessions: ExitSessions, file: RegistryFile) -> Self {
        Self {
            sessions,
            file,
            live: HashMap::new(),
            limits: ClientLimits::default(),
            events: EventCounts::default(),
            save_again: None,
        }
    }

    /// Everybody who is enrolled.
    pub(crate) fn registry(&self) -> &ClientRegistry {
        self.sessions.registry()
    }

    /// The registry's file.
    pub(crate) fn file(&self) -> &RegistryFile {
        &self.file
    }

    /// What has happened to sessions and connections since the start.
    pub(crate) fn events(&self) -> &EventCounts {
        &self.events
    }

    /// Whether any client has a session.
    pub(crate) fn has_sessions(&self) -> bool {
        !self.live.is_empty()
    }

    /// Tells the sessions what the wall clock says: invitations expire by it, and somebody may have set it.
    pub(crate) fn look_at_clock(&mut self) {
        self.sessions.set_wall_clock(Instant::now(), SystemTime::now());
    }

    /// Whether a key is a client's, now or with its next connection.
    pub(crate) fn is_client(&self, key: PublicKey) -> bool {
        self.sessions.is_client(key)
    }

    /// A peer has proven its key on a new connection. Only the state machine decides whether the key is a client's.
    pub(crate) fn connected(&mut self, connection: u64, peer: PublicKey, remote: SocketAddr) {
        self.events.connected();
        let key = peer;
        if self.registry().by_key(key).is_none() {
            tracing::debug!(connection, %key, "a key that is not enrolled has connected");
        }
        self.sessions.connected(Instant::now(), connection, key, Network::of(remote).address());
    }

    /// A control message has arrived.
    pub(crate) fn received(&mut self, connection: u64, data: &[u8]) {
        self.sessions.received(Instant::now(), connection, data);
    }

    /// A connection is gone.
    pub(crate) fn closed(&mut self, connection: u64, reason: &CloseReason) {
        tracing::debug!(connection, "connection closed: {reason}");
        // A client that was silent for the idle timeout has been away for long, and the session counts that time.
        if *reason == CloseReason::TimedOut {
            self.sessions.timed_out(Instant::now(), connection);
        } else {
            self.sessions.closed(Instant::now(), connection);
        }
    }

    /// When to call [`Self::handle_timeout`], if at all.
    pub(crate) fn timeout(&self) -> Option<Instant> {
        self.sessions.timeout()
    }

    /// Does everything that is due by now, such as ending sessions whose clients have not come back.
    pub(crate) fn handle_timeout(&mut self) {
        self.sessions.handle_timeout(Instant::now());
    }

    /// When to call [`Self::save_again`], if at all.
    pub(crate) fn save_due(&self) -> Option<Instant> {
        self.save_again
    }

    /// Tries again to save the registry.
    pub(crate) fn save_again(&mut self) {
        match self.save() {
            Ok(()) => tracing::info!("clients are saved again"),
            Err(error) => tracing::debug!("{error}"),
        }
    }

    /// Saves the registry. If that fails, it is tried again later.
    fn save(&mut self) -> Result<(), ConfigError> {
        let saved = self.file.save(self.sessions.registry());
        self.save_again = saved.is_err().then(|| Instant::now() + SAVE_AGAIN_AFTER);
        saved
    }

    /// Tells clients to move to another exit; their sessions go on until they have.
    pub(crate) fn drain(&mut self) {
        self.sessions.drain(Instant::now());
    }

    /// Ends every session because the exit's key is retired. Returns how many there were.
    pub(crate) fn retire_key(&mut self) -> usize {
        let ended = self.sessions.sessions().count();
        self.sessions.retire_key(Instant::now());
        ended
    }

    /// Ends every session because the exit ends.
    pub(crate) fn shut_down(&mut self, goodbye: Goodbye) {
        self.sessions.shutdown(Instant::now(), goodbye);
    }

    /// Checks that [`Self::adopt`] can take over a registry that was read from `file`.
    ///
    /// # Errors
    /// What is wrong with it, and what to do.
    pub(crate) fn check_edited(&self, file: &RegistryFile, edited: &ClientRegistry) -> anyhow::Result<()> {
        // An exit may start without clients, but hardly anybody empties the file to end every session.
        if file.is_silent() && !self.registry().is_empty() {
            let path = file.path();
            let what = if path.exists() { "names no client any more" } else { "is gone" };
            bail!(
                "{} {what}; put it back, or write `client = []` into it to remove every client",
                path.display()
            );
        }
        Ok(self.sessions.check(Instant::now(), edited)?)
    }

    /// Takes over a registry that an operator has edited, and the resolvers that clients are told. Sessions of clients that did
    /// not change go on.
    ///
    /// # Errors
    /// As [`Self::check_edited`].
    pub(crate) fn adopt(
        &mut self,
        file: RegistryFile,
        edited: ClientRegistry,
        dns: Vec<IpAddr>,
    ) -> anyhow::Result<()> {
        self.sessions.set_dns(dns)?;
        self.sessions.adopt(Instant::now(), edited)?;
        self.file = file;
        self.limits.follow(self.sessions.registry());
        for live in self.live.values_mut() {
            if let Some(client) = self.sessions.registry().by_key(live.key) {
                live.name.clone_from(&client.name);
            }
        }
        Ok(())
    }
}
