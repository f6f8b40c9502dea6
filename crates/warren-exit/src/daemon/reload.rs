//! Reads the exit's configuration again while it runs. It is either refused, and changes nothing, or is in force as a whole.

use anyhow::bail;

use warren_session::roster::SignedRoster;

use super::{Daemon, forwarding, state_directory};
use crate::clients::Edited;
use crate::host::refuse_missing_interface;
use crate::roster;
use crate::session_settings::{announced, warn_of_networks_untold};
use warren_config::{ExitSettings, WebListen, load_exit};
use warren_control::{Reloaded, RequestRefused};
use warren_tunnel::SharedCommand;

/// A configuration that was read again, and that nothing refuses.
struct Checked {
    config: ExitSettings,
    /// A roster that is new.
    roster: Option<SignedRoster>,
    /// What differs from the configuration in force.
    changed: Vec<&'static str>,
}

impl Daemon<'_> {
    /// Reads `exit.toml` again, and imports a `clients.toml`. Sessions that the changes do not concern lose no packet.
    pub(super) async fn reload(&mut self) -> Result<serde_json::Value, RequestRefused> {
        let outcome = match self.read_again().await {
            Ok(checked) => self.put_in_force(checked).await,
            Err(error) => {
                tracing::error!("the configuration stays as it was: {error:#}");
                Err(error)
            }
        };
        self.reloads.refused += u64::from(outcome.is_err());
        self.reloads.error = outcome.as_ref().err().map(|error| format!("{error:#}"));
        let reloaded = outcome.map_err(|error| RequestRefused::new(format!("{error:#}")))?;
        serde_json::to_value(reloaded).map_err(RequestRefused::new)
    }

    /// Reads the configuration, and makes the changes that may fail.
    ///
    /// # Errors
    /// Why the configuration is refused. In that case nothing has changed.
    async fn read_again(&mut self) -> anyhow::Result<Checked> {
        let (checked, edited) = self.checked()?;
        // A listener that cannot move stays where it was.
        self.move_listeners(&checked.config).await?;
        if let Some(edited) = edited
            && let Err(error) = self.clients.take_over(edited, &self.worker).await
        {
            self.move_listeners_back(&checked.config).await;
            return Err(error);
        }
        Ok(checked)
    }

    /// Reads the configuration and the clients to import, and refuses what this exit cannot put in force. Changes nothing.
    fn checked(&self) -> anyhow::Result<(Checked, Option<Edited>)> {
        let config = load_exit(&self.config.path)?;
        let mut changed = self.config.changes(&config);
        refuse_what_takes_a_restart(&self.config, &config, &changed)?;
        let edited = self.clients.edited()?;
        if edited.is_some() {
            self.clients.refuse_in_fleet("importing clients")?;
            changed.push("the clients");
        }
        refuse_missing_interface(&config)?;
        self.clients.check_announced(&announced(&config))?;
        let roster = roster::news_in_file(self.clients.fleet(), state_directory(&self.clients)?)?;
        Ok((Checked { config, roster, changed }, edited))
    }

    /// Serves metrics and page where `config` says.
    ///
    /// # Errors
    /// When one of them cannot be served there. In that case both are served where they were.
    async fn move_listeners(&mut self, config: &ExitSettings) -> anyhow::Result<()> {
        self.reporting.move_metrics(&self.config.metrics, &config.metrics).await?;
        let (before, web) = (self.config.web.as_ref(), config.web.as_ref());
        let moved = self.reporting.move_web(before, web, state_directory(&self.clients)?).await;
        if moved.is_err() {
            self.move_metrics_back(config).await;
        }
        moved
    }

    /// Undoes [`Self::move_listeners`].
    async fn move_listeners_back(&mut self, config: &ExitSettings) {
        self.move_metrics_back(config).await;
        let (web, before) = (config.web.as_ref(), self.config.web.as_ref());
        if web == before {
            return;
        }
        let moved = match state_directory(&self.clients) {
            Ok(state) => self.reporting.move_web(web, before, state).await,
            Err(error) => Err(error),
        };
        if let Err(error) = moved {
            tracing::error!("the page cannot be served where it was before the reload: {error:#}");
        }
    }

    async fn move_metrics_back(&mut self, config: &ExitSettings) {
        if let Err(error) = self.reporting.move_metrics(&config.metrics, &self.config.metrics).await {
            tracing::error!("the metrics cannot be served where they were before the reload: {error:#}");
        }
    }

    /// Puts a configuration in force. Goes on after an error, because the configuration counts from the first step on.
    ///
    /// # Errors
    /// What has not followed the configuration.
    async fn put_in_force(&mut self, checked: Checked) -> anyhow::Result<Reloaded> {
        let Checked { mut config, roster, mut changed } = checked;
        self.adopt_keys(&mut config).await;
        config.transport.retune(&self.config.transport, &self.tuning);
        self.config = config;
        if !is_unix(self.config.web.as_ref()) {
            // The socket is removed only after the new configuration is in force, because the sandboxed exit could not make it
            // again.
            self.reporting.forget_web_socket();
        }
        self.tuning.settings.strangers.set_silent(self.config.silent);
        let mut failed = Vec::new();
        if let Err(error) = self.follow_host().await {
            failed.push(format!("routes and firewall did not follow: {error:#}"));
        }
        self.worker.send_all(SharedCommand::SetForwarding { forwarding: forwarding(&self.config) }).await;
        warn_of_networks_untold(&self.config);
        // Clients are told last, because by now the host lets them reach the announced addresses.
        if let Err(error) = self.clients.announce(announced(&self.config)) {
            failed.push(format!("clients were not told: {error:#}"));
        }
        if let Some(signed) = roster {
            match self.take_roster(&signed) {
                Ok(()) => changed.push("the roster"),
                Err(error) => failed.push(format!("the roster was refused: {error:#}")),
            }
        }
        let reloaded = Reloaded::of(&changed);
        if failed.is_empty() {
            tracing::info!("configuration read again: {reloaded}");
            return Ok(reloaded);
        }
        let sentence = format!(
            "the new configuration is in force, but {}; run: warren reload exit",
            failed.join(", and ")
        );
        tracing::error!("{sentence}");
        bail!(sentence)
    }

    fn take_roster(&mut self, signed: &SignedRoster) -> anyhow::Result<()> {
        let state = state_directory(&self.clients)?.to_owned();
        roster::take(&mut self.clients, &state, signed.as_bytes()).map(drop)
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
