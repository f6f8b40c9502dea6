//! Carries out what the session's state machine asks for, on the connections, the workers and the host.

use std::time::Instant;

use warren_session::NUMBERED;
use warren_session::client::{ClientAction, SessionGrant, Stop};
use warren_session::exit::SessionId;
use warren_session::goodbye::Goodbye;

use super::Daemon;
use super::connections::{Purpose, Which};
use warren_control::status::State;
use warren_tunnel::{Forwarding, SessionRoute, SharedCommand};

impl Daemon {
    /// Carries out one action. Returns a reason if the daemon is to stop.
    pub(super) async fn carry_out(&mut self, action: ClientAction) -> anyhow::Result<Option<Stop>> {
        match action {
            ClientAction::Connect { index } => self.connect(index).await?,
            ClientAction::Send { index, bytes } => {
                self.connections.send(&self.worker, Which::InUse, index, bytes).await;
            }
            ClientAction::Close { index, reason } => {
                self.connections.close(&self.worker, Which::InUse, index, reason).await;
            }
            ClientAction::Welcome(welcome) => self.welcome(*welcome).await?,
            ClientAction::Changed(welcome) => self.changed(*welcome).await,
            ClientAction::ExitKeys { index, keys } => self.take_exit_keys(index, &keys).await?,
            ClientAction::Roster { index, roster } => self.take_roster(index, &roster).await?,
            ClientAction::AskedToLeave => self.asked_to_leave(Instant::now()).await,
            ClientAction::Attach { index } => self.attach(index).await,
            ClientAction::Detach { index } => {
                self.connections.detach(&self.worker, Which::InUse, index).await;
            }
            ClientAction::Down { .. } if self.takes_over().await => {}
            ClientAction::Down { reason, goodbye } => self.down(reason, goodbye),
            ClientAction::Stopped { reason } if self.goes_on_elsewhere(&reason) => {}
            ClientAction::Stopped { reason } => {
                return Ok(if self.stays_closed(&reason).await { None } else { Some(reason) });
            }
        }
        Ok(None)
    }

    /// Carries out what a session that ends or moves still has to send and to close.
    pub(super) async fn close_unwanted(&mut self) {
        while let Some(action) = self.session.machine.poll_action() {
            self.carry_out_last(Which::InUse, action).await;
        }
    }

    /// Sends and closes what a session that ends or moves asks for. Drops its other actions, because the connections and traffic
    /// that they ask for are no longer wanted.
    pub(super) async fn carry_out_last(&mut self, which: Which, action: ClientAction) {
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

    /// Asks the exit in use for a session. Forgets the way that the connections of an earlier session took.
    pub(super) fn begin_session(&mut self, now: Instant) {
        self.connections.forget_way();
        self.forget_proof();
        self.session.begin(now);
    }

    async fn connect(&mut self, index: u32) -> anyhow::Result<()> {
        // Connection 0 finds a way to an exit by a race. The other connections take the same way.
        let Some(ordered) = self.connections.order_for(Which::InUse).filter(|_| index != 0) else {
            self.start_race(Purpose::Attempt).await?;
            // The devices are made while the worker carries out the handshake. Only at the first attempt: later ones may
            // fail for a long time, and would make and remove the devices each time.
            if self.connections.has_raced_once() {
                self.host.setup.prepare();
            }
            return Ok(());
        };
        let ended = self.connections.open(&self.worker, &mut self.host.lockdown, index, ordered).await?;
        self.tell_session(ended);
        Ok(())
    }

    /// Sets the host up as the exit's Welcome asks, and lets the workers carry the session's packets.
    async fn welcome(&mut self, welcome: SessionGrant) -> anyhow::Result<()> {
        // The move's rules name the earlier session.
        self.end_move().await;
        self.moves.plan.stay();
        // The exit has replaced the earlier session, and the new one may have other addresses.
        if let Some(session) = self.session.take_welcome() {
            self.worker.send_all(SharedCommand::EndSession { session }).await;
        }
        self.warn_of_refused_prefixes(&welcome);
        let had_tunnel = self.host.setup.stands();
        let queues = match self.host.setup.apply(&welcome).await {
            Ok(queues) => queues,
            // Without a tunnel, or while `up` waits, the daemon can end, which leaves the host as it was before.
            Err(error) if !had_tunnel || self.health.refusal.is_waited_for() => return Err(error),
            Err(error) => {
                self.goes_without(&error).await;
                return Ok(());
            }
        };
        if self.host.applied().await {
            self.note_host_trouble(None);
        }
        // A check of what was just set up would delay the first echo, for which `up` waits.
        self.host.put_off_look();
        let route = route_of(&welcome);
        let session = SessionId(welcome.session);
        // Before the device opens, so that its first packets find a session in the workers.
        self.worker.send_all(SharedCommand::OpenSession { session, client: None, route }).await;
        if let Some(queues) = queues {
            self.worker.open_device(queues, &Forwarding::Client).await;
        }
        self.start.fleet.take_addresses(&welcome);
        self.session.set_welcome(welcome);
        Ok(())
    }

    /// Warns of the profile's prefixes that the exit does not route to this host. The exit's operator decides that.
    fn warn_of_refused_prefixes(&self, welcome: &SessionGrant) {
        for prefix in
            self.start.profile.routes.prefixes.iter().filter(|prefix| !welcome.prefixes.contains(prefix))
        {
            tracing::warn!(
                "the exit does not route {prefix} here; its operator allows it with: warren exit client set NAME --prefix {prefix}"
            );
        }
    }

    async fn attach(&mut self, index: u32) {
        let (Some(connection), Some(welcome)) = (self.connections.with_index(index), self.session.welcome())
        else {
            return;
        };
        let session = SessionId(welcome.session);
        self.worker.send_all(SharedCommand::Attach { session, connection, index }).await;
        self.connections.attached(Which::InUse, index);
        self.session.set_moves_without_gap(self.connections.exits.has_sibling());
        self.ask_for_echo();
    }

    /// Makes the session in use show that it carries packets, unless the status says so already.
    pub(super) fn ask_for_echo(&mut self) {
        if self.health.state() == State::Up || self.awaits_proof() {
            return;
        }
        // Without a device to probe through, or an exit that answers, an attached connection is the best sign that traffic flows.
        if self.moves.plan.is_asking(Which::InUse) || !self.probe_in_use() {
            self.up();
        }
    }

    /// Sends echo requests through the session in use. Returns whether that is possible now.
    pub(super) fn probe_in_use(&mut self) -> bool {
        let device = self.host.setup.device().map(|device| device.name);
        let (now, is_trying) = (Instant::now(), self.moves.plan.is_trying());
        let starts = self.session.start_probe(device, &self.start.made.echo_sockets, is_trying);
        match starts {
            true => self.moves.plan.asks(Which::InUse),
            false => self.moves.plan.unanswered(now, Which::InUse),
        }
        // A session on trial has to show that it carries packets. Any other one is used without that in the end.
        if starts && !is_trying {
            self.session.proof.asks(now);
        }
        starts
    }

    fn down(&mut self, reason: String, goodbye: Option<Goodbye>) {
        self.forget_proof();
        self.host.setup.forget_prepared();
        // This exit will soon be unreachable, so the others come first for a while.
        if matches!(goodbye, Some(Goodbye::Restarting | Goodbye::Draining)) {
            self.connections.exits.avoid_current(Instant::now());
        }
        if goodbye == Some(Goodbye::PoolEmpty) && self.session.welcome().is_none() {
            let connections = &self.connections;
            self.health.refusal.take_empty_pool(|| connections.refusal_of(Goodbye::PoolEmpty));
        }
        self.tell_known_end(&reason, goodbye);
        self.health.down(reason, goodbye);
        // An exit that said goodbye has named the reason itself.
        if goodbye.is_none() {
            self.start_diagnosis();
        }
        self.health.tell_known_cause(self.connections.exits.count());
    }

    /// Forgets whether the session in use carries packets.
    pub(super) fn forget_proof(&mut self) {
        self.session.abort_probe();
        self.session.proof.forget();
        self.moves.plan.lost(Which::InUse);
    }

    /// Tells a waiting `up` of an end after which another attempt would hardly succeed.
    fn tell_known_end(&mut self, reason: &str, goodbye: Option<Goodbye>) {
        let is_only_exit = self.connections.exits.count() == 1;
        if goodbye.is_none() && !self.connections.exits.have_addresses() {
            self.health.unresolved(reason.to_owned());
        } else if matches!(goodbye, Some(Goodbye::Protocol(_))) {
            // The exit has proven its key, so this is the exit's own answer, and this client cannot use it.
            self.health.refusal.give_up(reason.to_owned());
        } else if goodbye == Some(Goodbye::Draining) && is_only_exit {
            self.health.refusal.give_up(self.connections.refusal_of(Goodbye::Draining));
        }
    }
}

/// What the workers have to know of a session.
pub(super) fn route_of(welcome: &SessionGrant) -> SessionRoute {
    SessionRoute {
        ipv4: welcome.ipv4.map(|(address, _)| address),
        ipv6: welcome.ipv6.map(|(address, _)| address),
        prefixes: welcome.prefixes.clone(),
        connections: welcome.connections,
        limit: None,
        repair: welcome.features & NUMBERED != 0,
    }
}
