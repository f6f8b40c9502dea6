//! Carries out the actions of the sessions, and those steps of a move that affect more than connections. Also handles the
//! workers' reports.

use std::io;
use std::time::{Duration, Instant};

use tokio::task::JoinError;
use warren_quic::driver::ConnectionId;
use warren_quic::key::PublicKey;
use warren_session::client::{ClientAction, SessionGrant, Step, Stop, Switched};
use warren_session::goodbye::Goodbye;

use super::Daemon;
use super::connections::{LookupAnswer, Purpose, Which};
use super::sessions::{Connected, Followed};
use crate::diagnose::KillSwitches;
use crate::kill_switch;
use crate::lookup::NameServers;
use warren_config::ClientProfile;
use warren_control::status::State;
use warren_tunnel::Report;

/// How long the client waits after a new roster before it measures the exits, so that the session is established before the
/// measurement.
const MEASURE_AFTER: Duration = Duration::from_secs(3);

impl Daemon {
    /// Carries out the sessions' actions, and the steps of a move. Returns a reason if the daemon is to stop.
    pub(super) async fn carry_out_actions(&mut self) -> anyhow::Result<Option<Stop>> {
        loop {
            while let Some(action) = self.sessions.next_action() {
                if let Some(stop) = self.carry_out(action).await? {
                    return Ok(Some(stop));
                }
            }
            // An action of the second session, or a step of a move, may in turn create an action of the session in use.
            match self.sessions.follow_beside(&mut self.host.lockdown).await? {
                Followed::Action => {}
                Followed::OldLost => self.prove_the_other(),
                Followed::Nothing => match self.sessions.next_step(Instant::now()) {
                    Some(step) => self.take_step(step).await?,
                    None => return Ok(None),
                },
            }
        }
    }

    /// Carries out one action of the session in use. Returns a reason if the daemon is to stop.
    async fn carry_out(&mut self, action: ClientAction) -> anyhow::Result<Option<Stop>> {
        let (profile, sessions) = (&self.settings.profile, &mut self.sessions);
        match action {
            ClientAction::Connect { index } => {
                if sessions.connect(&mut self.host.lockdown, Which::InUse, index).await? {
                    // The devices are made while the worker carries out the handshake. This is done only at the first attempt,
                    // because later attempts may fail for a long time, and each would make and remove the devices.
                    self.host.setup.prepare();
                }
            }
            ClientAction::Send { .. } | ClientAction::Close { .. } | ClientAction::Detach { .. } => {
                sessions.send_or_close(Which::InUse, action).await;
            }
            ClientAction::Attach { index } => {
                if sessions.attach(Which::InUse, index).await {
                    self.ask_for_echo();
                }
            }
            ClientAction::Welcome(welcome) => self.welcome(*welcome).await?,
            ClientAction::Changed(welcome) => {
                if sessions.take_changes(&welcome) {
                    self.follow_grant(&welcome).await;
                }
            }
            ClientAction::ExitKeys { index, keys } => {
                self.exit_news.take_keys(profile, sessions, index, &keys).await;
                self.check_next_key().await;
            }
            ClientAction::Roster { index, roster } => {
                if self.exit_news.take_roster(profile, sessions, index, &roster) {
                    self.follow_roster().await;
                }
            }
            ClientAction::AskedToLeave => sessions.asked_to_leave(Instant::now()),
            // The new session takes the place of the lost one at once, so the tunnel does not go down.
            ClientAction::Down { .. } if sessions.takes_over() => self.switch(Instant::now()).await,
            ClientAction::Down { reason, goodbye } => self.down(reason, goodbye),
            ClientAction::Stopped { reason }
                if self.health.state() != State::Stopping && sessions.goes_on_elsewhere(&reason) => {}
            ClientAction::Stopped { reason } => {
                return Ok(if self.stays_closed(&reason).await { None } else { Some(reason) });
            }
        }
        Ok(None)
    }

    /// Sets the host up as the exit's Welcome asks, and lets the workers carry the session's packets.
    async fn welcome(&mut self, welcome: SessionGrant) -> anyhow::Result<()> {
        self.sessions.replace().await;
        warn_of_refused_prefixes(&self.settings.profile, &welcome);
        let had_tunnel = self.host.setup.stands();
        match self.host.apply(&welcome, &mut self.health).await {
            Ok(queues) => {
                self.exit_news.fleet.take_addresses(&welcome);
                // The workers learn of the session before they get the device's queues, so that they have a session for its first
                // packets.
                self.sessions.open(Which::InUse, welcome).await;
                self.sessions.open_device(queues).await;
            }
            // If there was no tunnel before, or an `up` still waits, the daemon may end with the error: that leaves the host as
            // it was before `up`.
            Err(error) if !had_tunnel || self.health.refusal.is_waited_for() => return Err(error),
            Err(error) => self.goes_without(&error).await,
        }
        Ok(())
    }

    /// Takes a step of a move between two exits.
    async fn take_step(&mut self, step: Step) -> anyhow::Result<()> {
        let now = Instant::now();
        match step {
            Step::Race if self.health.is_up() => {
                self.sessions.connections.exits.avoid_current(now);
                self.sessions.start_race(&mut self.host.lockdown, Purpose::Leave).await?;
            }
            // If the tunnel is down, the client tries other exits in any case.
            Step::Race => {}
            Step::Probe(Which::InUse) => {
                self.sessions.probe_in_use(self.host.device_name());
            }
            Step::Probe(Which::Beside) => self.sessions.probe_beside(now, self.host.device_name()),
            Step::Switch => self.switch(now).await,
            Step::SwitchBack(why) => {
                if let Some(grant) = self.sessions.switch_back(now).await {
                    self.exit_news.name_fleet(&mut self.sessions);
                    self.follow_grant(&grant).await;
                }
                self.sessions.give_move_up(now, why).await;
                self.up();
            }
            Step::GiveUp(why) => self.sessions.give_move_up(now, why).await,
            Step::End(why) => {
                self.sessions.end_old(why).await;
                self.prove_the_other();
            }
        }
        Ok(())
    }

    /// Makes the second session the session in use.
    async fn switch(&mut self, now: Instant) {
        let Some((switched, grant)) = self.sessions.switch(now).await else { return };
        self.exit_news.name_fleet(&mut self.sessions);
        self.follow_grant(&grant).await;
        match (self.sessions.moves.plan.is_proven(Which::InUse), switched) {
            (true, _) if !self.health.is_up() => self.up(),
            (true, _) => {}
            (false, Switched::Leaving) => {
                // The old session is lost, and the new session has not yet proven that it carries packets.
                self.health.moves();
                self.ask_for_echo();
            }
            (false, Switched::Trying) => self.health.moves(),
        }
    }

    /// Starts to prove by echo requests that the session in use carries packets, unless the tunnel already counts as up.
    fn ask_for_echo(&mut self) {
        if !self.health.is_up() && !self.sessions.ask_for_echo(self.host.device_name()) {
            // If there is no device to send through, or the exit has no inner address to ask, an attached connection is the best
            // available sign that traffic flows.
            self.up();
        }
    }

    /// Makes the session in use prove that it carries packets, because the client can no longer switch back to the old session.
    /// If the session in use has no connection now, the proof starts once it has one again.
    fn prove_the_other(&mut self) {
        if self.sessions.pair.in_use.attached().is_some() {
            self.ask_for_echo();
        }
    }

    /// Handles the timers of the sessions, and of the proof that the one in use carries packets.
    pub(super) fn handle_timeouts(&mut self) {
        self.sessions.handle_timeouts();
        if self.sessions.look_at_proof(Instant::now()) && !self.health.is_up() {
            self.up();
        }
    }

    /// Handles the end of a probe.
    pub(super) fn take_probe(&mut self, probed: (Which, Result<io::Result<()>, JoinError>)) {
        if self.sessions.take_probe(probed) && !self.health.is_up() {
            self.up();
        }
    }

    /// Records that traffic flows.
    pub(super) fn up(&mut self) {
        self.health.up(self.sessions.connections.endpoint());
    }

    fn down(&mut self, reason: String, goodbye: Option<Goodbye>) {
        self.sessions.forget_proof();
        self.host.setup.forget_prepared();
        let had_session = self.sessions.welcome().is_some();
        let connections = &mut self.sessions.connections;
        // An exit that restarts or drains will soon be unreachable, so for a while the client tries the other exits first.
        if matches!(goodbye, Some(Goodbye::Restarting | Goodbye::Draining)) {
            connections.exits.avoid_current(Instant::now());
        }
        self.health.lost(reason, goodbye, connections, had_session);
        match goodbye {
            None => self.diagnose(),
            // An exit that sent a Goodbye has given the reason itself, so no diagnosis is needed.
            Some(_) => self.health.tell_known_cause(connections.exits.count()),
        }
    }

    /// Starts a diagnosis of the address that was tried last, unless one has begun recently. Tells a waiting `up` the cause if it
    /// is known.
    pub(super) fn diagnose(&mut self) {
        let Self { settings, host, sessions, health, .. } = self;
        health.diagnosis.start(sessions.connections.last_tried(), || KillSwitches {
            profile: settings.name.clone(),
            is_closed: host.lockdown.is_closed(),
            others: settings.blocked_by.clone(),
        });
        health.tell_known_cause(sessions.connections.exits.count());
    }

    /// Keeps running with the tunnel's traffic blocked, because every exit refuses this client for good. Returns false if the
    /// daemon is to end instead.
    async fn stays_closed(&mut self, stop: &Stop) -> bool {
        let (when_refused, state) = (self.settings.profile.routes.when_refused, self.health.state());
        let Some(reason) = self.health.refusal.stays_for(stop, when_refused, state) else { return false };
        // The proof is reset, because its timer would otherwise make the refused session count as up.
        self.sessions.forget_proof();
        self.sessions.connections.abort_race(&self.sessions.worker).await;
        self.sessions.end_move().await;
        let sentence = self.sessions.connections.refusal_of(reason);
        let is_told = self.health.refused(Instant::now(), reason, sentence);
        self.host.forget_unapplied();
        self.look_after_host().await;
        // This is logged only now, because the message says that traffic is blocked, and users rely on that.
        self.health.say_refusal(&self.settings.name, is_told);
        true
    }

    /// Asks the exits again, beginning with the profile's first. The state stays `Refused` until one of them gives this client a
    /// session.
    pub(super) async fn ask_again(&mut self) -> anyhow::Result<()> {
        if !self.health.refusal.asking(Instant::now()) {
            return Ok(());
        }
        tracing::debug!("asking the exits again");
        self.sessions.ask_again().await
    }

    /// Opens a connection that checks whether the exit in use has the next key that it has announced.
    pub(super) async fn check_next_key(&mut self) {
        if self.health.is_up() {
            let Self { settings, sessions, host, .. } = self;
            self.exit_news.check_next_key(&settings.profile, sessions, &mut host.lockdown).await;
        }
    }

    /// Applies the current roster to exits, look-ups and kill switch, and stores it.
    pub(super) async fn follow_roster(&mut self) {
        let now = Instant::now();
        let Self { settings, sessions, exit_news, host, .. } = self;
        exit_news.follow(&settings.profile, sessions);
        sessions.connections.measure_at(now + MEASURE_AFTER);
        exit_news.keep_fleet().await;
        let listed = host.listed_resolvers().await;
        if exit_news.fleet.has_names() && kill_switch::names_all_by_address(&settings.profile) {
            // The daemon has not read the name servers at its start, because no exit had to be looked up then.
            sessions.connections.lookups.ask(NameServers::find(Some(self.helper.clone())).await);
        }
        let exits = &sessions.connections.exits;
        // If the kill switch is open, this only records the addresses.
        let followed = host.lockdown.follow_roster(&exit_news.fleet, |exit| exits.have(exit), &listed).await;
        if let Err(error) = followed {
            tracing::warn!("the kill switch does not follow the roster: {error:#}");
        }
        let is_old_over = sessions.check_beside().await;
        if !sessions.may_stay() {
            self.leave_exit(now).await;
        } else if is_old_over {
            self.prove_the_other();
        }
    }

    /// Leaves an exit that is no longer in the profile or the roster.
    async fn leave_exit(&mut self, now: Instant) {
        if self.health.refusal.is_refused() || self.on_demand.resting().is_some() {
            // The client has no session to move, and must not begin one.
            self.sessions.connections.exits.use_first(now);
            return;
        }
        let from = self.sessions.leave(now, |exits| exits.use_first(now)).await;
        tracing::warn!(
            "the roster no longer has the exit {from} with the key that it has proven; moving to {}",
            self.sessions.connections.endpoint()
        );
        self.health.moves();
    }

    /// Handles a worker's report.
    pub(super) async fn take_report(&mut self, report: Report) -> anyhow::Result<()> {
        let Self { sessions, host, .. } = self;
        // Workers share the session, so each must know which connections of the other workers can be used.
        sessions.worker.tell_others(&report).await;
        match report {
            Report::Connecting { index, connection } => {
                sessions.connections.opened(&sessions.worker, index, connection).await;
            }
            Report::ConnectFailed { index, error } => {
                sessions.not_opened(&mut host.lockdown, index, error).await?;
            }
            Report::Connected { connection, peer, .. } => self.connected(connection, peer).await?,
            Report::Answers { connection, answers } => {
                let is_back = sessions.connections.take_answers(&sessions.worker, connection, answers).await;
                if is_back && self.health.state() == State::Reconnecting && !sessions.awaits_proof() {
                    self.up();
                }
            }
            Report::Control { connection, data } => sessions.received(host, connection, &data).await,
            Report::Closed { connection, reason } => {
                if let Some(sentence) = sessions.closed(&mut host.lockdown, connection, reason).await? {
                    self.health.refusal.take_unproven(Instant::now(), sentence);
                }
            }
            // Only an exit has WireGuard peers.
            Report::WireGuardUp { .. } => {}
            Report::DeviceFailed { device, error } => {
                tracing::warn!("the TUN device failed: {error}; recreating it");
                host.setup.device_failed(device);
                self.look_after_host().await;
            }
        }
        Ok(())
    }

    /// Handles a connection whose handshake is complete.
    async fn connected(&mut self, connection: ConnectionId, key: PublicKey) -> anyhow::Result<()> {
        match self.sessions.connected(&mut self.host.lockdown, connection, key).await? {
            Connected::Known => {}
            Connected::Checked => {
                self.exit_news.shown(&self.settings.profile, &mut self.sessions, key).await;
            }
            Connected::Won(won) => {
                self.health.refusal.proven();
                let is_up = self.health.is_up();
                if self.sessions.take_winner(Instant::now(), won, is_up).await {
                    self.health.moves();
                }
            }
        }
        Ok(())
    }

    /// Uses the looked-up addresses of an exit.
    pub(super) async fn take_lookup(&mut self, answer: LookupAnswer) -> anyhow::Result<()> {
        if !self.sessions.connections.take_lookup(answer) {
            return Ok(());
        }
        self.sessions.run_race(&mut self.host.lockdown).await?;
        // One of the found addresses may be the one that the exit in use has leased to this client.
        if let Err(error) = self.give_up_taken_lease().await {
            tracing::warn!("{error:#}");
        }
        Ok(())
    }

    /// Moves silent connections to other local ports. If all are silent, also looks for another way.
    pub(super) async fn handle_silence(&mut self) -> anyhow::Result<()> {
        let Self { sessions, host, health, .. } = self;
        if sessions.connections.handle_silence(&sessions.worker).await {
            health.silent(sessions.connections.endpoint());
            sessions.start_race(&mut host.lockdown, Purpose::Scout).await?;
        }
        Ok(())
    }
}

/// Warns about prefixes of the profile that the exit does not route to this host, because its operator has not allowed them.
fn warn_of_refused_prefixes(profile: &ClientProfile, welcome: &SessionGrant) {
    for prefix in profile.routes.prefixes.iter().filter(|prefix| !welcome.prefixes.contains(prefix)) {
        tracing::warn!(
            "the exit does not route {prefix} here; its operator allows it with: warren exit client set NAME --prefix {prefix}"
        );
    }
}
