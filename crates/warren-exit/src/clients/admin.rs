//! What an operator asks about the clients of a running exit, and changes about them.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Instant, SystemTime};

use warren_session::PublicKey;
use warren_session::clients::{Client, Invitation};
use warren_session::exit::{ExitSessions, SessionId};

use super::Clients;
use warren_control::{
    ClientChange, ClientView, InvitationView, LiveView, NewClient, RemovedView, RequestRefused,
};
use warren_tunnel::Snapshot;

/// The answer to a request that was carried out and has nothing to tell.
const DONE: serde_json::Value = serde_json::Value::Null;

impl Clients {
    /// Every client, with what the workers have counted for it.
    pub(crate) fn list(&self, snapshot: &Snapshot) -> Result<serde_json::Value, RequestRefused> {
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
        let clients = self.registry().iter().map(|client| ClientView::of(client, Some(live(client))));
        serde_json::to_value(clients.collect::<Vec<_>>()).map_err(RequestRefused::new)
    }

    /// Enrols a client; a key that was removed only if the operator allows it.
    pub(crate) fn add(&mut self, client: &NewClient) -> Result<serde_json::Value, RequestRefused> {
        let (allowed, client) = (client.allowed_key(), client.to_client(SystemTime::now()));
        self.make_durable(|sessions| {
            allowed.into_iter().for_each(|key| sessions.allow_key(key));
            sessions.add_client(Instant::now(), client).map_err(RequestRefused::new)
        })?;
        Ok(DONE)
    }

    /// Enrols all of these clients, or none.
    pub(crate) fn add_all(&mut self, clients: &[NewClient]) -> Result<serde_json::Value, RequestRefused> {
        let now = SystemTime::now();
        let clients = clients.iter().map(|client| client.to_client(now)).collect();
        self.make_durable(|sessions| {
            sessions.add_clients(Instant::now(), clients).map_err(RequestRefused::new)
        })?;
        Ok(DONE)
    }

    /// Takes in an invitation.
    pub(crate) fn invite(&mut self, invitation: Invitation) -> Result<serde_json::Value, RequestRefused> {
        self.make_durable(|sessions| {
            sessions.invite(Instant::now(), invitation).map_err(RequestRefused::new)
        })?;
        Ok(DONE)
    }

    /// The invitations that nobody has used yet.
    pub(crate) fn list_invitations(&self) -> Result<serde_json::Value, RequestRefused> {
        let open = self.registry().open_invitations(SystemTime::now());
        let views = open.into_iter().map(InvitationView::of).collect::<Vec<_>>();
        serde_json::to_value(views).map_err(RequestRefused::new)
    }

    /// The keys that were taken from clients.
    pub(crate) fn list_removed(&self) -> Result<serde_json::Value, RequestRefused> {
        let removed = self.registry().removed_keys();
        let views = removed.into_iter().map(RemovedView::of).collect::<Vec<_>>();
        serde_json::to_value(views).map_err(RequestRefused::new)
    }

    /// Removes a client, which ends its session, or withdraws the invitation of that name.
    pub(crate) fn remove(&mut self, name: &str) -> Result<serde_json::Value, RequestRefused> {
        // Asked first, because a removal that cannot be saved is not taken back.
        self.file.refuse_if_edited().map_err(RequestRefused::new)?;
        let removed = self.sessions.remove_client(Instant::now(), name).map_err(RequestRefused::new)?;
        self.limits.follow(self.sessions.registry());
        self.keep_shut(if removed.is_some() {
            "the client is cut off"
        } else {
            "the invitation is withdrawn"
        })?;
        Ok(DONE)
    }

    /// Changes a client. Its session goes on unless the change concerns it.
    pub(crate) fn change(
        &mut self,
        name: &str,
        change: &ClientChange,
    ) -> Result<serde_json::Value, RequestRefused> {
        // Shutting a client out is not taken back when it cannot be saved, unlike every other change.
        if *change == ClientChange::Disable {
            self.file.refuse_if_edited().map_err(RequestRefused::new)?;
            self.sessions.change_client(Instant::now(), name, change).map_err(RequestRefused::new)?;
            self.keep_shut("the client is cut off")?;
            return Ok(DONE);
        }
        self.make_durable(|sessions| {
            sessions.change_client(Instant::now(), name, change).map_err(RequestRefused::new)
        })?;
        if let ClientChange::Rename { to } = change {
            for live in self.live.values_mut().filter(|live| live.name == name) {
                live.name.clone_from(to);
            }
        }
        Ok(DONE)
    }

    /// Makes a change and saves it. If either fails, everything stays as it was.
    fn make_durable<T>(
        &mut self,
        change: impl FnOnce(&mut ExitSessions) -> Result<T, RequestRefused>,
    ) -> Result<T, RequestRefused> {
        let Self { sessions, file, .. } = self;
        let changed = sessions.attempt(|sessions| {
            let changed = change(sessions)?;
            file.save(sessions.registry())
                .map_err(|error| RequestRefused::new(format!("{error}; nothing was changed")))?;
            Ok(changed)
        })?;
        self.limits.follow(self.sessions.registry());
        Ok(changed)
    }

    /// Saves that a client is shut out. It stays shut out even if that cannot be saved.
    fn keep_shut(&mut self, what: &str) -> Result<(), RequestRefused> {
        self.save().map_err(|error| {
            RequestRefused::new(format!(
                "{what}, but that could not be saved: {error}; the exit tries again every few seconds, and must keep running until that works"
            ))
        })
    }
}
