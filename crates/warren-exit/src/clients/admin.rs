//! Answers an operator's questions about the clients of a running exit, and makes the operator's changes to them.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Instant, SystemTime};

use warren_session::clients::{Client, Invitation, RegistryError};
use warren_session::exit::{SessionId, StoreRequestId};
use warren_session::{PublicKey, UPDATES};

use super::{Clients, Watched};
use crate::host::Waiting;
use crate::list;
use warren_config::ClientsImport;
use warren_control::{
    ClientChange, ClientView, LiveView, NewClient, Page, PageQuery, RequestRefused, timestamp,
};
use warren_tunnel::{Snapshot, WorkerHandle};

/// A change that an operator asked for, on its way to the store.
#[derive(Debug, Default)]
pub(crate) struct Proposed {
    /// `None` if there was nothing to change.
    pub(super) id: Option<StoreRequestId>,
    /// The client that the change is about.
    pub(super) key: Option<PublicKey>,
    /// The part of the change that is in force even if the change cannot be stored.
    pub(super) in_force: Option<&'static str>,
}

impl Proposed {
    fn new(id: Option<StoreRequestId>) -> Self {
        Self { id, ..Self::default() }
    }
}

impl Clients {
    /// A page of the clients, with their traffic as the workers have counted it.
    pub(crate) fn list(
        &self,
        query: &PageQuery,
        snapshot: &Snapshot,
        waiting: &[Waiting],
    ) -> Page<ClientView> {
        let remote_of = remotes(snapshot);
        let live = |client: &Client| self.live_view(client, snapshot, &remote_of, waiting);
        list::clients(self.registry(), query, |client| self.view(client, live(client)))
    }

    /// One client.
    pub(crate) fn show(
        &self,
        name: &str,
        snapshot: &Snapshot,
        waiting: &[Waiting],
    ) -> Result<ClientView, RegistryError> {
        let no_such_client = || RegistryError::NoSuchClient { name: name.to_owned() };
        let client = self.registry().by_name(name).ok_or_else(no_such_client)?;
        Ok(self.view(client, self.live_view(client, snapshot, &remotes(snapshot), waiting)))
    }

    fn view(&self, client: &Client, live: LiveView) -> ClientView {
        ClientView { last_seen: self.last_seen(client).map(timestamp), ..ClientView::of(client, Some(live)) }
    }

    fn live_view(
        &self,
        client: &Client,
        snapshot: &Snapshot,
        remote_of: &HashMap<SessionId, SocketAddr>,
        waiting: &[Waiting],
    ) -> LiveView {
        let key = client.public_key;
        let session = self.by_key.get(&key);
        let traffic = snapshot.clients.get(&key).copied().unwrap_or_default();
        LiveView {
            connected: session.is_some(),
            takes_updates: session
                .and_then(|session| self.sessions.session(*session))
                .map(|session| session.features() & UPDATES != 0),
            remote: session.and_then(|session| remote_of.get(session).copied()),
            received_bytes: traffic.bytes_in,
            sent_bytes: traffic.bytes_out,
            rate_limited_packets: self.limits.refused(key),
            forwards_not_in_force: Waiting::of(waiting, &client.name),
        }
    }

    /// Enrols a client. A key that was removed before is refused unless the operator allows it.
    pub(crate) fn add(&mut self, client: &NewClient) -> Result<Proposed, RequestRefused> {
        self.refuse_if_edited()?;
        let added = self.sessions.add_client(client.to_client(SystemTime::now()), client.allowed_key());
        added.map(Proposed::new).map_err(RequestRefused::new)
    }

    /// Enrols all of these clients, or none.
    pub(crate) fn add_all(&mut self, clients: &[NewClient]) -> Result<Proposed, RequestRefused> {
        self.refuse_if_edited()?;
        let now = SystemTime::now();
        let clients = clients.iter().map(|client| client.to_client(now)).collect();
        self.sessions.add_clients(clients).map(Proposed::new).map_err(RequestRefused::new)
    }

    /// Adds an invitation.
    pub(crate) fn invite(&mut self, invitation: Invitation) -> Result<Proposed, RequestRefused> {
        self.refuse_if_edited()?;
        let invited = self.sessions.invite(Instant::now(), invitation);
        invited.map(Proposed::new).map_err(RequestRefused::new)
    }

    /// Removes a client, which ends its session, or withdraws the invitation of that name.
    pub(crate) fn remove(&mut self, name: &str) -> Result<Proposed, RequestRefused> {
        // Edits are checked first, because a removal is in force at once and stays in force even if it cannot be saved.
        self.refuse_if_edited()?;
        // The key is looked up before the removal. Afterwards the registry no longer knows the name.
        let key = self.registry().by_name(name).map(|client| client.public_key);
        let (removed, id) = self.sessions.remove_client(Instant::now(), name).map_err(RequestRefused::new)?;
        let in_force =
            if removed.is_some() { "the client is cut off" } else { "the invitation is withdrawn" };
        Ok(Proposed { id, key, in_force: Some(in_force) })
    }

    /// Changes a client. Its session continues unless the change concerns the session.
    pub(crate) fn change(&mut self, name: &str, change: &ClientChange) -> Result<Proposed, RequestRefused> {
        let key = self.registry().by_name(name).map(|client| client.public_key);
        // Disabling is the only change that takes effect before it is stored.
        let is_disabled = *change == ClientChange::Disable;
        self.refuse_if_edited()?;
        let changed = self.sessions.change_client(Instant::now(), name, change);
        let id = changed.map_err(RequestRefused::new)?;
        Ok(Proposed { id, key, in_force: is_disabled.then_some("the client is cut off") })
    }

    /// Carries out a change and stores it. The session of a removed client has ended when this function returns.
    ///
    /// # Errors
    /// When the change could not be stored.
    pub(crate) async fn settle(
        &mut self,
        proposed: Proposed,
        worker: &WorkerHandle,
    ) -> Result<(), RequestRefused> {
        if let Some(id) = proposed.id {
            self.watched = Some(Watched { id, import: None, failure: None });
        }
        self.carry_out_all(worker).await;
        if let Some(key) = proposed.key {
            self.follow(key);
        }
        let Some(error) = self.watched.take().and_then(|watched| watched.failure) else { return Ok(()) };
        Err(RequestRefused::new(match proposed.in_force {
            None => format!("{error}; nothing was changed"),
            Some(what) => {
                let sentence = format!(
                    "{what}, but that could not be saved: {error}; the exit tries again every few seconds, and must keep running until the change is saved"
                );
                // This sentence goes to the log, because the audit log has only changes that are saved.
                tracing::error!("{sentence}");
                sentence
            }
        }))
    }

    /// Refuses a command's change while a file waits to be imported, because the import would undo the change.
    pub(super) fn refuse_if_edited(&self) -> Result<(), RequestRefused> {
        self.store.refuse_if_edited().map_err(RequestRefused::new)?;
        // An exit of a fleet never imports the file. A file with a mistake also counts as waiting, because it is imported once it is
        // corrected.
        let is_waiting = || {
            ClientsImport::read(&self.path)
                .map_or(true, |import| import.is_some_and(|import| import.mark() != self.store.imported()))
        };
        if self.fleet.is_none() && is_waiting() {
            return Err(RequestRefused::new(format!(
                "{} waits to be imported; run `warren reload exit` first, or remove the file",
                self.path.display()
            )));
        }
        Ok(())
    }
}

fn remotes(snapshot: &Snapshot) -> HashMap<SessionId, SocketAddr> {
    let connections = snapshot.connections.iter();
    // If a session has several connections, the map keeps the address of the last one.
    connections
        .filter_map(|connection| Some((connection.session?, connection.quic.as_ref()?.remote)))
        .collect()
}
