//! The reports of a running exit: its status, its metrics, and the page for operators.

mod client_page;
mod client_table;
mod overview;

use std::path::Path;
use std::time::Instant;

use crate::clients::Clients;
use crate::http::{Server, UnixSocket, next_question};
use crate::metrics::{self, MetricsPage, Scrape};
use crate::web::{Question, WebServer};
use warren_config::{ExitSettings, MetricsSettings, WebListen};
use warren_control::status::{
    ClientCounts, DeviceStatus, ExitStatus, Observed, RateMeter, State, Status, WireGuardStatus, turned_away,
};
use warren_session::PublicKey;
use warren_tunnel::Snapshot;
use warren_tunnel::tuning::Tuning;

/// The servers for metrics and page, and the meter for the rates in reports.
pub(crate) struct Reporting {
    metrics: Option<Server<Scrape>>,
    web: Option<WebServer>,
    /// The page's Unix socket. The sandboxed exit cannot make it again, so it stays until the configuration no longer names it.
    web_socket: Option<UnixSocket>,
    device: DeviceStatus,
    /// The key for WireGuard, if the exit serves WireGuard.
    pub(crate) wireguard_key: Option<PublicKey>,
    since: Instant,
    meter: RateMeter,
}

/// The exit's state at one moment, from which reports are made.
pub(crate) struct Observations<'a> {
    pub(crate) config: &'a ExitSettings,
    pub(crate) clients: &'a Clients,
    pub(crate) tuning: &'a Tuning,
    pub(crate) reloads: &'a Reloads,
    pub(crate) is_stopping: bool,
    /// The workers' counters.
    pub(crate) snapshot: Snapshot,
}

/// The results of reloads.
#[derive(Debug, Default)]
pub(crate) struct Reloads {
    /// Why the latest reload failed. `None` if it succeeded.
    pub(crate) error: Option<String>,
    /// Number of reloads that failed.
    pub(crate) refused: u64,
}

/// A request from a client of the metrics or of the page.
#[derive(Debug)]
pub(crate) enum HttpQuestion {
    Scrape(Scrape),
    Page(Question),
}

impl Reporting {
    /// Serves metrics and page where the configuration says.
    ///
    /// # Errors
    /// When an address or a file cannot be used. The message says what to do.
    pub(crate) async fn start(
        config: &ExitSettings,
        web_socket: Option<UnixSocket>,
        state: &Path,
        device: DeviceStatus,
    ) -> anyhow::Result<Self> {
        let now = Instant::now();
        let metrics = metrics::serve(&config.metrics).await?;
        let mut started = Self {
            metrics,
            web: None,
            web_socket,
            device,
            wireguard_key: None,
            since: now,
            meter: RateMeter::new(now),
        };
        started.serve_web(config.web.as_ref(), state, true).await?;
        Ok(started)
    }

    /// The next question of the metrics or the page.
    pub(crate) async fn next(&mut self) -> HttpQuestion {
        tokio::select! {
            scrape = next_question(self.metrics.as_mut()) => HttpQuestion::Scrape(scrape),
            question = next_question(self.web.as_mut().map(|web| &mut web.server)) => HttpQuestion::Page(question),
        }
    }

    /// Serves the metrics at the new address, if it differs from the old one. If that is not possible, serves them at the old one.
    ///
    /// # Errors
    /// Why the metrics cannot be served at the new address.
    pub(crate) async fn move_metrics(
        &mut self,
        before: &MetricsSettings,
        settings: &MetricsSettings,
    ) -> anyhow::Result<()> {
        if before.listen == settings.listen {
            return Ok(());
        }
        // The old listener is closed first, because its address may overlap the new one.
        if let Some(server) = self.metrics.take() {
            server.close().await;
        }
        match metrics::serve(settings).await {
            Ok(server) => self.metrics = server,
            Err(error) => {
                // The old address was free a moment ago. If it is taken by now, the error below says enough.
                self.metrics = metrics::serve(before).await.ok().flatten();
                return Err(error);
            }
        }
        Ok(())
    }

    /// Serves the page at another address. If that is not possible, serves it at the old one. The page's token is read again in
    /// any case.
    ///
    /// # Errors
    /// Why the page cannot be served at the new address.
    pub(crate) async fn move_web(
        &mut self,
        before: Option<&WebListen>,
        listen: Option<&WebListen>,
        state: &Path,
    ) -> anyhow::Result<()> {
        // The history of rates is kept over the move.
        let history = match self.web.take() {
            Some(server) => Some(server.close().await),
            None => None,
        };
        let outcome = self.serve_web(listen, state, before != listen).await;
        if outcome.is_err() {
            // The old address was free a moment ago. If it is taken by now, the error above says enough.
            drop(self.serve_web(before, state, false).await);
        }
        if let (Some(server), Some(history)) = (&mut self.web, history) {
            server.history = history;
        }
        outcome
    }

    /// Removes the page's Unix socket, which the configuration no longer names.
    pub(crate) fn forget_web_socket(&mut self) {
        self.web_socket = None;
    }

    async fn serve_web(
        &mut self,
        listen: Option<&WebListen>,
        state: &Path,
        is_news: bool,
    ) -> anyhow::Result<()> {
        self.web = match listen {
            Some(listen) => Some(WebServer::bind(listen, self.web_socket.as_ref(), state, is_news).await?),
            None => None,
        };
        Ok(())
    }

    /// When to call [`Self::measure`] next.
    pub(crate) fn due(&self) -> Instant {
        self.meter.due()
    }

    /// Records the connections' counters for rates.
    pub(crate) fn measure(&mut self, now: Instant, snapshot: &Snapshot) {
        self.meter.take(now, snapshot);
        if let Some(web) = &mut self.web {
            web.history.take(now, &snapshot.clients);
        }
    }

    /// Bits per second of all clients, in both directions together.
    pub(crate) fn bits_per_second(&self, now: Instant, snapshot: &Snapshot) -> u64 {
        let rates = self.meter.total(now, snapshot);
        let bits = rates.bits_per_second_in + rates.bits_per_second_out;
        #[expect(clippy::cast_possible_truncation, reason = "a float is cut to what fits")]
        let bits = bits.max(0.0) as u64;
        bits
    }

    /// The name of the exit's TUN device.
    pub(crate) fn device_name(&self) -> &str {
        &self.device.name
    }

    /// Answers a scrape of the metrics.
    pub(crate) fn answer_scrape(&self, scrape: Scrape, seen: &Observations<'_>) {
        let status = self.status(seen, Vec::new());
        let clients = seen.config.metrics.clients.then(|| seen.clients.figures(&status, &seen.snapshot));
        let page = MetricsPage {
            status,
            snapshot: seen.snapshot.clone(),
            events: seen.clients.events().clone(),
            reloads_refused: seen.reloads.refused,
            clients,
        };
        match page.text() {
            Ok(text) => drop(scrape.send(text)),
            // The scraper gets an error, because the dropped channel ends its request.
            Err(error) => tracing::debug!("cannot write the metrics: {error}"),
        }
    }

    fn wireguard_status(&self, config: &ExitSettings) -> Option<WireGuardStatus> {
        let (key, settings) = (self.wireguard_key?, config.wireguard.as_ref()?);
        Some(WireGuardStatus { listen: settings.listen.clone(), public_key: key.to_string() })
    }

    /// The exit's status.
    pub(crate) fn status(&self, seen: &Observations<'_>, host_changes: Vec<String>) -> Status {
        let Observations { config, clients, tuning, .. } = seen;
        let sessions = clients.session_statuses();
        let handshakes = tuning.settings.strangers.handshakes();
        let exit = ExitStatus {
            listen: config.listen.clone(),
            wireguard: self.wireguard_status(config),
            public_key: config.keys.current.public().to_string(),
            old_public_key: config.keys.old.as_ref().map(|key| key.public().to_string()),
            clients: ClientCounts { enrolled: clients.registry().len(), connected: sessions.len() },
            sessions,
            silent: config.silent,
            strangers: turned_away(&tuning.settings.strangers),
            handshakes_in_flight: handshakes.in_flight,
            handshakes_timed_out: handshakes.timed_out,
            is_disk_failing: clients.is_disk_failing(),
            fleet: clients.fleet_status(),
        };
        let observed = Observed {
            state: if seen.is_stopping { State::Stopping } else { State::Up },
            since: self.since,
            device: Some(self.device.clone()),
            host_changes,
            reload_error: seen.reloads.error.clone(),
            tuning,
            snapshot: seen.snapshot.clone(),
            meter: &self.meter,
            sandbox: warren_daemon::sandbox::in_force(),
        };
        Status::exit(exit, observed)
    }
}
