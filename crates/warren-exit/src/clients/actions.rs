//! Carries out what the sessions' state machine decides: in the worker, in the registry's store, and in connection tracking.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Instant;

use warren_host::tracking;
use warren_quic::driver::ConnectionId;
use warren_session::exit::{EndReason, ExitAction, SessionId, StoreRefusal, StoreRequest};
use warren_session::pool::Lease;
use warren_session::{NUMBERED, PublicKey};

use super::{Clients, LiveSession};
use crate::host::flows;
use warren_tunnel::{ConnectionCommand, SessionRoute, SharedCommand, WorkerHandle};

impl Clients {
    /// Carries out everything that the state machine has decided since the last call.
    pub(crate) async fn carry_out_all(&mut self, worker: &WorkerHandle) {
        // The addresses that clients may no longer use.
        let mut lost = BTreeSet::new();
        while let Some(action) = self.sessions.poll_action() {
            self.carry_out(action, worker, &mut lost).await;
        }
        lost.extend(self.sessions.take_lost_addresses());
        if !lost.is_empty() {
            forget_flows(lost);
        }
    }

    /// Tells the workers which clients may connect with WireGuard.
    pub(crate) async fn let_in_by_wireguard(&self, worker: &WorkerHandle) {
        for client in self.registry().iter() {
            if let Some(wireguard) = client.by_wireguard() {
                let (key, client) = (client.public_key, Some(wireguard.clone()));
                worker.send_all(SharedCommand::SetWireGuard { key, client }).await;
            }
        }
    }

    /// Carries out one action. Adds the addresses of a client that it cuts off to `lost`.
    async fn carry_out(&mut self, action: ExitAction, worker: &WorkerHandle, lost: &mut BTreeSet<IpAddr>) {
        self.events.count(&action);
        match action {
            ExitAction::Send { connection, bytes } => {
                let connection = ConnectionId(connection);
                worker.send(ConnectionCommand::SendControl { connection, data: bytes }).await;
            }
            ExitAction::Close { connection, reason } => {
                let connection = ConnectionId(connection);
                let (code, reason) = (reason.code(), reason.to_string());
                worker.send(ConnectionCommand::Close { connection, code, reason }).await;
            }
            ExitAction::Enrolled { name } => self.joined.push(name),
            ExitAction::Open { .. } => self.open(action, worker).await,
            ExitAction::Attach { session, connection, index } => {
                if let Some(live) = self.live.get_mut(&session)
                    && !live.connections.contains(&index)
                {
                    live.connections.push(index);
                    live.connections.sort_unstable();
                }
                let connection = ConnectionId(connection);
                worker.send_all(SharedCommand::Attach { session, connection, index }).await;
            }
            ExitAction::Detach { session, connection, index } => {
                if let Some(live) = self.live.get_mut(&session) {
                    live.connections.retain(|attached| *attached != index);
                }
                worker.send_all(SharedCommand::Detach { connection: ConnectionId(connection) }).await;
            }
            ExitAction::End { session, reason } => {
                if let Some(live) = self.live.remove(&session) {
                    self.forget_session_of(live.key, session);
                    self.say_closed(live.key, live.nonce);
                    tracing::info!(client = live.name, "session ended: {reason}");
                    // After other reasons, the client may come back with the same addresses, and its flows should survive.
                    if matches!(reason, EndReason::Revoked | EndReason::Disabled | EndReason::Changed) {
                        lost.extend(live.lease.addresses());
                    }
                }
                worker.send_all(SharedCommand::EndSession { session }).await;
            }
            ExitAction::Stays { session, key } => self.say_opened(session, key),
            ExitAction::SetWireGuard { key, client } => {
                worker.send_all(SharedCommand::SetWireGuard { key, client }).await;
            }
            ExitAction::Store(request) => match &mut self.fleet {
                Some(fleet) => fleet.ask(request, &mut self.store, &mut self.sessions),
                None => self.keep(request),
            },
        }
    }

    /// Begins to route a session, and records what reports show about it.
    async fn open(&mut self, action: ExitAction, worker: &WorkerHandle) {
        let ExitAction::Open { session, key, name, lease, prefixes, connections, features } = action else {
            return;
        };
        // The log contains only the inner addresses, which other logs contain too. It never contains the address from which the
        // client connects.
        let addresses: Vec<String> = lease.addresses().map(|address| address.to_string()).collect();
        tracing::info!(client = name, "session opened: {}", addresses.join(", "));
        let (connected, nonce) = (Vec::new(), Vec::new());
        let live = LiveSession { name, key, lease, since: Instant::now(), connections: connected, nonce };
        self.live.insert(session, live);
        self.say_opened(session, key);
        self.by_key.insert(key, session);
        let client = self.registry().by_key(key);
        self.has_moved |= client.is_some_and(|client| !client.forwards.is_empty());
        // The limit outlives the session: a client that reconnects keeps its limit, and gets no new burst.
        let limit = Some(self.limits.of(self.sessions.registry(), key));
        let Lease { ipv4, ipv6 } = lease;
        let repair = features & NUMBERED != 0;
        let route = SessionRoute { ipv4, ipv6, prefixes, connections, limit, repair };
        worker.send_all(SharedCommand::OpenSession { session, client: Some(key), route }).await;
    }

    /// Makes changes of the registry durable. Tells the state machine at once whether that worked.
    fn keep(&mut self, request: StoreRequest) {
        let Self { sessions, store, watched, is_failing, .. } = self;
        let StoreRequest { id, changes } = request;
        let mut watched = watched.as_mut().filter(|watched| watched.id == id);
        let rows = || sessions.registry().rows();
        let saved = match watched.as_ref().and_then(|watched| watched.import.as_ref()) {
            Some(mark) => store.save_all(rows().chain(changes), mark.as_deref()),
            None => store.save(&changes, rows),
        };
        let outcome = saved.as_ref().map(drop).map_err(|_| StoreRefusal::Unavailable);
        match saved {
            Ok(()) if std::mem::take(is_failing) => tracing::info!("clients are saved again"),
            Ok(()) => {}
            Err(error) => {
                // Sessions continue from memory, because a full disk must not end them. A lasting failure is logged once.
                if watched.is_none() && !std::mem::replace(is_failing, true) {
                    tracing::error!("{error}; clients are kept in memory, and saved as soon as that works");
                }
                if let Some(watched) = &mut watched {
                    watched.failure = Some(error);
                }
            }
        }
        self.sessions.stored(Instant::now(), id, outcome);
    }

    /// Forgets a client's session, because it is over. If the client is no longer enrolled, also forgets its rate limit.
    fn forget_session_of(&mut self, key: PublicKey, session: SessionId) {
        if self.by_key.get(&key) == Some(&session) {
            self.by_key.remove(&key);
        }
        if self.sessions.registry().by_key(key).is_none() {
            self.limits.follow(self.sessions.registry(), key);
        }
    }
}

/// Forgets the tracked flows of addresses that clients may no longer use. Otherwise connection tracking would keep the flows, and the
/// next clients with the same addresses would get their packets.
fn forget_flows(addresses: BTreeSet<IpAddr>) {
    flows::forget("flows of addresses that clients have lost", move || tracking::forget(&addresses));
}
