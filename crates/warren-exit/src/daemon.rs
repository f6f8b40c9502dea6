//! The exit daemon: one loop that passes events and operators' requests to the types that own clients, host and reports.
//!
//! The loop is here. Below it, `page.rs`, `requests.rs` and `reload.rs` answer operators, `waiting.rs` makes their changes, `keys.rs`
//! changes keys, and `follow.rs` adapts the host. Each file calls only the files after it.

mod follow;
mod keys;
mod link;
mod page;
mod reload;
mod requests;
mod waiting;

use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Instant;

use anyhow::{Context as _, bail};
use ipnet::IpNet;
use tokio::signal::unix::{Signal, SignalKind, signal};
use warren_quic::key::PublicKey;
use warren_session::goodbye::Goodbye;
use warren_session::pool::{gateway_ipv4, gateway_ipv6};
use warren_tun::{Device, Queue};

use crate::audit::Audit;
use crate::clients::{Awaited, Clients, Proposed, look_again_at};
use crate::ending::Ending;
use crate::fleet::FleetSocket;
use crate::host::{HostSetup, INNER_MTU};
use crate::reporting::{HttpQuestion, Reloads, Reporting};
use crate::web;
use link::FleetLink;
use warren_config::storage::survive_file_size_limit;
use warren_config::{ExitSettings, counted};
use warren_control::status::DeviceStatus;
use warren_control::{ControlSocket, RequestRefused};
use warren_daemon::deadline::until;
use warren_daemon::device_watch;
use warren_daemon::helper::Helper;
use warren_daemon::notify;
use warren_daemon::sandbox::{self, Files};
use warren_daemon::spare_memory::SpareMemory;
use warren_tunnel::tuning::Tuning;
use warren_tunnel::{
    Carrier, ConnectionCommand, Forwarding, Report, Reports, Rings, WireGuardCarrier, WorkerHandle,
};

/// Everything that the daemon needs. All parts are made beforehand, in an order in which no failure leaves anything behind.
pub(crate) struct ExitStart {
    pub(crate) config: ExitSettings,
    pub(crate) clients: Clients,
    pub(crate) tuning: Tuning,
    /// The UDP sockets of each worker.
    pub(crate) sockets: Vec<Vec<UdpSocket>>,
    /// The key and sockets with which the exit serves WireGuard. `None` if it does not serve WireGuard.
    pub(crate) wireguard: Option<WireGuardCarrier>,
    /// The key from which stateless reset tokens are derived.
    pub(crate) reset_key: [u8; 64],
    pub(crate) device: Device,
    /// The TUN queues, one for each worker.
    pub(crate) queues: Vec<Queue>,
    /// The control socket's path.
    pub(crate) control: PathBuf,
    pub(crate) helper: Helper,
    /// All files that this process opens from here on.
    pub(crate) files: Files,
    /// The io_uring rings of the workers. They are made before the sandbox is entered, because the sandbox forbids making them.
    pub(crate) rings: Rings,
    /// Where `warren-fleet` connects, if the exit belongs to a fleet.
    pub(crate) fleet: Option<FleetSocket>,
}

/// Serves clients until the daemon is stopped. Then tells the clients, and restores the host.
///
/// # Errors
/// When the daemon cannot start, or loses its worker, its device or its nftables table.
pub(crate) async fn run(start: ExitStart, mut host: HostSetup) -> anyhow::Result<Ending> {
    let ended = start_and_serve(start, &mut host).await;
    // The host is restored in any case, even if the start failed half-way.
    let undone = host.undo_all().await.context("cannot restore the host");
    let ending = ended?;
    undone?;
    Ok(ending)
}

async fn start_and_serve(start: ExitStart, host: &mut HostSetup) -> anyhow::Result<Ending> {
    let (device, index) = (start.device.name().to_owned(), start.device.index());
    let (mut daemon, queues) = Daemon::start(start, host).await?;
    // Packets flow from here on.
    daemon.worker.open_device(queues, &forwarding(&daemon.config)).await;
    let outcome = match daemon.follow_host().await {
        Ok(()) => daemon.serve(device_watch::gone(device, index)).await,
        Err(error) => Err(error),
    };
    notify::stopping();
    let goodbye = daemon.goodbye();
    daemon.worker.stop(goodbye.code(), goodbye.to_string()).await;
    outcome
}

/// Makes a change of clients.
type Propose = Box<dyn FnOnce(&mut Clients) -> Result<Proposed, RequestRefused>>;

/// What follows the outcome of a change: the answer, and a line of the audit log.
type Then = Box<dyn FnOnce(&mut Daemon<'_>, Result<serde_json::Value, RequestRefused>)>;

/// A change that waits for the fleet's store.
struct Waiting {
    awaited: Awaited,
    then: Then,
    /// Whether rules and routes of the host may depend on the change.
    follows_host: bool,
}

/// Returns when to check the waiting changes, even if no event arrives.
fn due(link: &FleetLink<Waiting>) -> Option<Instant> {
    link.waiting.iter().map(|waiting| look_again_at(&waiting.awaited)).min()
}

/// The running exit. The daemon coordinates clients, host and reports, which have owners of their own. The struct has 16 fields
/// because each field owns a part of the exit or is a part of the daemon's state.
struct Daemon<'host> {
    config: ExitSettings,
    /// The keys that the key file held when it was read last.
    keys_read: Vec<PublicKey>,
    tuning: Tuning,
    worker: WorkerHandle,
    reports: Reports,
    control: ControlSocket,
    clients: Clients,
    host: &'host mut HostSetup,
    reporting: Reporting,
    reloads: Reloads,
    audit: Audit,
    spare_memory: SpareMemory,
    helper: Helper,
    /// The link to the fleet, if the exit belongs to one.
    fleet: Option<FleetLink<Waiting>>,
    /// How the daemon must end. Unset while it runs.
    stopping: Option<Ending>,
    /// Set while clients are sent to other exits: the time at which the exit ends even if some clients are still connected.
    drained_by: Option<Instant>,
}

impl<'host> Daemon<'host> {
    /// Enters the sandbox, starts the worker, and starts to serve metrics and page. Returns the device's queues, which no worker
    /// reads yet.
    async fn start(start: ExitStart, host: &'host mut HostSetup) -> anyhow::Result<(Self, Vec<Queue>)> {
        let ExitStart {
            config,
            clients,
            tuning,
            sockets,
            wireguard,
            reset_key,
            device,
            queues,
            control,
            helper,
            files,
            rings,
            fleet,
        } = start;
        // The setting must be in place before the worker receives its first packet.
        tuning.settings.strangers.set_silent(config.silent);
        // Both listening sockets are made here, because the sandbox forbids making one.
        let control = ControlSocket::bind(&control)?;
        let web_socket = web::unix_socket(config.web.as_ref())?;
        let audit = Audit::open(state_directory(&clients)?);
        sandbox::enter(&files)?;
        let identities = config.private_keys();
        let wireguard_key = wireguard.as_ref().map(|wireguard| wireguard.key.public());
        let carrier = Carrier::Exit { tuning: tuning.clone(), identities, sockets, wireguard, reset_key };
        let (worker, reports) = warren_tunnel::spawn(carrier, rings).await?;
        if wireguard_key.is_some() {
            clients.let_in_by_wireguard(&worker).await;
        }
        let device = DeviceStatus {
            name: device.name().to_owned(),
            mtu: INNER_MTU,
            offload: config.transport.tun_offload,
        };
        let mut reporting = Reporting::start(&config, web_socket, state_directory(&clients)?, device).await?;
        reporting.wireguard_key = wireguard_key;
        let fleet = fleet.map(|socket| FleetLink::new(socket, tuning.workers)).transpose();
        let fleet = fleet.context("cannot use the fleet's socket")?;
        let daemon = Self {
            fleet,
            keys_read: config.public_keys(),
            config,
            tuning,
            worker,
            reports,
            control,
            clients,
            host,
            reporting,
            reloads: Reloads::default(),
            audit,
            spare_memory: SpareMemory::new(Instant::now()),
            helper,
            stopping: None,
            drained_by: None,
        };
        Ok((daemon, queues))
    }

    async fn serve(&mut self, deleted: impl Future<Output = ()>) -> anyhow::Result<Ending> {
        let mut signals = Signals::watch()?;
        let mut watchdog = notify::Watchdog::of_this_process();
        self.log_start();
        notify::ready("serving clients");
        let mut deleted = pin!(deleted);
        let ending = loop {
            if let Some(ending) = self.stopping {
                break ending;
            }
            // Any event of the last round may have changed whether the exit must serve clients or send them to other exits.
            self.follow_fleet();
            self.clients.carry_out_all(&self.worker).await;
            self.answer_waiting().await;
            self.clients.take_joined().iter().for_each(|name| self.audit.note_joined(name));
            self.follow_forwards().await;
            // Every client has moved to another exit.
            if self.drained_by.is_some() && !self.clients.has_sessions() {
                break Ending::Stop;
            }
            tokio::select! {
                report = self.reports.recv() => match report {
                    Some(report) => self.take_report(report).await?,
                    None => bail!("the worker ended unexpectedly; see the log"),
                },
                () = until(Some(self.reporting.due())) => self.measure().await,
                () = until(Some(self.host.due())) => {
                    self.host.look(&self.config, self.clients.registry(), self.clients.store_addresses()).await;
                }
                () = until(self.clients.timeout()) => self.clients.handle_timeout(),
                () = until(self.fleet.as_ref().and_then(due)) => {}
                event = link::next(&mut self.fleet) => self.take_link_event(event),
                // Without its nftables table the exit would forward packets unprotected, so it ends.
                () = self.host.table_lost() => bail!("the exit's nftables table is gone, because the nft process that held it ended; start the exit again"),
                () = &mut deleted => bail!("the TUN device {} was deleted; start the exit again", self.reporting.device_name()),
                () = self.helper.ended() => bail!("the exit's helper process has ended; start the exit again"),
                asked = self.control.next() => self.answer(asked?).await,
                question = self.reporting.next() => match question {
                    HttpQuestion::Scrape(scrape) => self.answer_scrape(scrape).await,
                    HttpQuestion::Page(question) => self.answer_page(question).await,
                },
                () = until(self.drained_by) => self.stopping = Some(Ending::Stop),
                // A worker that hangs does not answer, so the watchdog treats it as dead.
                () = watchdog.due() => if self.worker.snapshot().await.is_some() { watchdog.alive() },
                order = signals.next() => match order {
                    Order::End(ending) => self.stopping = Some(ending),
                    // If a reload changes nothing, the log and the status say why.
                    Order::Reload => drop(self.reload().await),
                },
            }
        };
        self.log_end(ending);
        // Clients are told why the exit ends, while the worker can still send.
        self.clients.shut_down(self.goodbye());
        self.clients.carry_out_all(&self.worker).await;
        self.clients.end();
        Ok(ending)
    }

    fn log_start(&self) {
        let listen: Vec<String> = self.config.listen.iter().map(ToString::to_string).collect();
        let enrolled = self.clients.registry().len();
        let clients = counted(enrolled, "client");
        tracing::info!("listening on UDP {}; {clients} enrolled", listen.join(", "));
        if let Some(wireguard) = &self.config.wireguard {
            let listen: Vec<String> = wireguard.listen.iter().map(ToString::to_string).collect();
            tracing::info!("listening on UDP {} for WireGuard clients", listen.join(", "));
        }
    }

    fn log_end(&self, ending: Ending) {
        let sessions = counted(self.clients.with_sessions(), "session");
        match ending {
            Ending::Stop => tracing::info!("stopping, with {sessions} open"),
            Ending::Restart => tracing::info!("stopping for a restart, with {sessions} open"),
        }
    }

    /// The reason that clients are given when the exit ends.
    fn goodbye(&self) -> Goodbye {
        if self.drained_by.is_some() { Goodbye::Draining } else { Goodbye::Restarting }
    }

    async fn take_report(&mut self, report: Report) -> anyhow::Result<()> {
        self.worker.tell_others(&report).await;
        self.clients.look_at_clock();
        match report {
            Report::Connected { connection, peer, remote, proven } => {
                // This command precedes the client's first message, which must get through even if the exit is overloaded.
                if self.clients.is_client(peer) {
                    self.worker.send(ConnectionCommand::KnowAsClient { connection }).await;
                }
                self.clients.connected(connection.0, peer, remote, proven)
            }
            Report::WireGuardUp { connection, peer, .. } => self.clients.wireguard_up(connection.0, peer),
            Report::Control { connection, data } => self.clients.received(connection.0, &data),
            Report::Closed { connection, reason } => self.clients.closed(connection.0, &reason),
            // The worker moves the connection's flows to others. If the client never comes back, the connection ends with the idle
            // timeout.
            Report::Answers { connection, answers } => {
                tracing::debug!(connection = connection.0, answers, "a connection's path changed");
            }
            Report::DeviceFailed { error, .. } => {
                bail!("the TUN device failed: {error}; start the exit again")
            }
            // Only a worker of a client makes connections.
            Report::Connecting { .. } | Report::ConnectFailed { .. } => {}
        }
        Ok(())
    }

    /// Records how much the connections have carried until now, and frees spare memory.
    async fn measure(&mut self) {
        let snapshot = self.worker.snapshot().await.unwrap_or_default();
        let now = Instant::now();
        self.reporting.measure(now, &snapshot);
        self.clients.hear(now, &snapshot);
        self.say_load(now, &snapshot);
        self.spare_memory.look(now, &self.worker).await;
    }
}

/// The directory of the clients' store, which also contains the page's token.
fn state_directory(clients: &Clients) -> anyhow::Result<&Path> {
    clients.store().path().parent().context("the clients' store has no directory")
}

/// The rules for forwarding packets, from the configuration.
fn forwarding(config: &ExitSettings) -> Forwarding {
    let ipv4 = config.ipv4.map(gateway_ipv4).map(IpNet::V4);
    let gateways: Vec<IpNet> = ipv4.into_iter().chain(config.ipv6.map(gateway_ipv6).map(IpNet::V6)).collect();
    Forwarding::Exit {
        pools: gateways.iter().map(IpNet::trunc).collect(),
        gateways: gateways.iter().map(IpNet::addr).collect(),
        isolation: config.isolation,
    }
}

/// The signals that a daemon obeys.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    restart: Signal,
    hangup: Signal,
}

/// The meaning of a signal.
enum Order {
    End(Ending),
    Reload,
}

impl Signals {
    /// Catches the signals from here on, and survives SIGXFSZ, because a limit of file sizes must not end the exit.
    fn watch() -> anyhow::Result<Self> {
        let signals = Self {
            terminate: signal(SignalKind::terminate()).context("cannot watch SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("cannot watch SIGINT")?,
            restart: signal(SignalKind::user_defined1()).context("cannot watch SIGUSR1")?,
            hangup: signal(SignalKind::hangup()).context("cannot watch SIGHUP")?,
        };
        survive_file_size_limit().context("cannot watch SIGXFSZ")?;
        Ok(signals)
    }

    async fn next(&mut self) -> Order {
        tokio::select! {
            _ = self.terminate.recv() => Order::End(Ending::Stop),
            _ = self.interrupt.recv() => Order::End(Ending::Stop),
            _ = self.restart.recv() => Order::End(Ending::Restart),
            _ = self.hangup.recv() => Order::Reload,
        }
    }
}
