//! Handles what the workers report about connections and the TUN device, and tells the session what it has to know.

use std::io;
use std::time::Instant;

use tokio::task::JoinError;
use warren_quic::driver::{CloseReason, ConnectionId};
use warren_quic::key::PublicKey;

use super::Daemon;
use super::connections::{Closed, Ended, LookupAnswer, Purpose, Which, Winner, close_quietly};
use crate::diagnose::KillSwitches;
use crate::network_events::NetworkEvent;
use warren_control::status::State;
use warren_tunnel::{Report, SharedCommand};

impl Daemon {
    pub(super) async fn take_report(&mut self, report: Report) -> anyhow::Result<()> {
        let now = Instant::now();
        // Workers share the session, so each has to know which of the others' connections can be used.
        self.worker.tell_others(&report).await;
        match report {
            Report::Connecting { index, connection } => {
                self.connections.opened(&self.worker, index, connection).await;
            }
            Report::ConnectFailed { index, error } => {
                let ended = self.connections.not_opened(index, error);
                self.tell_session(ended);
                self.run_race().await?;
            }
            Report::Connected { connection, peer, .. } => self.connected(connection, peer).await?,
            Report::Answers { connection, answers } => {
                let is_back = self.connections.take_answers(&self.worker, connection, answers).await;
                if is_back && self.health.state() == State::Reconnecting && !self.awaits_proof() {
                    self.up();
                }
            }
            Report::Control { connection, data } => {
                if let Some(index) = self.connections.index(connection) {
                    if self.session.machine.awaits_welcome(index) {
                        // The session compares the addresses in the exit's Welcome with these.
                        let taken =
                            self.host.taken_addresses(&self.session.leased(), &self.connections).await;
                        self.session.machine.set_taken(taken);
                    }
                    self.session.machine.received(now, index, &data);
                } else if let Some(index) = self.connections.index_beside(connection) {
                    self.received_beside(now, index, &data).await;
                }
            }
            Report::Closed { connection, reason } => self.closed(connection, reason).await?,
            // Only an exit has WireGuard peers.
            Report::WireGuardUp { .. } => {}
            Report::DeviceFailed { device, error } => {
                tracing::warn!("the TUN device failed: {error}; recreating it");
                self.host.setup.device_failed(device);
                self.look_after_host().await;
            }
        }
        Ok(())
    }

    pub(super) fn tell_session(&mut self, ended: Option<Ended>) {
        let Some(Ended { which, index, end }) = ended else { return };
        match (which, &mut self.session.beside) {
            (Which::InUse, _) => self.session.machine.closed(Instant::now(), index, end),
            (Which::Beside, Some(beside)) => beside.machine.closed(Instant::now(), index, end),
            (Which::Beside, None) => {}
        }
    }

    /// Takes bytes from the exit of the second session.
    async fn received_beside(&mut self, now: Instant, index: u32, data: &[u8]) {
        let taken = match &self.session.beside {
            Some(beside) if beside.machine.awaits_welcome(index) => {
                Some(self.host.taken_addresses(&self.session.leased(), &self.connections).await)
            }
            Some(_) | None => None,
        };
        let Some(beside) = &mut self.session.beside else { return };
        if let Some(taken) = taken {
            beside.machine.set_taken(taken);
        }
        beside.machine.received(now, index, data);
    }

    /// Takes a connection whose handshake is done. So the exit has proven its key.
    async fn connected(&mut self, connection: ConnectionId, exit_key: PublicKey) -> anyhow::Result<()> {
        let now = Instant::now();
        if self.connections.take_check(connection) {
            // Both sides know now that the key works. The session's connections stay as they are.
            close_quietly(&self.worker, connection).await;
            self.exit_showed(exit_key).await;
            return Ok(());
        }
        if let Some(way) = self.connections.take_measured(connection) {
            let snapshot = self.worker.snapshot().await.unwrap_or_default();
            let measured = snapshot.connections.iter().find(|each| each.connection == connection);
            if let Some(quic) = measured.and_then(|each| each.quic.as_ref()) {
                self.connections.measured(way, quic.rtt);
            }
            close_quietly(&self.worker, connection).await;
            return Ok(());
        }
        let Some((purpose, way)) = self.connections.take_runner(connection) else {
            if let Some(index) = self.connections.index(connection) {
                self.connections.proven(index, exit_key);
                self.session.machine.connected(now, index);
            } else if let (Some(index), Some(beside)) =
                (self.connections.index_beside(connection), &mut self.session.beside)
            {
                self.connections.proven_beside(index, exit_key);
                beside.machine.connected(now, index);
            }
            return Ok(());
        };
        if !self.connections.exits.accepts(way.exit, exit_key) {
            // Profile or roster have changed since the handshake began.
            close_quietly(&self.worker, connection).await;
            return self.start_race(purpose).await;
        }
        self.health.refusal.proven();
        self.connections.abort_race(&self.worker).await;
        match self.connections.judge_winner(purpose, way) {
            Winner::TooEarly => {
                close_quietly(&self.worker, connection).await;
                return Ok(());
            }
            Winner::OtherExit if self.moves_without_gap(purpose, way) => {
                match self.moves.may_begin(now, purpose, way.exit) {
                    true => self.begin_move(now, connection, way, exit_key).await,
                    false => close_quietly(&self.worker, connection).await,
                }
                return Ok(());
            }
            Winner::OtherExit => self.change_exit(now, way.exit).await,
            Winner::OtherWay => {
                self.session.machine.change_ways(now);
                self.close_unwanted().await;
            }
            Winner::Awaited => {}
        }
        self.connections.take_winner(now, connection, way);
        self.connections.proven(0, exit_key);
        self.session.machine.connected(now, 0);
        Ok(())
    }

    /// Leaves the exit in use for another. The old session ends, and a new one begins, whose connection 0 exists already.
    async fn change_exit(&mut self, now: Instant, place: usize) {
        self.end_move().await;
        let from = self.connections.endpoint().to_string();
        self.session.machine.stop(now);
        self.close_unwanted().await;
        self.connections.exits.use_exit(place);
        tracing::info!("moving from {from} to {}", self.connections.endpoint());
        self.health.moves();
        self.begin_session(now);
        // Drops the new session's request for a connection 0, because the race has opened that connection already.
        self.close_unwanted().await;
    }

    /// A connection has ended.
    async fn closed(&mut self, connection: ConnectionId, reason: CloseReason) -> anyhow::Result<()> {
        let had_session = self.session.welcome().is_some();
        match self.connections.closed(connection, reason, had_session) {
            Closed::OfSession(ended) => self.tell_session(Some(ended)),
            Closed::OfRace { unproven } => {
                if let Some(sentence) = unproven {
                    self.health.refusal.take_unproven(Instant::now(), sentence);
                }
                self.run_race().await?;
            }
            Closed::Forgotten => {}
        }
        Ok(())
    }

    /// Starts a race, and ends any race under way.
    pub(super) async fn start_race(&mut self, purpose: Purpose) -> anyhow::Result<()> {
        self.connections.start_race(&self.worker, &self.host.lockdown, purpose).await;
        self.run_race().await
    }

    /// Begins the race's connections that are due. Tells the session if every way has failed.
    pub(super) async fn run_race(&mut self) -> anyhow::Result<()> {
        let ended = self.connections.run_race(&self.worker, &mut self.host.lockdown).await?;
        self.tell_session(ended);
        Ok(())
    }

    pub(super) async fn take_lookup(&mut self, answer: LookupAnswer) -> anyhow::Result<()> {
        if !self.connections.take_lookup(answer) {
            return Ok(());
        }
        self.run_race().await?;
        // The exit in use may have leased one of these addresses to this client.
        if let Err(error) = self.give_up_taken_lease().await {
            tracing::warn!("{error:#}");
        }
        Ok(())
    }

    /// Gives silent connections other ports. If all are silent, looks for another way as well.
    pub(super) async fn handle_silence(&mut self) -> anyhow::Result<()> {
        if self.connections.handle_silence(&self.worker).await {
            self.health.silent(self.connections.endpoint());
            self.start_race(Purpose::Scout).await?;
        }
        Ok(())
    }

    /// Asks the exit for a sign of life, because this host's network has changed or the host has slept. This also tells the exit
    /// the client's new address.
    pub(super) async fn take_network_event(&mut self, event: NetworkEvent) {
        tracing::debug!(?event, "asking the exit for a sign of life");
        self.worker.send_all(SharedCommand::Rouse).await;
        self.session.machine.hurry(Instant::now());
        self.on_demand.look_soon(Instant::now());
    }

    /// Takes the end of a session's probe: the exit has answered, or the probe could not be sent. The latter says nothing about the
    /// tunnel.
    pub(super) fn take_probe(&mut self, (which, probed): (Which, Result<io::Result<()>, JoinError>)) {
        let now = Instant::now();
        // If this host's container forbids raw sockets, an attached connection has to be enough.
        let is_forbidden =
            matches!(&probed, Ok(Err(error)) if error.kind() == io::ErrorKind::PermissionDenied);
        let is_proven = matches!(probed, Ok(Ok(())));
        let is_answered = is_forbidden || is_proven;
        if let Ok(Err(error)) = probed {
            tracing::debug!("cannot probe the tunnel: {error}");
        }
        match is_answered {
            true => self.moves.plan.answered(now, which),
            false => self.moves.plan.unanswered(now, which),
        }
        // A session on trial that cannot be probed has not shown anything.
        if which == Which::InUse && (is_answered || !self.moves.plan.is_trying()) {
            self.take_proof(is_proven);
        }
    }

    /// Notes that traffic flows.
    pub(super) fn up(&mut self) {
        self.health.up(self.connections.endpoint());
    }

    /// Starts a diagnosis of the address that was tried last, unless one has begun recently.
    pub(super) fn start_diagnosis(&mut self) {
        let Self { start, host, connections, health, .. } = self;
        health.diagnosis.start(connections.last_tried(), || KillSwitches {
            profile: start.name.clone(),
            is_closed: host.lockdown.is_closed(),
            others: start.blocked_by.clone(),
        });
    }
}
