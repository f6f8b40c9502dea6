//! A stand-in for an exit, which implements only the exit's end of the link.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::net::UnixListener;
use tokio::sync::mpsc;
use warren_fleet_link::{
    ExitId, ExitMessage, ExitState, FleetExit, FleetMessage, FrameError, KnownRoster, LINK_VERSION, Load,
    Outcome, Pools, RemovedExit, StoreLink, read_frame, write_frame,
};
use warren_session::PublicKey;
use warren_session::clients::{Client, RowChange, RowId};
use warren_session::roster::SignedRoster;

use super::proxy::Ways;
use super::{directories, fleet_ok, wait_for, warren_fleet};

/// An exit with its link.
pub(crate) struct Exit {
    pub(crate) directory: PathBuf,
    link: Option<Child>,
    seen: Arc<Mutex<Seen>>,
    to_link: mpsc::UnboundedSender<ExitMessage>,
    next: AtomicU64,
    log: usize,
}

/// What the exit was told.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) rows: BTreeMap<RowId, RowChange>,
    pub(crate) revision: i64,
    pub(crate) wholes: usize,
    pub(crate) store: Option<StoreLink>,
    pub(crate) elsewhere: Vec<(PublicKey, Vec<u8>, ExitId)>,
    pub(crate) exits: Vec<FleetExit>,
    pub(crate) removed: Vec<RemovedExit>,
    /// The revision of the latest change of a row.
    pub(crate) changed: i64,
    pub(crate) own_clock_offset_ms: i64,
    pub(crate) drain: Option<bool>,
    pub(crate) roster: Option<Vec<u8>>,
    pub(crate) members: Vec<std::collections::BTreeSet<std::net::IpAddr>>,
    /// When the store last answered, as the link says.
    pub(crate) answered: Option<Instant>,
    /// Whether the exit has stopped reporting what it has applied.
    hangs: bool,
    /// When the exit lost each client.
    pub(crate) gone: HashMap<PublicKey, Instant>,
    /// Everything in order, for tests of the order.
    pub(crate) order: Vec<FleetMessage>,
    answers: HashMap<u64, Sender<(Outcome, Instant)>>,
    proposed: HashMap<u64, Vec<RowChange>>,
    parts: BTreeMap<RowId, RowChange>,
}

pub(crate) fn key(byte: u8) -> PublicKey {
    valid([byte; 31])
}

/// A valid key with these first bytes. Half of all strings are not valid keys.
pub(crate) fn valid(first: [u8; 31]) -> PublicKey {
    let keys = (0..128).map(|last| {
        let mut bytes = [last; 32];
        bytes[..31].copy_from_slice(&first);
        PublicKey(bytes)
    });
    keys.into_iter().find(|key| key.to_string().parse::<PublicKey>().is_ok()).unwrap()
}

pub(crate) fn pools() -> Pools {
    Pools { ipv4: Some("10.0.0.0/16".parse().unwrap()), ipv6: None }
}

fn put(rows: &mut BTreeMap<RowId, RowChange>, row: RowChange) {
    if row.is_set() {
        rows.insert(row.id(), row);
    } else {
        rows.remove(&row.id());
    }
}

impl Seen {
    fn change(&mut self, row: RowChange) {
        if let RowChange::Client { key, client: None } = &row {
            self.gone.entry(*key).or_insert_with(Instant::now);
        }
        put(&mut self.rows, row);
    }

    /// Applies a whole copy.
    fn replace(&mut self, rows: BTreeMap<RowId, RowChange>) {
        let gone = self.rows.iter().filter(|(id, _)| !rows.contains_key(*id));
        let keys: Vec<_> = gone
            .filter_map(|(_, row)| match row {
                RowChange::Client { key, .. } => Some(*key),
                _ => None,
            })
            .collect();
        for key in keys {
            self.gone.entry(key).or_insert_with(Instant::now);
        }
        self.rows = rows;
    }
}

impl Exit {
    /// The first exit, which begins the fleet.
    pub(crate) fn first(directory: &Path, name: &str, init: &[&str]) -> Self {
        let clients = directory.join("clients.toml");
        if !clients.exists() {
            std::fs::create_dir_all(directory).unwrap();
            std::fs::write(&clients, "client = []\n").unwrap();
        }
        let clients = clients.display().to_string();
        let arguments = ["init", "--exit", name, "--clients", &clients, "--pool", "10.0.0.0/16"];
        fleet_ok(directory, &[&arguments, init].concat());
        Self::start(directory, name)
    }

    /// Another exit, which joins with a ticket from the first one.
    pub(crate) fn further(first: &Self, directory: &Path, name: &str, ticket: &[&str]) -> Self {
        let ticket = fleet_ok(&first.directory, &[&["ticket", name], ticket].concat());
        fleet_ok(directory, &["join", ticket.trim()]);
        Self::start(directory, name)
    }

    /// As [`Self::further`], with paths to the store that can be cut.
    pub(crate) fn behind(first: &Self, directory: &Path, name: &str, members: &[String]) -> (Self, Ways) {
        let ways = Ways::to(members);
        let ticket = fleet_ok(&first.directory, &["ticket", name]);
        fleet_ok(directory, &["join", ticket.trim()]);
        let config = directory.join("config/fleet.toml");
        let mut text = std::fs::read_to_string(&config).unwrap();
        for (member, way) in members.iter().zip(&ways.urls) {
            text = text.replace(member.as_str(), way);
        }
        std::fs::write(&config, text).unwrap();
        (Self::start(directory, name), ways)
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.directory.join(format!("link{}.log", self.log))).unwrap()
    }

    /// Starts an exit whose `fleet.toml` already exists.
    pub(crate) fn start(directory: &Path, name: &str) -> Self {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let (to_link, messages) = mpsc::unbounded_channel();
        let socket = directory.join("runtime/fleet/fleet.sock");
        std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
        let _ = std::fs::remove_file(&socket);
        let hello = ExitMessage::Hello {
            version: LINK_VERSION,
            release: "test".to_owned(),
            exit: ExitId::try_from(name.to_owned()).unwrap(),
            key: key(name.bytes().fold(0, u8::wrapping_add)),
            endpoints: vec![format!("{name}.example.net:443")],
            pools: pools(),
            max_staleness: Some(3_600),
        };
        let (shared, applied) = (Arc::clone(&seen), to_link.clone());
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(serve(socket, hello, shared, (applied, messages)));
        });
        let next = AtomicU64::new(0);
        let mut exit = Self { directory: directory.to_owned(), link: None, seen, to_link, next, log: 0 };
        exit.start_link();
        exit
    }

    pub(crate) fn start_link(&mut self) {
        self.log += 1;
        let log = std::fs::File::create(self.directory.join(format!("link{}.log", self.log))).unwrap();
        let link = warren_fleet(&self.directory)
            .arg("run")
            .args(directories(&self.directory))
            .args(["--log", "debug,h2=info,hyper_util=info,tower=info"])
            .env("NO_COLOR", "1")
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.link = Some(link);
    }

    /// The ID of the link's process.
    pub(crate) fn process(&self) -> u32 {
        self.link.as_ref().unwrap().id()
    }

    pub(crate) fn stop_link(&mut self, signal: &str) {
        if let Some(mut link) = self.link.take() {
            super::signal(link.id(), signal);
            link.wait().unwrap();
        }
    }

    pub(crate) fn seen<T>(&self, look: impl FnOnce(&mut Seen) -> T) -> T {
        look(&mut self.seen.lock().unwrap())
    }

    /// Makes the exit stop reporting what it has applied, or report it again.
    pub(crate) fn hang(&self, hangs: bool) {
        self.seen(|seen| seen.hangs = hangs);
    }

    pub(crate) fn say(&self, message: ExitMessage) {
        self.to_link.send(message).unwrap();
    }

    /// Waits until the exit has the store's rows.
    pub(crate) fn ready(self) -> Self {
        self.wait("the store is reachable and was read", |seen| {
            (seen.wholes > 0 && seen.store == Some(StoreLink::Reachable)).then_some(())
        });
        self
    }

    #[track_caller]
    pub(crate) fn wait<T>(&self, what: &str, look: impl FnMut(&mut Seen) -> Option<T>) -> T {
        self.wait_within(what, Duration::from_secs(20), look)
    }

    #[track_caller]
    pub(crate) fn wait_within<T>(
        &self,
        what: &str,
        limit: Duration,
        mut look: impl FnMut(&mut Seen) -> Option<T>,
    ) -> T {
        wait_for(what, limit, || self.seen(&mut look))
    }

    /// Sends a request. The answer comes out of the receiver.
    pub(crate) fn send(&self, rows: Vec<RowChange>) -> Receiver<(Outcome, Instant)> {
        self.propose(|_| Some(rows)).unwrap()
    }

    /// Sends a request that depends on the current rows. `None` if the closure returns no rows.
    pub(crate) fn propose(
        &self,
        make: impl FnOnce(&mut Seen) -> Option<Vec<RowChange>>,
    ) -> Option<Receiver<(Outcome, Instant)>> {
        let id = self.next.fetch_add(1, Ordering::SeqCst) + 1;
        let (sender, receiver) = channel();
        self.seen(|seen| {
            let rows = make(seen)?;
            seen.answers.insert(id, sender);
            seen.proposed.insert(id, rows.clone());
            // The request is sent while the lock is held, so that changes that are applied later are also reported later.
            self.say(ExitMessage::Request { id, rows });
            Some(())
        })?;
        Some(receiver)
    }

    /// Makes a request and waits for its answer, which has to come within three seconds.
    #[track_caller]
    pub(crate) fn request(&self, rows: Vec<RowChange>) -> Outcome {
        self.send(rows).recv_timeout(Duration::from_secs(3)).expect("no answer within 3 s").0
    }

    /// Makes a request, and repeats it if the store is unreachable or rows have changed meanwhile.
    #[track_caller]
    pub(crate) fn store(&self, rows: &[RowChange]) -> i64 {
        let since = Instant::now();
        loop {
            if let Outcome::Stored { revision } = self.request(rows.to_vec()) {
                return revision;
            }
            assert!(since.elapsed() < Duration::from_secs(20), "never stored: {rows:?}");
        }
    }

    pub(crate) fn client(&self, key: PublicKey) -> Option<Client> {
        self.seen(|seen| match seen.rows.get(&RowId::Client(key)) {
            Some(RowChange::Client { client, .. }) => client.clone(),
            _ => None,
        })
    }
}

impl Drop for Exit {
    fn drop(&mut self) {
        if let Some(mut link) = self.link.take() {
            let _ = link.kill();
            let _ = link.wait();
            if std::thread::panicking() {
                let log =
                    std::fs::read_to_string(self.directory.join(format!("link{}.log", self.log))).unwrap();
                let lines: Vec<_> = log.lines().rev().take(40).collect();
                eprintln!(
                    "--- {}\n{}",
                    self.directory.display(),
                    lines.into_iter().rev().collect::<Vec<_>>().join("\n")
                );
            }
        }
    }
}

async fn serve(
    socket: PathBuf,
    hello: ExitMessage,
    seen: Arc<Mutex<Seen>>,
    (applied, mut messages): (mpsc::UnboundedSender<ExitMessage>, mpsc::UnboundedReceiver<ExitMessage>),
) {
    let listener = UnixListener::bind(socket).unwrap();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let (mut from, mut to) = stream.into_split();
        while messages.try_recv().is_ok() {}
        let applied = applied.clone();
        let shared = Arc::clone(&seen);
        let reading = tokio::spawn(async move {
            loop {
                let message = match read_frame::<FleetMessage>(&mut from).await {
                    Ok(Some(message)) => message,
                    // The link has ended.
                    Ok(None) | Err(FrameError::Io(_)) => return,
                    Err(error) => panic!("the link's message: {error}"),
                };
                let applied_now = {
                    let mut seen = shared.lock().unwrap();
                    take(&mut seen, message).filter(|_| !seen.hangs)
                };
                if let Some(revision) = applied_now {
                    let _ = applied.send(ExitMessage::Applied { revision });
                }
            }
        });
        if write_frame(&mut to, &hello).await.is_err() {
            continue;
        }
        let mut load = tokio::time::interval(Duration::from_secs(2));
        loop {
            let message = tokio::select! {
                message = messages.recv() => match message {
                    Some(message) => message,
                    None => return,
                },
                _ = load.tick() => {
                    // An exit that was removed stops serving.
                    let (store, bytes) = {
                        let seen = seen.lock().unwrap();
                        (seen.store.clone(), seen.roster.clone())
                    };
                    let is_removed = matches!(store, Some(StoreLink::Refused { is_removed: true, .. }));
                    let state = if is_removed { ExitState::Draining } else { ExitState::Serving };
                    // Like an exit, it has no roster that does not decode.
                    let signed = bytes.and_then(|bytes| SignedRoster::decode(&bytes).ok());
                    let roster = signed.map(|signed| {
                        let content = signed.content();
                        KnownRoster { fleet: content.fleet.to_string(), serial: content.serial }
                    });
                    ExitMessage::Load { load: Load::default(), state, roster }
                }
            };
            if write_frame(&mut to, &message).await.is_err() || reading.is_finished() {
                break;
            }
        }
    }
}

/// Takes a message as an exit does. Returns the revision that is applied now.
fn take(seen: &mut Seen, message: FleetMessage) -> Option<i64> {
    seen.order.push(message.clone());
    match message {
        FleetMessage::Whole { revision, rows, is_last } => {
            rows.into_iter().for_each(|row| put(&mut seen.parts, row));
            if !is_last {
                return None;
            }
            let rows = std::mem::take(&mut seen.parts);
            seen.replace(rows);
            seen.wholes += 1;
            seen.revision = revision;
            return Some(revision);
        }
        FleetMessage::Changes { revision, rows } => {
            rows.into_iter().for_each(|row| seen.change(row));
            seen.revision = revision;
            return Some(revision);
        }
        FleetMessage::Answer { id, outcome } => {
            let rows = seen.proposed.remove(&id).unwrap_or_default();
            if let Outcome::Stored { .. } = outcome {
                rows.into_iter().for_each(|row| seen.change(row));
            }
            if let Some(answer) = seen.answers.remove(&id) {
                let _ = answer.send((outcome, Instant::now()));
            }
        }
        FleetMessage::Elsewhere { key, nonce, exit, .. } => seen.elsewhere.push((key, nonce, exit)),
        FleetMessage::Store(store) => seen.store = Some(store),
        FleetMessage::Answered { ago } => seen.answered = Instant::now().checked_sub(ago),
        FleetMessage::Exits { own_clock_offset_ms, changed, exits, removed } => {
            seen.removed = removed;
            (seen.own_clock_offset_ms, seen.changed, seen.exits) = (own_clock_offset_ms, changed, exits);
        }
        FleetMessage::Roster { bytes } => seen.roster = Some(bytes),
        FleetMessage::Drain { on } => seen.drain = Some(on),
        FleetMessage::StoreAddresses { members } => seen.members = members.into_values().collect(),
        FleetMessage::Certificates { .. } | FleetMessage::Refused { .. } => {}
    }
    None
}
