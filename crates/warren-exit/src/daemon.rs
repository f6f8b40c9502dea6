//! The exit daemon: carries the sessions' state machine, the worker and the host plan together.

mod keys;
mod reload;

use std::collections::HashMap;
use std::net::{IpAddr, UdpSocket};
use std::path::PathBuf;
use std::pin::pin;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, bail};
use ipnet::IpNet;
use tokio::signal::unix::{SignalKind, signal};
use warren_host::exit_hold::HeldRules;
use warren_host::{Applied, Host};
use warren_quic::driver::CloseReason;
use warren_quic::key::PublicKey;
use warren_quic::strangers::Network;
use warren_session::exit::{ExitSessions, SessionId};
use warren_session::goodbye::Goodbye;
use warren_session::pool::Lease;
use warren_tun::{Device, Queue};

use crate::clients::limits::ClientLimits;
use crate::host::service_ports::ServicePorts;
use crate::host::upkeep::Upkeep;
use crate::http::{Server, UnixSocket, next_question};
use crate::metrics::{self, Events, Scrape};
use crate::web::{self, WebServer};
use warren_config::storage::survive_file_size_limit;
use warren_config::{ClientsFile, ConfigError, ExitConfig};
use warren_control::status::RateMeter;
use warren_control::{Asked, ControlSocket, Refusal, Request};
#[cfg(debug_assertions)]
use warren_daemon::breakdown;
use warren_daemon::deadline::until;
use warren_daemon::device_watch;
use warren_daemon::helper::Helper;
use warren_daemon::notify;
use warren_daemon::sandbox::{self, Files};
use warren_daemon::spare_memory::SpareMemory;
use warren_tunnel::tuning::Tuning;
use warren_tunnel::{Carrier, Command, Forwarding, Report, Reports, WorkerHandle};

/// Until a registry that could not be saved is saved again.
const SAVE_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// Everything the daemon runs on, made beforehand in an order in which each failure leaves nothing behind.
pub(crate) struct ExitStart {
    pub config: ExitConfig,
    pub sessions: ExitSessions,
    pub clients: ClientsFile,
    pub tuning: Tuning,
    /// Each worker's.
    pub sockets: Vec<Vec<UdpSocket>>,
    pub reset_key: [u8; 64],
    pub device: Device,
    /// One for each worker.
    pub queues: Vec<Queue>,
    pub gateways: Vec<IpAddr>,
    /// The rules of the firewall table that stands.
    pub ruleset: String,
    /// Those of the table that outlives this daemon.
    pub held: HeldRules,
    pub services: ServicePorts,
    pub host: Host,
    pub upkeep: Upkeep,
    pub control: PathBuf,
    pub mtu: u16,
    pub helper: Helper,
    /// All that this process opens from here on.
    pub files: Files,
}

/// How the daemon was told to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// SIGTERM, SIGINT.
    Stop,
    /// SIGUSR1: another daemon follows, however long that takes.
    Restart,
}

/// Serves clients until stopped, then tells them and restores the host.
///
/// # Errors
/// When the daemon cannot start, or loses its worker, its device or its nftables table.
pub(crate) async fn run(start: ExitStart) -> anyhow::Result<Ending> {
    let ExitStart {
        config,
        sessions,
        clients,
        tuning,
        sockets,
        reset_key,
        device,
        queues,
        gateways,
        ruleset,
        held,
        services,
        mut host,
        mut upkeep,
        control,
        mtu,
        helper,
        files,
    } = start;
    tuning.settings.strangers.set_silent(config.silent);
    let carrier =
        Carrier::Exit { tuning: tuning.clone(), identities: config.private_keys(), sockets, reset_key };
    let served = async {
        // In the sandbox no such sockets can be made.
        let control = ControlSocket::bind(&control)?;
        let web_socket = web::unix_socket(config.web.as_ref())?;
        sandbox::enter(&files)?;
        let (worker, reports) = warren_tunnel::spawn(carrier).await?;
        let metrics = metrics::serve(&config.metrics).await?;
        let deleted = device_watch::gone(device.name().to_owned(), device.index());
        let device = warren_control::status::DeviceStatus {
            name: device.name().to_owned(),
            mtu,
            offload: config.transport.tun_offload,
        };
        let mut daemon = Daemon {
            keys_read: config.public_keys(),
            config,
            sessions,
            clients,
            tuning,
            worker,
            reports,
            control,
            metrics,
            web: None,
            web_socket,
            events: Events::default(),
            device,
            gateways,
            ruleset,
            held,
            services,
            forwards_for_others: None,
            has_too_many_links: false,
            prefix_routes: Applied::default(),
            live: HashMap::new(),
            limits: ClientLimits::default(),
            since: Instant::now(),
            meter: RateMeter::new(Instant::now()),
            spare_memory: SpareMemory::new(Instant::now()),
            stopping: None,
            drained_by: None,
            reload_error: None,
            save_again: None,
        };
        let listen = daemon.config.web.clone();
        daemon.serve_web(listen.as_ref(), true).await?;
        let forwarding = daemon.forwarding();
        daemon.worker.open_device(queues, &forwarding).await;
        let outcome = match daemon.follow_prefixes(&mut host).await {
            Ok(()) => daemon.serve(&mut host, &mut upkeep, deleted, &helper).await,
            Err(error) => Err(error),
        };
        notify::stopping();
        let goodbye = daemon.goodbye();
        daemon.worker.stop(goodbye.code(), goodbye.to_string()).await;
        outcome
    }
    .await;
    // With what was made since.
    drop(upkeep);
    let undone = host.undo_all().await.context("cannot restore the host");
    let ending = served?;
    undone?;
    Ok(ending)
}

pub(crate) struct Daemon {
    pub(crate) config: ExitConfig,
    pub(crate) sessions: ExitSessions,
    /// The registry's file, which this process has locked.
    pub(crate) clients: ClientsFile,
    pub(crate) tuning: Tuning,
    pub(crate) worker: WorkerHandle,
    reports: Reports,
    control: ControlSocket,
    pub(crate) metrics: Option<Server<Scrape>>,
    pub(crate) web: Option<WebServer>,
    /// The page's Unix socket, until the page is moved from it.
    pub(crate) web_socket: Option<UnixSocket>,
    pub(crate) events: Events,
    pub(crate) device: warren_control::status::DeviceStatus,
    gateways: Vec<IpAddr>,
    /// The rules of the firewall table that stands.
    pub(crate) ruleset: String,
    /// Those of the table that outlives this daemon.
    pub(crate) held: HeldRules,
    pub(crate) services: ServicePorts,
    /// Whether the host forwards for others than clients, as it was told last.
    pub(crate) forwards_for_others: Option<bool>,
    /// The routes to networks behind clients.
    pub(crate) prefix_routes: Applied,
    pub(crate) live: HashMap<SessionId, LiveSession>,
    pub(crate) limits: ClientLimits,
    /// What the key file held when it was last read.
    pub(crate) keys_read: Vec<PublicKey>,
    pub(crate) since: Instant,
    pub(crate) meter: RateMeter,
    pub(crate) spare_memory: SpareMemory,
    /// Set once the daemon is to end.
    pub(crate) stopping: Option<Ending>,
    /// While clients are sent away: when the exit ends even if some are left.
    drained_by: Option<Instant>,
    /// Why the latest reload changed nothing.
    pub(crate) reload_error: Option<String>,
    /// When the registry, which could not be saved, is saved again.
    save_again: Option<Instant>,
}

/// What `status` says of a session beyond its addresses.
pub(crate) struct LiveSession {
    pub(crate) name: String,
    pub(crate) key: PublicKey,
    pub(crate) lease: Lease,
    pub(crate) since: Instant,
    pub(crate) connections: Vec<u32>,
}

impl Daemon {
    async fn serve(
        &mut self,
        host: &mut Host,
        upkeep: &mut Upkeep,
        deleted: impl Future<Output = ()>,
        helper: &Helper,
    ) -> anyhow::Result<Ending> {
        let mut terminate = signal(SignalKind::terminate()).context("cannot watch SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot watch SIGINT")?;
        let mut restart = signal(SignalKind::user_defined1()).context("cannot watch SIGUSR1")?;
        let mut hangup = signal(SignalKind::hangup()).context("cannot watch SIGHUP")?;
        survive_file_size_limit().context("cannot watch SIGXFSZ")?;
        let mut watchdog = notify::Watchdog::of_this_process();
        let listen: Vec<String> = self.config.listen.iter().map(ToString::to_string).collect();
        tracing::info!(
            "listening on UDP {}; {} clients enrolled",
            listen.join(", "),
            self.sessions.registry().len()
        );
        notify::ready("serving clients");
        let mut deleted = pin!(deleted);
        let ending = loop {
            if let Some(ending) = self.stopping {
                break ending;
            }
            self.carry_out_all().await;
            if self.drained_by.is_some() && self.live.is_empty() {
                break Ending::Stop;
            }
            let timeout = self.sessions.timeout();
            tokio::select! {
                report = self.reports.recv() => match report {
                    Some(report) => {
                        self.worker.tell_others(&report).await;
                        self.take_report(report).await?;
                    }
                    None => return Err(anyhow::anyhow!("the worker ended unexpectedly; see the log")),
                },
                () = until(Some(self.meter.due())) => self.measure().await,
                () = until(self.save_again) => self.save_again(),
                () = until(Some(upkeep.due())) => {
                    let began = Instant::now();
                    let plan = self.follow_host(host).await;
                    upkeep.look(host, plan, began).await;
                }
                () = until(timeout) => self.sessions.handle_timeout(Instant::now()),
                // Without its table the exit would forward unprotected, so it rather ends.
                () = host.table_lost() => bail!("the exit's nftables table is gone, because the nft process that held it ended; start the exit again"),
                () = &mut deleted => bail!("the TUN device {} was deleted; start the exit again", self.device.name),
                () = helper.ended() => bail!("the exit's helper process has ended; start the exit again"),
                asked = self.control.next() => self.answer(asked?, host).await,
                scrape = next_question(self.metrics.as_mut()) => self.answer_scrape(scrape).await,
                question = next_question(self.web.as_mut().map(|web| &mut web.server)) => self.answer_web(question, host).await,
                // Why it changed nothing stands in the log and in the status.
                _ = hangup.recv() => drop(self.reload(host).await),
                () = until(self.drained_by) => self.stopping = Some(Ending::Stop),
                // A worker that hangs does not answer, and so counts as dead too.
                () = watchdog.due() => if self.worker.snapshot().await.is_some() { watchdog.alive() },
                _ = terminate.recv() => self.stopping = Some(Ending::Stop),
                _ = interrupt.recv() => self.stopping = Some(Ending::Stop),
                _ = restart.recv() => self.stopping = Some(Ending::Restart),
            }
        };
        self.sessions.shutdown(Instant::now(), self.goodbye());
        self.carry_out_all().await;
        Ok(ending)
    }

    /// What clients are told when the exit ends.
    fn goodbye(&self) -> Goodbye {
        if self.drained_by.is_some() { Goodbye::Draining } else { Goodbye::Restarting }
    }

    /// The worker's rules, as the configuration has them.
    pub(crate) fn forwarding(&self) -> Forwarding {
        let pools = [self.config.ipv4.map(IpNet::V4), self.config.ipv6.map(IpNet::V6)];
        Forwarding::Exit {
            pools: pools.into_iter().flatten().collect(),
            gateways: self.gateways.clone(),
            isolation: self.config.isolation,
        }
    }

    /// Tells the sessions the calendar's time, which may have been set since: invitations expire by it.
    pub(crate) fn look_at_clock(&mut self) {
        self.sessions.set_wall_clock(Instant::now(), SystemTime::now());
    }

    async fn take_report(&mut self, report: Report) -> anyhow::Result<()> {
        let now = Instant::now();
        self.look_at_clock();
        match report {
            Report::Connected { connection, peer, remote } => {
                self.events.connected();
                let key = peer;
                if self.sessions.registry().by_key(key).is_none() {
                    tracing::debug!(connection = connection.0, %key, "a key that is not enrolled has connected");
                }
                // Before its first message, which is to get through an exit that is behind.
                if self.sessions.is_client(key) {
                    self.worker.send(Command::KnowAsClient { connection }).await;
                }
                self.sessions.connected(now, connection.0, key, Network::of(remote).address());
            }
            Report::Control { connection, data } => self.sessions.received(now, connection.0, &data),
            Report::Closed { connection, reason } => {
                tracing::debug!(connection = connection.0, "connection closed: {reason}");
                if reason == CloseReason::TimedOut {
                    self.sessions.timed_out(now, connection.0);
                } else {
                    self.sessions.closed(now, connection.0);
                }
            }
            // The worker moves its flows; a client that is gone for good ends with the idle timeout.
            Report::Answers { connection, answers } => {
                tracing::debug!(connection = connection.0, answers, "a connection's path changed");
            }
            Report::DeviceFailed { error, .. } => {
                let sentence = format!("the TUN device failed: {error}; start the exit again");
                return Err(anyhow::anyhow!(sentence));
            }
            // Only a client's worker connects.
            Report::Connecting { .. } | Report::ConnectFailed { .. } => {}
        }
        Ok(())
    }

    async fn answer(&mut self, asked: Asked, host: &mut Host) {
        self.look_at_clock();
        let concerns_clients = asked.request.changes_clients();
        let mut response = match asked.request {
            Request::Status => self.status(host).await,
            Request::Stop => {
                self.stopping = Some(Ending::Stop);
                Ok(serde_json::Value::Null)
            }
            Request::Set { change } => Ok(change.apply(&self.tuning).into()),
            Request::Reload => self.reload(host).await,
            #[cfg(debug_assertions)]
            Request::BreakDown { part } => {
                breakdown::break_down(part, &self.worker).await;
                Ok(serde_json::Value::Null)
            }
            Request::PublicKeys => serde_json::to_value(self.config.public_keys()).map_err(Refusal::new),
            Request::SetKeys { keys, end_sessions } => {
                let set = self.set_keys(keys, end_sessions).await;
                set.map(Into::into).map_err(|error| Refusal::new(format!("{error:#}")))
            }
            Request::Drain { milliseconds } => {
                tracing::info!("sending clients away");
                self.sessions.drain(Instant::now());
                self.drained_by = Some(Instant::now() + Duration::from_millis(milliseconds));
                Ok(serde_json::Value::Null)
            }
            Request::Retry => Err(Refusal::new("this is an exit; run it on a client")),
            Request::ClientAdd { client } => self.add_client(&client),
            Request::ClientAddAll { clients } => self.add_clients(&clients),
            Request::ClientList => self.list_clients().await,
            Request::ClientInvite { invitation } => self.invite(invitation),
            Request::InvitationList => self.list_invitations(),
            Request::RemovedList => self.list_removed(),
            Request::ClientRemove { name } => self.remove_client(&name),
            Request::ClientChange { name, change } => self.change_client(&name, &change),
        };
        // What was changed is carried out before the answer, so that a client removed is a client cut off.
        self.carry_out_all().await;
        if concerns_clients && let Err(refusal) = self.follow_clients(host).await {
            response = Err(refusal);
        }
        drop(asked.answer.send(response));
    }

    /// Saves the registry; if that fails, it is tried again later.
    pub(crate) fn save(&mut self) -> Result<(), ConfigError> {
        let saved = self.clients.save(self.sessions.registry());
        self.save_again = saved.is_err().then(|| Instant::now() + SAVE_AGAIN_AFTER);
        saved
    }

    fn save_again(&mut self) {
        match self.save() {
            Ok(()) => tracing::info!("clients are saved again"),
            Err(error) => tracing::debug!("{error}"),
        }
    }
}
