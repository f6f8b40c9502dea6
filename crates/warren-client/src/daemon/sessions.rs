//! Owns the sessions with the exits: the session in use, a second session while the client moves, and the connections of both.
//!
//! This file begins and ends sessions, and handles what their connections need. `sessions/moving.rs` moves from one exit to
//! another, `sessions/proof.rs` decides whether a session carries packets, and `sessions/reports.rs` handles the workers'
//! reports. The methods return what the caller must change on the host or show to users. They change the host themselves in two
//! cases. They borrow the kill switch to let a connection out before it is opened. And `end_flows` ends the host's connections
//! through the tunnel.

mod moving;
mod proof;
mod reports;

use std::time::{Duration, Instant};

use warren_quic::driver::{ConnectionId, SHUTDOWN_TIMEOUT};
use warren_quic::key::PublicKey;
use warren_session::NUMBERED;
use warren_session::client::{ClientAction, SessionGrant, Stop};
use warren_session::exit::SessionId;
use warren_session::goodbye::Goodbye;

use self::proof::Due;
pub(super) use self::proof::UpProof;
use super::connections::{Connections, Ended, Purpose, Which};
use super::moves::Moves;
use super::session::SessionPair;
use crate::exits::{Exits, Way};
use crate::kill_switch::Lockdown;
use crate::probe::{EchoSockets, Probe};
use warren_tun::Queue;
use warren_tunnel::{Forwarding, SessionRoute, SharedCommand, WorkerHandle};

/// How long to wait at most until the workers have sent the last packets of the host's connections.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// A stop should take at most one second. Even if both waits last until their limits, 300 ms are left for restoring the host.
const _: () = assert!(LAST_WORDS.as_millis() + SHUTDOWN_TIMEOUT.as_millis() <= 700);

/// The sessions with the exits.
pub(super) struct Sessions {
    pub(super) worker: WorkerHandle,
    pub(super) connections: Connections,
    pub(super) pair: SessionPair,
    pub(super) moves: Moves,
    pub(super) echo_sockets: EchoSockets,
    pub(super) proof: UpProof,
}

/// The purpose of a connection whose handshake is done. The handshake has proven the exit's key.
pub(super) enum Connected {
    /// The connection belongs to a session, or is no longer needed.
    Known,
    /// The connection was opened to check whether the exit has a key.
    Checked,
    /// The connection has won a race.
    Won(Won),
}

/// The result of carrying out the second session's next action.
pub(super) enum Followed {
    /// The session had no action.
    Nothing,
    /// One of the session's actions was carried out.
    Action,
    /// The old session of a move is lost. The client can no longer switch back to it, even if the new session is still on trial.
    OldLost,
}

/// The winner of a race.
pub(super) struct Won {
    connection: ConnectionId,
    key: PublicKey,
    purpose: Purpose,
    way: Way,
}

impl Sessions {
    /// Returns the grant of the exit in use.
    pub(super) fn welcome(&self) -> Option<&SessionGrant> {
        self.pair.in_use.welcome.as_ref()
    }

    /// The next action of the session in use.
    pub(super) fn next_action(&mut self) -> Option<ClientAction> {
        self.moves.take_news().or_else(|| self.pair.in_use.machine.poll_action())
    }

    /// When [`Self::handle_timeouts`] or a move has something to do.
    pub(super) fn due(&self) -> Option<Instant> {
        [self.pair.due(), self.moves.plan.due(), self.proof.due()].into_iter().flatten().min()
    }

    /// Handles the sessions' timers. The timers of a move are handled together with the sessions' actions.
    pub(super) fn handle_timeouts(&mut self) {
        let now = Instant::now();
        for which in [Which::InUse, Which::Beside] {
            if let Some(session) = self.pair.of_mut(which) {
                session.machine.handle_timeout(now);
            }
        }
    }

    /// Begins a new session, for which a race finds an exit and an address. The address of an earlier session is not reused.
    pub(super) fn begin(&mut self, now: Instant) {
        self.connections.forget_way();
        self.forget_proof();
        // The next session may be with another exit.
        self.proof = UpProof::default();
        self.pair.begin(now);
    }

    /// Sends a Goodbye to the exits, and drops all other actions of the sessions.
    pub(super) async fn stop(&mut self) {
        self.end_move().await;
        self.pair.in_use.machine.stop(Instant::now());
        self.close_unwanted().await;
    }

    /// Sends a Goodbye to the exit, and ends the session, its connections, races and look-ups. Changes nothing on the host.
    pub(super) async fn end(&mut self) {
        self.stop().await;
        self.connections.abort_race(&self.worker).await;
        self.connections.forget_silence();
        self.forget_proof();
        self.forget_grant().await;
    }

    /// Leaves the exit in use for the one that `choose` selects, and begins a new session there. Returns the endpoint of the exit
    /// that was left.
    pub(super) async fn leave(&mut self, now: Instant, choose: impl FnOnce(&mut Exits)) -> String {
        let from = self.connections.endpoint().to_string();
        self.stop().await;
        choose(&mut self.connections.exits);
        self.begin(now);
        from
    }

    /// Switches to another exit that may accept this client, because the exit in use refuses this client for good. Returns false
    /// if there is no other exit.
    pub(super) fn goes_on_elsewhere(&mut self, stop: &Stop) -> bool {
        // If a newer session with the same key has replaced this one, the client tries no other exit. Two hosts with one key would
        // otherwise take the session from each other in turn.
        let is_final = matches!(stop, Stop::Requested | Stop::Goodbye(Goodbye::Replaced));
        let now = Instant::now();
        if is_final || !self.connections.exits.refused(now) {
            return false;
        }
        tracing::warn!("{stop}; trying {}", self.connections.endpoint());
        self.begin(now);
        true
    }

    /// Asks the exits again, beginning with the first. Uses a new nonce, so the exits treat this process as another client
    /// process.
    pub(super) async fn ask_again(&mut self) -> anyhow::Result<()> {
        // An exit remembers a client process that was replaced by another host, and refuses it.
        self.pair.renew_nonce()?;
        // An earlier attempt may still be under way, with connections that have to be closed.
        self.stop().await;
        let now = Instant::now();
        self.connections.exits.forgive(now);
        self.begin(now);
        Ok(())
    }

    /// Ends the host's connections through the tunnel, and waits until their last packets were sent. Without this, the kernel
    /// would retransmit these packets from an inner address, and over IPv6 even outside the tunnel.
    pub(super) async fn end_flows(&self) {
        if let Err(error) = warren_host::connections::end(&self.pair.in_use.leased()) {
            tracing::warn!(
                "connections through the tunnel could not be ended and may continue outside it: {error}; restart the programs that use them"
            );
        }
        // Once a worker answers, it has read those packets. The wait has a limit, because a worker that hangs never answers.
        drop(tokio::time::timeout(LAST_WORDS, self.worker.snapshot()).await);
    }

    /// Ends a move: the old session after the switch, or the new one before it.
    pub(super) async fn end_move(&mut self) {
        let Some(moved) = self.moves.under_way.take() else { return };
        match self.moves.plan.end() {
            // The fleet's store may have told the exit in use that the client has a newer session at another exit.
            true => self.pair.stay(),
            false => tracing::info!("moved to {}: the session at {} is over", moved.to, moved.from),
        }
        if let Some(mut beside) = self.pair.beside.take() {
            beside.machine.stop(Instant::now());
            while let Some(action) = beside.machine.poll_action() {
                self.send_or_close(Which::Beside, action).await;
            }
            self.connections.end_beside(&self.worker).await;
            if let Some(session) = beside.id() {
                self.worker.send_all(SharedCommand::EndSession { session }).await;
            }
        }
        // The move's rules are removed after the session, because without them the workers cannot decide which of two sessions a
        // packet takes.
        self.worker.send_all(SharedCommand::Move { moving: None }).await;
    }

    /// Prepares for a new grant of the exit in use. The exit has replaced the session, and the new session may have other
    /// addresses.
    pub(super) async fn replace(&mut self) {
        // A move ends first, because its rules contain the number of the session that was replaced.
        self.end_move().await;
        self.moves.plan.stay();
        self.forget_grant().await;
    }

    /// Makes the workers carry the packets of a session that an exit has granted.
    pub(super) async fn open(&mut self, which: Which, welcome: SessionGrant) {
        let (session, route) = (SessionId(welcome.session), route_of(&welcome));
        self.worker.send_all(SharedCommand::OpenSession { session, client: None, route }).await;
        if let Some(opened) = self.pair.of_mut(which) {
            opened.welcome = Some(welcome);
        }
    }

    /// Gives the queues of a new device to the workers.
    pub(super) async fn open_device(&self, queues: Option<Vec<Queue>>) {
        if let Some(queues) = queues {
            self.worker.open_device(queues, &Forwarding::Client).await;
        }
    }

    /// Takes the resolvers and routes that the exit's operator has changed during the session. Returns false if there is no session.
    pub(super) fn take_changes(&mut self, welcome: &SessionGrant) -> bool {
        let Some(before) = &mut self.pair.in_use.welcome else { return false };
        if before.dns != welcome.dns {
            let servers: Vec<String> = welcome.dns.iter().map(ToString::to_string).collect();
            let named = if servers.is_empty() { "none".to_owned() } else { servers.join(", ") };
            tracing::info!("the exit names other resolvers: {named}");
        }
        before.clone_from(welcome);
        true
    }

    async fn forget_grant(&mut self) {
        if let Some(welcome) = self.pair.in_use.welcome.take() {
            let session = SessionId(welcome.session);
            self.worker.send_all(SharedCommand::EndSession { session }).await;
        }
    }

    /// Opens a connection that a session asks for. Returns whether the client's first race has begun for it.
    ///
    /// # Errors
    /// When this process may not mark its sockets.
    pub(super) async fn connect(
        &mut self,
        lockdown: &mut Lockdown,
        which: Which,
        index: u32,
    ) -> anyhow::Result<bool> {
        let ordered = self.connections.order_for(which);
        // For connection 0, a race finds an exit and an address. The session's other connections use the same address. All
        // connections of the second session use the address of its connection 0.
        if which == Which::InUse && (index == 0 || ordered.is_none()) {
            self.start_race(lockdown, Purpose::Attempt).await?;
            return Ok(self.connections.has_raced_once());
        }
        if let Some(ordered) = ordered {
            let ended = self.connections.open(&self.worker, lockdown, index, ordered).await?;
            self.tell(ended);
        }
        Ok(false)
    }

    /// Lets the workers use a connection of a session. Returns false if the connection or the session no longer exists.
    pub(super) async fn attach(&mut self, which: Which, index: u32) -> bool {
        let connection = self.connections.connection_of(which, index);
        let session = self.pair.of(which).and_then(|session| session.id());
        let (Some(connection), Some(session)) = (connection, session) else { return false };
        self.worker.send_all(SharedCommand::Attach { session, connection, index }).await;
        self.connections.attached(which, index);
        if which == Which::InUse {
            self.pair.set_moves_without_gap(self.connections.exits.has_sibling(Instant::now()));
        }
        true
    }

    /// Carries out the remaining actions of the session in use that send or close. Drops all other actions.
    async fn close_unwanted(&mut self) {
        while let Some(action) = self.pair.in_use.machine.poll_action() {
            self.send_or_close(Which::InUse, action).await;
        }
    }

    /// Carries out an action that sends or closes. Drops other actions, because a session that ends or moves no longer
    /// needs the connections and traffic that they ask for.
    pub(super) async fn send_or_close(&mut self, which: Which, action: ClientAction) {
        match action {
            ClientAction::Send { index, bytes } => {
                self.connections.send(&self.worker, which, index, bytes).await;
            }
            ClientAction::Close { index, reason } => {
                self.connections.close(&self.worker, which, index, reason).await;
            }
            ClientAction::Detach { index } => {
                self.connections.detach(&self.worker, which, index).await;
            }
            ClientAction::Connect { .. }
            | ClientAction::Welcome(_)
            | ClientAction::Changed(_)
            | ClientAction::ExitKeys { .. }
            | ClientAction::Roster { .. }
            | ClientAction::AskedToLeave
            | ClientAction::Attach { .. }
            | ClientAction::Down { .. }
            | ClientAction::Stopped { .. } => {}
        }
    }

    /// Tells a session of the end of one of its connections.
    fn tell(&mut self, ended: Option<Ended>) {
        let Some(Ended { which, index, end }) = ended else { return };
        if let Some(session) = self.pair.of_mut(which) {
            session.machine.closed(Instant::now(), index, end);
        }
    }

    /// Starts a race, and ends any race under way.
    ///
    /// # Errors
    /// When this process may not mark its sockets.
    pub(super) async fn start_race(
        &mut self,
        lockdown: &mut Lockdown,
        purpose: Purpose,
    ) -> anyhow::Result<()> {
        let carries_packets = self.carries_packets();
        self.connections.lookups.follow_tunnel(carries_packets);
        self.connections.start_race(&self.worker, lockdown, purpose).await;
        self.run_race(lockdown).await
    }

    /// Begins the race's connections that are due. Tells the session if all addresses have failed.
    pub(super) async fn run_race(&mut self, lockdown: &mut Lockdown) -> anyhow::Result<()> {
        let ended = self.connections.run_race(&self.worker, lockdown).await?;
        self.tell(ended);
        Ok(())
    }

    /// Starts a race to find out whether an exit that is preferred to the one in use is back.
    pub(super) async fn ask_for_failback(&mut self, lockdown: &mut Lockdown) -> anyhow::Result<()> {
        self.connections.asks_for_failback(Instant::now());
        self.start_race(lockdown, Purpose::Failback).await
    }

    /// Whether the session in use has a connection on which its exit answers.
    pub(super) fn carries_packets(&self) -> bool {
        self.pair.in_use.attached().is_some() && self.connections.silent_since(Which::InUse).is_none()
    }

    /// Pings the exits on every connection, because this host's network has changed or the host has slept. The ping also shows
    /// the exit the client's new address.
    pub(super) async fn hurry(&mut self) {
        self.worker.send_all(SharedCommand::Rouse).await;
        self.pair.in_use.machine.hurry(Instant::now());
    }

    /// Makes the session in use prove that it carries packets. Returns false if that is not possible now.
    pub(super) fn ask_for_echo(&mut self, device: Option<String>) -> bool {
        if self.moves.plan.is_asking(Which::InUse) && !self.moves.plan.is_trying() {
            self.proof.inherits(Instant::now());
        }
        self.awaits_proof() || (!self.moves.plan.is_asking(Which::InUse) && self.probe_in_use(device))
    }

    /// Whether the session in use must still prove that it carries packets, and has time left for that.
    pub(super) fn awaits_proof(&self) -> bool {
        self.moves.plan.is_asking(Which::InUse) && !self.proof.is_missing()
    }

    /// Handles the proof's timers. Returns whether, from now on, the session in use counts as up without a
    /// proof.
    pub(super) fn look_at_proof(&mut self, now: Instant) -> bool {
        let is_silent = self.connections.silent_since(Which::InUse).is_some();
        match self.proof.take_due(now, is_silent) {
            Due::Nothing => {}
            Due::Up { is_news } => {
                if let Some(warning) = self.unproven().filter(|_| is_news) {
                    tracing::warn!("{warning}");
                }
                return true;
            }
            Due::GiveUp => {
                self.pair.in_use.abort_probe();
                self.moves.plan.unanswered(now, Which::InUse);
            }
        }
        false
    }

    /// The warning about a session that counts as up without a proof.
    pub(super) fn unproven(&self) -> Option<String> {
        let probe = self.welcome().and_then(Probe::of).filter(|_| self.proof.is_missing())?;
        Some(format!(
            "connected, but the exit does not answer pings to {}, so it is not proven that traffic flows; if nothing gets through, see the \
             exit's log",
            probe.gateway
        ))
    }

    /// Sends echo requests through the session in use. Returns whether that is possible now.
    pub(super) fn probe_in_use(&mut self, device: Option<String>) -> bool {
        let (now, is_trying) = (Instant::now(), self.moves.plan.is_trying());
        let starts = self.pair.in_use.start_probe(device, &self.echo_sockets);
        match starts {
            true => self.moves.plan.asks(Which::InUse),
            false => self.moves.plan.unanswered(now, Which::InUse),
        }
        // The session counts as up without a proof after a while, unless it is on trial.
        if starts && !is_trying {
            self.proof.asks(now);
        }
        starts
    }

    /// Resets the proof that the session in use carries packets.
    pub(super) fn forget_proof(&mut self) {
        self.pair.in_use.abort_probe();
        self.proof.forget();
        self.moves.plan.lost(Which::InUse);
    }

    /// Whether the exit in use still belongs to the profile or the roster, judging by the key that it has
    /// proven.
    pub(super) fn may_stay(&self) -> bool {
        let connections = &self.connections;
        let is_accepted = self.welcome().is_none() || connections.is_exit_accepted();
        is_accepted && connections.exits.has(connections.exits.current())
    }
}

/// Returns the part of a grant that the workers need.
fn route_of(welcome: &SessionGrant) -> SessionRoute {
    SessionRoute {
        ipv4: welcome.ipv4.map(|(address, _)| address),
        ipv6: welcome.ipv6.map(|(address, _)| address),
        prefixes: welcome.prefixes.clone(),
        connections: welcome.connections,
        limit: None,
        repair: welcome.features & NUMBERED != 0,
    }
}
