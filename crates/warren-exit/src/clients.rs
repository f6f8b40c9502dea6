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

use super::daemon::Daemon;
use warren_control::{
    ClientChange, ClientView, InvitationView, LiveView, NewClient, RemovedView, RequestRefused,
};

impl Daemon {
    pub(super) async fn list_clients(&self) -> Result<serde_json::Value, RequestRefused> {
        let snapshot = self.worker.snapshot().await.unwrap_or_default();
        let session_of: HashMap<PublicKey, SessionId> =
            self.live.iter().map(|(session, live)| (live.key, *session)).collect();
        let remote_of: HashMap<SessionId, SocketAddr> = snapshot
            .connections
            .iter()
            .filter_map(|connection| Some((connection.session?, connection.quic.as_ref()?.remote)))
            .collect();
        let live = |client: &Client| {
            let key = client.public_key;
            let session = session_of.get(&key);
            let traffic = snapshot.clients.get(&key).copied().unwrap_or_default();
            LiveView {
                connected: session.is_some(),
                remote: session.and_then(|session| remote_of.get(session).copied()),
                received_bytes: traffic.bytes_in,
                sent_bytes: traffic.bytes_out,
                rate_limited_packets: self.limits.refused(key),
            }
        };
        let clients =
            self.sessions.registry().iter().map(|client| ClientView::of(client, Some(live(client))));
        serde_json::to_value(clients.collect::<Vec<_>>()).map_err(RequestRefused::new)
    }

    pub(super) fn add_client(&mut self, client: &NewClient) -> Result<serde_json::Value, RequestRefused> {
        let (allowed, client) = (client.allowed_key(), client.to_client(SystemTime::now()));
        self.change(|sessions| {
            allowed.into_iter().for_each(|key| sessions.allow_key(key));
            sessions.add_client(Instant::now(), client).map_err(RequestRefused::new)
        })?;
        Ok(serde_json::Value::Null)
    }

    pub(super) fn add_clients(&mut self, clients: &[NewClient]) -> Result<serde_json::Value, RequestRefused> {
        let now = SystemTime::now();
        let clients = clients.iter().map(|client| client.to_client(now)).collect();
        self.change(|sessions| sessions.add_clients(Instant::now(), clients).map_err(RequestRefused::new))?;
        Ok(serde_json::Value::Null)
    }

    pub(super) fn invite(&mut self, invitation: Invitation) -> Result<serde_json::Value, RequestRefused> {
        self.change(|sessions| sessions.invite(Instant::now(), invitation).map_err(RequestRefused::new))?;
        Ok(serde_json::Value::Null)
    }

    pub(super) fn list_invitations(&self) -> Result<serde_json::Value, RequestRefused> {
        let open = self.sessions.registry().open_invitations(SystemTime::now());
        let views = open.into_iter().map(InvitationView::of).collect::<Vec<_>>();
        serde_json::to_value(views).map_err(RequestRefused::new)
    }

    pub(super) fn list_removed(&self) -> Result<serde_json::Value, RequestRefused> {
        let removed = self.sessions.registry().removed_keys();
        let views = removed.into_iter().map(RemovedView::of).collect::<Vec<_>>();
        serde_json::to_value(views).map_err(RequestRefused::new)
    }

    pub(super) fn remove_client(&mut self, name: &str) -> Result<serde_json::Value, RequestRefused> {
        self.clients.refuse_if_edited().map_err(RequestRefused::new)?;
        let removed = self.sessions.remove_client(Instant::now(), name).map_err(RequestRefused::new)?;
        self.limits.follow(self.sessions.registry());
        self.keep_shut(if removed.is_some() {
            "the client is cut off"
        } else {
            "the invitation is withdrawn"
        })?;
        Ok(serde_json::Value::Null)
    }

    pub(super) fn change_client(
        &mut self,
        name: &str,
        change: &ClientChange,
    ) -> Result<serde_json::Value, RequestRefused> {
        let now = Instant::now();
        match change {
            ClientChange::Rename { to } => {
                self.change(|sessions| sessions.rename_client(name, to).map_err(RequestRefused::new))?;
                for live in self.live.values_mut().filter(|live| live.name == name) {
                    live.name.clone_from(to);
                }
            }
            ClientChange::Disable => {
                self.clients.refuse_if_edited().map_err(RequestRefused::new)?;
                self.sessions.set_client_disabled(now, name, true).map_err(RequestRefused::new)?;
                self.keep_shut("the client is cut off")?;
            }
            ClientChange::Enable => {
                self.change(|sessions| {
                    sessions.set_client_disabled(now, name, false).map_err(RequestRefused::new)
                })?;
            }
            ClientChange::Set(settings) => self.change(|sessions| {
                settings.allowed_key().into_iter().for_each(|key| sessions.allow_key(key));
                sessions.set_client(now, name, |client| settings.apply(client)).map_err(RequestRefused::new)
            })?,
        }
    }

    /// Everybody who is enrolled.
    pub(crate) fn registry(&self) -> &ClientRegistry {
        self.sessions.registry()
    }

    /// The registry's file.
    pub(crate) fn file(&self) -> &ClientsFile {
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
    pub(crate) fn check_edited(&self, file: &ClientsFile, edited: &ClientRegistry) -> anyhow::Result<()> {
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
        change: impl FnOnce(&mut ExitSessions) -> Result<T, RequestRefused>,
    ) -> Result<T, RequestRefused> {
        let Self { sessions, clients, .. } = self;
        let changed = sessions.attempt(|sessions| {
            let changed = change(sessions)?;
            clients
                .save(sessions.registry())
                .map_err(|error| RequestRefused::new(format!("{error}; nothing was changed")))?;
            Ok(changed)
        })?;
        self.limits.follow(self.sessions.registry());
        Ok(changed)
    }

    /// Saves that somebody is shut out, which is in force whether it can be saved or not.
    fn keep_shut(&mut self, what: &str) -> Result<(), RequestRefused> {
        self.save().map_err(|error| {
            RequestRefused::new(format!(
                "{what}, but that could not be saved: {error}; the exit tries again every few seconds, and must not end before"
            ))
        })
    }
}
