//! Carries out the control plane's commands: connections, the device, sessions, keys.

use std::task::{Context, Poll};
use std::time::Instant;

use warren_packet::coalesce::Coalescer;
use warren_quic::driver::ConnectionId;
use warren_quic::socket::ThreadCache;
use warren_session::Goodbye;
use warren_session::exit::SessionId;
use warren_tun::READ_BUFFER_BYTES;

use super::bulk_flows::BulkFlows;
use super::{Device, Worker};
use crate::forward::Place;
use crate::message::{Command, ConnectionCommand, Report, SharedCommand};

/// Maximum number of commands carried out in one turn.
// A reload may bring one command for each client, and packets must not wait for all of them.
const COMMANDS_PER_TURN: usize = 64;

impl Worker {
    pub(super) fn take_commands(&mut self, cx: &mut Context<'_>) -> bool {
        for _ in 0..COMMANDS_PER_TURN {
            match self.commands.poll_recv(cx) {
                Poll::Ready(Some(command)) => self.carry_out(command),
                Poll::Ready(None) => {
                    self.stopping = Some((0, String::new()));
                    return false;
                }
                Poll::Pending => return false,
            }
            if self.stopping.is_some() {
                return false;
            }
        }
        true
    }

    fn carry_out(&mut self, command: Command) {
        match command {
            Command::ForConnection(command) => self.carry_out_for_connection(command),
            Command::ForAll(command) => self.carry_out_shared(command),
            Command::OpenDevice { queue, forwarding } => {
                let buffer = vec![0; READ_BUFFER_BYTES].into_boxed_slice();
                let coalescer = Coalescer::new(queue.takes());
                self.tuning.tun_offload.found(queue.takes());
                let bulk_flows = BulkFlows::new(Instant::now());
                self.device =
                    Some(Device { queue, bulk_flows, forwarding, failed_reads: 0, buffer, coalescer });
            }
            Command::Snapshot(answer) => self.snapshots.ask(answer),
            // If the asker has gone away meanwhile, the answer is not needed.
            Command::ThreadCache(answer) => drop(answer.send(ThreadCache::take())),
            #[cfg(debug_assertions)]
            Command::Panic => panic!("a test asked for this panic"),
        }
    }

    fn carry_out_for_connection(&mut self, command: ConnectionCommand) {
        match command {
            ConnectionCommand::Connect { index, socket, remote, exit_keys, server_name } => {
                let name = server_name.as_deref();
                let report = match self.endpoint.connect_by_name(socket, remote, &exit_keys, name) {
                    Ok(connection) => Report::Connecting { index, connection },
                    Err(error) => Report::ConnectFailed { index, error: error.to_string() },
                };
                self.report(report);
            }
            ConnectionCommand::SendControl { connection, data } => {
                // A connection that cannot take control data is closing; its Closed event tells the control plane.
                let _ = self.endpoint.send_control(connection, &data);
            }
            // WireGuard has no message that tells the peer why.
            ConnectionCommand::Close { connection, .. } if connection.is_of_other_protocol() => {
                self.detach_peer(connection);
            }
            ConnectionCommand::Close { connection, code, reason } => {
                self.endpoint.close(connection, code, &reason)
            }
            ConnectionCommand::KnowAsClient { connection } => self.endpoint.know_as_client(connection),
            ConnectionCommand::Rebind { connection, socket } => {
                if let Err(error) = self.endpoint.rebind(connection, socket) {
                    tracing::debug!(%connection, "cannot use another socket: {error}");
                }
            }
        }
    }

    pub(super) fn carry_out_shared(&mut self, command: SharedCommand) {
        match command {
            SharedCommand::OpenSession { session, client, route } => {
                if let Some(client) = client {
                    self.clients.open(session, client);
                }
                self.sessions.open(session, route);
            }
            SharedCommand::Attach { session, connection, index } => self.attach(session, connection, index),
            SharedCommand::Detach { connection } => self.detach(connection),
            SharedCommand::SetSilent { connection, silent } => {
                if let Some(session) = self.elsewhere.get(&connection) {
                    self.sessions.set_silent(*session, Place::There(connection), silent);
                }
            }
            SharedCommand::EndSession { session } => self.end_session(session),
            SharedCommand::Move { moving } => self.sessions.set_move(moving),
            SharedCommand::SetForwarding { forwarding } => {
                // Without a device there is nothing to change: `OpenDevice` brings its own rules.
                if let Some(device) = &mut self.device {
                    device.forwarding = forwarding;
                }
            }
            SharedCommand::CloseDevice { device } => {
                // Closes only the failed device, because its successor may be open already.
                self.device.take_if(|own| own.queue.device_index() == device);
            }
            SharedCommand::SetIdentities { identities, close_others } => {
                if let Err(error) = self.endpoint.set_identities(&identities) {
                    tracing::error!("the exit's keys stay as they were: {error}");
                }
                if let Some(reason) = close_others {
                    self.close_unattached(reason);
                }
            }
            SharedCommand::SetWireGuard { key, client } => self.set_wireguard(key, client),
            SharedCommand::Rouse => self.endpoint.rouse(),
            SharedCommand::Stop { code, reason } => self.stopping = Some((code, reason)),
        }
    }

    fn close_unattached(&mut self, reason: Goodbye) {
        let (by_connection, pumps) = (&self.by_connection, &self.pumps);
        let is_attached = |connection| {
            let pump = by_connection.get(&connection).and_then(|slot| pumps.get(*slot));
            pump.is_some_and(|pump| pump.attached.is_some())
        };
        self.endpoint.close_others(reason.code(), &reason.to_string(), is_attached);
    }

    fn attach(&mut self, session: SessionId, connection: ConnectionId, index: u32) {
        // The connection belongs to another worker: this worker hands over the packets that it reads for that connection.
        if connection.worker() != self.number() {
            if self.sessions.attach(session, index, Place::There(connection)) {
                self.elsewhere.insert(connection, session);
            }
            return;
        }
        if connection.is_of_other_protocol() {
            return self.attach_peer(session, connection, index);
        }
        // The connection may have closed while the command was under way. A `Closed` report tells the control plane.
        let Some(slot) = self.by_connection.get(&connection).copied() else { return };
        // From now on the connection has its client's share of an overloaded exit. All keys that are not enrolled together
        // get the share of one client.
        self.endpoint.know_as_client(connection);
        if !self.sessions.attach(session, index, Place::Here(slot)) {
            return;
        }
        let repairs = self.sessions.repairs(session) && self.endpoint.keeps_datagrams();
        let client = self.sessions.limit_of(session).cloned();
        if let Some(pump) = self.pumps.get_mut(slot) {
            pump.attached = Some((session, index));
            pump.client = client;
            pump.repair.is_agreed = repairs;
        }
    }

    fn detach(&mut self, connection: ConnectionId) {
        if let Some(session) = self.elsewhere.remove(&connection) {
            self.sessions.detach(session, Place::There(connection));
        }
        if connection.is_of_other_protocol() {
            return self.detach_peer(connection);
        }
        let Some(slot) = self.by_connection.get(&connection).copied() else { return };
        if let Some(session) = self.leave_session(slot) {
            self.sessions.detach(session, Place::Here(slot));
        }
    }

    /// Drops the packets that wait for a connection, and removes the connection from its session. Returns the
    /// session.
    fn leave_session(&mut self, slot: usize) -> Option<SessionId> {
        let pump = self.pumps.get_mut(slot)?;
        pump.abandon(&mut self.drops);
        let (session, _) = pump.attached.take()?;
        pump.client = None;
        let traffic = std::mem::take(&mut pump.traffic);
        self.keep_traffic(session, &traffic);
        self.see_again(slot);
        Some(session)
    }

    fn end_session(&mut self, session: SessionId) {
        for place in self.sessions.end(session) {
            let slot = match place {
                Place::Here(slot) => slot,
                Place::Peer(peer) => {
                    self.leave_ended(peer, session);
                    continue;
                }
                Place::There(connection) => {
                    // A connection may have been attached to another session since.
                    if self.elsewhere.get(&connection) == Some(&session) {
                        self.elsewhere.remove(&connection);
                    }
                    continue;
                }
            };
            let attached = self.pumps.get(slot).and_then(|pump| pump.attached);
            if attached.is_some_and(|(attached, _)| attached == session) {
                self.leave_session(slot);
            }
        }
        self.clients.end(session);
    }

    /// The worker's number, counted from 0.
    fn number(&self) -> usize {
        usize::from(self.tuning.settings.worker.index())
    }
}
