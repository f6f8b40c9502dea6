//! The sessions that clients have now, as the status, the metrics and the page show them.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use warren_session::PublicKey;
use warren_session::clients::Client;
use warren_session::exit::{Session, SessionId};

use super::{Clients, LiveSession};
use crate::metrics::ClientFigures;
use warren_control::status::{ConnectionStatus, SessionStatus, Status};
use warren_tunnel::Snapshot;

impl Clients {
    /// The session of a client, if it has one.
    pub(crate) fn session_of(&self, key: PublicKey) -> Option<(SessionId, &LiveSession)> {
        let session = self.by_key.get(&key)?;
        Some((*session, self.live.get(session)?))
    }

    /// How many clients have a session.
    pub(crate) fn with_sessions(&self) -> usize {
        self.live.len()
    }

    /// Every session, ordered by its client's name.
    pub(crate) fn session_statuses(&self) -> Vec<SessionStatus> {
        let mut sessions: Vec<SessionStatus> = self
            .live
            .iter()
            .map(|(id, live)| SessionStatus {
                id: id.0,
                name: live.name.clone(),
                public_key: live.key.to_string(),
                ipv4: live.lease.ipv4.map(|address| address.to_string()),
                ipv6: live.lease.ipv6.map(|address| address.to_string()),
                since_seconds: live.since.elapsed().as_secs_f64(),
                connections: live.connections.clone(),
                has_other_exit: self.sessions.session(*id).and_then(Session::has_other_exit),
            })
            .collect();
        sessions.sort_by(|a, b| a.name.cmp(&b.name));
        sessions
    }

    /// The figures for the metrics of at most [`ClientFigures::MOST`] clients, ordered by name.
    pub(crate) fn figures(&self, status: &Status, snapshot: &Snapshot) -> Vec<ClientFigures> {
        let mut of_session: HashMap<u64, Vec<&ConnectionStatus>> = HashMap::new();
        for connection in &status.connections {
            if let Some(session) = connection.session {
                of_session.entry(session).or_default().push(connection);
            }
        }
        let figures = |client: &Client| {
            let key = client.public_key;
            let session = self.by_key.get(&key);
            let connections = session.and_then(|session| of_session.get(&session.0));
            let connections = connections.map(Vec::as_slice).unwrap_or_default();
            ClientFigures {
                name: client.name.clone(),
                rate_limit: client.rate_limit,
                rate_limited_packets: self.limits.refused(key),
                traffic: snapshot.clients.get(&key).copied().unwrap_or_default(),
                connections: connections.len(),
                queued_bytes: connections.iter().map(|connection| connection.queue_bytes).sum(),
                round_trip: connections
                    .iter()
                    .filter(|connection| !connection.wireguard)
                    .map(|connection| connection.rtt_ms / 1e3)
                    .reduce(f64::min),
            }
        };
        let mut shown: Vec<ClientFigures> = self.in_metrics(snapshot).into_iter().map(figures).collect();
        shown.sort_by(|one, other| one.name.cmp(&other.name));
        shown
    }

    /// Selects the clients that have metrics of their own: first those with the most traffic since the exit started, then the
    /// others by name.
    fn in_metrics(&self, snapshot: &Snapshot) -> Vec<&Client> {
        let most = ClientFigures::MOST;
        let mut active: Vec<_> = snapshot
            .clients
            .iter()
            .filter_map(|(key, traffic)| {
                let client = self.registry().by_key(*key)?;
                Some((Reverse(traffic.bytes_in.saturating_add(traffic.bytes_out)), client))
            })
            .collect();
        // Names decide between clients with equal traffic, so that two scrapes choose the same ones. The clients are not sorted as
        // a whole, because only the first ones are needed.
        if active.len() > most {
            active.select_nth_unstable_by(most, |one, other| {
                (one.0, &one.1.name).cmp(&(other.0, &other.1.name))
            });
            active.truncate(most);
        }
        let mut shown: Vec<&Client> = active.into_iter().map(|(_, client)| client).collect();
        let known: HashSet<PublicKey> = shown.iter().map(|client| client.public_key).collect();
        let others = self.registry().iter().filter(|client| !known.contains(&client.public_key));
        shown.extend(others.take(most.saturating_sub(known.len())));
        shown
    }
}
