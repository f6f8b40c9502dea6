//! Reads the profile again while the tunnel is up. All changes take effect, or none.

use std::time::Instant;

use anyhow::bail;

use super::Daemon;
use crate::kill_switch;
use warren_config::{ClientProfile, load_profile};
use warren_control::{Reloaded, RequestRefused};

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
            Ok(reloaded) => tracing::info!("profile read again: {reloaded}"),
            Err(error) => tracing::error!("the profile stays as it was: {error:#}"),
        }
        self.health.reload_error = outcome.as_ref().err().map(|error| format!("{error:#}"));
        let reloaded = outcome.map_err(|error| RequestRefused::new(format!("{error:#}")))?;
        serde_json::to_value(reloaded).map_err(RequestRefused::new)
    }

    async fn take_over(&mut self) -> anyhow::Result<Reloaded> {
        let mut profile = load_profile(&self.start.file)?;
        // This daemon was started with an order of exits.
        if let Some(exit) = &self.start.first_exit {
            // Without that exit, the profile has other endpoints, which is refused below.
            let _ = profile.put_first(exit);
        }
        if self.start.host_outside {
            profile.leave_host_outside();
        }
        // Nothing is changed before the whole profile is known to be usable.
        let all = self.start.profile.changes(&profile);
        let changed = what_takes_a_restart(&self.start.profile, &profile, &all);
        if !changed.is_empty() {
            bail!(
                "{}: {} changed, which needs `warren down` and `warren up`; nothing was changed",
                self.start.file.display(),
                changed.join(" and ")
            );
        }
        let is_closed =
            profile.kill_switch.enabled || self.host.lockdown.is_closed() || self.on_demand.has_opened;
        if is_closed {
            // Refuses what no kill switch can hold, before anything is changed.
            kill_switch::rules(&profile).await?;
        }
        self.host.setup.follow(&profile, is_closed, self.session.welcome()).await?;
        // After the routes, so that the kill switch never lets out packets to networks that the routes lead into the tunnel.
        let listed = self.host.listed_resolvers().await;
        self.host.exec.allow_outside(profile.kill_switch.allow_exec_outside);
        // A tunnel that rests with an open kill switch closes the kill switch when it goes on.
        if self.on_demand.resting().is_none() {
            self.host.lockdown.follow(&profile, &self.start.directory, &listed).await?;
        }
        self.host.follow_exec().await?;
        self.host.put_off_look();
        self.on_demand.follow(&profile.on_demand.trusted, Instant::now());
        self.connections.exits.take_keys(&profile);
        let had_fleet = self.start.fleet.roster().is_some();
        self.start.fleet.follow_profile(&profile);
        profile.transport.retune(&self.start.profile.transport, &self.tuning);
        self.start.profile = profile;
        if had_fleet {
            self.follow_roster().await
        } else {
            self.follow_exits()
        }
        Ok(Reloaded::of(&all))
    }
}

/// The changed settings that a running client cannot follow.
fn what_takes_a_restart<'a>(
    before: &ClientProfile,
    after: &ClientProfile,
    changed: &[&'a str],
) -> Vec<&'a str> {
    const FIXED: [&str; 6] = [
        "the private key",
        "endpoint in [[exit]]",
        "name in [tun]",
        "mtu in [tun]",
        "prefixes in [routes]",
        "users in [exec]",
    ];
    let fixed = before.transport.fixed_changes(&after.transport);
    // Only a command opens the kill switch, so removing the setting has no effect by itself.
    let opens = before.kill_switch.enabled && !after.kill_switch.enabled;
    // The stub resolver's port can be taken only before the sandbox.
    let starts = before.dns.domains.is_empty() != after.dns.domains.is_empty();
    let takes_restart = |name: &&&str| {
        FIXED.contains(*name)
            || fixed.contains(*name)
            || (opens && **name == "enabled in [kill_switch]")
            || (starts && **name == "domains in [dns]")
    };
    changed.iter().filter(takes_restart).copied().collect()
}
