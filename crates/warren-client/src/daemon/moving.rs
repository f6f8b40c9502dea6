//! Moves to another exit of the fleet without a gap: a second session is opened there and proven while the first one carries traffic.
//!
//! The new session stays beside the one in use until the exit's inner address has answered through it. Then they change places, and
//! new flows take the new session. Flows that began before stay with the old one until its exit ends it, or until none is left.
//! [`warren_tunnel::Moving`] has the rules for packets.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use warren_quic::driver::ConnectionId;
use warren_quic::key::PublicKey;
use warren_session::client::{ClientAction, ClientState, SessionGrant};
use warren_session::exit::SessionId;

use super::Daemon;
use super::connections::{Purpose, Which, close_quietly};
use super::moves::{ATTACH_WITHIN, Move, Stage, random_part};
use super::session::leased;
use super::session_actions::route_of;
use crate::exits::Way;
use crate::probe::Probe;
use warren_control::status::State;
use warren_tunnel::{Echo, Moving, SharedCommand};

/// The new exit's session has to carry packets within this time.
const BUILD_WITHIN: Duration = Duration::from_secs(10);
/// When to look again whether the old session has flows left.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The old session is kept for this long even if no flow uses it: a program may be silent for a while.
const KEPT_FOR: Duration = Duration::from_secs(30);
/// The old session is kept no longer than this. Its exit may end it earlier.
const LONGEST: Duration = Duration::from_secs(600);
/// Clients that are asked to leave do so within this time, each at a random moment. A stale exit waits for two seconds.
const SPREAD: Duration = Duration::from_millis(1_000);
/// When to try again to leave an exit.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// No move for a better exit begins within this time after a move, and none to an exit where one has just failed.
const PAUSE: Duration = Duration::from_secs(600);

impl Daemon {
    /// The exit in use sends its clients to other exits of the fleet.
    pub(super) async fn asked_to_leave(&mut self, now: Instant) {
        if self.moves.leave_at.is_some() {
            return;
        }
        tracing::info!(
            "{} asks its clients to move to another exit",
            self.exit_name(self.connections.exits.current())
        );
        self.connections.exits.avoid_current(now);
        if let Some(moved) = self.moves.under_way.as_mut().filter(|moved| moved.is_building()) {
            // It is leaving already. If that fails, it tries again.
            moved.is_asked = true;
            return;
        }
        // All clients of the exit leave now. A random delay keeps them from reaching the other exits at the same moment.
        self.moves.leave_at = Some(now + random_part(SPREAD));
    }

    /// Whether the winner of a race gets a session beside the one in use.
    pub(super) fn moves_without_gap(&self, purpose: Purpose, way: Way) -> bool {
        let exits = &self.connections.exits;
        matches!(purpose, Purpose::Leave | Purpose::Nearer | Purpose::Failback)
            && self.health.state() == State::Up
            && self.session.welcome().is_some()
            && exits.has_sibling()
            && exits.member(way.exit).is_some()
    }

    /// Begins a move to the exit that a race has found.
    pub(super) async fn begin_move(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        way: Way,
        key: PublicKey,
    ) {
        let old = self.session.welcome().map(|welcome| SessionId(welcome.session));
        let (Some(old), false) = (old, self.moves.is_building()) else {
            close_quietly(&self.worker, connection).await;
            return;
        };
        // The exit to which the client has moved last is being drained as well, and there is an exit to go on to.
        self.end_move().await;
        let from = self.exit_name(self.connections.exits.current());
        let to = self.exit_name(way.exit);
        tracing::info!("moving from {from} to {to}");
        let rules = Arc::new(Moving::begin(old, now));
        // Before the workers hear of a second session.
        self.worker.send_all(SharedCommand::Move { moving: Some(rules.clone()) }).await;
        self.connections.begin_beside(connection, way, key);
        self.session.begin_beside(now);
        let is_asked = self.moves.leave_at.take().is_some();
        let stage = Stage::Building { until: now + BUILD_WITHIN, proven: None };
        self.moves.under_way =
            Some(Move { rules, from, to, stage, is_asked, keeps_addresses: true, news: VecDeque::new() });
    }

    /// Does what a move has to do now.
    pub(super) async fn handle_move(&mut self, now: Instant) -> anyhow::Result<()> {
        if !self.moves.is_building() && self.moves.leave_at.is_some_and(|at| at <= now) {
            self.moves.leave_at = Some(now + RETRY_AFTER);
            if self.health.state() == State::Up {
                self.connections.exits.avoid_current(now);
                self.start_race(Purpose::Leave).await?;
            }
        }
        match self.moves.under_way.as_ref().map(|moved| moved.stage) {
            None => {}
            Some(Stage::Building { .. }) => {
                let is_late = self.moves.due().is_some_and(|due| due <= now);
                if is_late && !self.is_ready(now) {
                    self.give_move_up(now, "nothing came back through it").await;
                }
            }
            Some(Stage::Leaving { since, look_at }) if look_at <= now => {
                let age = now.saturating_duration_since(since);
                let Some(moved) = &mut self.moves.under_way else { return Ok(()) };
                moved.stage = Stage::Leaving { since, look_at: now + LOOK_EVERY };
                if age >= LONGEST || (age >= KEPT_FOR && moved.rules.flows_at_old(now) == 0) {
                    self.end_move().await;
                }
            }
            Some(Stage::Leaving { .. }) => {}
        }
        Ok(())
    }

    /// Carries out what the session beside asks for, and switches to it once it carries packets.
    pub(super) async fn follow_move(&mut self) -> anyhow::Result<()> {
        while let Some(action) = self.session.beside.as_mut().and_then(|beside| beside.machine.poll_action())
        {
            self.carry_out_beside(action).await?;
        }
        if self.is_ready(Instant::now()) {
            self.switch(Instant::now()).await;
        }
        Ok(())
    }

    /// The new session has carried a packet.
    pub(super) fn prove_move(&mut self) {
        self.moves.prove(Instant::now());
    }

    /// Goes on with the session beside at once if the one in use is lost. Returns false if it cannot.
    pub(super) async fn takes_over(&mut self) -> bool {
        if !self.moves.is_building() {
            return false;
        }
        // The session in use is lost, so the other one needs no proof.
        self.moves.prove(Instant::now());
        let beside = self.session.beside.as_ref().map(|beside| beside.machine.state());
        let is_up = matches!(beside, Some(ClientState::Up { .. }));
        if is_up {
            self.switch(Instant::now()).await;
        }
        is_up
    }

    /// Ends a move: the old session after the switch, or the new one before it.
    pub(super) async fn end_move(&mut self) {
        let Some(moved) = self.moves.under_way.take() else { return };
        match moved.stage {
            Stage::Building { .. } => self.session.abort_probe(),
            Stage::Leaving { .. } => {
                tracing::info!("moved to {}: the session at {} is over", moved.to, moved.from)
            }
        }
        if let Some(mut beside) = self.session.beside.take() {
            beside.machine.stop(Instant::now());
            while let Some(action) = beside.machine.poll_action() {
                self.carry_out_last(Which::Beside, action).await;
            }
            self.connections.end_beside(&self.worker).await;
            if let Some(welcome) = beside.welcome {
                let session = SessionId(welcome.session);
                self.worker.send_all(SharedCommand::EndSession { session }).await;
            }
        }
        self.worker.send_all(SharedCommand::Move { moving: None }).await;
    }

    /// Ends the session beside if its exit may no longer be used.
    pub(super) async fn check_beside(&mut self) {
        if !self.connections.is_beside_accepted() {
            self.end_move().await;
        }
    }

    /// The name of an exit in the roster, or its endpoint.
    fn exit_name(&self, place: usize) -> String {
        let exits = &self.connections.exits;
        exits.member(place).map_or_else(|| exits.exit(place).endpoint.to_string(), str::to_owned)
    }

    async fn give_move_up(&mut self, now: Instant, why: &str) {
        let Some(moved) = &self.moves.under_way else { return };
        let (to, is_asked) = (moved.to.clone(), moved.is_asked);
        tracing::warn!("cannot move to {to}: {why}; the session at {} goes on", moved.from);
        let place = self.connections.way_of(Which::Beside).map(|way| way.exit);
        self.moves.failed = place.map(|place| (place, now + PAUSE));
        if let Some(place) = place {
            self.connections.exits.avoid(place, now);
        }
        self.end_move().await;
        self.moves.leave_at = is_asked.then(|| now + RETRY_AFTER);
    }

    async fn carry_out_beside(&mut self, action: ClientAction) -> anyhow::Result<()> {
        match action {
            ClientAction::Connect { index } => {
                let Some(ordered) = self.connections.order_for(Which::Beside) else { return Ok(()) };
                let opened =
                    self.connections.open(&self.worker, &mut self.host.lockdown, index, ordered).await?;
                self.tell_session(opened);
            }
            ClientAction::Welcome(welcome) => self.welcome_beside(*welcome).await,
            ClientAction::Attach { index } => self.attach_beside(index).await,
            ClientAction::Down { reason, .. } => self.lose_beside(&reason).await,
            ClientAction::Stopped { reason } => self.lose_beside(&reason.to_string()).await,
            ClientAction::Changed(_) | ClientAction::ExitKeys { .. } | ClientAction::Roster { .. } => {
                if let Some(moved) = self.moves.under_way.as_mut().filter(|moved| moved.is_building()) {
                    moved.take_news(action);
                }
            }
            ClientAction::AskedToLeave if self.moves.is_building() => {
                self.give_move_up(Instant::now(), "it asks its clients to leave, too").await;
            }
            ClientAction::AskedToLeave => {}
            ClientAction::Send { .. } | ClientAction::Close { .. } | ClientAction::Detach { .. } => {
                self.carry_out_last(Which::Beside, action).await;
            }
        }
        Ok(())
    }

    /// Takes what the new exit grants.
    async fn welcome_beside(&mut self, welcome: SessionGrant) {
        let (Some(moved), Some(own)) = (&mut self.moves.under_way, self.session.welcome()) else { return };
        if !moved.is_building() {
            // The old session was lost, and there is no use for another one.
            return self.end_move().await;
        }
        if own.session == welcome.session {
            return self.give_move_up(Instant::now(), "both sessions have the same number").await;
        }
        moved.keeps_addresses = leased(own) == leased(&welcome) && own.prefixes == welcome.prefixes;
        let keeps_addresses = moved.keeps_addresses;
        let (session, route) = (SessionId(welcome.session), route_of(&welcome));
        self.worker.send_all(SharedCommand::OpenSession { session, client: None, route }).await;
        if let Some(beside) = &mut self.session.beside {
            beside.welcome = Some(welcome);
        }
        if !keeps_addresses {
            // This host has the old addresses until the switch, so nothing can be proven before.
            self.moves.prove(Instant::now());
        }
    }

    /// Lets the workers use a connection beside. The first one proves that the new session carries packets.
    async fn attach_beside(&mut self, index: u32) {
        let welcome = self.session.beside.as_ref().and_then(|beside| beside.welcome.as_ref());
        let connection = self.connections.connection_of(Which::Beside, index);
        let (Some(connection), Some(welcome)) = (connection, welcome) else { return };
        let session = SessionId(welcome.session);
        let probe = Probe::of(welcome);
        self.worker.send_all(SharedCommand::Attach { session, connection, index }).await;
        self.connections.attached(Which::Beside, index);
        let is_unproven = |moved: &&Move| matches!(moved.stage, Stage::Building { proven: None, .. });
        let Some(moved) = self.moves.under_way.as_ref().filter(is_unproven) else { return };
        if self.session.is_probing() {
            return;
        }
        let device = self.host.setup.device().map(|device| device.name);
        match (probe, device, Probe::identifier()) {
            (Some(probe), Some(device), Ok(identifier)) => {
                let echo = Echo { destination: probe.gateway, identifier: u16::from_be_bytes(identifier) };
                moved.rules.prove(session, Some(echo));
                self.session.start_probe_beside(device, probe, identifier);
            }
            // Without an inner address of the exit to probe, an attached connection is the best sign that traffic flows.
            _ => {
                moved.rules.prove(session, None);
                self.moves.prove(Instant::now());
            }
        }
    }

    /// The session beside has no connection left, or has been refused.
    async fn lose_beside(&mut self, reason: &str) {
        match self.moves.is_building() {
            true => self.give_move_up(Instant::now(), reason).await,
            false => self.end_move().await,
        }
    }

    /// Whether the new session has carried a packet, and has its connections.
    fn is_ready(&self, now: Instant) -> bool {
        let Some(Move { stage: Stage::Building { proven: Some(proven), .. }, .. }) = self.moves.under_way
        else {
            return false;
        };
        let Some(beside) = &self.session.beside else { return false };
        let ClientState::Up { attached } = beside.machine.state() else { return false };
        let granted = beside.welcome.as_ref().map_or(0, |welcome| welcome.connections);
        *attached >= granted || now >= proven + ATTACH_WITHIN
    }

    /// Lets new flows take the new session. From here on, it is the session in use.
    async fn switch(&mut self, now: Instant) {
        let (Some(moved), Some(beside)) = (&mut self.moves.under_way, &self.session.beside) else { return };
        let Some(welcome) = beside.welcome.clone() else { return };
        moved.rules.prove(SessionId(welcome.session), None);
        moved.rules.switch();
        moved.stage = Stage::Leaving { since: now, look_at: now + LOOK_EVERY };
        let keeps_addresses = moved.keeps_addresses;
        match keeps_addresses {
            true => tracing::info!("moved to {}; flows that began before finish at {}", moved.to, moved.from),
            false => {
                tracing::info!("{} gives this client other addresses, so its flows begin anew", moved.to)
            }
        }
        self.moves.news.append(&mut moved.news);
        self.moves.rests_until = Some(now + PAUSE);
        self.connections.abort_race(&self.worker).await;
        self.session.abort_probe();
        self.session.swap();
        self.connections.swap(now);
        self.start.fleet.take_addresses(&welcome);
        self.name_fleet();
        self.follow_grant(&welcome).await;
        let old = self.session.beside.as_ref().map(|beside| beside.machine.state());
        if !keeps_addresses || !matches!(old, Some(ClientState::Up { .. })) {
            self.end_move().await;
        }
        if self.session.welcome().is_some() && self.health.state() != State::Up {
            self.up();
        }
    }
}
