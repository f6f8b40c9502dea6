//! What the daemon does about refusals: it goes on with another exit, keeps the tunnel's traffic blocked, or asks again.

use std::time::Instant;

use warren_session::client::Stop;
use warren_session::goodbye::Goodbye;

use super::Daemon;
use warren_control::RequestRefused;
use warren_control::status::State;
use warren_daemon::notify;

impl Daemon {
    /// Goes on with another exit that may accept this client, because the exit in use refuses it for good. Returns false if there
    /// is no other exit.
    pub(super) fn goes_on_elsewhere(&mut self, stop: &Stop) -> bool {
        // A session that a newer one with the same key has replaced is final at every exit: otherwise two hosts with one key would
        // take the session from each other in turn.
        let is_final = matches!(stop, Stop::Requested | Stop::Goodbye(Goodbye::Replaced));
        if is_final || self.health.state() == State::Stopping || !self.connections.exits.refused(stop.clone())
        {
            return false;
        }
        tracing::warn!("{stop}; trying {}", self.connections.endpoint());
        self.begin_session(Instant::now());
        true
    }

    /// Keeps running with the tunnel's traffic blocked, because every exit refuses this client for good. Returns false if the
    /// daemon is to end instead.
    pub(super) async fn stays_closed(&mut self, stop: &Stop) -> bool {
        let (when_refused, state) = (self.start.profile.routes.when_refused, self.health.state());
        let Some(reason) = self.health.refusal.stays_for(stop, when_refused, state) else { return false };
        self.connections.abort_race(&self.worker).await;
        self.end_move().await;
        let is_told = self.health.refused(Instant::now(), reason, self.connections.refusal_of(reason));
        self.host.forget_unapplied();
        self.look_after_host().await;
        // Only now, because the message says that traffic is blocked, and users rely on it.
        self.health.say_refusal(&self.start.name, is_told);
        true
    }

    /// Asks the exits again, beginning with the profile's first. The state stays `Refused` until one of them gives this client a
    /// session.
    pub(super) async fn ask_again(&mut self) -> anyhow::Result<()> {
        if !self.health.refusal.asking(Instant::now()) {
            return Ok(());
        }
        tracing::debug!("asking the exits again");
        // An exit tells a client process that another host has replaced for good.
        self.session.renew_nonce()?;
        // An earlier attempt may still be under way, with connections that have to be closed.
        self.session.machine.stop(Instant::now());
        self.close_unwanted().await;
        self.connections.exits.forgive();
        self.begin_session(Instant::now());
        Ok(())
    }

    /// Answers an `up` for a daemon that the exits have refused. The profile is read first, since it may be why they refused.
    pub(super) async fn retry(&mut self) -> Result<serde_json::Value, RequestRefused> {
        let answer = self.read_profile().await?;
        if self.on_demand.resting().is_some() {
            self.go_on(true).await.map_err(|error| RequestRefused::new(format!("{error:#}")))?;
        }
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
