//! Adapts the host to clients and configuration, and gathers the exit's state for reports.

use super::Daemon;
use crate::reporting::Observations;
use warren_control::RequestRefused;

impl Daemon<'_> {
    /// Adapts rules and routes to changes on the host and to the networks behind clients.
    pub(super) async fn follow_host(&mut self) -> anyhow::Result<()> {
        let (registry, store) = (self.clients.registry(), self.clients.store_addresses());
        self.host.follow(&self.config, registry, store).await.map(drop)
    }

    /// Adapts forwards to clients that have other addresses now.
    pub(super) async fn follow_forwards(&mut self) {
        if self.clients.have_forwards_moved()
            && let Err(error) = self.follow_host().await
        {
            tracing::error!("the firewall rules could not be adapted to a client with forwards: {error:#}");
        }
    }

    /// Adapts the host to a change of clients that is in force.
    pub(super) async fn follow_clients(&mut self) -> Result<(), RequestRefused> {
        let followed = self.follow_host().await;
        followed.map_err(|error| {
            let sentence = format!(
                "the change is in force, but routes and firewall did not follow: {error:#}; run: warren reload exit"
            );
            // The log gets this sentence, because a refused change has no line in the audit log.
            tracing::error!("{sentence}");
            RequestRefused::new(sentence)
        })
    }

    /// The exit's current state, for reports.
    pub(super) async fn observe(&self) -> Observations<'_> {
        Observations {
            config: &self.config,
            clients: &self.clients,
            tuning: &self.tuning,
            reloads: &self.reloads,
            is_stopping: self.stopping.is_some(),
            snapshot: self.worker.snapshot().await.unwrap_or_default(),
        }
    }
}
