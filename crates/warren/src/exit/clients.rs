//! What an operator asks of a running exit's clients.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Instant, SystemTime};

use warren_session::PeerKey;
use warren_session::clients::{Client, Invitation};
use warren_session::exit::{ExitSessions, SessionId};

use super::daemon::Daemon;
use crate::cli::exit_client::{ClientChange, ClientView, InvitationView, LiveView, NewClient};
use crate::control::Refusal;

impl Daemon {
    pub(super) async fn list_clients(&self) -> Result<serde_json::Value, Refusal> {
        let snapshot = self.worker.snapshot().await.unwrap_or_default();
        let session_of: HashMap<PeerKey, SessionId> =
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

    pub(super) fn add_client(&mut self, client: &NewClient) -> Result<serde_json::Value, Refusal> {
        let client = client.to_client(SystemTime::now());
        self.change(|sessions| sessions.add_client(Instant::now(), client).map_err(Refusal::new))?;
        Ok(serde_json::Value::Null)
    }

    pub(super) fn add_clients(&mut self, clients: &[NewClient]) -> Result<serde_json::Value, Refusal> {
        let now = SystemTime::now();
        let clients = clients.iter().map(|client| client.to_client(now)).collect();
        self.change(|sessions| sessions.add_clients(Instant::now(), clients).map_err(Refusal::new))?;
        Ok(serde_json::Value::Null)
    }

    pub(super) fn invite(&mut self, invitation: Invitation) -> Result<serde_json::Value, Refusal> {
        self.change(|sessions| sessions.invite(Instant::now(), invitation).map_err(Refusal::new))?;
        Ok(serde_json::Value::Null)
    }

    pub(super) fn list_invitations(&self) -> Result<serde_json::Value, Refusal> {
        let open = self.sessions.registry().open_invitations(SystemTime::now());
        let views = open.into_iter().map(InvitationView::of).collect::<Vec<_>>();
        serde_json::to_value(views).map_err(Refusal::new)
    }

    pub(super) fn remove_client(&mut self, name: &str) -> Result<serde_json::Value, Refusal> {
        self.change(|sessions| sessions.remove_client(Instant::now(), name).map_err(Refusal::new))?;
        Ok(serde_json::Value::Null)
    }

    pub(super) fn change_client(
        &mut self,
        name: &str,
        change: &ClientChange,
    ) -> Result<serde_json::Value, Refusal> {
        let now = Instant::now();
        self.change(|sessions| match change {
            ClientChange::Rename { to } => sessions.rename_client(name, to).map_err(Refusal::new),
            ClientChange::Disable => sessions.set_client_disabled(now, name, true).map_err(Refusal::new),
            ClientChange::Enable => sessions.set_client_disabled(now, name, false).map_err(Refusal::new),
            ClientChange::Set(settings) => {
                sessions.set_client(now, name, |client| settings.apply(client)).map_err(Refusal::new)
            }
        })?;
        if let ClientChange::Rename { to } = change {
            for live in self.live.values_mut().filter(|live| live.name == name) {
                live.name.clone_from(to);
            }
        }
        Ok(serde_json::Value::Null)
    }

    fn change<T>(
        &mut self,
        change: impl FnOnce(&mut ExitSessions) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let changed = change(&mut self.sessions)?;
        self.limits.follow(self.sessions.registry());
        self.save().map_err(|error| {
            Refusal::new(format!(
                "the change is in force but could not be saved: {error}; it is lost at a restart, unless that works by then"
            ))
        })?;
        Ok(changed)
    }
}
