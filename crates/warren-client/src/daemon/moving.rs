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
use warren_session::client::{ClientAction, ClientState, SessionGrant, Step, Switched, Watched};
use warren_session::exit::SessionId;

use super::Daemon;
use super::connections::{Purpose, Which, close_quietly};
use super::moves::{Move, random_part};
use super::session::leased;
use super::session_actions::route_of;
use crate::exits::Way;
use crate::probe::Probe;
use warren_control::status::State;
use warren_tunnel::{Echo, Moving, SharedCommand};

/// Clients that are asked to leave do so within this time, each at a random moment. A stale exit waits for two seconds.
const SPREAD: Duration = Duration::from_millis(1_000);

impl Daemon {
    /// The exit in use sends its clients to other exits of the fleet.
    pub(super) async fn asked_to_leave(&mut self, now: Instant) {
        if self.moves.plan.asked_to_leave(now, random_part(SPREAD)) {
            tracing::info!(
                "{} asks its clients to move to another exit",
                self.exit_name(self.connections.exits.current())
            );
            self.connections.exits.avoid_current(now);
        }
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
        let (Some(old), false) = (old, self.moves.plan.is_building()) else {
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
        self.moves.plan.begin(now, way.exit);
        self.moves.under_way = Some(Move { rules, from, to, news: VecDeque::new() });
    }

    /// Carries out what the second session asks for, and then what the move does next. Returns whether there was anything.
    pub(super) async fn follow_move(&mut self) -> anyhow::Result<bool> {
        let mut is_busy = false;
        while let Some(action) = self.session.beside.as_mut().and_then(|beside| beside.machine.poll_action())
        {
            self.carry_out_beside(action).await?;
            is_busy = true;
        }
        while let Some(step) = self.next_step(Instant::now()) {
            self.take_step(step).await?;
            is_busy = true;
        }
        Ok(is_busy)
    }

    /// Goes on with the second session at once if the one in use is lost. Returns false if it cannot.
    pub(super) async fn takes_over(&mut self) -> bool {
        let takes_over =
            self.moves.plan.is_building() && self.next_step(Instant::now()) == Some(Step::Switch);
        if takes_over {
            self.switch(Instant::now()).await;
        }
        takes_over
    }

    /// Ends a move: the old session after the switch, or the new one before it.
    pub(super) async fn end_move(&mut self) {
        let Some(moved) = self.moves.under_way.take() else { return };
        match self.moves.plan.end() {
            // Its exit may have heard from the store that the client is elsewhere.
            true => self.session.stay(),
            false => tracing::info!("moved to {}: the session at {} is over", moved.to, moved.from),
        }
        if let Some(mut beside) = self.session.beside.take() {
            beside.machine.stop(Instant::now());
            while let Some(action) = beside.machine.poll_action() {
                self.carry_out_last(Which::Beside, action).await;
            }
            self.connections.end_beside(&self.worker).await;
            if let Some(welcome) = &beside.welcome {
                let session = SessionId(welcome.session);
                self.worker.send_all(SharedCommand::EndSession { session }).await;
            }
        }
        self.worker.send_all(SharedCommand::Move { moving: None }).await;
    }

    /// Ends the second session if its exit may no longer be used.
    pub(super) async fn check_beside(&mut self) {
        if !self.connections.is_beside_accepted() {
            self.end_move().await;
        }
    }

    fn next_step(&mut self, now: Instant) -> Option<Step> {
        let (in_use, beside) = (self.watched(Which::InUse), self.watched(Which::Beside));
        let super::moves::Moves { plan, under_way, .. } = &mut self.moves;
        plan.next(now, in_use, beside, || under_way.as_ref().map_or(0, |moved| moved.rules.flows_at_old(now)))
    }

    fn watched(&self, which: Which) -> Watched {
        let beside = self.session.beside.as_ref();
        let (machine, welcome) = match which {
            Which::InUse => (Some(&self.session.machine), self.session.welcome()),
            Which::Beside => {
                (beside.map(|beside| &beside.machine), beside.and_then(|beside| beside.welcome.as_ref()))
            }
        };
        let Some(ClientState::Up { attached }) = machine.map(|machine| machine.state()) else {
            return Watched::default();
        };
        let granted = welcome.map_or(0, |welcome| welcome.connections);
        let silent_since = self.connections.silent_since(which);
        Watched { is_up: true, has_all: *attached >= granted, silent_since }
    }

    async fn take_step(&mut self, step: Step) -> anyhow::Result<()> {
        let now = Instant::now();
        match step {
            Step::Race if self.health.state() == State::Up => {
                self.connections.exits.avoid_current(now);
                self.start_race(Purpose::Leave).await?;
            }
            Step::Race => {}
            Step::Probe(Which::InUse) => {
                self.probe_in_use();
            }
            Step::Probe(Which::Beside) => self.probe_beside(now),
            Step::Switch => self.switch(now).await,
            Step::SwitchBack(why) => self.switch_back(now, why).await,
            Step::GiveUp(why) => self.give_move_up(now, why).await,
            Step::End(why) => {
                if let Some(moved) = &self.moves.under_way {
                    tracing::debug!("the session at {} ends: {why}", moved.from);
                }
                self.end_move().await;
                if matches!(self.session.machine.state(), ClientState::Up { .. }) {
                    // The session in use may have been on trial until now.
                    self.ask_for_echo();
                }
            }
        }
        Ok(())
    }

    /// The name of an exit in the roster, or its endpoint.
    fn exit_name(&self, place: usize) -> String {
        let exits = &self.connections.exits;
        exits.member(place).map_or_else(|| exits.exit(place).endpoint.to_string(), str::to_owned)
    }

    async fn give_move_up(&mut self, now: Instant, why: &str) {
        let Some(moved) = &self.moves.under_way else { return };
        tracing::warn!("cannot move to {}: {why}; the session at {} goes on", moved.to, moved.from);
        if let Some(place) = self.moves.plan.give_up(now) {
            self.connections.exits.avoid(place, now);
        }
        self.end_move().await;
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
                if let Some(moved) = self.moves.under_way.as_mut().filter(|_| self.moves.plan.is_building()) {
                    moved.take_news(action);
                }
            }
            ClientAction::AskedToLeave if self.moves.plan.is_building() => {
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
        let Some(own) = self.session.welcome() else { return };
        if !self.moves.plan.is_building() {
            // The old session was lost, and there is no use for another one.
            return self.end_move().await;
        }
        if own.session == welcome.session {
            return self.give_move_up(Instant::now(), "both sessions have the same number").await;
        }
        self.moves.plan.granted(leased(own) == leased(&welcome) && own.prefixes == welcome.prefixes);
        let (session, route) = (SessionId(welcome.session), route_of(&welcome));
        self.worker.send_all(SharedCommand::OpenSession { session, client: None, route }).await;
        if let Some(beside) = &mut self.session.beside {
            beside.welcome = Some(welcome);
        }
    }

    /// Lets the workers use a connection of the second session.
    async fn attach_beside(&mut self, index: u32) {
        let welcome = self.session.beside.as_ref().and_then(|beside| beside.welcome.as_ref());
        let connection = self.connections.connection_of(Which::Beside, index);
        let (Some(connection), Some(welcome)) = (connection, welcome) else { return };
        let session = SessionId(welcome.session);
        self.worker.send_all(SharedCommand::Attach { session, connection, index }).await;
        self.connections.attached(Which::Beside, index);
    }

    /// Sends echo requests through the second session, if there is a device to send them through.
    fn probe_beside(&mut self, now: Instant) {
        let device = self.host.setup.device().map(|device| device.name);
        let (Some(moved), Some(beside)) = (&self.moves.under_way, &mut self.session.beside) else { return };
        let identifier = beside.identifier.or_else(|| Probe::identifier().ok());
        beside.identifier = identifier;
        let welcome = beside.welcome.as_ref();
        let probe = welcome.and_then(|welcome| Some((SessionId(welcome.session), Probe::of(welcome)?)));
        let (Some((session, probe)), Some(device), Some(identifier)) = (probe, device, identifier) else {
            // Nothing is proven, and the next attempt follows soon.
            return self.moves.plan.unanswered(now, Which::Beside);
        };
        let echo = Echo { destination: probe.gateway, identifier: u16::from_be_bytes(identifier) };
        moved.rules.prove(session, Some(echo));
        beside.start_probe(&self.start.made.echo_sockets, device, (probe, identifier));
        self.moves.plan.asks(Which::Beside);
    }

    /// The second session has no connection left, or has been refused.
    async fn lose_beside(&mut self, reason: &str) {
        match self.moves.plan.is_building() {
            true => self.give_move_up(Instant::now(), reason).await,
            false => {
                self.end_move().await;
                // If it was the old session of a trial, the move no longer asks for an echo, so this does.
                self.ask_for_echo();
            }
        }
    }

    /// Lets new flows take the new session. From here on, it is the session in use.
    async fn switch(&mut self, now: Instant) {
        let (Some(moved), Some(beside)) = (&mut self.moves.under_way, &self.session.beside) else { return };
        let Some(welcome) = beside.welcome.clone() else { return };
        moved.rules.prove(SessionId(welcome.session), None);
        moved.rules.switch();
        self.moves.news.append(&mut moved.news);
        let switched = self.moves.plan.switched(now);
        match switched {
            Switched::Leaving => {
                tracing::info!("moved to {}; flows that began before finish at {}", moved.to, moved.from)
            }
            Switched::Trying => {
                tracing::info!("{} gives this client other addresses, so its flows begin anew", moved.to)
            }
        }
        self.change_places(now, &welcome).await;
        match (self.moves.plan.is_proven(Which::InUse), switched) {
            (true, _) if self.health.state() != State::Up => self.up(),
            (true, _) => {}
            (false, Switched::Leaving) => {
                // The old session is lost, and nothing is known of this one yet.
                self.health.moves();
                self.ask_for_echo();
            }
            (false, Switched::Trying) => self.health.moves(),
        }
    }

    /// Uses the old session again, because the new one carries nothing.
    async fn switch_back(&mut self, now: Instant, why: &str) {
        let old = self.session.beside.as_ref().and_then(|beside| beside.welcome.clone());
        self.moves.plan.switched_back(now);
        if let Some(welcome) = old {
            self.change_places(now, &welcome).await;
        }
        self.give_move_up(now, why).await;
        self.up();
    }

    /// Lets the two sessions change places.
    async fn change_places(&mut self, now: Instant, welcome: &SessionGrant) {
        self.connections.abort_race(&self.worker).await;
        self.session.swap();
        self.connections.swap(now);
        if let Some(old) = &mut self.session.beside {
            // Its echo requests would take the session in use from now on.
            old.abort_probe();
            self.moves.plan.lost(Which::Beside);
        }
        self.name_fleet();
        self.follow_grant(welcome).await;
    }
}
