//! What an operator asks of a running exit's clients.

mod actions;
pub(crate) mod limits;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Instant, SystemTime};

use warren_session::PublicKey;
use warren_session::clients::{Client, Invitation};
use warren_session::exit::{ExitSessions, SessionId};

use crate::daemon::Daemon;
use warren_control::{ClientChange, ClientView, InvitationView, LiveView, NewClient, Refusal, RemovedView};

impl Daemon {
    pub(crate) async fn list_clients(&self) -> Result<serde_json::Value, Refusal> {
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
        serde_json::to_value(clients.collect::<Vec<_>>()).map_err(Refusal::new)
    }

    pub(crate) fn add_client(&mut self, client: &NewClient) -> Result<serde_json::Value, Refusal> {
        let (allowed, client) = (client.allowed_key(), client.to_client(SystemTime::now()));
        self.change(|sessions| {
            allowed.into_iter().for_each(|key| sessions.allow_key(key));
            sessions.add_client(Instant::now(), client).map_err(Refusal::new)
        })?;
        Ok(serde_json::Value::Null)
    }

    pub(crate) fn add_clients(&mut self, clients: &[NewClient]) -> Result<serde_json::Value, Refusal> {
        let now = SystemTime::now();
        let clients = clients.iter().map(|client| client.to_client(now)).collect();
        self.change(|sessions| sessions.add_clients(Instant::now(), clients).map_err(Refusal::new))?;
        Ok(serde_json::Value::Null)
    }

    pub(crate) fn invite(&mut self, invitation: Invitation) -> Result<serde_json::Value, Refusal> {
        self.change(|sessions| sessions.invite(Instant::now(), invitation).map_err(Refusal::new))?;
        Ok(serde_json::Value::Null)
    }

    pub(crate) fn list_invitations(&self) -> Result<serde_json::Value, Refusal> {
        let open = self.sessions.registry().open_invitations(SystemTime::now());
        let views = open.into_iter().map(InvitationView::of).collect::<Vec<_>>();
        serde_json::to_value(views).map_err(Refusal::new)
    }

    pub(crate) fn list_removed(&self) -> Result<serde_json::Value, Refusal> {
        let removed = self.sessions.registry().removed_keys();
        let views = removed.into_iter().map(RemovedView::of).collect::<Vec<_>>();
        serde_json::to_value(views).map_err(Refusal::new)
    }

    pub(crate) fn remove_client(&mut self, name: &str) -> Result<serde_json::Value, Refusal> {
        self.clients.refuse_if_edited().map_err(Refusal::new)?;
        let removed = self.sessions.remove_client(Instant::now(), name).map_err(Refusal::new)?;
        self.limits.follow(self.sessions.registry());
        self.keep_shut(if removed.is_some() {
            "the client is cut off"
        } else {
            "the invitation is withdrawn"
        })?;
        Ok(serde_json::Value::Null)
    }

    pub(crate) fn change_client(
        &mut self,
        name: &str,
        change: &ClientChange,
    ) -> Result<serde_json::Value, Refusal> {
        let now = Instant::now();
        match change {
            ClientChange::Rename { to } => {
                self.change(|sessions| sessions.rename_client(name, to).map_err(Refusal::new))?;
                for live in self.live.values_mut().filter(|live| live.name == name) {
                    live.name.clone_from(to);
                }
            }
            ClientChange::Disable => {
                self.clients.refuse_if_edited().map_err(Refusal::new)?;
                self.sessions.set_client_disabled(now, name, true).map_err(Refusal::new)?;
                self.keep_shut("the client is cut off")?;
            }
            ClientChange::Enable => {
                self.change(|sessions| sessions.set_client_disabled(now, name, false).map_err(Refusal::new))?;
            }
            ClientChange::Set(settings) => self.change(|sessions| {
                settings.allowed_key().into_iter().for_each(|key| sessions.allow_key(key));
                sessions.set_client(now, name, |client| settings.apply(client)).map_err(Refusal::new)
            })?,
        }
        Ok(serde_json::Value::Null)
    }

    /// Makes a change and saves it, or leaves everything as it was.
    fn change<T>(
        &mut self,
        change: impl FnOnce(&mut ExitSessions) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let Self { sessions, clients, .. } = self;
        let changed = sessions.attempt(|sessions| {
            let changed = change(sessions)?;
            clients
                .save(sessions.registry())
                .map_err(|error| Refusal::new(format!("{error}; nothing was changed")))?;
            Ok(changed)
        })?;
        self.limits.follow(self.sessions.registry());
        Ok(changed)
    }

    /// Saves that somebody is shut out, which is in force whether it can be saved or not.
    fn keep_shut(&mut self, what: &str) -> Result<(), Refusal> {
        self.save().map_err(|error| {
            Refusal::new(format!(
                "{what}, but that could not be saved: {error}; the exit tries again every few seconds, and must not end before"
            ))
        })
    }
}
