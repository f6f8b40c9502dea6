//! Reacts to events of this host and its network: the host has changed, a grant must be applied, the lease clashes with an
//! address of the host, or the tunnel must be taken down on a trusted network or brought up elsewhere.

use std::time::Instant;

use anyhow::Context as _;
use warren_host::current_network::CurrentNetwork;
use warren_session::client::SessionGrant;

use super::Daemon;
use super::on_demand::{Decision, Seen};
use warren_control::status::State;

impl Daemon {
    /// Repairs the host after a change. Repairs that fail now are tried again at the next check.
    pub(super) async fn look_after_host(&mut self) {
        let mut trouble = self.host.repair(&self.sessions.worker, self.health.refusal.is_refused()).await;
        // If the host has joined another network, another host there may have the address that is leased to this client.
        if let Err(error) = self.give_up_taken_lease().await {
            trouble.push(format!("{error:#}"));
        }
        if trouble.is_empty() && self.sessions.pair.is_over() && self.host.is_retry_due() {
            // Only the next Welcome shows whether the host can be set up now.
            self.sessions.begin(Instant::now());
        }
        trouble.extend(self.host.unapplied().map(str::to_owned));
        trouble.extend(self.on_demand.trouble().map(str::to_owned));
        self.host.note_trouble(&mut self.health, (!trouble.is_empty()).then(|| trouble.join("; ")));
    }

    /// Adapts the host to the grant of the session in use. The session, its connections and the profile's own settings
    /// stay as they are.
    pub(super) async fn follow_grant(&mut self, welcome: &SessionGrant) {
        if !self.host.setup.stands() {
            return;
        }
        match self.host.apply(welcome, &mut self.health).await {
            Ok(queues) => self.sessions.open_device(queues).await,
            Err(error) => self.goes_without(&error).await,
        }
    }

    /// Keeps running without a session, because the host cannot be set up as a Welcome asks. The daemon must not end, because
    /// traffic would then leave outside the tunnel, and the exit could cause this at any time. So the daemon gives the session
    /// up, keeps the tunnel's traffic blocked, and asks for another session later.
    pub(super) async fn goes_without(&mut self, error: &anyhow::Error) {
        let sentence = format!("{error:#}");
        if let Err(error) = self.give_session_up(&sentence).await {
            tracing::debug!("cannot close the host yet; the next check tries again: {error:#}");
        }
        self.host.not_applied(sentence.clone());
        self.host.note_trouble(&mut self.health, Some(sentence));
    }

    /// Gives the session up if the lease's address now belongs to another host that this host must reach outside the tunnel. Asks
    /// for another session at once, and refuses each session whose grant has that address.
    ///
    /// # Errors
    /// When the lease is still on this host.
    pub(super) async fn give_up_taken_lease(&mut self) -> anyhow::Result<()> {
        let is_stopping = self.health.state() == State::Stopping;
        let Some(welcome) = self.sessions.welcome().filter(|_| !is_stopping) else { return Ok(()) };
        let Some(clash) = self.host.clash(welcome, &self.sessions.connections).await? else { return Ok(()) };
        let sentence = format!(
            "the session with {} is given up: {clash}; have the exit's operator give another address, or use another network",
            self.sessions.connections.endpoint()
        );
        tracing::error!("{sentence}");
        let given_back = self.give_session_up(&sentence).await;
        if !self.health.refusal.is_refused() {
            self.sessions.begin(Instant::now());
        }
        given_back
    }

    /// Sends a Goodbye to the exit, and removes the leased addresses from the host. The routes into the tunnel stay, so the
    /// tunnel's traffic stays blocked.
    ///
    /// # Errors
    /// When the lease is still on this host.
    async fn give_session_up(&mut self, why: &str) -> anyhow::Result<()> {
        self.sessions.end().await;
        self.health.session_given_up(why);
        self.host.setup.give_lease_back().await
    }

    /// Checks which network this host is in, and takes the tunnel down or brings it up accordingly.
    ///
    /// # Errors
    /// When the daemon cannot go on.
    pub(super) async fn look_at_network(&mut self) -> anyhow::Result<()> {
        let now = Instant::now();
        if self.health.state() == State::Stopping {
            return Ok(());
        }
        let current = CurrentNetwork::look().await.unwrap_or_else(|error| {
            tracing::debug!("cannot look at this host's network: {error}");
            None
        });
        let recognised = self.on_demand.recognise(current.as_ref());
        // While the kill switch is closed, the tunnel stays up unless the profile allows on-demand to open the kill switch.
        let may_rest = !self.host.lockdown.is_closed() || self.settings.profile.on_demand.opens_kill_switch;
        let seen = match &recognised {
            Some((name, is_confirmed)) if may_rest => Seen::Trusted { name, is_confirmed: *is_confirmed },
            _ => Seen::Other,
        };
        let decision = self.on_demand.decide(now, seen);
        tracing::debug!(?current, ?seen, ?decision, "looked at the network");
        match decision {
            Decision::Stay => match self.on_demand.stays_resting(now, seen) {
                true => self.take_down().await,
                false => Ok(()),
            },
            Decision::Rest(name) => self.rest(name).await,
            Decision::GoOn => {
                // A failure is in the status, and the next check tries again.
                drop(self.go_on(false).await);
                Ok(())
            }
        }
    }

    /// Takes the tunnel down. The daemon keeps running with its sandbox and sockets.
    async fn rest(&mut self, network: String) -> anyhow::Result<()> {
        tracing::info!("the tunnel rests on the trusted network {network}");
        // Connections through the tunnel end first, just as when the daemon stops.
        self.sessions.end_flows().await;
        self.sessions.end().await;
        self.host.forget_unapplied();
        let was_closed = self.host.lockdown.is_closed();
        self.take_down().await?;
        self.on_demand.has_opened = was_closed && !self.host.lockdown.is_closed();
        self.health.rests(&network);
        self.on_demand.rests(network);
        Ok(())
    }

    /// Removes the tunnel from this host, and opens the kill switch if the profile allows that.
    async fn take_down(&mut self) -> anyhow::Result<()> {
        let opens = self.settings.profile.on_demand.opens_kill_switch;
        self.host.rest(opens, &self.settings.directory).await?;
        self.host.note_trouble(&mut self.health, None);
        Ok(())
    }

    /// Brings the tunnel up again. Its traffic is blocked at once, before an exit is asked. `by_user`: `warren up` asks for it. A
    /// failure is shown as a problem on this host, until a later check of the network succeeds.
    ///
    /// # Errors
    /// When the kill switch cannot be closed, or the tunnel's traffic cannot be blocked. In that case the tunnel stays down.
    pub(super) async fn go_on(&mut self, by_user: bool) -> anyhow::Result<()> {
        let outcome = self.try_to_go_on(by_user).await;
        if let Err(error) = &outcome {
            let sentence = format!("{error:#}");
            // A later check of the host shows the same sentence, perhaps together with others.
            if self.on_demand.trouble() != Some(&sentence) {
                self.host.note_trouble(&mut self.health, Some(sentence.clone()));
            }
            self.on_demand.cannot_go_on(Instant::now(), sentence);
        }
        outcome
    }

    async fn try_to_go_on(&mut self, by_user: bool) -> anyhow::Result<()> {
        let now = Instant::now();
        let Some(network) = self.on_demand.resting() else { return Ok(()) };
        match by_user {
            true => tracing::info!(
                "bringing the tunnel up on the trusted network {network}, as `warren up` asked"
            ),
            // An earlier attempt has failed, and its message is in the log.
            false if self.on_demand.trouble().is_some() => {}
            false => tracing::info!("this host has left the trusted network {network}; connecting again"),
        }
        let profile = &self.settings.profile;
        // An earlier attempt may have closed it already.
        let is_open = !self.host.lockdown.is_closed();
        if is_open && (self.on_demand.has_opened || profile.kill_switch.enabled) {
            self.host.close_lockdown_again(profile, &self.settings.directory).await?;
        }
        // The exit is not asked before that, because the tunnel's traffic would leave outside until the exit answers.
        let closed = self.host.setup.close_for_now().await;
        let queues = closed.context("cannot block the tunnel's traffic")?;
        self.sessions.open_device(queues).await;
        self.host.put_off_look();
        self.on_demand.goes_on(now, by_user);
        self.health.goes_on();
        // Exits that refused this client before the tunnel was taken down may accept it now.
        self.sessions.connections.exits.forgive(now);
        self.sessions.begin(now);
        Ok(())
    }
}
