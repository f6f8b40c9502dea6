//! The requests for every counter that a worker has yet to answer, and its unfinished answer.

use std::collections::VecDeque;

use tokio::sync::oneshot;
use warren_session::PublicKey;

use crate::counters::{ConnectionSnapshot, Snapshot};
use crate::traffic::Traffic;

/// Requests in the order in which they came, and the unfinished answer to the first.
#[derive(Default)]
pub(crate) struct Snapshots {
    pub(crate) asked: VecDeque<oneshot::Sender<WorkerSnapshot>>,
    pub(crate) connections: Vec<Option<SeenConnection>>,
    pub(crate) clients: Vec<(PublicKey, Traffic)>,
}

/// One worker's answer. The asker combines all answers into a [`Snapshot`], on its own thread.
pub(crate) struct WorkerSnapshot {
    pub(crate) connections: Vec<Option<SeenConnection>>,
    /// The traffic of each client's past connections.
    pub(crate) clients: Vec<(PublicKey, Traffic)>,
    /// All other counters.
    pub(crate) rest: Snapshot,
}

/// The state of a connection at the time when it was read.
pub(crate) struct SeenConnection {
    pub(crate) snapshot: ConnectionSnapshot,
    /// At an exit: the client that the connection belongs to.
    pub(crate) client: Option<PublicKey>,
    pub(crate) assemblies_pending: u64,
}

impl WorkerSnapshot {
    /// Adds everything up.
    pub(crate) fn sum_up(self) -> Snapshot {
        let Self { connections, clients, rest: mut snapshot } = self;
        snapshot.clients = clients.into_iter().collect();
        for SeenConnection { snapshot: connection, client, assemblies_pending } in
            connections.into_iter().flatten()
        {
            snapshot.queued_packets += connection.queue_packets as u64;
            snapshot.assemblies_pending += assemblies_pending;
            if let Some(client) = client {
                snapshot.clients.entry(client).or_default().add(&connection.traffic());
            }
            snapshot.connections.push(connection);
        }
        snapshot
    }
}

impl Snapshots {
    pub(crate) fn ask(&mut self, answer: oneshot::Sender<WorkerSnapshot>) {
        self.asked.push_back(answer);
    }
}
