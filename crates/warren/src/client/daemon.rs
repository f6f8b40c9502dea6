//! The client daemon: carries the session's state machine, the worker and the host plan together.

mod answers;
mod connecting;
mod upkeep;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinHandle};
use warren_host::watch::Watch;
use warren_quic::driver::ConnectionId;
use warren_session::client::{ClientAction, ClientConfig, ClientSession, Stop, Welcome};
use warren_session::exit::SessionId;
use warren_session::goodbye::Goodbye;

use super::connect::Resolver;
use super::host::ClientHost;
use super::kill_switch::Lockdown;
use super::probe::Probe;
use crate::config::ClientProfile;
use crate::control::ControlSocket;
use crate::daemon_dir::DaemonDir;
use crate::deadline::until;
use crate::exit_code::{ExitCode, Failure};
use crate::notify;
use crate::status::State;
use crate::tuning::Tuning;
use crate::worker::{Carrier, Command, Forwarding, Report, SessionRoute, WorkerHandle};

/// What the daemon was started with.
pub(crate) struct ClientStart {
    /// The profile's name: of the TUN's journal, the runtime directory and messages.
    pub(crate) name: String,
    pub(crate) profile: ClientProfile,
    /// Its lock is held by the caller.
    pub(crate) directory: DaemonDir,
    /// The profile's kill switch, closed before anything else was done.
    pub(crate) lockdown: Lockdown,
    /// Where it is noted what outlives a boot.
    pub(crate) state_dir: PathBuf,
}

/// Runs until stopped. Leaves the host as it was.
///
/// # Errors
/// [`Failure`] with the exit code and sentence of DESIGN.md section 7.
pub(crate) async fn run(start: ClientStart) -> anyhow::Result<()> {
    let mut daemon = Daemon::start(start).await?;
    let outcome = daemon.serve().await;
    notify::stopping();
    // Whatever ended it, the exit is told, so that it keeps no session for a client that is gone.
    daemon.session.stop(Instant::now());
    while let Some(action) = daemon.session.poll_action() {
        if !matches!(action, ClientAction::Send { .. } | ClientAction::Close { .. }) {
            continue;
        }
        if let Err(error) = daemon.carry_out(action).await {
            tracing::debug!("cannot take leave of the exit: {error:#}");
        }
    }
    let undone = daemon.host.undo().await;
    let goodbye = Goodbye::ClientStopped;
    daemon.worker.stop(goodbye.code(), goodbye.to_string()).await;
    outcome?;
    undone?;
    Ok(())
}

struct Daemon {
    start: ClientStart,
    session: ClientSession,
    tuning: Tuning,
    worker: WorkerHandle,
    reports: mpsc::Receiver<Report>,
    control: ControlSocket,
    host: ClientHost,
    lockdown: Lockdown,
    watch: Watch,
    /// What of the host is not as it should be and could not be made so.
    host_trouble: Option<String>,
    resolver: Resolver,
    lookups: mpsc::Sender<LookupAnswer>,
    lookup_answers: mpsc::Receiver<LookupAnswer>,
    lookup_running: bool,
    /// Runs from the first attached connection until the exit's inner address has answered through the tunnel.
    probe: Option<JoinHandle<std::io::Result<()>>>,
    /// Connection indices that wait for the exit's address.
    waiting: Vec<u32>,
    connections: HashMap<ConnectionId, u32>,
    remotes: HashMap<u32, SocketAddr>,
    welcome: Option<Welcome>,
    state: State,
    since: Instant,
    reconnects: u64,
    last_error: Option<String>,
}

type LookupAnswer = Result<Vec<SocketAddr>, String>;

impl Daemon {
    async fn start(mut start: ClientStart) -> anyhow::Result<Self> {
        let tuning = start.profile.transport.tuning();
        let identity = start.profile.private_key.clone();
        let carrier = Carrier::Client { tuning: tuning.clone(), identity };
        let (worker, reports) = crate::worker::spawn(carrier).await?;
        let control = ControlSocket::bind(&start.directory.socket())?;
        let config = ClientConfig {
            connections: start.profile.transport.connections,
            name: start.name.clone(),
            features: 0,
            prefixes: Vec::new(),
        };
        let host = ClientHost::new(&start);
        let resolver = Resolver::new(start.profile.exit.endpoint.clone());
        let (lookups, lookup_answers) = mpsc::channel(1);
        Ok(Self {
            session: ClientSession::new(config, crate::entropy::source()),
            tuning,
            worker,
            reports,
            control,
            host,
            lockdown: std::mem::take(&mut start.lockdown),
            watch: Watch::open().context("cannot watch this host's network")?,
            host_trouble: None,
            resolver,
            lookups,
            lookup_answers,
            lookup_running: false,
            probe: None,
            waiting: Vec::new(),
            connections: HashMap::new(),
            remotes: HashMap::new(),
            welcome: None,
            state: State::Connecting,
            since: Instant::now(),
            reconnects: 0,
            last_error: None,
            start,
        })
    }

    async fn serve(&mut self) -> anyhow::Result<()> {
        let mut terminate = signal(SignalKind::terminate()).context("cannot watch SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot watch SIGINT")?;
        self.session.start(Instant::now());
        loop {
            while let Some(action) = self.session.poll_action() {
                if let Some(stop) = self.carry_out(action).await? {
                    return self.stopped(stop);
                }
            }
            let timeout = self.session.timeout();
            tokio::select! {
                report = self.reports.recv() => match report {
                    Some(report) => self.take_report(report).await?,
                    None => return Err(anyhow::anyhow!("the worker ended unexpectedly; see the log")),
                },
                probed = finished(&mut self.probe) => self.take_probe(probed),
                answer = self.lookup_answers.recv() => if let Some(answer) = answer { self.take_lookup(answer).await? },
                () = until(timeout) => self.session.handle_timeout(Instant::now()),
                () = self.host.device_gone() => anyhow::bail!("the TUN device was deleted or renamed; run `warren up` again"),
                changed = self.watch.changed() => {
                    changed.context("cannot watch this host's network")?;
                    self.look_after_host().await;
                }
                asked = self.control.next() => self.answer(asked).await,
                _ = terminate.recv() => self.stop(),
                _ = interrupt.recv() => self.stop(),
            }
        }
    }

    fn stop(&mut self) {
        self.set_state(State::Stopping);
        self.session.stop(Instant::now());
    }

    fn stopped(&self, stop: Stop) -> anyhow::Result<()> {
        match stop {
            Stop::Requested => Ok(()),
            Stop::Refused(sentence) => Err(Failure::new(ExitCode::Refused, sentence).into()),
            Stop::Goodbye(goodbye) => {
                let endpoint = &self.start.profile.exit.endpoint;
                Err(Failure::new(ExitCode::Refused, format!("the exit {endpoint} refused: {goodbye}")).into())
            }
        }
    }

    async fn carry_out(&mut self, action: ClientAction) -> anyhow::Result<Option<Stop>> {
        match action {
            ClientAction::Connect { index } => self.connect(index).await?,
            ClientAction::Send { index, bytes } => {
                if let Some(connection) = self.connection(index) {
                    self.worker.send(Command::SendControl { connection, data: bytes }).await;
                }
            }
            ClientAction::Close { index, reason } => {
                if let Some(connection) = self.connection(index) {
                    // From here on the index may be used anew; this connection's end is nobody's news.
                    self.connections.remove(&connection);
                    let (code, reason) = (reason.code(), reason.to_string());
                    self.worker.send(Command::Close { connection, code, reason }).await;
                }
            }
            ClientAction::Welcome(welcome) => self.welcome(*welcome).await?,
            ClientAction::Attach { index } => self.attach(index).await,
            ClientAction::Detach { index } => {
                if let Some(connection) = self.connection(index) {
                    self.worker.send(Command::Detach { connection }).await;
                }
            }
            ClientAction::Down { reason, goodbye } => {
                if let Some(probe) = self.probe.take() {
                    probe.abort();
                }
                if self.welcome.is_none() && goodbye == Some(Goodbye::PoolEmpty) {
                    // It may pass, but whoever waits for `up` wants to know now.
                    return Ok(Some(Stop::Goodbye(Goodbye::PoolEmpty)));
                }
                if self.state == State::Up {
                    self.reconnects += 1;
                    tracing::info!("connection to the exit lost: {reason}");
                    self.set_state(State::Reconnecting);
                } else {
                    tracing::info!("cannot reach the exit: {reason}");
                }
                notify::status(&format!("cannot reach the exit: {reason}"));
                self.last_error = Some(reason);
            }
            ClientAction::Stopped { reason } => return Ok(Some(reason)),
        }
        Ok(None)
    }

    async fn welcome(&mut self, welcome: Welcome) -> anyhow::Result<()> {
        let old = self.welcome.take();
        if let Some(old) = &old {
            self.worker.send(Command::EndSession { session: SessionId(old.session) }).await;
        }
        let queue = self.host.apply(&welcome).await?;
        let route = SessionRoute {
            ipv4: welcome.ipv4.map(|(address, _)| address),
            ipv6: welcome.ipv6.map(|(address, _)| address),
            prefixes: Vec::new(),
            connections: welcome.connections,
        };
        self.worker.send(Command::OpenSession { session: SessionId(welcome.session), route }).await;
        if let Some(queue) = queue {
            self.worker.send(Command::OpenDevice { queue, forwarding: Forwarding::Client }).await;
        }
        self.welcome = Some(welcome);
        Ok(())
    }

    async fn attach(&mut self, index: u32) {
        let (Some(connection), Some(welcome)) = (self.connection(index), &self.welcome) else { return };
        let session = SessionId(welcome.session);
        self.worker.send(Command::Attach { session, connection, index }).await;
        if self.state != State::Up && self.probe.is_none() {
            self.start_probe();
        }
    }

    fn start_probe(&mut self) {
        let probe = self.welcome.as_ref().and_then(Probe::of);
        let (Some(probe), Some(device)) = (probe, self.host.device()) else { return self.up() };
        notify::status(&format!("{} does not answer through the tunnel; see the exit's log", probe.gateway));
        self.probe = Some(tokio::spawn(probe.answered(device.name)));
    }

    /// The probe was answered, or could not be sent, which says nothing about the tunnel.
    fn take_probe(&mut self, probed: Result<std::io::Result<()>, JoinError>) {
        self.probe = None;
        if let Ok(Err(error)) = probed {
            tracing::debug!("cannot probe the tunnel: {error}");
        }
        self.up();
    }

    fn up(&mut self) {
        tracing::info!("connected to {}", self.start.profile.exit.endpoint);
        self.set_state(State::Up);
        self.last_error = None;
        notify::ready("connected");
    }

    async fn take_report(&mut self, report: Report) -> anyhow::Result<()> {
        let now = Instant::now();
        match report {
            Report::Connecting { index, connection } => {
                self.connections.retain(|_, other| *other != index);
                self.connections.insert(connection, index);
            }
            Report::ConnectFailed { index, error } => self.lost(index, error),
            Report::Connected { connection, .. } => {
                if let Some(index) = self.connections.get(&connection) {
                    self.session.connected(now, *index);
                }
            }
            Report::Control { connection, data } => {
                if let Some(index) = self.connections.get(&connection) {
                    self.session.received(now, *index, &data);
                }
            }
            Report::Closed { connection, reason } => {
                if let Some(index) = self.connections.remove(&connection) {
                    tracing::debug!(index, "connection closed: {reason}");
                    if let Some(remote) = self.remotes.get(&index) {
                        self.resolver.failed(*remote);
                    }
                    let end = self.end_of(reason);
                    self.session.closed(now, index, end);
                }
            }
            Report::DeviceFailed { error } => {
                let sentence = format!("the TUN device failed: {error}; run `warren up` again");
                return Err(anyhow::anyhow!(sentence));
            }
        }
        Ok(())
    }

    fn connection(&self, index: u32) -> Option<ConnectionId> {
        self.connections.iter().find(|(_, other)| **other == index).map(|(connection, _)| *connection)
    }

    fn set_state(&mut self, state: State) {
        if self.state != state {
            self.state = state;
            self.since = Instant::now();
        }
    }
}

/// Waits for a task's end, or for ever.
async fn finished<T>(task: &mut Option<JoinHandle<T>>) -> Result<T, JoinError> {
    match task {
        Some(task) => task.await,
        None => std::future::pending().await,
    }
}

/// How long a stopping daemon may take before whoever waits for it loses patience.
pub(crate) const STOP_TIMEOUT: Duration = Duration::from_secs(5);
