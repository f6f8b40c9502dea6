//! Moves to another exit of the fleet without a gap. A second session is opened at the other exit and tested while the first
//! session carries traffic.
//!
//! The new session is the second one until its exit's inner address has answered through it. Then it becomes the session in use,
//! and new flows use it. Flows that began before use the old session until its exit ends it, or until no such flow is left.
//! [`warren_tunnel::Moving`] contains the rules for packets. The daemon adapts the host.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use warren_session::client::{ClientAction, SessionGrant, Step, Stop, Switched, Watched};
use warren_session::exit::SessionId;
use warren_session::goodbye::Goodbye;

use super::{Followed, Sessions, UpProof, Won};
use crate::daemon::connections::{Purpose, Which, close_quietly};
use crate::daemon::moves::{Move, Moves, random_part};
use crate::daemon::session::leased;
use crate::exits::Way;
use crate::kill_switch::Lockdown;
use crate::probe::Probe;
use warren_tunnel::{Echo, Moving, SharedCommand};

/// Clients that are asked to leave do so within this time, each at a random moment. It is shorter than the two seconds after
/// which a stale exit ends the sessions of clients that have not left.
const SPREAD: Duration = Duration::from_millis(1_000);

impl Sessions {
    /// Records that the exit in use sends its clients to other exits of the fleet.
    pub(in crate::daemon) fn asked_to_leave(&mut self, now: Instant) {
        if self.moves.plan.asked_to_leave(now, random_part(SPREAD)) {
            tracing::info!(
                "{} asks its clients to move to another exit",
                self.exit_name(self.connections.exits.current())
            );
            self.connections.exits.avoid_current(now);
        }
    }

    /// Whether the client moves to a race's winner without a gap, by opening a second session. This needs a session in use that
    /// is up.
    pub(super) fn moves_without_gap(&self, purpose: Purpose, way: Way) -> bool {
        let exits = &self.connections.exits;
        matches!(purpose, Purpose::Leave | Purpose::Nearer | Purpose::Failback)
            && self.welcome().is_some()
            && exits.has_sibling(Instant::now())
            && exits.member(way.exit).is_some()
    }

    /// Begins a move to the exit that a race has found, if it may begin now.
    pub(super) async fn begin_move(&mut self, now: Instant, won: Won) {
        let Won { connection, key, purpose, way } = won;
        let old = self.pair.in_use.id();
        let may_begin = self.moves.may_begin(now, purpose, way.exit) && !self.moves.plan.is_building();
        let Some(old) = old.filter(|_| may_begin) else {
            close_quietly(&self.worker, connection).await;
            return;
        };
        // A move is still under way, but its new exit is being drained too, so the client moves on to another one.
        self.end_move().await;
        let from = self.exit_name(self.connections.exits.current());
        let to = self.exit_name(way.exit);
        tracing::info!("moving from {from} to {to}");
        let rules = Arc::new(Moving::begin(old, now));
        // The workers must have the rules before they learn of a second session.
        self.worker.send_all(SharedCommand::Move { moving: Some(rules.clone()) }).await;
        self.connections.begin_beside(connection, way, key);
        self.pair.begin_beside(now);
        self.moves.plan.begin(now, way.exit);
        self.moves.under_way = Some(Move { rules, from, to, news: VecDeque::new(), identifier: None });
    }

    /// The next step of the move. The caller informs the plan once it takes the step.
    pub(in crate::daemon) fn next_step(&mut self, now: Instant) -> Option<Step> {
        let (in_use, beside) = (self.watched(Which::InUse), self.watched(Which::Beside));
        let Moves { plan, under_way, .. } = &mut self.moves;
        plan.next(now, in_use, beside, || under_way.as_ref().map_or(0, |moved| moved.rules.flows_at_old(now)))
    }

    fn watched(&self, which: Which) -> Watched {
        let Some((session, attached)) =
            self.pair.of(which).and_then(|session| Some((session, session.attached()?)))
        else {
            return Watched::default();
        };
        let granted = session.welcome.as_ref().map_or(0, |welcome| welcome.connections);
        let silent_since = self.connections.silent_since(which);
        Watched { is_up: true, has_all: attached >= granted, silent_since }
    }

    /// Whether the second session can replace the lost session in use at once.
    pub(in crate::daemon) fn takes_over(&mut self) -> bool {
        self.moves.plan.is_building() && self.next_step(Instant::now()) == Some(Step::Switch)
    }

    /// Ends the second session if its exit may no longer be used. Returns whether that was the old session.
    pub(in crate::daemon) async fn check_beside(&mut self) -> bool {
        if self.connections.is_beside_accepted() {
            return false;
        }
        let is_old = !self.moves.plan.is_building();
        self.end_move().await;
        is_old
    }

    /// Ends the old session.
    pub(in crate::daemon) async fn end_old(&mut self, why: &str) {
        if let Some(moved) = &self.moves.under_way {
            tracing::debug!("the session at {} ends: {why}", moved.from);
        }
        self.end_move().await;
    }

    /// Ends the new session, because the move has failed.
    pub(in crate::daemon) async fn give_move_up(&mut self, now: Instant, why: &str) {
        let Some(moved) = &self.moves.under_way else { return };
        tracing::warn!("cannot move to {}: {why}; the session at {} continues", moved.to, moved.from);
        if let Some(place) = self.moves.plan.give_up(now) {
            self.connections.exits.avoid(place, now);
        }
        self.end_move().await;
    }

    /// Carries out the next action of the second session.
    pub(in crate::daemon) async fn follow_beside(
        &mut self,
        lockdown: &mut Lockdown,
    ) -> anyhow::Result<Followed> {
        let action = self.pair.beside.as_mut().and_then(|beside| beside.machine.poll_action());
        let Some(action) = action else { return Ok(Followed::Nothing) };
        match action {
            ClientAction::Connect { index } => {
                self.connect(lockdown, Which::Beside, index).await?;
            }
            ClientAction::Welcome(welcome) => self.welcome_beside(*welcome).await,
            ClientAction::Attach { index } => {
                self.attach(Which::Beside, index).await;
            }
            ClientAction::Down { reason, .. } => return Ok(self.lose_beside(&reason).await),
            ClientAction::Stopped { reason } => {
                self.note_refusal_beside(&reason);
                return Ok(self.lose_beside(&reason.to_string()).await);
            }
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
                self.send_or_close(Which::Beside, action).await;
            }
        }
        Ok(Followed::Action)
    }

    /// Handles the new exit's grant.
    async fn welcome_beside(&mut self, welcome: SessionGrant) {
        let Some(own) = self.welcome() else { return };
        if !self.moves.plan.is_building() {
            // The old session was lost, so this one is not needed.
            return self.end_move().await;
        }
        // The workers distinguish sessions only by their numbers. Each exit numbers its own sessions, so both sessions may have
        // the same number.
        if own.session == welcome.session {
            return self.give_move_up(Instant::now(), "both sessions have the same number").await;
        }
        let keeps_addresses = leased(own) == leased(&welcome) && own.prefixes == welcome.prefixes;
        self.moves.plan.granted(keeps_addresses);
        self.open(Which::Beside, welcome).await;
    }

    /// Sends echo requests through the second session, if there is a device to send them through.
    pub(in crate::daemon) fn probe_beside(&mut self, now: Instant, device: Option<String>) {
        let (Some(moved), Some(beside)) = (&mut self.moves.under_way, &mut self.pair.beside) else { return };
        // All echoes of a move have one identifier, because the workers' rules name it once.
        moved.identifier = moved.identifier.or_else(|| Probe::identifier().ok());
        let probe = beside.welcome.as_ref().and_then(Probe::of);
        let (Some(session), Some(probe), Some(device), Some(identifier)) =
            (beside.id(), probe, device, moved.identifier)
        else {
            // No echo request could be sent, so it counts as unanswered. The plan tries again soon.
            return self.moves.plan.unanswered(now, Which::Beside);
        };
        let echo = Echo { destination: probe.gateway, identifier: u16::from_be_bytes(identifier) };
        moved.rules.prove(session, Some(echo));
        beside.start_probe_as(&self.echo_sockets, device, (probe, identifier));
        self.moves.plan.asks(Which::Beside);
    }

    /// Records that the second session's exit refuses this client for good, so that no further move to it begins soon.
    fn note_refusal_beside(&mut self, stop: &Stop) {
        // After a takeover by another host, the exit may still accept this client.
        let is_refusal = matches!(stop, Stop::Goodbye(reason) if *reason != Goodbye::Replaced);
        if let Some(way) = self.connections.way_of(Which::Beside).filter(|_| is_refusal) {
            self.connections.exits.refused_by(way.exit, Instant::now());
        }
    }

    /// Handles the loss of the second session, which has no connection left or was refused.
    async fn lose_beside(&mut self, reason: &str) -> Followed {
        if self.moves.plan.is_building() {
            self.give_move_up(Instant::now(), reason).await;
            return Followed::Action;
        }
        self.end_move().await;
        Followed::OldLost
    }

    /// Makes the new session the one in use, so that new flows take it. Returns the grant of its exit, to which the caller must
    /// adapt the host. `None` if there is no new session.
    pub(in crate::daemon) async fn switch(&mut self, now: Instant) -> Option<(Switched, SessionGrant)> {
        let grant = self.pair.beside.as_ref()?.welcome.clone()?;
        let moved = self.moves.under_way.as_mut()?;
        // If no echo request could be sent, the rules do not contain the new session yet.
        moved.rules.prove(SessionId(grant.session), None);
        moved.rules.switch();
        // The messages that the new exit has sent since its Welcome are handled from now on, because its session is now in use.
        self.moves.news.append(&mut moved.news);
        let switched = self.moves.plan.switched(now);
        match switched {
            Switched::Leaving => {
                tracing::info!("moved to {}; flows that began before finish at {}", moved.to, moved.from)
            }
            Switched::Trying => {
                tracing::info!(
                    "{} gives this client other addresses, so its flows must start again",
                    moved.to
                )
            }
        }
        self.change_places(now).await;
        Some((switched, grant))
    }

    /// Makes the old session the one in use again, because the new one carries no traffic. Returns the grant of its exit, to
    /// which the caller must adapt the host.
    pub(in crate::daemon) async fn switch_back(&mut self, now: Instant) -> Option<SessionGrant> {
        let grant = self.pair.beside.as_ref().and_then(|beside| beside.welcome.clone());
        self.moves.plan.switched_back(now);
        if grant.is_some() {
            self.change_places(now).await;
        }
        grant
    }

    /// Swaps the two sessions.
    async fn change_places(&mut self, now: Instant) {
        // Any race under way is for a connection of the session that was in use before. Its winner would wrongly become
        // connection 0 of the session that is in use now.
        self.connections.abort_race(&self.worker).await;
        self.pair.swap();
        self.proof = UpProof::default();
        self.connections.swap(now);
        self.moves.plan.lost(Which::Beside);
    }

    /// The name of an exit in the roster, or its endpoint.
    fn exit_name(&self, place: usize) -> String {
        let exits = &self.connections.exits;
        exits.member(place).map_or_else(|| exits.exit(place).endpoint.to_string(), str::to_owned)
    }
}
