//! Reads the profile again while the tunnel is up. All changes take effect, or none.

use anyhow::bail;

use super::Daemon;
use warren_config::{ClientProfile, Endpoint, TAKES_RESTART, load_profile};
use warren_control::RequestRefused;

impl Daemon {
    /// Follows the profile as it is now. The connections stay, and none of their packets is lost.
    pub(super) async fn reload(&mut self) -> Result<serde_json::Value, RequestRefused> {
        let answer = self.read_profile().await?;
        if self.health.refusal.follow(self.start.profile.routes.when_refused) {
            self.ask_again().await.map_err(|error| RequestRefused::new(format!("{error:#}")))?;
        }
        Ok(answer)
    }

    pub(super) async fn read_profile(&mut self) -> Result<serde_json::Value, RequestRefused> {
        let outcome = self.take_over().await;
        match &outcome {
            Ok(()) => tracing::info!("profile read again"),
            Err(error) => tracing::error!("the profile stays as it was: {error:#}"),
        }
        self.health.reload_error = outcome.as_ref().err().map(|error| format!("{error:#}"));
        outcome.map(|()| serde_json::Value::Null).map_err(|error| RequestRefused::new(format!("{error:#}")))
    }

    async fn take_over(&mut self) -> anyhow::Result<()> {
        let profile = load_profile(&self.start.file)?;
        // Nothing is changed before the whole profile is known to be usable.
        let changed = what_takes_a_restart(&self.start.profile, &profile);
        if !changed.is_empty() {
            bail!(
                "{}: {} changed, which needs `warren down` and `warren up`; nothing was changed",
                self.start.file.display(),
                changed.join(" and ")
            );
        }
        self.host.setup.follow(&profile, self.session.welcome()).await?;
        // After the routes, so that the kill switch never lets out packets to networks that the routes lead into the tunnel.
        let listed = self.host.listed_resolvers().await;
        self.host.lockdown.follow(&profile, &self.start.directory, &listed).await?;
        self.host.put_off_look();
        self.connections.exits.take_keys(&profile);
        profile.transport.retune(&self.start.profile.transport, &self.tuning);
        self.start.profile = profile;
        Ok(())
    }
}

fn endpoints(profile: &ClientProfile) -> impl Iterator<Item = &Endpoint> {
    profile.exits().map(|exit| &exit.endpoint)
}

/// Names the settings that differ and that a running client cannot change.
fn what_takes_a_restart(before: &ClientProfile, after: &ClientProfile) -> Vec<&'static str> {
    let changed = [
        ("the private key", before.private_key.public() != after.private_key.public()),
        ("endpoint in [[exit]]", endpoints(before).ne(endpoints(after))),
        ("[tun]", (&before.tun.device, before.tun.mtu) != (&after.tun.device, after.tun.mtu)),
        ("prefixes in [routes]", before.routes.prefixes != after.routes.prefixes),
        // Only a command opens the kill switch, so removing the setting has no effect by itself.
        ("enabled in [kill_switch]", before.kill_switch.enabled && !after.kill_switch.enabled),
        (TAKES_RESTART, !before.transport.can_become(&after.transport)),
    ];
    changed.iter().filter(|(_, changed)| *changed).map(|(name, _)| *name).collect()
}
