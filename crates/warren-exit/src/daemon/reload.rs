//! Reads the exit's configuration again while it runs: all changes take effect, or none.

use anyhow::bail;

use super::{Daemon, forwarding, state_directory};
use crate::host::refuse_missing_interface;
use crate::roster;
use crate::session_settings::{announced, warn_of_networks_untold};
use warren_config::{ExitSettings, WebListen, load_exit};
use warren_control::{Reloaded, RequestRefused};
use warren_tunnel::SharedCommand;

impl Daemon<'_> {
    /// Reads `exit.toml` again, and imports a `clients.toml`. Sessions that the changes do not concern lose no packet.
    pub(super) async fn reload(&mut self) -> Result<serde_json::Value, RequestRefused> {
        let outcome = self.read_again().await;
        match &outcome {
            Ok(reloaded) => tracing::info!("configuration read again: {reloaded}"),
            Err(error) => {
                self.reloads.refused += 1;
                tracing::error!("the configuration stays as it was: {error:#}");
            }
        }
        self.reloads.error = outcome.as_ref().err().map(|error| format!("{error:#}"));
        let reloaded = outcome.map_err(|error| RequestRefused::new(format!("{error:#}")))?;
        serde_json::to_value(reloaded).map_err(RequestRefused::new)
    }

    async fn read_again(&mut self) -> anyhow::Result<Reloaded> {
        // The first steps can refuse the configuration, and change nothing yet.
        let mut config = load_exit(&self.config.path)?;
        let mut changed = self.config.changes(&config);
        refuse_what_takes_a_restart(&self.config, &config, &changed)?;
        let edited = self.clients.edited()?;
        if edited.is_some() {
            changed.push("the clients");
        }
        refuse_missing_interface(&config)?;
        let state = state_directory(&self.clients)?.to_owned();
        let roster = roster::news_in_file(self.clients.fleet(), &state)?;
        // Then the listeners move. A listener that cannot move stays where it was.
        if self.config.metrics.listen != config.metrics.listen {
            self.reporting.move_metrics(&self.config.metrics, &config.metrics).await?;
        }
        let (web_before, web) = (self.config.web.as_ref(), config.web.as_ref());
        self.reporting.move_web(web_before, web, state_directory(&self.clients)?).await?;

        self.clients.check_announced(&announced(&config))?;
        if let Some(edited) = edited {
            self.clients.take_over(edited, &self.worker).await?;
        }
        self.adopt_keys(&mut config).await;
        config.transport.retune(&self.config.transport, &self.tuning);
        self.config = config;
        if !is_unix(self.config.web.as_ref()) {
            // The socket is removed only after the new configuration is in force, because the sandboxed exit could not make it
            // again.
            self.reporting.forget_web_socket();
        }
        self.tuning.settings.strangers.set_silent(self.config.silent);
        self.follow_host().await?;
        self.worker.send_all(SharedCommand::SetForwarding { forwarding: forwarding(&self.config) }).await;
        warn_of_networks_untold(&self.config);
        // Clients are told last, because by now the host lets them reach the announced addresses.
        self.clients.announce(announced(&self.config))?;
        if let Some(signed) = roster {
            roster::take(&mut self.clients, &state, signed.as_bytes())?;
            changed.push("the roster");
        }
        Ok(Reloaded::of(&changed))
    }
}

/// Refuses a configuration that changes settings which a running exit cannot change, and names them.
fn refuse_what_takes_a_restart(
    before: &ExitSettings,
    after: &ExitSettings,
    changed: &[&str],
) -> anyhow::Result<()> {
    const FIXED: [&str; 7] = [
        "listen in [exit]",
        "ipv4 in [addresses]",
        "ipv6 in [addresses]",
        "file in [clients]",
        "listen in [wireguard]",
        "name in [fleet]",
        "max_staleness in [fleet]",
    ];
    let fixed = before.transport.fixed_changes(&after.transport);
    // The sandboxed exit cannot make a Unix socket.
    let moves_to_unix = is_unix(after.web.as_ref());
    let takes_restart = |name: &&&str| {
        FIXED.contains(*name) || fixed.contains(*name) || (moves_to_unix && **name == "listen in [web]")
    };
    let changed: Vec<&str> = changed.iter().filter(takes_restart).copied().collect();
    if changed.is_empty() {
        return Ok(());
    }
    bail!(
        "{}: {} changed, which needs a restart of the exit (`systemctl restart warren-exit`); nothing was changed",
        after.path.display(),
        changed.join(" and ")
    )
}

fn is_unix(listen: Option<&WebListen>) -> bool {
    matches!(listen, Some(WebListen::Unix(_)))
}
