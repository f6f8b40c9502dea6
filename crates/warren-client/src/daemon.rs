//! The client daemon: one loop that carries events between the session's state machine, the worker threads and the host.
//!
//! [`Daemon`] has the loop. What it knows belongs to four types: [`CurrentSession`], [`Connections`], [`HostUpkeep`] and
//! [`Health`]. The other files here say what an event means for several of them at once.

mod connections;
mod control_requests;
mod exec_requests;
mod exit_news;
mod fleet_news;
mod health;
mod host_events;
mod host_upkeep;
mod moves;
mod moving;
mod on_demand;
mod proof;
mod proving;
mod refusals;
mod reload;
mod resting;
mod session;
mod session_actions;
mod stopping;
mod task;
mod worker_reports;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use warren_session::client::{ClientConfig, Stop};
use warren_session::{ROSTER, UPDATES};

use self::connections::{Connections, Lookups, Purpose};
use self::health::{Health, Refusal};
use self::host_upkeep::HostUpkeep;
use self::moves::Moves;
use self::on_demand::OnDemand;
use self::session::CurrentSession;
use super::exec_upkeep::ExecUpkeep;
use super::exits::Exits;
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
use warren_control::status::{RateMeter, State};
use warren_daemon::daemon_directory::DaemonDirectory;
use warren_daemon::deadline::until;
use warren_daemon::helper::Helper;
use warren_daemon::notify;
use warren_daemon::spare_memory::SpareMemory;
use warren_tunnel::tuning::Tuning;
use warren_tunnel::{Carrier, Reports, Rings, WorkerHandle};

/// What the daemon was started with.
pub(crate) struct ClientStart {
    /// The profile's name. The TUN device's journal, the runtime directory and messages carry it.
    pub name: String,
    pub profile: ClientProfile,
    /// The exit that `up` was told to try first.
    pub first_exit: Option<String>,
    /// Whether `warren up` has started this daemon, and wants the tunnel up even on a trusted network.
    pub wanted_up: bool,
    /// Whether the host's own traffic stays outside, whatever the profile says.
    pub host_outside: bool,
    /// Where the profile was read from.
    pub file: PathBuf,
    /// The caller holds its lock.
    pub directory: DaemonDirectory,
    /// The profile's kill switch, closed before anything else was done.
    pub lockdown: Lockdown,
    /// The other profiles whose kill switches were closed at the start.
    pub blocked_by: Vec<String>,
    /// The directory of records that outlive a boot.
    pub state_dir: PathBuf,
    /// Read before the sandbox, which keeps the daemon from that directory.
    pub learnt_keys: LearntKeys,
    /// As the learnt keys.
    pub fleet: Fleet,
    pub helper: Helper,
    pub made: MadeBeforeSandbox,
}

/// What the daemon cannot make in the sandbox.
pub(crate) struct MadeBeforeSandbox {
    pub rings: Rings,
    pub echo_sockets: EchoSockets,
    /// None if the profile asks the tunnel's resolvers for all names.
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
    start: ClientStart,
    tuning: Tuning,
    worker: WorkerHandle,
    reports: Reports,
    control: ControlSocket,
    exec_users: ExecUsers,
    network: NetworkEvents,
    session: CurrentSession,
    connections: Connections,
    moves: Moves,
    host: HostUpkeep,
    health: Health,
    on_demand: OnDemand,
    meter: RateMeter,
    spare_memory: SpareMemory,
}

impl Daemon {
    async fn start(mut start: ClientStart, control: ControlSocket, users: ExecUsers) -> anyhow::Result<Self> {
        let profile = &start.profile;
        let tuning = profile.transport.tuning();
        let carrier = Carrier::Client { tuning: tuning.clone(), identity: profile.private_key.clone() };
        let (worker, reports) = warren_tunnel::spawn(carrier, std::mem::take(&mut start.made.rings)).await?;
        let config = ClientConfig {
            connections: profile.transport.connections(),
            name: start.name.clone(),
            features: profile.transport.features()
                | UPDATES
                | if start.fleet.is_wanted() { ROSTER } else { 0 },
            prefixes: profile.routes.prefixes.clone(),
            ..ClientConfig::default()
        };
        let setup = HostSetup::new(
            profile,
            start.lockdown.is_closed(),
            start.directory.journal(),
            start.state_dir.clone(),
            Some(start.helper.clone()),
        );
        let stub =
            start.made.stub.take().map(|sockets| Stub::start(sockets, start.helper.clone())).transpose()?;
        let setup = setup.with_stub(stub);
        let servers = match kill_switch::names_all_by_address(profile) && !start.fleet.has_names() {
            // Nothing will be looked up, and waiting for the helper would delay the first connection.
            true => NameServers::default(),
            // Before the tunnel's resolvers take the place of the network's own in the host's files.
            false => NameServers::find(Some(start.helper.clone())).await,
        };
        let exec = ExecUpkeep::new(
            &start.name,
            &start.directory,
            start.helper.clone(),
            profile.kill_switch.allow_exec_outside,
        );
        let exits = first_exits(&start);
        let mut daemon = Self {
            tuning,
            worker,
            reports,
            control,
            exec_users: users,
            network: NetworkEvents::watch(),
            session: CurrentSession::new(config)?,
            connections: Connections::new(exits, Lookups::new(servers)),
            moves: Moves::default(),
            host: HostUpkeep::start(setup, std::mem::take(&mut start.lockdown), exec, start.helper.clone())?,
            health: Health::new(Refusal::new(start.directory.clone())),
            on_demand: OnDemand::new(
                start.profile.on_demand.trusted.clone(),
                start.wanted_up || start.host_outside,
                Instant::now(),
            ),
            meter: RateMeter::new(Instant::now()),
            spare_memory: SpareMemory::new(Instant::now()),
            start,
        };
        // `first_exits` has taken over the exits. Doing that again would draw another order.
        daemon.name_fleet();
        if daemon.start.fleet.roster().is_some() {
            daemon.connections.measure_at(Instant::now() + FIRST_MEASUREMENT);
        }
        Ok(daemon)
    }

    /// Runs until the session has stopped, or something fails that the daemon cannot do without.
    async fn serve(&mut self) -> anyhow::Result<()> {
        let mut signals = Signals::watch()?;
        let mut watchdog = notify::Watchdog::of_this_process();
        // Nothing is sent on a trusted network whose router has answered lately.
        if self.on_demand.look_due().is_some() {
            self.look_at_network().await?;
        }
        if self.on_demand.resting().is_none() {
            self.session.machine.start(Instant::now());
        }
        loop {
            // Each event may leave actions, and these may change what the timers below wait for.
            if let Some(stop) = self.carry_out_actions().await? {
                return self.stopped(stop);
            }
            self.health.refusal.say_last_word()?;
            let timeout = self.session_due();
            let (race, silence) = (self.connections.race_due(), self.connections.silence_due());
            let (failback, asking) = (self.failback_due(), self.health.refusal.asking_due());
            let (look, measuring) = (self.on_demand.look_due(), self.connections.measuring_due());
            tokio::select! {
                report = self.reports.recv() => match report {
                    Some(report) => self.take_report(report).await?,
                    None => return Err(anyhow::anyhow!("the worker ended unexpectedly; see the log, and run `warren up` again")),
                },
                probed = self.session.probed() => self.take_probe(probed),
                cause = self.health.diagnosis.finished() => {
                    self.health.diagnosed(cause);
                    self.health.tell_known_cause(self.connections.exits.count());
                }
                answer = self.connections.lookups.next() => if let Some(answer) = answer { self.take_lookup(answer).await? },
                () = until(Some(self.meter.due())) => self.measure().await,
                () = until(timeout) => self.handle_timeouts(),
                () = until(race) => self.run_race().await?,
                () = until(asking) => self.ask_again().await?,
                () = until(silence) => self.handle_silence().await?,
                () = until(look) => self.look_at_network().await?,
                () = until(measuring) => self.measure_exits().await?,
                () = until(failback) => {
                    self.connections.asks_for_failback(Instant::now());
                    self.start_race(Purpose::Failback).await?;
                }
                event = self.network.next() => self.take_network_event(event).await,
                changed = self.host.changed() => {
                    changed?;
                    self.look_after_host().await;
                }
                asked = self.control.next() => self.answer(asked?).await,
                asked = self.exec_users.next() => self.answer_user(asked).await,
                () = self.start.helper.ended() => return Err(anyhow::anyhow!("the daemon's helper process has ended; run `warren up` again")),
                // A worker that hangs does not answer. Then there is no sign of life, and systemd treats the whole daemon as hung.
                () = watchdog.due() => if self.worker.snapshot().await.is_some() { watchdog.alive() },
                // The log and the status say why a reload changed nothing.
                _ = signals.hangup.recv() => drop(self.reload().await),
                _ = signals.terminate.recv() => self.stop().await,
                _ = signals.interrupt.recv() => self.stop().await,
                _ = signals.successor.recv() => self.make_way(),
            }
        }
    }

    /// Carries out what the session's state machine asks for. Returns a reason if the daemon is to stop.
    async fn carry_out_actions(&mut self) -> anyhow::Result<Option<Stop>> {
        loop {
            while let Some(action) = self.moves.take_news().or_else(|| self.session.machine.poll_action()) {
                if let Some(stop) = self.carry_out(action).await? {
                    return Ok(Some(stop));
                }
            }
            // After a step of a move, the session in use may have something to send.
            if !self.follow_move().await? {
                return Ok(None);
            }
        }
    }

    /// When [`Self::handle_timeouts`] has something to do.
    fn session_due(&self) -> Option<Instant> {
        let beside = self.session.beside.as_ref().and_then(|beside| beside.machine.timeout());
        let own = self.session.machine.timeout();
        [own, beside, self.moves.plan.due(), self.proof_due()].into_iter().flatten().min()
    }

    /// Does what is due for the sessions. What is due for a move between them follows with their actions.
    fn handle_timeouts(&mut self) {
        let now = Instant::now();
        self.session.machine.handle_timeout(now);
        if let Some(beside) = &mut self.session.beside {
            beside.machine.handle_timeout(now);
        }
        self.look_at_proof(now);
    }

    /// When to ask whether an earlier exit of the profile is back. Until the exit in use works, nothing is asked.
    fn failback_due(&self) -> Option<Instant> {
        self.connections.failback_due().filter(|_| self.health.state() == State::Up)
    }
}

/// The exits to begin with: the one that the user has asked for, or the one that is chosen, or the profile's first.
fn first_exits(start: &ClientStart) -> Exits {
    let mut exits = Exits::of(&start.profile);
    let is_listed = |name: &String| start.profile.exits().any(|exit| exit.is_called(name));
    let asked_for = start.first_exit.as_ref().filter(|name| !is_listed(name));
    if start.first_exit.is_some() {
        let member = asked_for.and_then(|name| start.fleet.find(name));
        exits.ask_for(member.map(|member| member.name.clone()));
    }
    exits.follow(&start.profile, &start.learnt_keys, &start.fleet);
    // Before the first measurement, the profile's own exit is the one that surely answers.
    if asked_for.is_some() || (exits.chooses() && start.fleet.is_measured()) {
        exits.use_first();
    }
    exits
}

/// When exits are measured for the first time.
const FIRST_MEASUREMENT: Duration = Duration::from_secs(5);

/// The signals that the daemon acts on.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// Reads the profile again.
    hangup: Signal,
    /// Makes way for another daemon of this profile.
    successor: Signal,
}

impl Signals {
    fn watch() -> anyhow::Result<Self> {
        const CANNOT_WATCH: &str = "cannot watch signals; check the limits on descriptors";
        let watch = |kind| signal(kind).context(CANNOT_WATCH);
        // Otherwise a signal of the kernel (SIGXFSZ) would end the daemon when its log reaches the limit on file sizes.
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
