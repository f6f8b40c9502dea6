//! The client daemon: carries the session's state machine, the worker and the host plan together.

mod actions;
mod answers;
mod connecting;
mod ends;
mod grievances;
mod own_addresses;
mod probing;
mod refusal;
mod reload;
mod silence;
mod stopping;
mod upkeep;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use ipnet::IpNet;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinHandle};
use warren_host::watch::Watch;
use warren_quic::driver::ConnectionId;
use warren_session::client::{ClientConfig, ClientSession, Homing, SessionGrant, Vigil};

use self::connecting::{Opening, Purpose, Racing};
use self::grievances::Grievances;
use self::refusal::{Refused, Unproven};
use super::exits::{Exits, Way};
use super::host::ClientHost;
use super::kill_switch::Lockdown;
use super::lookup::NameServers;
use super::network_events::Alerts;
use warren_config::ClientProfile;
use warren_config::storage::survive_file_size_limit;
use warren_control::ControlSocket;
use warren_control::status::{RateMeter, State};
use warren_daemon::daemon_directory::DaemonDirectory;
use warren_daemon::deadline::until;
use warren_daemon::helper::Helper;
use warren_daemon::notify;
use warren_daemon::spare_memory::SpareMemory;
use warren_tunnel::tuning::Tuning;
use warren_tunnel::{Carrier, Report, Reports, WorkerHandle};

/// What the daemon was started with.
pub(crate) struct ClientStart {
    /// The profile's name: of the TUN's journal, the runtime directory and messages.
    pub name: String,
    pub profile: ClientProfile,
    /// Where the profile was read from.
    pub file: PathBuf,
    /// Its lock is held by the caller.
    pub directory: DaemonDirectory,
    /// The profile's kill switch, closed before anything else was done.
    pub lockdown: Lockdown,
    /// The other profiles whose kill switches were closed then.
    pub shut_in_by: Vec<String>,
    /// Where it is noted what outlives a boot.
    pub state_dir: PathBuf,
    /// None of a daemon that is only thought of, for a dry run.
    pub helper: Option<Helper>,
}

impl ClientStart {
    /// Waits until the helper has ended, which nobody but this daemon should end.
    async fn helper_ended(&self) {
        match &self.helper {
            Some(helper) => helper.ended().await,
            None => std::future::pending().await,
        }
    }

    /// The resolvers that this host's files name now.
    async fn listed_resolvers(&self) -> Vec<IpAddr> {
        match &self.helper {
            Some(helper) => helper.list_resolvers().await,
            None => Vec::new(),
        }
    }
}

/// Runs until stopped, answering at `control`. Leaves the host as it was.
///
/// # Errors
/// [`Failure`] with the exit code and sentence of DESIGN.md section 7.
pub(crate) async fn run(start: ClientStart, control: ControlSocket) -> anyhow::Result<()> {
    let mut daemon = Daemon::start(start, control).await?;
    let outcome = daemon.serve().await;
    daemon.end(outcome).await
}

struct Daemon {
    start: ClientStart,
    session: ClientSession,
    tuning: Tuning,
    session_config: ClientConfig,
    worker: WorkerHandle,
    reports: Reports,
    control: ControlSocket,
    host: ClientHost,
    lockdown: Lockdown,
    watch: Watch,
    /// What of the host is not as it should be and could not be made so.
    host_trouble: Option<HostTrouble>,
    /// Why the host could not be made as the latest Welcome asks.
    unapplied: Option<HostTrouble>,
    /// The networks that this host was in when it was made as the Welcome asks.
    networks_at_welcome: Vec<IpNet>,
    exits: Exits,
    servers: NameServers,
    lookups: mpsc::Sender<LookupAnswer>,
    lookup_answers: mpsc::Receiver<LookupAnswer>,
    /// The exits whose names are being looked up.
    lookups_running: BTreeSet<usize>,
    alerts: Alerts,
    vigil: Vigil,
    homing: Homing,
    race: Option<Racing>,
    /// Number of races so far.
    races: u64,
    /// Connections that were ordered and have no number yet, in order for each index.
    opening: HashMap<u32, VecDeque<Opening>>,
    /// What was tried last, why it did not answer (while that is being found out), and when that was last asked.
    tried: Option<SocketAddr>,
    diagnosis: Option<JoinHandle<Option<String>>>,
    diagnosed: Option<Instant>,
    grievances: Grievances,
    /// What was found out since the tunnel was last up.
    cause: Option<String>,
    /// The way that connection 0 took, and that the others take.
    way: Option<Way>,
    /// Runs from the first attached connection until the exit's inner address has answered through the tunnel.
    probe: Option<JoinHandle<std::io::Result<()>>>,
    connections: HashMap<ConnectionId, u32>,
    remotes: HashMap<u32, SocketAddr>,
    welcome: Option<SessionGrant>,
    state: State,
    since: Instant,
    meter: RateMeter,
    spare_memory: SpareMemory,
    reconnects: u64,
    last_error: Option<String>,
    /// Why the latest reload changed nothing.
    reload_error: Option<String>,
    /// Whether an `up` has started this daemon, for which neither traffic has flowed yet nor an exit said a last word.
    is_first_try: bool,
    /// What every exit has said for good.
    refused: Option<Refused>,
    unproven: Unproven,
    /// The sentence with which the daemon is to end as one that was refused.
    last_word: Option<String>,
}

/// What is wrong on the host.
struct HostTrouble {
    sentence: String,
    since: Instant,
}

/// What a look-up of an exit's name brought.
struct LookupAnswer {
    place: usize,
    answer: Result<Vec<SocketAddr>, String>,
}

impl Daemon {
    async fn start(mut start: ClientStart, control: ControlSocket) -> anyhow::Result<Self> {
        let tuning = start.profile.transport.tuning();
        let identity = start.profile.private_key.clone();
        let carrier = Carrier::Client { tuning: tuning.clone(), identity };
        let (worker, reports) = warren_tunnel::spawn(carrier).await?;
        let config = ClientConfig {
            connections: start.profile.transport.connections,
            name: start.name.clone(),
            features: 0,
            prefixes: start.profile.routes.prefixes.clone(),
        };
        let host = ClientHost::new(&start);
        let (lookups, lookup_answers) = mpsc::channel(4);
        Ok(Self {
            session: ClientSession::new(config.clone(), warren_daemon::entropy::source()),
            session_config: config,
            exits: Exits::of(&start.profile),
            servers: NameServers::find(start.helper.clone()).await,
            alerts: Alerts::start(),
            vigil: Vigil::default(),
            homing: Homing::new(),
            race: None,
            races: 0,
            opening: HashMap::new(),
            tried: None,
            diagnosis: None,
            diagnosed: None,
            grievances: Grievances::default(),
            cause: None,
            way: None,
            tuning,
            worker,
            reports,
            control,
            host,
            lockdown: std::mem::take(&mut start.lockdown),
            watch: watch().map_err(cannot_watch)?,
            host_trouble: None,
            unapplied: None,
            networks_at_welcome: Vec::new(),
            lookups,
            lookup_answers,
            lookups_running: BTreeSet::new(),
            probe: None,
            connections: HashMap::new(),
            remotes: HashMap::new(),
            welcome: None,
            state: State::Connecting,
            since: Instant::now(),
            meter: RateMeter::new(Instant::now()),
            spare_memory: SpareMemory::new(Instant::now()),
            reconnects: 0,
            last_error: None,
            reload_error: None,
            is_first_try: start.directory.is_being_started(),
            refused: None,
            unproven: Unproven::default(),
            last_word: None,
            start,
        })
    }

    async fn serve(&mut self) -> anyhow::Result<()> {
        let mut terminate = signal(SignalKind::terminate()).context(CANNOT_WATCH)?;
        let mut interrupt = signal(SignalKind::interrupt()).context(CANNOT_WATCH)?;
        let mut hangup = signal(SignalKind::hangup()).context(CANNOT_WATCH)?;
        survive_file_size_limit().context(CANNOT_WATCH)?;
        let mut successor = signal(SignalKind::user_defined1()).context(CANNOT_WATCH)?;
        let mut watchdog = notify::Watchdog::of_this_process();
        self.session.start(Instant::now());
        loop {
            while let Some(action) = self.session.poll_action() {
                if let Some(stop) = self.carry_out(action).await? {
                    return self.stopped(stop);
                }
            }
            self.say_last_word()?;
            let timeout = self.session.timeout();
            let (race, vigil, homing) = (self.race_due(), self.vigil.timeout(), self.homing_due());
            let asking = self.asking_due();
            tokio::select! {
                report = self.reports.recv() => match report {
                    Some(report) => self.take_report(report).await?,
                    None => return Err(anyhow::anyhow!("the worker ended unexpectedly; see the log, and run `warren up` again")),
                },
                probed = finished(&mut self.probe) => self.take_probe(probed),
                said = finished(&mut self.diagnosis) => self.take_diagnosis(said),
                answer = self.lookup_answers.recv() => if let Some(answer) = answer { self.take_lookup(answer).await? },
                () = until(Some(self.meter.due())) => self.measure().await,
                () = until(timeout) => self.session.handle_timeout(Instant::now()),
                () = until(race) => self.run_race().await?,
                () = until(asking) => self.ask_again().await?,
                () = until(vigil) => self.keep_vigil().await?,
                () = until(homing) => {
                    self.homing.asking(Instant::now());
                    self.start_race(Purpose::Return).await?;
                }
                alert = self.alerts.next() => self.take_alert(alert).await,
                changed = self.watch.changed() => {
                    changed.map_err(cannot_watch)?;
                    self.look_after_host().await;
                }
                asked = self.control.next() => self.answer(asked?).await,
                () = self.start.helper_ended() => return Err(anyhow::anyhow!("the daemon's helper process has ended; run `warren up` again")),
                // A worker that hangs does not answer, and so counts as dead too.
                () = watchdog.due() => if self.worker.snapshot().await.is_some() { watchdog.alive() },
                // Why it changed nothing stands in the log and in the status.
                _ = hangup.recv() => drop(self.reload().await),
                _ = terminate.recv() => self.stop().await,
                _ = interrupt.recv() => self.stop().await,
                _ = successor.recv() => self.make_way(),
            }
        }
    }

    async fn take_report(&mut self, report: Report) -> anyhow::Result<()> {
        let now = Instant::now();
        self.worker.tell_others(&report).await;
        match report {
            Report::Connecting { index, connection } => self.opened(index, connection).await,
            Report::ConnectFailed { index, error } => self.not_opened(index, error).await?,
            Report::Connected { connection, .. } => self.connected(connection).await?,
            Report::Answers { connection, answers } => self.take_answers(connection, answers).await,
            Report::Control { connection, data } => {
                if let Some(index) = self.connections.get(&connection).copied() {
                    if self.session.awaits_welcome(index) {
                        self.tell_taken_addresses().await;
                    }
                    self.session.received(now, index, &data);
                }
            }
            Report::Closed { connection, reason } => self.closed(connection, reason).await?,
            Report::DeviceFailed { device, error } => {
                tracing::warn!("the TUN device failed: {error}; it is made anew");
                self.host.device_failed(device);
                self.look_after_host().await;
            }
        }
        Ok(())
    }

    /// When to ask for an exit that stands before the one in use: only while that one works.
    fn homing_due(&self) -> Option<Instant> {
        self.homing.timeout().filter(|_| self.state == State::Up && self.race.is_none())
    }

    fn connection(&self, index: u32) -> Option<ConnectionId> {
        self.connections.iter().find(|(_, other)| **other == index).map(|(connection, _)| *connection)
    }

    /// The state that people see, and since when: that something is wrong on the host comes before what the session does.
    fn shown_state(&self) -> (State, Instant) {
        match &self.host_trouble {
            Some(trouble) if self.state != State::Stopping => (State::Error, trouble.since),
            _ => (self.state, self.since),
        }
    }

    fn set_state(&mut self, state: State) {
        if self.state != state {
            self.state = state;
            self.since = Instant::now();
        }
    }
}

/// Looks once in any case: what was changed before it began it has not heard of.
fn watch() -> std::io::Result<Watch> {
    let mut watch = Watch::open()?;
    watch.look_again();
    Ok(watch)
}

fn cannot_watch(error: std::io::Error) -> anyhow::Error {
    if error.kind() == std::io::ErrorKind::PermissionDenied {
        return anyhow::anyhow!(
            "cannot watch this host's network: not permitted; run it as root or with CAP_NET_ADMIN"
        );
    }
    anyhow::Error::new(error).context("cannot watch this host's network; check the limits on descriptors")
}

/// Waits for a task's end, or for ever.
async fn finished<T>(task: &mut Option<JoinHandle<T>>) -> Result<T, JoinError> {
    match task {
        Some(task) => task.await,
        None => std::future::pending().await,
    }
}

const CANNOT_WATCH: &str = "cannot watch signals; check the limits on descriptors";
/// How long a stopping daemon may take before whoever waits for it loses patience.
pub(crate) const STOP_TIMEOUT: Duration = Duration::from_secs(5);
