//! Networks behind clients: this host's routes and rules for them follow what the operator allows.

use anyhow::Context as _;
use ipnet::IpNet;
use warren_host::{Host, exit_plan};
use warren_session::clients::ClientRegistry;

use super::daemon::Daemon;
use super::run::host_facts;
use crate::control::Refusal;

impl Daemon {
    /// Makes the host follow a change of clients that is in force.
    pub(super) async fn follow_clients(&mut self, host: &mut Host) -> Result<(), Refusal> {
        let followed = self.follow_prefixes(host).await;
        followed.map_err(|error| {
            Refusal::new(format!(
                "the change is in force, but routes and firewall did not follow: {error:#}; run: warren reload exit"
            ))
        })
    }

    /// Makes the host lead to the networks behind clients as the registry has them now.
    ///
    /// # Errors
    /// What could not be done; the next change tries it again.
    pub(super) async fn follow_prefixes(&mut self, host: &mut Host) -> anyhow::Result<()> {
        let facts = host_facts(&self.config, self.sessions.registry())?;
        let ruleset = exit_plan::ruleset(&facts);
        if ruleset != self.ruleset {
            host.replace_table(exit_plan::TABLE, &ruleset).await?;
            self.ruleset = ruleset;
        }
        host.change(&mut self.prefix_routes, &exit_plan::prefix_routes(&facts))
            .await
            .context("cannot route the networks behind clients")
    }
}

/// The networks behind clients that are not disabled, in order.
pub(super) fn of(registry: &ClientRegistry) -> Vec<IpNet> {
    let admitted = registry.iter().filter(|client| !client.disabled);
    let mut prefixes: Vec<IpNet> = admitted.flat_map(|client| client.prefixes.iter().copied()).collect();
    prefixes.sort_unstable();
    prefixes
}
