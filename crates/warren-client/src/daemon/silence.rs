//! Connections that nobody answers, and why that is.

use std::time::{Duration, Instant};

use tokio::task::JoinError;
use warren_quic::driver::ConnectionId;
use warren_session::client::VigilAction;
use warren_session::goodbye::Goodbye;

use super::Daemon;
use super::connecting::Purpose;
use crate::diagnose::{Walls, diagnose};
use crate::exits;
use crate::network_events::Alert;
use warren_control::status::State;
use warren_daemon::notify;
use warren_tunnel::Command;

impl Daemon {
    /// A connection is silent, or answered again.
    pub(super) async fn take_answers(&mut self, connection: ConnectionId, answers: bool) {
        let Some(index) = self.connections.get(&connection).copied() else { return };
        tracing::debug!(index, answers, "a connection's path changed");
        if !answers && !self.vigil.has_silent() {
            // The others may be as dead, and idle, so that nothing tells.
            self.worker.send(Command::Rouse).await;
        }
        let was_silent = self.vigil.is_silent();
        self.vigil.answers(Instant::now(), index, answers);
        if !was_silent || self.vigil.is_silent() {
            return;
        }
        if self.race.as_ref().is_some_and(|racing| racing.purpose == Purpose::Scout) {
            self.abort_race().await;
        }
        if self.state == State::Reconnecting && self.probe.is_none() {
            self.up();
        }
    }

    /// Does what silent connections call for.
    pub(super) async fn keep_vigil(&mut self) -> anyhow::Result<()> {
        for action in self.vigil.handle_timeout(Instant::now()) {
            match action {
                VigilAction::Rebind { index } => self.rebind(index).await,
                VigilAction::Scout
                    if self.race.as_ref().is_some_and(|racing| racing.purpose == Purpose::Scout) => {}
                VigilAction::Scout => {
                    self.falls_silent();
                    self.start_race(Purpose::Scout).await?;
                }
            }
        }
        Ok(())
    }

    async fn rebind(&self, index: u32) {
        let (Some(connection), Some(remote)) = (self.connection(index), self.remotes.get(&index)) else {
            return;
        };
        match exits::bind(*remote) {
            Ok(socket) => {
                tracing::debug!(index, "another port for a connection that is not answered");
                self.worker.send(Command::Rebind { connection, socket }).await;
            }
            Err(error) => tracing::debug!("cannot open a UDP socket: {error}"),
        }
    }

    /// Every connection is silent, and still there.
    fn falls_silent(&mut self) {
        if self.state != State::Up {
            return;
        }
        let endpoint = &self.exits.exit(self.exits.current()).endpoint;
        let sentence = format!("{endpoint} no longer answers; looking for another way to it");
        tracing::info!("{sentence}");
        notify::status(&sentence);
        self.last_error = Some(sentence);
        self.set_state(State::Reconnecting);
    }

    /// This host's network is another, or time has passed unseen: the exit is asked for a sign of life at once, which
    /// also tells it this client's new address.
    pub(super) async fn take_alert(&mut self, alert: Alert) {
        tracing::debug!(?alert, "asking the exit for a sign of life");
        self.worker.send(Command::Rouse).await;
        self.session.hurry(Instant::now());
    }

    /// Says why the exit cannot be reached: in its own words, else as far as it was found out.
    pub(super) fn unreachable(&mut self, reason: String, goodbye: Option<Goodbye>) {
        let is_fresh = self.diagnosed.is_some_and(|last| last.elapsed() < DIAGNOSE_EVERY);
        let cause = self.cause.clone().filter(|_| is_fresh && goodbye.is_none()).unwrap_or(reason);
        if self.refused.is_none() {
            notify::status(&format!("cannot reach the exit: {cause}"));
        }
        self.last_error = Some(cause);
        if goodbye.is_none() {
            self.start_diagnosis();
        }
    }

    /// Whoever waits for `up`, or wonders where the tunnel is, need not wait for an attempt's end to learn why it takes so long.
    pub(super) fn wonder(&mut self) {
        let is_waited_for = match self.state {
            State::Connecting => self.welcome.is_none(),
            State::Reconnecting => true,
            State::Up | State::Refused | State::Error | State::Stopping => false,
        };
        if is_waited_for && self.since.elapsed() >= WONDER_AFTER {
            self.start_diagnosis();
        }
    }

    /// Logs why the exit cannot be reached, ever less often while that stays the same.
    pub(super) fn complain(&mut self, sentence: &str) {
        if self.grievances.is_due(Instant::now(), sentence) {
            tracing::info!("cannot reach the exit: {sentence}");
        }
    }

    /// Begins to find out why what was tried last does not answer, now and then.
    pub(super) fn start_diagnosis(&mut self) {
        let now = Instant::now();
        let is_due = self.diagnosed.is_none_or(|last| now.duration_since(last) >= DIAGNOSE_EVERY);
        if is_due && self.diagnosis.is_none() {
            self.diagnosed = Some(now);
            let walls = Walls {
                profile: self.start.name.clone(),
                is_closed: self.lockdown.is_closed(),
                others: self.start.shut_in_by.clone(),
            };
            self.diagnosis = Some(tokio::spawn(diagnose(self.tried, walls)));
        }
    }

    pub(super) fn take_diagnosis(&mut self, said: Result<Option<String>, JoinError>) {
        self.diagnosis = None;
        let Some(sentence) = said.ok().flatten().filter(|_| self.state != State::Up) else {
            return;
        };
        self.complain(&sentence);
        if self.refused.is_none() {
            notify::status(&format!("cannot reach the exit: {sentence}"));
        }
        self.cause = Some(sentence.clone());
        self.last_error = Some(sentence);
    }
}

/// How often at most it is found out why an exit does not answer.
const DIAGNOSE_EVERY: Duration = Duration::from_secs(15);

/// How long an attempt may take before it is found out why; those that work take a fraction of it.
const WONDER_AFTER: Duration = Duration::from_secs(2);
