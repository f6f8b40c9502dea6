//! What the daemon does about refusals: it goes on with another exit, keeps the host closed, or asks again.

use std::time::Instant;

use warren_session::client::Stop;
use warren_session::goodbye::Goodbye;

use super::Daemon;
use warren_control::RequestRefused;
use warren_control::status::State;
use warren_daemon::notify;

impl Daemon {
    /// The exit in use refuses this client for good. Goes on with another exit that may accept it, if there is one.
    pub(super) fn goes_on_elsewhere(&mut self, stop: &Stop) -> bool {
        // A newer session of the same key is final at every exit: otherwise two hosts with one key would fight over it.
        let is_final = matches!(stop, Stop::Requested | Stop::Goodbye(Goodbye::Replaced));
        if is_final || self.health.state() == State::Stopping || !self.connections.exits.refused(stop.clone())
        {
            return false;
        }
        tracing::warn!("{stop}; trying {}", self.connections.endpoint());
        self.begin_session(Instant::now());
        true
    }

    /// Every exit refuses this client for good. Stays, with the host closed, if the profile wants that.
    pub(super) async fn stays_closed(&mut self, stop: &Stop) -> bool {
        let (when_refused, state) = (self.start.profile.routes.when_refused, self.health.state());
        let Some(reason) = self.health.refusal.stays_for(stop, when_refused, state) else { return false };
        self.connections.abort_race(&self.worker).await;
        let is_told = self.health.refused(Instant::now(), reason, self.connections.refusal_of(reason));
        self.host.forget_unapplied();
        self.look_after_host().await;
        // Only now, because users rely on the message that the host is closed.
        self.health.say_refusal(&self.start.name, is_told);
        true
    }

    /// Asks the exits again, the first one first. The state stays until one of them has a session for this client.
    pub(super) async fn ask_again(&mut self) -> anyhow::Result<()> {
        if !self.health.refusal.asking(Instant::now()) {
            return Ok(());
        }
        tracing::debug!("asking the exits again");
        // An earlier attempt may still be under way.
        self.session.machine.stop(Instant::now());
        self.close_unwanted().await;
        self.connections.exits.forgive();
        self.begin_session(Instant::now());
        Ok(())
    }

    /// Answers an `up` for a daemon that the exits have refused. The profile is read first, since it may be why they did.
    pub(super) async fn retry(&mut self) -> Result<serde_json::Value, RequestRefused> {
        let answer = self.read_profile().await?;
        if self.health.refusal.is_refused() {
            self.ask_again().await.map_err(|error| RequestRefused::new(format!("{error:#}")))?;
            self.health.refusal.forget();
            let had_session = self.session.welcome().is_some();
            self.health.set_state(if had_session { State::Reconnecting } else { State::Connecting });
            notify::status(self.health.state().name());
        }
        Ok(answer)
    }
}
