//! Answers the control plane's requests for every counter. Each turn reads a few connections and clients.
//!
//! While a snapshot is unfinished, counts may move from a connection to the sums of past connections. They are then moved in the
//! snapshot too, so that nothing is counted twice or left out. A client's sum is never smaller than in an earlier snapshot.

use warren_quic::driver::SocketStats;
use warren_session::exit::SessionId;

use super::Worker;
use crate::counters::{ConnectionSnapshot, Snapshot};
use crate::snapshots::{SeenConnection, WorkerSnapshot};
use crate::traffic::Traffic;

/// How many connections, and how many clients, one turn reads, so that turns do not get longer with their number.
const PER_TURN: usize = 64;

impl Worker {
    /// Continues the answer to the first request. Returns whether there is more to do.
    pub(super) fn take_snapshot(&mut self) -> bool {
        if self.snapshots.asked.is_empty() {
            return false;
        }
        let first = self.snapshots.connections.len();
        // Any slot below the capacity may be free. A free slot counts as read.
        for slot in first..(first + PER_TURN).min(self.pumps.capacity()) {
            let seen = self.see(slot);
            self.snapshots.connections.push(seen);
        }
        let clients = &mut self.snapshots.clients;
        clients.extend(self.clients.past().skip(clients.len()).take(PER_TURN));
        let is_complete = self.snapshots.connections.len() >= self.pumps.capacity()
            && self.snapshots.clients.len() >= self.clients.past().len();
        if is_complete {
            // All in one turn: WireGuard's peers are in a map, in which they have no fixed places.
            self.see_peers();
        }
        if is_complete && let Some(answer) = self.snapshots.asked.pop_front() {
            let connections = std::mem::take(&mut self.snapshots.connections);
            let clients = std::mem::take(&mut self.snapshots.clients);
            // If the asker has gone away meanwhile, the answer is not needed.
            drop(answer.send(WorkerSnapshot { connections, clients, rest: self.rest_of_snapshot() }));
        }
        !self.snapshots.asked.is_empty()
    }

    /// Adds the connection's traffic for a session to the client's past traffic, because the connection leaves the session.
    pub(super) fn keep_traffic(&mut self, session: SessionId, traffic: &Traffic) {
        if let Some(place) = self.clients.keep(session, traffic)
            && let Some((_, seen)) = self.snapshots.clients.get_mut(place)
        {
            seen.add(traffic);
        }
    }

    /// Reads a connection again if the unfinished snapshot already contains it, because some of its counts have moved elsewhere.
    pub(super) fn see_again(&mut self, slot: usize) {
        if slot < self.snapshots.connections.len() {
            let seen = self.see(slot);
            if let Some(place) = self.snapshots.connections.get_mut(slot) {
                *place = seen;
            }
        }
    }

    fn see(&self, slot: usize) -> Option<SeenConnection> {
        let pump = self.pumps.get(slot)?;
        let snapshot = ConnectionSnapshot {
            connection: pump.connection,
            session: pump.attached.map(|(session, _)| session),
            index: pump.attached.map(|(_, index)| index),
            packets_out: pump.traffic.packets_out,
            bytes_out: pump.traffic.bytes_out,
            packets_in: pump.traffic.packets_in,
            bytes_in: pump.traffic.bytes_in,
            queue_packets: pump.queued_packets(),
            queue_bytes: pump.queue_bytes(),
            quic: self.endpoint.stats(pump.connection),
            repair: pump.repair_snapshot(),
        };
        Some(SeenConnection {
            client: snapshot.session.and_then(|session| self.clients.of(session)),
            assemblies_pending: pump.assembler.pending() as u64,
            snapshot,
        })
    }

    fn socket_stats(&self) -> SocketStats {
        let mut sockets = self.endpoint.socket_stats();
        self.wireguard.iter().for_each(|wireguard| wireguard.socket_stats(&mut sockets));
        sockets
    }

    fn rest_of_snapshot(&self) -> Snapshot {
        Snapshot {
            totals: self.totals.clone(),
            drops_to_carrier: self.drops.to_carrier.clone(),
            drops_to_tun: self.drops.to_tun.clone(),
            sockets: self.socket_stats(),
            occupancy: self.occupancy.clone(),
            past: self.past.clone(),
            ..Snapshot::default()
        }
    }

    /// Adds every peer that is up to the snapshot.
    fn see_peers(&mut self) {
        let Some(wireguard) = &self.wireguard else { return };
        for (peer, member) in wireguard.members.iter() {
            let Some(path) = wireguard.server.path_of(peer) else { continue };
            let client = member.session.and_then(|session| self.clients.of(session));
            let snapshot = member.snapshot(path);
            let seen = SeenConnection { snapshot, client, assemblies_pending: 0 };
            self.snapshots.connections.push(Some(seen));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tokio::sync::{mpsc, oneshot};
    use warren_quic::driver::{ConnectionId, Endpoint};
    use warren_quic::key::PrivateKey;
    use warren_quic::settings::TransportSettings;
    use warren_session::PublicKey;

    use super::*;
    use crate::forward::SessionRoute;
    use crate::hand_over;
    use crate::message::{Command, SharedCommand};
    use crate::pump::Pump;
    use crate::tuning::Tuning;

    const CLIENTS: usize = 100;
    const CONNECTIONS: usize = 3 * PER_TURN;

    /// A worker without a device. Each client has a session, and each connection has carried a byte.
    fn worker(commands: mpsc::Receiver<Command>) -> Worker {
        let settings = TransportSettings::default();
        let endpoint = Endpoint::client(settings, PrivateKey::generate().unwrap()).unwrap();
        let hand_over = hand_over::between(1).pop().unwrap();
        let mut worker =
            Worker::new(endpoint, None, Tuning::default(), hand_over, commands, mpsc::channel(1).0);
        for client in 0..CLIENTS {
            let (session, client) = (SessionId(client as u64), Some(key(client)));
            let route = SessionRoute {
                ipv4: None,
                ipv6: None,
                prefixes: Vec::new(),
                connections: 8,
                limit: None,
                repair: false,
            };
            worker.carry_out_shared(SharedCommand::OpenSession { session, client, route });
        }
        for number in 0..CONNECTIONS {
            let connection = ConnectionId(number as u64);
            let slot = worker.pumps.insert(Pump::new(connection, Instant::now()));
            worker.by_connection.insert(connection, slot);
            let (session, index) =
                (SessionId((number % CLIENTS) as u64), u32::try_from(number / CLIENTS).unwrap());
            worker.carry_out_shared(SharedCommand::Attach { session, connection, index });
            worker.pumps[slot].traffic.bytes_in = 1;
        }
        worker
    }

    fn key(client: usize) -> PublicKey {
        PublicKey([u8::try_from(client).unwrap(); 32])
    }

    #[tokio::test]
    async fn what_moves_while_a_snapshot_is_taken_is_counted_once() {
        let (_orders, commands) = mpsc::channel(1);
        let mut worker = worker(commands);
        let (answer, mut answered) = oneshot::channel();
        worker.snapshots.ask(answer);
        assert!(worker.take_snapshot(), "one turn does not read them all");

        // The unfinished snapshot already contains the first element of each array below, but not yet the second.
        let last = CONNECTIONS as u64 - 1;
        for number in [0, last] {
            worker.carry_out_shared(SharedCommand::Detach { connection: ConnectionId(number) });
        }
        for number in [1, last - 1] {
            worker.remove_pump(ConnectionId(number), Instant::now());
        }
        for session in [2, CLIENTS as u64 - 1] {
            worker.carry_out_shared(SharedCommand::EndSession { session: SessionId(session) });
        }
        while worker.take_snapshot() {}

        let snapshot = answered.try_recv().unwrap().sum_up();
        for (client, traffic) in &snapshot.clients {
            let own = (0..CONNECTIONS).filter(|number| key(number % CLIENTS) == *client).count();
            assert_eq!(traffic.bytes_in, own as u64, "{client}");
        }
        assert_eq!(snapshot.clients.len(), CLIENTS);
        let is_gone = |number: u64| [1, last - 1].contains(&number);
        let known: Vec<u64> = (0..=last).filter(|number| !is_gone(*number)).collect();
        let numbers = snapshot.connections.iter().map(|connection| connection.connection.0);
        assert_eq!(numbers.collect::<Vec<_>>(), known);
        let attached = snapshot.connections.iter().filter(|connection| connection.session.is_some());
        let of_ended =
            (0..=last).filter(|number| [2, CLIENTS as u64 - 1].contains(&(number % CLIENTS as u64)));
        assert_eq!(attached.count(), known.len() - 2 - of_ended.count());
    }
}
