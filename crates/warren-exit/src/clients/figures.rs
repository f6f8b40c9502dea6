//! The sessions that clients have now, as the status, the metrics and the page show them.

use std::collections::HashMap;

use warren_session::PublicKey;
use warren_session::clients::Client;
use warren_session::exit::SessionId;

use super::{Clients, LiveSession};
use crate::metrics::ClientFigures;
use warren_control::status::{ConnectionStatus, SessionStatus, Status};
use warren_tunnel::Snapshot;

impl Clients {
    /// The session of a client, if it has one.
    pub(crate) fn session_of(&self, client: &Client) -> Option<(SessionId, &LiveSession)> {
        let session = self.live.iter().find(|(_, live)| live.key == client.public_key);
        session.map(|(id, live)| (*id, live))
    }

    /// Every session, by its client's name.
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
            })
            .collect();
        sessions.sort_by(|a, b| a.name.cmp(&b.name));
        sessions
    }

    /// The figures of every enrolled client for the metrics, by name.
    pub(crate) fn figures(&self, status: &Status, snapshot: &Snapshot) -> Vec<ClientFigures> {
        let mut of_key: HashMap<PublicKey, Vec<&ConnectionStatus>> = HashMap::new();
        for connection in &status.connections {
            let session = self.live.iter().find(|(id, _)| Some(id.0) == connection.session);
            if let Some((_, live)) = session {
                of_key.entry(live.key).or_default().push(connection);
            }
        }
        let figures = |client: &Client| {
            let connections = of_key.get(&client.public_key).map(Vec::as_slice).unwrap_or_default();
            ClientFigures {
                name: client.name.clone(),
                rate_limit: client.rate_limit,
                rate_limited_packets: self.limits.refused(client.public_key),
                traffic: snapshot.clients.get(&client.public_key).copied().unwrap_or_default(),
                connections: connections.len(),
                queued_bytes: connections.iter().map(|connection| connection.queue_bytes).sum(),
                round_trip: connections.iter().map(|connection| connection.rtt_ms / 1e3).reduce(f64::min),
            }
        };
        self.registry().iter().map(figures).collect()
    }
}
