//! The client daemon: one loop that carries events between the sessions' state machines, the worker threads and the host.
//!
//! [`Daemon`] has the loop, here. Its state is split into types, none of which contains another. A method of one type borrows the
//! parts of the other types that it needs. The types are [`Sessions`], [`ExitNews`], [`HostUpkeep`], [`Health`], [`OnDemand`] and
//! [`ExecRequests`]. Three files handle events that concern several of them: `requests.rs` answers users, `session_events.rs`
//! follows sessions and workers, and `host_events.rs` follows this host and its network. Each file calls only the files named
//! after it.

mod connections;
mod exec_requests;
mod exit_news;
mod health;
mod host_events;
mod host_upkeep;
mod moves;
mod on_demand;
mod requests;
mod session;
mod session_events;
mod sessions;
mod task;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use warren_session::client::{ClientConfig, Stop};
use warren_session::goodbye::Goodbye;
use warren_session::{ROSTER, UPDATES};

use self::connections::{Connections, Lookups};
use self::exec_requests::ExecRequests;
use self::exit_news::ExitNews;
use self::health::{Health, Refusal};
use self::host_upkeep::HostUpkeep;
use self::moves::Moves;
use self::on_demand::OnDemand;
use self::session::SessionPair;
use self::sessions::{Sessions, UpProof};
use super::exec_upkeep::ExecUpkeep;
use super::fleet::Fleet;
use super::host::HostSetup;
use super::kill_switch::{self, Lockdown};
use super::learnt_keys::LearntKeys;
use super::lookup::NameServers;
use super::network_events::NetworkEvents;
use super::stub::{Stub, StubSockets};
use crate::exec_users::ExecUsers;
use crate::probe::EchoSockets;
use warren_config::ClientProfile;
use warren_config::storage::survive_file_size_limit;
use warren_control::ControlSocket;
use warren_control::status::RateMeter;
use warren_daemon::daemon_directory::DaemonDirectory;
use warren_daemon::deadline::until;
use warren_daemon::exit_code::{ExitCode, Failure};
use warren_daemon::helper::Helper;
use warren_daemon::notify;
use warren_daemon::spare_memory::SpareMemory;
use warren_tunnel::tuning::Tuning;
use warren_tunnel::{Carrier, Reports, Rings};

/// The settings that the daemon was started with.
pub(crate) struct Settings {
    /// The profile's name. It appears in the TUN device's journal, the runtime directory and messages.
    pub name: String,
    pub profile: ClientProfile,
    /// The exit that `up` was told to try first.
    pub first_exit: Option<String>,
    /// Whether `warren up` has started this daemon. If so, the tunnel is up even on a trusted network.
    pub wanted_up: bool,
    /// Whether the host's own traffic stays outside of the tunnel. This overrides the profile.
    pub host_outside: bool,
    /// The file from which the profile was read.
    pub file: PathBuf,
    /// The daemon's directory. The caller holds its lock.
    pub directory: DaemonDirectory,
    /// The other profiles whose kill switches were closed at the start.
    pub blocked_by: Vec<String>,
}

/// The parts from which the daemon is built.
pub(crate) struct ClientStart {
    pub settings: Settings,
    /// The profile's kill switch, closed before anything else was done.
    pub lockdown: Lockdown,
    /// The directory of records that outlive a boot.
    pub state_dir: PathBuf,
    /// The learnt keys, read from `state_dir` before the daemon enters its sandbox. Inside the sandbox, it cannot read that
    /// directory.
    pub learnt_keys: LearntKeys,
    /// The fleet as known so far, also read from `state_dir` before the sandbox.
    pub fleet: Fleet,
    pub helper: Helper,
    pub made: MadeBeforeSandbox,
}

/// The parts that must be created before the daemon enters its sandbox, because the sandbox forbids creating them.
pub(crate) struct MadeBeforeSandbox {
    pub rings: Rings,
    pub echo_sockets: EchoSockets,
    /// The stub resolver's sockets. `None` if the profile asks the tunnel's resolvers for all names.
    pub stub: Option<StubSockets>,
}

/// Runs until stopped, answering at `control`. Leaves the host as it was.
///
/// # Errors
/// [`warren_daemon::exit_code::Failure`] with the exit code and the message for the user.
pub(crate) async fn run(start: ClientStart, control: ControlSocket, users: ExecUsers) -> anyhow::Result<()> {
    let mut daemon = Daemon::start(start, control, users).await?;
    let outcome = daemon.serve().await;
    daemon.end(outcome).await
}

/// The daemon's loop, and the types between which it carries events.
struct Daemon {
    settings: Settings,
    tuning: Tuning,
    reports: Reports,
    control: ControlSocket,
    exec_requests: ExecRequests,
    network: NetworkEvents,
    helper: Helper,
    sessions: Sessions,
    exit_news: ExitNews,
    host: HostUpkeep,
    health: Health,
    on_demand: OnDemand,
    meter: RateMeter,
    spare_memory: SpareMemory,
}

impl Daemon {
    async fn start(start: ClientStart, control: ControlSocket, users: ExecUsers) -> anyhow::Result<Self> {
        let ClientStart { settings, lockdown, state_dir, learnt_keys, fleet, helper, made } = start;
        let (profile, directory) = (&settings.profile, &settings.directory);
        let tuning = profile.transport.tuning();
        let carrier = Carrier::Client { tuning: tuning.clone(), identity: profile.private_key.clone() };
        let (worker, reports) = warren_tunnel::spawn(carrier, made.rings).await?;
        let stub = made.stub.map(|sockets| Stub::start(sockets, helper.clone())).transpose()?;
        let setup = HostSetup::new(
            profile,
            lockdown.is_closed(),
            directory.journal(),
            state_dir,
            Some(helper.clone()),
        );
        let servers = match kill_switch::names_all_by_address(profile) && !fleet.has_names() {
            // No exit has to be looked up, so no name servers are needed. Waiting for the helper would only delay the first
            // connection.
            true => NameServers::default(),
            // The network's own name servers are read now, because the tunnel's resolvers will later replace them in the host's
            // files.
            false => NameServers::find(Some(helper.clone())).await,
        };
        let allows_outside = profile.kill_switch.allow_exec_outside;
        let exec = ExecUpkeep::new(&settings.name, directory, helper.clone(), allows_outside);
        let exit_news = ExitNews::new(learnt_keys, fleet, helper.clone());
        let exits = exit_news.first_exits(profile, settings.first_exit.as_ref());
        let connections = Connections::new(exits, Lookups::new(servers));
        let pair = SessionPair::new(session_config(&settings, &exit_news.fleet))?;
        let echo_sockets = made.echo_sockets;
        let (moves, proof) = (Moves::default(), UpProof::default());
        let mut sessions = Sessions { worker, connections, pair, moves, echo_sockets, proof };
        exit_news.name_fleet(&mut sessions);
        if exit_news.fleet.roster().is_some() {
            sessions.connections.measure_at(Instant::now() + FIRST_MEASUREMENT);
        }
        Ok(Self {
            tuning,
            reports,
            control,
            exec_requests: ExecRequests::new(users, directory.clone(), settings.name.clone()),
            network: NetworkEvents::watch(),
            sessions,
            exit_news,
            host: HostUpkeep::start(setup.with_stub(stub), lockdown, exec, helper.clone())?,
            health: Health::new(Refusal::new(directory.clone())),
            on_demand: OnDemand::new(
                profile.on_demand.trusted.clone(),
                settings.wanted_up || settings.host_outside,
                Instant::now(),
            ),
            meter: RateMeter::new(Instant::now()),
            spare_memory: SpareMemory::new(Instant::now()),
            helper,
            settings,
        })
    }

    /// Runs until the session has stopped, or until an error occurs after which the daemon cannot continue.
    async fn serve(&mut self) -> anyhow::Result<()> {
        let mut signals = Signals::watch()?;
        let mut watchdog = notify::Watchdog::of_this_process();
        // The network is checked before anything is sent, because the client sends nothing on a trusted network whose router has
        // answered recently.
        if self.on_demand.look_due().is_some() {
            self.look_at_network().await?;
        }
        if self.on_demand.resting().is_none() {
            self.sessions.pair.in_use.machine.start(Instant::now());
        }
        loop {
            // The last event may have caused actions. They are carried out first, because they may change the timers below.
            match self.carry_out_actions().await? {
                Some(Stop::Goodbye(goodbye)) => {
                    let sentence = self.sessions.connections.refusal_of(goodbye);
                    return Err(Failure::new(ExitCode::Refused, sentence).into());
                }
                Some(Stop::Requested) => return Ok(()),
                None => self.health.refusal.say_last_word()?,
            }
            let connections = &self.sessions.connections;
            let (race, silence) = (connections.race_due(), connections.silence_due());
            let (timeout, measuring) = (self.sessions.due(), connections.measuring_due());
            let (asking, look) = (self.health.refusal.asking_due(), self.on_demand.look_due());
            // Exits that come earlier in the profile are asked whether they are back only while the exit in use works.
            let failback = connections.failback_due().filter(|_| self.health.is_up());
            tokio::select! {
                report = self.reports.recv() => match report {
                    Some(report) => self.take_report(report).await?,
                    None => return Err(anyhow::anyhow!("the worker ended unexpectedly; see the log, and run `warren up` again")),
                },
                probed = self.sessions.pair.probed() => self.take_probe(probed),
                cause = self.health.diagnosis.finished() => {
                    self.health.diagnosed(cause);
                    self.health.tell_known_cause(self.sessions.connections.exits.count());
                }
                answer = self.sessions.connections.lookups.next() => if let Some(answer) = answer { self.take_lookup(answer).await? },
                () = until(Some(self.meter.due())) => self.measure().await,
                () = until(timeout) => self.handle_timeouts(),
                () = until(race) => self.sessions.run_race(&mut self.host.lockdown).await?,
                () = until(asking) => self.ask_again().await?,
                () = until(silence) => self.handle_silence().await?,
                () = until(look) => self.look_at_network().await?,
                () = until(measuring) => self.exit_news.measure(&self.settings.profile, &mut self.sessions, &mut self.host.lockdown, self.health.is_up()).await?,
                () = until(failback) => self.sessions.ask_for_failback(&mut self.host.lockdown).await?,
                event = self.network.next() => {
                    tracing::debug!(?event, "asking the exit for a sign of life");
                    self.sessions.hurry().await;
                    self.on_demand.look_soon(Instant::now());
                }
                changed = self.host.changed() => {
                    changed?;
                    self.look_after_host().await;
                }
                asked = self.control.next() => self.answer(asked?).await,
                asked = self.exec_requests.next() => self.exec_requests.answer(asked, &mut self.host, self.health.is_up()).await,
                () = self.helper.ended() => return Err(anyhow::anyhow!("the daemon's helper process has ended; run `warren up` again")),
                // A worker that hangs does not answer. Then the watchdog is not notified, and systemd treats the whole daemon as
                // hung.
                () = watchdog.due() => if self.sessions.worker.snapshot().await.is_some() { watchdog.alive() },
                // The result is ignored, because a failed reload is in the log and the status.
                _ = signals.hangup.recv() => drop(self.reload().await),
                _ = signals.terminate.recv() => self.stop().await,
                _ = signals.interrupt.recv() => self.stop().await,
                _ = signals.successor.recv() => self.make_way(),
            }
        }
    }

    /// Sends a Goodbye to the exit and restores the host, no matter why the daemon ends.
    async fn end(mut self, outcome: anyhow::Result<()>) -> anyhow::Result<()> {
        notify::stopping();
        // The exit is told of the end, so that it does not keep a session for a client that has stopped.
        self.sessions.stop().await;
        // The workers run until the host is restored: queries still go through the tunnel while the resolvers are put back.
        self.host.close_portal().await;
        let mut undone = self.host.undo().await;
        let goodbye = Goodbye::ClientStopped;
        self.sessions.worker.stop(goodbye.code(), goodbye.to_string()).await;
        if let Ok(devices_gone) = &mut undone {
            devices_gone.await;
        }
        if let (Err(_), Err(error)) = (&outcome, &undone) {
            // The daemon ends with the first error and reports it, so the second error is only logged.
            tracing::error!("{error:#}");
        }
        outcome?;
        undone.map(drop)
    }
}

/// The client's description of itself for an exit.
fn session_config(settings: &Settings, fleet: &Fleet) -> ClientConfig {
    let transport = &settings.profile.transport;
    let roster = if fleet.is_wanted() { ROSTER } else { 0 };
    ClientConfig {
        connections: transport.connections(),
        name: settings.name.clone(),
        features: transport.features() | UPDATES | roster,
        prefixes: settings.profile.routes.prefixes.clone(),
        ..ClientConfig::default()
    }
}

/// The time from the start of the daemon to the first measurement of the exits.
const FIRST_MEASUREMENT: Duration = Duration::from_secs(5);

/// The signals that the daemon acts on.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// Reads the profile again.
    hangup: Signal,
    /// Ends this daemon in favour of another daemon of this profile.
    successor: Signal,
}

impl Signals {
    fn watch() -> anyhow::Result<Self> {
        const CANNOT_WATCH: &str = "cannot watch signals; check the limits on descriptors";
        let watch = |kind| signal(kind).context(CANNOT_WATCH);
        // Without this call, the kernel would kill the daemon with SIGXFSZ when its log reaches the limit on file sizes.
        survive_file_size_limit().context(CANNOT_WATCH)?;
        Ok(Self {
            terminate: watch(SignalKind::terminate())?,
            interrupt: watch(SignalKind::interrupt())?,
            hangup: watch(SignalKind::hangup())?,
            successor: watch(SignalKind::user_defined1())?,
        })
    }
}

/// How long a daemon may take to stop before `up` or `down` gives up on it.
pub(crate) const STOP_TIMEOUT: Duration = Duration::from_secs(5);
