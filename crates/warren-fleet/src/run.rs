//! `warren fleet run`: links the exit of this host to the store.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};
use warren_fleet_link::{ExitMessage, FleetMessage};

use crate::addresses;
use crate::certificates;
use crate::clock;
use crate::config::FleetConfig;
use crate::exit_socket::{self, FromExit};
use crate::exits::Removed;
use crate::joined::joined_as;
use crate::link::Link;
use crate::meta::Position;
use crate::once::Once;
use crate::sessions::SessionBatch;
use crate::snapshot::{Owner, Snapshot, StateDirectory};
use crate::store::session::{self, FromStore, LastAnswer, Recorded, Setup, ToStore};
use crate::store_history::StoreHistory;
use crate::users;

/// How often this exit tells the other exits its state.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(2);

/// The shortest time between two heartbeats.
pub(crate) const SOONEST_HEARTBEAT: Duration = Duration::from_millis(200);

/// How soon changed rows are written to disk, unless writing takes long.
pub(crate) const SAVE: Duration = Duration::from_secs(1);

/// How often the link's position is written to disk if nothing else has changed.
const SAVE_POSITION: Duration = Duration::from_secs(10);

/// Saving may take at most this fraction (1 / `SAVING_SHARE`) of the time.
const SAVING_SHARE: u32 = 20;

/// The shortest and the longest pause between connections to the store. The pauses grow until a member answers.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));

/// The end of a connection to the store is logged only if the connection has lasted this long.
const LASTING: Duration = Duration::from_secs(10);

/// How often the link checks again whether a store that it refused may be used.
pub(crate) const REFUSED_PAUSE: Duration = Duration::from_secs(2);

/// The directories of configuration, runtime files and state.
pub(crate) struct Directories<'a> {
    pub(crate) config: &'a Path,
    pub(crate) runtime: &'a Path,
    pub(crate) state: &'a Path,
}

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// If the configuration or the copy on disk is invalid.
pub(crate) async fn run(directories: Directories<'_>) -> anyhow::Result<()> {
    let config = FleetConfig::read(directories.config)?;
    // A missing certificate is a mistake that no retry corrects, so it is reported at once.
    config.store.options()?;
    let mut state = StateDirectory::new(directories.state);
    state.create()?;
    let _lock = state.lock_link()?;
    let process = random_name()?;
    // `warren fleet leave` may have run in the meantime. So the configuration is read again while nobody clears the directory.
    let config = state.claim(&process, || FleetConfig::read(directories.config))?;
    let looked_at = config.store.clone();
    let mut runner = Runner::new(config, process, state, joined_as(directories.config))?;
    let socket = directories.runtime.join("fleet").join("fleet.sock");
    let (report, mut from_exit) = mpsc::channel(64);
    let connecting = tokio::spawn(exit_socket::run(socket, report));
    let (seen, mut certificates) = mpsc::channel(1);
    let looking = tokio::spawn(certificates::watch(looked_at, seen));
    let (found, mut addresses) = mpsc::channel(1);
    let looking_up = tokio::spawn(addresses::watch(runner.config.store.endpoints.clone(), found));
    let sweeping = tokio::spawn(users::watch(runner.config.clone(), Arc::clone(&runner.may_sweep)));
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM cannot be watched")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT cannot be watched")?;
    // The unit is ready before the store answers, because the exit gets the copy from the disk until then.
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    let mut ticks = interval(Duration::from_millis(50));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut ended = interval(SAVE);
    ended.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            Some(message) = from_exit.recv() => runner.exit_says(message),
            Some(message) = runner.store.recv() => runner.store_says(message),
            Some(found) = certificates.recv() => runner.link.set_certificates(found),
            Some(found) = addresses.recv() => runner.link.set_addresses(found),
            _ = ticks.tick() => runner.tick(),
            _ = ended.tick() => if !runner.disk.state.is_claimed() {
                tracing::warn!("this link ends: this exit has left its fleet, or another link has taken this one's place");
                break;
            },
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
        }
        runner.pump();
    }
    [connecting, looking, looking_up, sweeping].iter().for_each(JoinHandle::abort);
    runner.stop().await;
    Ok(())
}

/// The link, its connections to the exit and the store, and its files.
struct Runner {
    config: FleetConfig,
    link: Link,
    exit: Option<mpsc::Sender<FleetMessage>>,
    store: StoreConnection,
    lease: Arc<AtomicI64>,
    /// The number with which this host has joined, if that is known.
    joined_as: Option<u64>,
    answered: Arc<LastAnswer>,
    /// Whether the store answers and may be used, and this host's clock is right.
    may_sweep: Arc<AtomicBool>,
    history: StoreHistory,
    due: Due,
    is_recording: bool,
    disk: Disk,
    said: Said,
}

/// The failures that were logged already. The link tries again and again, but the log should explain a failure only once.
#[derive(Default)]
struct Said {
    of_exit: Once,
    of_store: Once,
    of_disk: Once,
}

/// When each periodic task is due.
struct Due {
    report: Instant,
    heartbeat: Instant,
    /// The time of the last heartbeat.
    beaten: Instant,
    save: Instant,
}

/// The files on disk, and the state that was last saved to them.
struct Disk {
    state: StateDirectory,
    saving: Option<JoinHandle<()>>,
    position: Option<Position>,
    changes: u64,
    /// How long the latest save took, in milliseconds.
    took: Arc<AtomicU64>,
    /// Whether the latest save failed.
    has_failed: Arc<AtomicBool>,
    saved: Instant,
}

impl Disk {
    /// Whether the disk has this position. An exit must not confirm its removal while a restart could make it forget the removal.
    fn has_saved(&self, position: Option<&Position>) -> bool {
        !self.is_saving() && !self.has_failed.load(Ordering::Relaxed) && self.position.as_ref() == position
    }

    fn is_saving(&self) -> bool {
        self.saving.as_ref().is_some_and(|saving| !saving.is_finished())
    }
}

/// The connections to the store, one member after the other.
struct StoreConnection {
    commands: Option<mpsc::Sender<ToStore>>,
    reports: Option<mpsc::Receiver<FromStore>>,
    /// The member that is, or was, connected.
    member: usize,
    pause: Duration,
    next: Instant,
    /// The time since when the member answers.
    up: Option<Instant>,
}

impl StoreConnection {
    async fn recv(&mut self) -> Option<FromStore> {
        match &mut self.reports {
            Some(reports) => match reports.recv().await {
                Some(report) => Some(report),
                None => Some(FromStore::Down { reason: "its connection has ended".to_owned() }),
            },
            None => std::future::pending().await,
        }
    }

    fn send(&self, command: ToStore) -> bool {
        self.commands.as_ref().is_some_and(|commands| commands.try_send(command).is_ok())
    }

    /// Whether the member has answered for so long that the connection's end is worth logging.
    fn has_lasted(&self) -> bool {
        self.up.is_some_and(|since| since.elapsed() >= LASTING)
    }

    /// Ends the connection. Another member is next, after a pause that grows.
    fn end(&mut self, pause: Option<Duration>) {
        (self.commands, self.reports, self.up) = (None, None, None);
        self.member += 1;
        self.next = Instant::now() + pause.unwrap_or(self.pause);
        self.pause = (self.pause * 2).min(PAUSES.1);
    }
}

impl Runner {
    fn new(
        config: FleetConfig,
        process: String,
        state: StateDirectory,
        joined_as: Option<u64>,
    ) -> anyhow::Result<Self> {
        let now = Instant::now();
        let mut link = Link::new(config.keys(), config.exit.clone(), process, now);
        link.set_addresses(addresses::without_look_up(&config.store.endpoints));
        let snapshot = state.load(&Owner::of(&config))?;
        if let Some(snapshot) = &snapshot {
            link.resume(snapshot.revision, &snapshot.pairs);
            link.stay_removed(&snapshot.position);
        } else {
            link.joined_as(joined_as);
        }
        let history = StoreHistory::resumed(snapshot.as_ref());
        let store = StoreConnection {
            commands: None,
            reports: None,
            member: first_member(&config),
            pause: PAUSES.0,
            next: now,
            up: None,
        };
        let disk = Disk {
            state,
            saving: None,
            position: snapshot.map(|snapshot| snapshot.position),
            changes: link.changes(),
            took: Arc::default(),
            has_failed: Arc::default(),
            saved: now,
        };
        let due = Due { report: now, heartbeat: now, beaten: now, save: now + SAVE };
        let lease = Arc::new(AtomicI64::new(0));
        Ok(Self {
            config,
            link,
            exit: None,
            store,
            lease,
            joined_as,
            answered: Arc::new(LastAnswer::new(now)),
            may_sweep: Arc::default(),
            history,
            due,
            is_recording: false,
            disk,
            said: Said::default(),
        })
    }

    fn exit_says(&mut self, message: FromExit) {
        self.link.store_answered(self.answered.get());
        match message {
            FromExit::Connected(sender) => self.exit = Some(sender),
            // The connection is about to end, so its messages are ignored.
            FromExit::Said(_) if self.exit.is_none() => {}
            FromExit::Said(message) => {
                let is_hello = matches!(message, ExitMessage::Hello { .. });
                match self.link.exit_said(message, Instant::now()) {
                    Ok(()) if is_hello && self.said.of_exit.forget() => {
                        tracing::info!("the exit is served now");
                    }
                    Ok(()) => {}
                    Err(reason) => {
                        if self.said.of_exit.is_news(&reason) {
                            tracing::error!("{reason}");
                        }
                        // The exit shows the reason in its status.
                        self.exit.iter().for_each(|exit| {
                            let _ = exit.try_send(FleetMessage::Refused { reason: reason.clone() });
                        });
                        self.exit_gone();
                    }
                }
            }
            FromExit::Gone => self.exit_gone(),
        }
    }

    fn exit_gone(&mut self) {
        // Dropping the sender ends the connection.
        self.exit = None;
        self.link.exit_gone();
        // The next exit process gets a new lease, even if the store does not receive this message.
        self.store.send(ToStore::EndLease(self.lease.swap(0, Ordering::Relaxed)));
        self.due.heartbeat = Instant::now();
    }

    fn store_says(&mut self, message: FromStore) {
        let now = Instant::now();
        match message {
            FromStore::Up { meta, cluster, revision } => {
                let line = format!("connected to the store at {}", self.endpoint());
                if self.said.of_store.is_news(&line) {
                    tracing::info!("{line}");
                }
                (self.store.pause, self.store.up) = (PAUSES.0, Some(now));
                self.history.found(&self.link, meta.clone(), cluster);
                self.link.store_answered(self.answered.get());
                self.link.store_up(meta, revision, now);
                self.due.heartbeat = now;
            }
            FromStore::Whole { revision, pairs } => {
                self.link.whole(revision, &pairs);
                self.history.has_read_all();
                self.due.save = now;
                // A new exit gets its clients once the store has its key.
                self.due.heartbeat = now;
            }
            FromStore::Events { revision, pairs } => {
                self.link.events(revision, &pairs, clock::now());
                // This link has used a restored store without noticing it. Another exit has noticed it, and an
                // operator has recovered the store.
                if self.link.epoch() != self.history.epoch() {
                    tracing::warn!("the store was recovered; connecting again");
                    self.history.must_read_all(&self.link);
                    self.lost("the store was recovered".to_owned(), Some(Duration::ZERO));
                }
            }
            FromStore::NewLease => self.link.has_new_lease(),
            FromStore::Sessions { batch, outcome } => self.recorded(&batch, outcome, now),
            FromStore::Compacted => {
                tracing::info!(
                    "the store has compacted changes that this link has not seen; reading everything again"
                );
                self.history.must_read_all(&self.link);
                self.lost("it has compacted its changes".to_owned(), Some(Duration::ZERO));
            }
            FromStore::Down { reason } => {
                if self.store.has_lasted() {
                    let _ = self.said.of_store.forget();
                }
                if self.said.of_store.is_news(&reason) {
                    tracing::warn!("the connection to the store has failed: {reason}; trying again");
                }
                self.lost(reason, None);
            }
            FromStore::Refused { reason, must_stop, removed } => {
                if self.said.of_store.is_news(&reason) {
                    tracing::error!("the store is not used: {reason}");
                }
                self.is_recording = false;
                if must_stop {
                    self.must_stop(removed);
                }
                self.link.store_refused((reason, must_stop), now);
                // `warren fleet recover` reads the disk, so the disk must contain the latest rows of this link.
                self.due.save = now;
                self.store.end(Some(REFUSED_PAUSE));
            }
        }
    }

    /// Records that the store says that this exit was removed and must stop.
    fn must_stop(&mut self, removed: Option<Removed>) {
        if let Some(removed) = removed {
            self.link.was_removed(removed);
        }
        self.history.must_stop(removed);
        self.save_removal();
    }

    /// Saves that this exit must stop, if the link has not read the store and so has no copy to save.
    fn save_removal(&mut self) {
        let Some(position) = self.history.removal() else { return };
        if self.disk.has_saved(Some(position)) {
            return;
        }
        let saved = self.disk.state.save_position(position);
        self.disk.has_failed.store(saved.is_err(), Ordering::Relaxed);
        match saved {
            Ok(()) => self.disk.position = Some(position.clone()),
            Err(error) => {
                let line = format!("{error:#}; make room on the disk");
                if self.said.of_disk.is_news(&line) {
                    tracing::error!("{line}");
                }
            }
        }
    }

    fn recorded(&mut self, batch: &SessionBatch, outcome: Recorded, now: Instant) {
        self.is_recording = false;
        match outcome {
            Recorded::Stored => self.link.sessions_stored(batch, now),
            Recorded::Conflict => self.link.sessions_refused(batch, now),
            // All records are written again with the new lease.
            Recorded::LeaseEnded => {}
        }
    }

    fn lost(&mut self, reason: String, pause: Option<Duration>) {
        self.is_recording = false;
        self.link.store_down(reason, Instant::now());
        self.store.end(pause);
    }

    fn endpoint(&self) -> &str {
        let endpoints = &self.config.store.endpoints;
        endpoints.get(self.store.member % endpoints.len().max(1)).map_or("", String::as_str)
    }

    fn tick(&mut self) {
        let now = Instant::now();
        if self.store.reports.is_none() && now >= self.store.next {
            self.connect();
        }
        self.may_sweep.store(self.link.is_up() && self.link.is_clock_right(), Ordering::Relaxed);
        self.link.store_answered(self.answered.get());
        self.link.expire(now);
        if now >= self.due.report {
            self.due.report = now + Duration::from_secs(1);
            self.link.tell_store(now);
        }
        let is_news = self.due.beaten.elapsed() >= SOONEST_HEARTBEAT && self.link.take_news();
        if now >= self.due.heartbeat || is_news {
            self.beat(now);
        }
        if !self.is_recording
            && let Some(batch) = self.link.next_sessions(now)
        {
            self.is_recording = self.store.send(ToStore::Sessions(batch));
        }
        if now >= self.due.save && !self.disk.is_saving() {
            let took = Duration::from_millis(self.disk.took.load(Ordering::Relaxed));
            self.due.save = now + SAVE.max(took * SAVING_SHARE);
            let has_changed = self.disk.changes != self.link.changes();
            if has_changed || now.duration_since(self.disk.saved) >= SAVE_POSITION {
                self.save();
            }
        }
    }

    fn beat(&mut self, now: Instant) {
        self.due.heartbeat = now + HEARTBEAT;
        self.due.beaten = now;
        if !self.link.is_up() {
            return;
        }
        if let Some((transaction, leased)) = self.link.heartbeat(clock::now()) {
            self.store.send(ToStore::Heartbeat(transaction, leased));
        }
    }

    /// Connects to the next member of the store.
    fn connect(&mut self) {
        // The files are read again, so that a renewed certificate needs no restart.
        let options = match self.config.store.options() {
            Ok(options) => options,
            Err(error) => return self.lost(format!("{error:#}"), None),
        };
        let (commands, receiver) = mpsc::channel(256);
        let (report, reports) = mpsc::channel(256);
        // The store may have been recovered since this link last saw it, even if the link did not notice the backup.
        let rows = Arc::clone(self.link.rows());
        let position = self.history.position(&self.link);
        let setup = Setup {
            options,
            endpoint: self.endpoint().to_owned(),
            keys: self.config.keys(),
            me: self.config.exit.clone(),
            joined_as: self.joined_as,
            revision: self.history.live_from(&self.link),
            rows,
            beside_rows: self.link.beside_rows(),
            has_stopped: self.link.has_stopped() && self.disk.has_saved(position.as_ref()),
            position,
            lease: Arc::clone(&self.lease),
            answered: Arc::clone(&self.answered),
        };
        (self.store.commands, self.store.reports) = (Some(commands), Some(reports));
        tokio::spawn(session::run(setup, report, receiver));
    }

    /// Sends everything that is due.
    fn pump(&mut self) {
        if let Some(transaction) = self.link.next_transaction() {
            self.store.send(ToStore::Transaction(transaction));
        }
        let messages = self.link.take_messages();
        let Some(exit) = &self.exit else { return };
        for message in messages {
            if exit.try_send(message).is_err() {
                tracing::warn!("the exit does not read its messages; connecting again");
                return self.exit_gone();
            }
        }
    }

    /// Saves the copy if rows have changed, and otherwise only the link's position.
    fn save(&mut self) {
        let is_saving = self.disk.is_saving();
        let Some((position, meta)) = self.history.to_save(&self.link) else { return self.save_removal() };
        if !is_saving && self.disk.has_failed.swap(false, Ordering::Relaxed) {
            // The whole copy is saved once more, because the failed save has left the disk out of date.
            (self.disk.position, self.disk.changes) = (None, u64::MAX);
        }
        if is_saving || self.disk.position.as_ref() == Some(&position) {
            return;
        }
        let (state, began) = (self.disk.state.clone(), Instant::now());
        let has_changed = self.disk.changes != self.link.changes();
        let snapshot = has_changed.then(|| {
            let (revision, pairs) = (position.revision, self.link.pairs());
            let owner = Owner::of(&self.config);
            Snapshot { owner, meta: meta.clone(), position: position.clone(), revision, pairs }
        });
        self.disk.changes = self.link.changes();
        self.disk.position = Some(position.clone());
        self.disk.saved = Instant::now();
        let (took, has_failed) = (Arc::clone(&self.disk.took), Arc::clone(&self.disk.has_failed));
        self.disk.saving = Some(tokio::task::spawn_blocking(move || {
            let saved = match &snapshot {
                Some(snapshot) => state.save(snapshot),
                None => state.save_position(&position),
            };
            if let Err(error) = saved {
                tracing::error!("{error:#}; make room on the disk");
                has_failed.store(true, Ordering::Relaxed);
            }
            took.store(u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
        }));
    }

    /// Saves everything, and revokes the lease.
    async fn stop(mut self) {
        self.store.send(ToStore::EndLease(self.lease.swap(0, Ordering::Relaxed)));
        if let Some(saving) = self.disk.saving.take() {
            // A failure was logged already.
            let _ = saving.await;
        }
        self.save();
        if let Some(saving) = self.disk.saving.take() {
            let _ = saving.await;
        }
        // The connection's task needs a moment to revoke the lease. If it fails, the lease expires.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Exits begin with different members, so that they are spread evenly.
fn first_member(config: &FleetConfig) -> usize {
    config.exit.as_str().bytes().map(usize::from).sum()
}

/// Returns a random text that nobody else uses.
pub(crate) fn random_name() -> anyhow::Result<String> {
    let mut bytes = [0; 12];
    getrandom::fill(&mut bytes).context("the operating system gave no random bytes")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
