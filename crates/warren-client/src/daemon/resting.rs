//! Takes the tunnel down on a trusted network while the daemon stays, and brings it up elsewhere.

use std::time::{Duration, Instant};

use warren_host::current_network::CurrentNetwork;

use super::Daemon;
use super::on_demand::{Decision, Seen};
use super::stopping::LAST_WORDS;
use warren_control::status::State;
use warren_tunnel::Forwarding;

impl Daemon {
    /// Looks at the network that this host is in, and takes the tunnel down or brings it up accordingly.
    ///
    /// # Errors
    /// When the daemon cannot go on.
    pub(super) async fn look_at_network(&mut self) -> anyhow::Result<()> {
        let now = Instant::now();
        if self.health.state() == State::Stopping {
            return Ok(());
        }
        let current = match CurrentNetwork::look().await {
            Ok(current) => current,
            Err(error) => {
                tracing::debug!("cannot look at this host's network: {error}");
                None
            }
        };
        let recognised = self.on_demand.recognise(current.as_ref());
        // A kill switch that the profile does not let open keeps the tunnel up.
        let may_rest = !self.host.lockdown.is_closed() || self.start.profile.on_demand.opens_kill_switch;
        let seen = match &recognised {
            Some((name, is_confirmed)) if may_rest => Seen::Trusted { name, is_confirmed: *is_confirmed },
            _ => Seen::Other,
        };
        let decision = self.on_demand.decide(now, seen);
        tracing::debug!(?current, ?seen, ?decision, "looked at the network");
        match decision {
            Decision::Stay => Ok(()),
            Decision::Rest(name) => self.rest(name).await,
            Decision::GoOn => {
                if let Err(error) = self.go_on(false).await {
                    // The kill switch has to be closed first, so the next look tries again.
                    self.note_host_trouble(Some(format!("{error:#}")));
                    self.on_demand.look_soon(now + TRY_AGAIN);
                }
                Ok(())
            }
        }
    }

    /// Takes the tunnel down. The daemon, its sandbox and its sockets stay.
    async fn rest(&mut self, network: String) -> anyhow::Result<()> {
        tracing::info!("the tunnel rests on the trusted network {network}");
        // Connections through the tunnel end first, as in a stop.
        if let Err(error) = warren_host::connections::end(&self.session.leased()) {
            tracing::warn!(
                "connections through the tunnel could not be ended and may go on outside it: {error}; restart the programs that have them"
            );
        }
        drop(tokio::time::timeout(LAST_WORDS, self.worker.snapshot()).await);
        self.end_session().await;
        self.host.forget_unapplied();
        let was_closed = self.host.lockdown.is_closed();
        self.host.rest(self.start.profile.on_demand.opens_kill_switch, &self.start.directory).await?;
        self.on_demand.has_opened = was_closed && !self.host.lockdown.is_closed();
        self.on_demand.rests(network.clone());
        self.health.rests(&network);
        self.note_host_trouble(None);
        Ok(())
    }

    /// Brings the tunnel up again. Its traffic is blocked at once, before an exit is asked. `by_user` if `warren up` asks for it.
    ///
    /// # Errors
    /// When the kill switch cannot be closed. The tunnel still rests then.
    pub(super) async fn go_on(&mut self, by_user: bool) -> anyhow::Result<()> {
        let now = Instant::now();
        let Some(network) = self.on_demand.resting().map(str::to_owned) else { return Ok(()) };
        match by_user {
            true => tracing::info!("the tunnel goes on, on the trusted network {network}"),
            false => tracing::info!("this host has left the trusted network {network}; connecting again"),
        }
        if self.on_demand.has_opened || self.start.profile.kill_switch.enabled {
            self.host.close_lockdown_again(&self.start.profile, &self.start.directory).await?;
        }
        match self.host.setup.close_for_now().await {
            Ok(Some(queues)) => self.worker.open_device(queues, &Forwarding::Client).await,
            Ok(None) => {}
            // The Welcome sets the host up again, or says what is wrong.
            Err(error) => tracing::warn!("traffic is not blocked until the tunnel is up: {error:#}"),
        }
        self.host.put_off_look();
        self.on_demand.goes_on(now, by_user);
        self.health.goes_on();
        self.connections.exits.forgive();
        self.begin_session(now);
        Ok(())
    }
}

/// How soon the kill switch is closed again after that has failed.
const TRY_AGAIN: Duration = Duration::from_secs(1);
