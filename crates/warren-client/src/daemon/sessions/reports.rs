//! Handles the workers' reports about connections, and the ends of probes.

use std::io;
use std::time::Instant;

use tokio::task::JoinError;
use warren_quic::driver::{CloseReason, ConnectionId};
use warren_quic::key::PublicKey;

use super::{Connected, Sessions, Won};
use crate::daemon::connections::{Closed, Which, Winner, close_quietly};
use crate::daemon::host_upkeep::HostUpkeep;
use crate::kill_switch::Lockdown;

impl Sessions {
    /// Records that the worker could not open a connection.
    pub(in crate::daemon) async fn not_opened(
        &mut self,
        lockdown: &mut Lockdown,
        index: u32,
        error: String,
    ) -> anyhow::Result<()> {
        let ended = self.connections.not_opened(index, error);
        self.tell(ended);
        self.run_race(lockdown).await
    }

    /// Handles a connection whose handshake is complete.
    pub(in crate::daemon) async fn connected(
        &mut self,
        lockdown: &mut Lockdown,
        connection: ConnectionId,
        key: PublicKey,
    ) -> anyhow::Result<Connected> {
        if self.connections.take_check(connection) {
            // Both sides now know that the key works. The session's connections stay as they are.
            close_quietly(&self.worker, connection).await;
            return Ok(Connected::Checked);
        }
        if let Some(way) = self.connections.take_measured(connection) {
            let snapshot = self.worker.snapshot().await.unwrap_or_default();
            let measured = snapshot.connections.iter().find(|each| each.connection == connection);
            if let Some(quic) = measured.and_then(|each| each.quic.as_ref()) {
                self.connections.measured(way, quic.rtt);
            }
            close_quietly(&self.worker, connection).await;
            return Ok(Connected::Known);
        }
        let Some((purpose, way)) = self.connections.take_runner(connection) else {
            if let Some((which, index)) = self.connections.place_of(connection)
                && let Some(session) = self.pair.of_mut(which)
            {
                self.connections.proven(which, index, key);
                session.machine.connected(Instant::now(), index);
            }
            return Ok(Connected::Known);
        };
        if !self.connections.exits.accepts(way.exit, key) {
            // Profile or roster have changed since the handshake began.
            close_quietly(&self.worker, connection).await;
            self.start_race(lockdown, purpose).await?;
            return Ok(Connected::Known);
        }
        Ok(Connected::Won(Won { connection, key, purpose, way }))
    }

    /// Uses the winner of a race. `is_up` says whether the session in use carries packets. Returns whether the client has
    /// left an exit for another because of this.
    pub(in crate::daemon) async fn take_winner(&mut self, now: Instant, won: Won, is_up: bool) -> bool {
        let Won { connection, key, purpose, way } = won;
        self.connections.abort_race(&self.worker).await;
        let winner = self.connections.judge_winner(purpose, way);
        match winner {
            Winner::TooEarly => {
                close_quietly(&self.worker, connection).await;
                return false;
            }
            Winner::OtherExit if is_up && self.moves_without_gap(purpose, way) => {
                self.begin_move(now, won).await;
                return false;
            }
            Winner::OtherExit => {
                let from = self.leave(now, |exits| exits.use_exit(way.exit)).await;
                tracing::info!("moving from {from} to {}", self.connections.endpoint());
                // Drops the new session's request for connection 0, because the race has already opened this connection.
                self.close_unwanted().await;
            }
            Winner::OtherWay => {
                self.pair.in_use.machine.change_ways(now);
                self.close_unwanted().await;
            }
            Winner::Awaited => {}
        }
        self.connections.take_winner(now, connection, way);
        self.connections.proven(Which::InUse, 0, key);
        self.pair.in_use.machine.connected(now, 0);
        winner == Winner::OtherExit
    }

    /// Handles bytes from an exit on one of the sessions' connections.
    pub(in crate::daemon) async fn received(
        &mut self,
        host: &HostUpkeep,
        connection: ConnectionId,
        data: &[u8],
    ) {
        let now = Instant::now();
        let Some((which, index)) = self.connections.place_of(connection) else { return };
        let awaits_welcome = self.pair.of(which).is_some_and(|session| session.machine.awaits_welcome(index));
        let taken = match awaits_welcome {
            true => Some(host.taken_addresses(&self.pair.in_use.leased(), &self.connections).await),
            false => None,
        };
        let Some(session) = self.pair.of_mut(which) else { return };
        if let Some(taken) = taken {
            // The session compares the addresses in the exit's Welcome with these.
            session.machine.set_taken(taken);
        }
        session.machine.received(now, index, data);
    }

    /// Handles the end of a connection. If the connection was closed by a definite answer whose sender has not proven the exit's
    /// key, returns that answer.
    pub(in crate::daemon) async fn closed(
        &mut self,
        lockdown: &mut Lockdown,
        connection: ConnectionId,
        reason: CloseReason,
    ) -> anyhow::Result<Option<String>> {
        let had_session = self.welcome().is_some();
        match self.connections.closed(connection, reason, had_session) {
            Closed::OfSession(ended) => self.tell(Some(ended)),
            Closed::OfRace { unproven } => {
                self.run_race(lockdown).await?;
                return Ok(unproven);
            }
            Closed::Forgotten => {}
        }
        Ok(None)
    }

    /// Handles the end of a session's probe. Either the exit has answered, or the probe could not be sent, which says nothing
    /// about the tunnel. Returns whether the session in use counts as carrying packets.
    pub(in crate::daemon) fn take_probe(
        &mut self,
        (which, probed): (Which, Result<io::Result<()>, JoinError>),
    ) -> bool {
        let now = Instant::now();
        // In a container that forbids raw sockets, no probe is possible, so an attached connection counts as carrying packets.
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
        // If a session on trial cannot be probed, it has not proven anything.
        let counts = which == Which::InUse && (is_answered || !self.moves.plan.is_trying());
        if counts && self.proof.end(is_proven) && is_proven {
            tracing::info!("the exit answers pings now, so traffic flows");
        }
        counts
    }
}
