//! Networks behind clients: this host's routes and rules for them follow what the operator allows.

use std::time::Instant;

use anyhow::Context as _;
use ipnet::IpNet;
use warren_host::{Host, Plan, exit_plan};
use warren_session::clients::ClientRegistry;

use super::daemon::Daemon;
use super::run::host_facts;
use warren_control::RequestRefused;

impl Daemon {
    /// Makes the host follow a change of clients that is in force.
    pub(super) async fn follow_clients(&mut self, host: &mut Host) -> Result<(), RequestRefused> {
        let followed = self.follow_prefixes(host).await;
        followed.map_err(|error| {
            RequestRefused::new(format!(
                "the change is in force, but routes and firewall did not follow: {error:#}; run: warren reload exit"
            ))
        })
    }

    /// Makes the host lead to the networks behind clients as the registry has them now.
    ///
    /// # Errors
    /// What could not be done; the next change tries it again.
    pub(super) async fn follow_prefixes(&mut self, host: &mut Host) -> anyhow::Result<()> {
        self.follow_host(host).await.map(drop)
    }

    /// The same, and makes the rules follow what is around the host now: networks that it is on itself, and for whom else it
    /// forwards, and its services' ports. Returns the exit's plan as it would be made now.
    ///
    /// # Errors
    /// As [`Self::follow_prefixes`].
    pub(super) async fn follow_host(&mut self, host: &mut Host) -> anyhow::Result<Plan> {
        let mut facts = host_facts(&self.config, self.sessions.registry(), host, &self.services).await?;
        self.services.follow(&mut facts, Instant::now());
        self.tell_who_forwards(exit_plan::forwards_for_others(&facts));
        let ruleset = exit_plan::ruleset(&facts);
        if ruleset != self.ruleset {
            host.replace_table(exit_plan::TABLE, &ruleset).await?;
            self.ruleset = ruleset;
        }
        self.held.follow(&facts).await.context("cannot change the table that outlives this exit")?;
        host.change(&mut self.prefix_routes, &exit_plan::prefix_routes(&facts))
            .await
            .context("cannot route the networks behind clients")?;
        Ok(exit_plan::exit(&facts))
    }

    fn tell_who_forwards(&mut self, for_others: bool) {
        const SENTENCE: &str = "forwarding is turned on for the whole host, so it forwards for others than clients too; if clients have no internet, see `warren doctor`";
        match self.forwards_for_others.replace(for_others) {
            None if for_others => tracing::info!("{SENTENCE}"),
            Some(false) if for_others => tracing::warn!("{SENTENCE}"),
            _ => {}
        }
    }
}

/// The networks behind clients that are not disabled, in order.
pub(super) fn of(registry: &ClientRegistry) -> Vec<IpNet> {
    let admitted = registry.iter().filter(|client| !client.disabled);
    let mut prefixes: Vec<IpNet> = admitted.flat_map(|client| client.prefixes.iter().copied()).collect();
    prefixes.sort_unstable();
    prefixes
}
