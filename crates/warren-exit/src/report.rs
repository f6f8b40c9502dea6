//! What a running exit tells of itself: its status, and its metrics.

use std::collections::HashMap;
use std::time::Instant;

use warren_host::Host;
use warren_session::PublicKey;

use super::daemon::Daemon;
use super::metrics::{ClientFigures, MetricsServer, Page, Scrape};
use super::web::{Question, WebServer};
use warren_config::MetricsSettings;
use warren_control::RequestRefused;
use warren_control::status::{
    ClientCounts, ConnectionStatus, ExitStatus, Observed, SessionStatus, State, Status, turned_away,
};
use warren_tunnel::Snapshot;

/// Listens where the settings say; an address that nobody asked for may be another program's.
///
/// # Errors
/// When the file asks for an address that cannot be had.
pub(super) async fn serve_metrics(settings: &MetricsSettings) -> anyhow::Result<Option<MetricsServer>> {
    let Some(address) = settings.listen else { return Ok(None) };
    match MetricsServer::bind(address).await {
        Ok(server) => {
            tracing::info!("metrics are at http://{}/metrics", server.address());
            Ok(Some(server))
        }
        Err(error) if settings.is_asked_for => Err(error),
        Err(error) => {
            tracing::warn!("{error}");
            Ok(None)
        }
    }
}

/// The next scrape of the metrics, if they are served.
pub(super) async fn next_scrape(server: &mut Option<MetricsServer>) -> Scrape {
    match server {
        Some(server) => server.next().await,
        None => std::future::pending().await,
    }
}

/// The next question of the page for operators, if it is served.
pub(super) async fn next_question(server: &mut Option<WebServer>) -> Question {
    match server {
        Some(server) => server.next().await,
        None => std::future::pending().await,
    }
}

impl Daemon {
    /// Serves the metrics elsewhere, or where they were if that cannot be. The old listener goes first, because its address may
    /// be part of the new one.
    pub(super) async fn move_metrics(&mut self, settings: &MetricsSettings) -> anyhow::Result<()> {
        if let Some(server) = self.metrics.take() {
            server.close().await;
        }
        match serve_metrics(settings).await {
            Ok(server) => self.metrics = server,
            Err(error) => {
                self.metrics = serve_metrics(&self.config.metrics).await.ok().flatten();
                return Err(error);
            }
        }
        Ok(())
    }

    /// Remembers what the connections have carried until now.
    pub(super) async fn measure(&mut self) {
        let snapshot = self.worker.snapshot().await.unwrap_or_default();
        let now = Instant::now();
        self.meter.take(now, &snapshot);
        self.spare_memory.look(now, &self.worker).await;
        self.note_rates(now, &snapshot);
    }

    pub(super) async fn status(&self, host: &Host) -> Result<serde_json::Value, RequestRefused> {
        let snapshot = self.worker.snapshot().await.unwrap_or_default();
        let device = format!("TUN device {}", self.device.name);
        let host_changes = [vec![device], host.changes()].concat();
        serde_json::to_value(self.status_of(snapshot, host_changes)).map_err(RequestRefused::new)
    }

    /// Answers a scrape; one that nobody waits for any more costs nothing.
    pub(super) async fn answer_scrape(&self, scrape: Scrape) {
        if scrape.is_closed() {
            return;
        }
        let snapshot = self.worker.snapshot().await.unwrap_or_default();
        let status = self.status_of(snapshot.clone(), Vec::new());
        let clients = self.config.metrics.clients.then(|| self.client_figures(&status, &snapshot));
        match (Page { status, snapshot, events: self.events.clone(), clients }).text() {
            Ok(text) => drop(scrape.send(text)),
            Err(error) => tracing::debug!("cannot write the metrics: {error}"),
        }
    }

    pub(super) fn status_of(&self, snapshot: Snapshot, host_changes: Vec<String>) -> Status {
        let mut sessions: Vec<SessionStatus> = self
            .live
            .iter()
            .map(|(id, live)| SessionStatus {
                id: id.0,
                name: live.name.clone(),
                public_key: live.key.to_string(),
                ipv4: live.lease.ipv4.map(|address| address.to_string()),
                ipv6: live.lease.ipv6.map(|address| address.to_string()),
                since_seconds: live.since.elapsed().as_secs_f64(),
                connections: live.connections.clone(),
            })
            .collect();
        sessions.sort_by(|a, b| a.name.cmp(&b.name));
        let handshakes = self.tuning.settings.strangers.handshakes();
        let exit = ExitStatus {
            listen: self.config.listen.clone(),
            public_key: self.config.keys.current.public().to_string(),
            old_public_key: self.config.keys.old.as_ref().map(|key| key.public().to_string()),
            clients: ClientCounts { enrolled: self.sessions.registry().len(), connected: sessions.len() },
            sessions,
            silent: self.config.silent,
            strangers: turned_away(&self.tuning.settings.strangers),
            handshakes_in_flight: handshakes.in_flight,
            handshakes_timed_out: handshakes.timed_out,
        };
        let state = if self.stopping.is_some() { State::Stopping } else { State::Up };
        let observed = Observed {
            state,
            since: self.since,
            device: Some(self.device.clone()),
            host_changes,
            reload_error: self.reload_error.clone(),
            tuning: &self.tuning,
            snapshot,
            meter: &self.meter,
            sandbox: warren_daemon::sandbox::in_force(),
        };
        Status::exit(exit, observed)
    }

    /// Figures of every enrolled client, by name.
    fn client_figures(&self, status: &Status, snapshot: &Snapshot) -> Vec<ClientFigures> {
        let mut of_key: HashMap<PublicKey, Vec<&ConnectionStatus>> = HashMap::new();
        for connection in &status.connections {
            let session = self.live.iter().find(|(id, _)| Some(id.0) == connection.session);
            if let Some((_, live)) = session {
                of_key.entry(live.key).or_default().push(connection);
            }
        }
        let figures = |client: &warren_session::clients::Client| {
            let connections = of_key.get(&client.public_key).map(Vec::as_slice).unwrap_or_default();
            ClientFigures {
                name: client.name.clone(),
                rate_limit: client.rate_limit,
                rate_limited_packets: self.limits.refused(client.public_key),
                traffic: snapshot.clients.get(&client.public_key).copied().unwrap_or_default(),
                connections: connections.len(),
                queued_bytes: connections.iter().map(|connection| connection.queue_bytes).sum(),
                round_trip: connections.iter().map(|connection| connection.rtt_ms / 1e3).reduce(f64::min),
            }
        };
        self.sessions.registry().iter().map(figures).collect()
    }
}
