//! Reading the exit's configuration again while it runs: all of what changed takes effect, or nothing.

use std::time::Instant;

use anyhow::bail;
use warren_host::Host;

use super::daemon::Daemon;
use super::run::refuse_missing_interface;
use warren_config::TAKES_RESTART as TRANSPORT;
use warren_config::{ExitSettings, RegistryFile, WebListen, load_exit};
use warren_control::RequestRefused;
use warren_tunnel::Command;

impl Daemon {
    /// Reads `exit.toml` and the clients' file again. Sessions that neither concerns lose no packet.
    pub(super) async fn reload(&mut self, host: &mut Host) -> Result<serde_json::Value, RequestRefused> {
        let outcome = self.take_over(host).await;
        match &outcome {
            Ok(()) => tracing::info!("configuration read again"),
            Err(error) => {
                self.events.reload_refused();
                tracing::error!("the configuration stays as it was: {error:#}");
            }
        }
        self.reload_error = outcome.as_ref().err().map(|error| format!("{error:#}"));
        outcome.map(|()| serde_json::Value::Null).map_err(|error| RequestRefused::new(format!("{error:#}")))
    }

    async fn take_over(&mut self, host: &mut Host) -> anyhow::Result<()> {
        let mut config = load_exit(&self.config.path)?;
        refuse_what_takes_a_restart(&self.config, &config)?;
        let (file, clients) = RegistryFile::open(self.clients.path().to_path_buf())?;
        // As good as one without clients at the start, but hardly meant to end every session.
        if file.is_silent() && !self.sessions.registry().is_empty() {
            let path = file.path();
            let what = if path.exists() { "names no client any more" } else { "is gone" };
            bail!(
                "{} {what}; put it back, or write `client = []` into it to remove every client",
                path.display()
            );
        }
        self.sessions.check(Instant::now(), &clients)?;
        refuse_missing_interface(&config)?;
        if self.config.metrics.listen != config.metrics.listen {
            self.move_metrics(&config.metrics).await?;
        }
        self.move_web(config.web.as_ref()).await?;
        self.sessions.set_dns(config.dns.clone())?;
        self.sessions.adopt(Instant::now(), clients)?;
        self.clients = file;
        self.limits.follow(self.sessions.registry());
        self.take_keys_of(&mut config).await;
        config.transport.retune(&self.config.transport, &self.tuning);
        self.config = config;
        if !is_unix(self.config.web.as_ref()) {
            // Not before: nothing can make it again.
            self.web_socket = None;
        }
        self.tuning.settings.strangers.set_silent(self.config.silent);
        self.follow_prefixes(host).await?;
        self.worker.send(Command::SetForwarding { forwarding: self.forwarding() }).await;
        for live in self.live.values_mut() {
            if let Some(client) = self.sessions.registry().by_key(live.key) {
                live.name.clone_from(&client.name);
            }
        }
        Ok(())
    }
}

/// Names the settings that a running exit cannot change.
fn refuse_what_takes_a_restart(before: &ExitSettings, after: &ExitSettings) -> anyhow::Result<()> {
    let changed = [
        ("[exit] listen", before.listen != after.listen),
        ("[addresses]", (before.ipv4, before.ipv6) != (after.ipv4, after.ipv6)),
        ("[clients] file", before.clients_file != after.clients_file),
        ("[web] listen to a Unix socket", before.web != after.web && is_unix(after.web.as_ref())),
        (TRANSPORT, !before.transport.can_become(&after.transport)),
    ];
    let changed: Vec<&str> = changed.iter().filter(|(_, changed)| *changed).map(|(name, _)| *name).collect();
    if changed.is_empty() {
        return Ok(());
    }
    bail!(
        "{}: {} changed, which takes a restart of the exit (`systemctl restart warren-exit`); nothing was changed",
        after.path.display(),
        changed.join(" and ")
    )
}

fn is_unix(listen: Option<&WebListen>) -> bool {
    matches!(listen, Some(WebListen::Unix(_)))
}
