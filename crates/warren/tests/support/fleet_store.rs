//! A store in memory that exits share, and each exit's link to the store. They take the place of etcd and `warren-fleet`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};
use warren_fleet_link::{
    ExitMessage, ExitState, FleetExit, FleetMessage, Load, Outcome, StoreLink, read_frame, write_frame,
};
use warren_session::PublicKey;
use warren_session::clients::{ClientRegistry, RowChange};

/// The store with its links. Dropping it ends them.
#[derive(Debug)]
pub struct FleetStore {
    shared: Arc<Mutex<Shared>>,
    runtime: tokio::runtime::Handle,
    /// Dropping it ends the links.
    _stop: oneshot::Sender<()>,
}

/// What a link does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// The link is connected and works.
    Works,
    /// The link does not exist.
    Dead,
    /// The link is connected, but neither reads nor writes.
    Hangs,
    /// The link is connected to the exit, but cut off from the store.
    Cut,
}

/// How long a link counts the store as reachable after its last answer, as `warren-fleet` does at most.
const SILENCE: Duration = Duration::from_secs(4);

#[derive(Debug, Default)]
struct Shared {
    rows: BTreeMap<String, RowChange>,
    revision: i64,
    /// The revision of each row's latest change, and the exit that made it.
    changed: BTreeMap<String, (i64, usize)>,
    links: Vec<Link>,
    is_away: bool,
    /// How many requests were refused because of a conflict.
    conflicts: usize,
    /// How long each request takes.
    delay: Duration,
    /// The exit and the nonce of each client's newest session.
    sessions: BTreeMap<PublicKey, (usize, Vec<u8>)>,
}

#[derive(Debug)]
struct Link {
    socket: PathBuf,
    behaviour: Behaviour,
    /// When the store last answered.
    answered: Instant,
    /// Messages to the exit, while it is connected.
    to_exit: Option<mpsc::UnboundedSender<FleetMessage>>,
    /// Bytes to be sent to the exit unchanged.
    raw: Option<Vec<u8>>,
    hello: Option<ExitMessage>,
    load: Load,
    state: ExitState,
    applied: i64,
    clock_offset_ms: i64,
    connections: usize,
    opened: usize,
}

impl FleetStore {
    pub fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        std::thread::spawn(move || drop(runtime.block_on(stopped)));
        Self { shared: Arc::default(), runtime: handle, _stop: stop }
    }

    /// Links an exit to the store by the exit's socket. Returns the number of the link.
    pub fn link(&self, socket: &Path) -> usize {
        let mut shared = self.shared.lock().unwrap();
        let number = shared.links.len();
        shared.links.push(Link {
            socket: socket.to_owned(),
            behaviour: Behaviour::Works,
            answered: Instant::now(),
            to_exit: None,
            raw: None,
            hello: None,
            load: Load::default(),
            state: ExitState::default(),
            applied: 0,
            clock_offset_ms: 0,
            connections: 0,
            opened: 0,
        });
        self.runtime.spawn(run(self.shared.clone(), number));
        number
    }

    pub fn set_behaviour(&self, link: usize, behaviour: Behaviour) {
        self.shared.lock().unwrap().links[link].behaviour = behaviour;
    }

    /// Makes the store unreachable for all exits, or reachable again.
    pub fn set_away(&self, is_away: bool) {
        let mut shared = self.shared.lock().unwrap();
        shared.is_away = is_away;
        shared.tell_store();
    }

    pub fn set_delay(&self, delay: Duration) {
        self.shared.lock().unwrap().delay = delay;
    }

    pub fn set_clock_offset(&self, link: usize, milliseconds: i64) {
        let mut shared = self.shared.lock().unwrap();
        shared.links[link].clock_offset_ms = milliseconds;
        shared.tell_exits();
    }

    /// Sends an exit a message unasked.
    pub fn say(&self, link: usize, message: FleetMessage) {
        self.shared.lock().unwrap().send(link, message);
    }

    /// Sends an exit any bytes.
    pub fn say_bytes(&self, link: usize, bytes: Vec<u8>) {
        self.shared.lock().unwrap().links[link].raw = Some(bytes);
    }

    pub fn is_linked(&self, link: usize) -> bool {
        self.shared.lock().unwrap().links[link].to_exit.is_some()
    }

    /// How often an exit has been connected.
    pub fn connections(&self, link: usize) -> usize {
        self.shared.lock().unwrap().links[link].connections
    }

    /// How many sessions an exit has reported as opened.
    pub fn opened(&self, link: usize) -> usize {
        self.shared.lock().unwrap().links[link].opened
    }

    pub fn conflicts(&self) -> usize {
        self.shared.lock().unwrap().conflicts
    }

    /// The load and the state that an exit has reported, and its Hello.
    pub fn said(&self, link: usize) -> (Load, ExitState, Option<ExitMessage>) {
        let shared = self.shared.lock().unwrap();
        let link = &shared.links[link];
        (link.load, link.state, link.hello.clone())
    }

    /// The clients that the store has.
    pub fn registry(&self) -> ClientRegistry {
        ClientRegistry::from_rows(self.shared.lock().unwrap().rows.values().cloned()).unwrap()
    }
}

impl Shared {
    fn send(&self, link: usize, message: FleetMessage) {
        if let Some(to_exit) = &self.links[link].to_exit {
            drop(to_exit.send(message));
        }
    }

    /// What a link reports about the store.
    fn store(&mut self, link: usize) -> [FleetMessage; 2] {
        let is_away = self.is_away;
        let link = &mut self.links[link];
        if !is_away && link.behaviour != Behaviour::Cut {
            link.answered = Instant::now();
        }
        let silent = link.answered.elapsed();
        let store = match is_away || silent >= SILENCE {
            false => StoreLink::Reachable,
            true => StoreLink::Away { silent, reason: "the test has ended it".into() },
        };
        [FleetMessage::Answered { ago: silent }, FleetMessage::Store(store)]
    }

    fn tell_store(&mut self) {
        (0..self.links.len()).for_each(|link| self.tell_store_to(link));
    }

    fn tell_store_to(&mut self, link: usize) {
        self.store(link).into_iter().for_each(|message| self.send(link, message));
    }

    fn tell_exits(&self) {
        let exits = self.exits();
        for link in 0..self.links.len() {
            let own_clock_offset_ms = self.links[link].clock_offset_ms;
            let (changed, exits) = (self.revision, exits.clone());
            let removed = Vec::new();
            self.send(link, FleetMessage::Exits { own_clock_offset_ms, changed, exits, removed });
        }
    }

    fn exits(&self) -> Vec<FleetExit> {
        let exit = |link: &Link| {
            let Some(ExitMessage::Hello { exit, key, endpoints, .. }) = link.hello.clone() else {
                return None;
            };
            Some(FleetExit {
                exit,
                key,
                endpoints,
                load: link.load,
                state: link.state,
                applied: link.applied,
                is_alive: link.to_exit.is_some(),
                clock_offset_ms: link.clock_offset_ms,
            })
        };
        self.links.iter().filter_map(exit).collect()
    }

    /// Handles a message from an exit.
    fn hear(&mut self, link: usize, message: ExitMessage) {
        match message {
            ExitMessage::Hello { .. } => self.links[link].hello = Some(message),
            ExitMessage::Request { id, rows } => {
                let outcome = self.write(link, rows);
                self.send(link, FleetMessage::Answer { id, outcome });
            }
            ExitMessage::Opened { key, nonce, claim } => {
                self.links[link].opened += 1;
                let newest = (link, nonce.clone());
                if let Some((before, _)) = self.sessions.insert(key, newest)
                    && before != link
                {
                    let Some(ExitMessage::Hello { exit, .. }) = self.links[link].hello.clone() else {
                        return;
                    };
                    self.send(before, FleetMessage::Elsewhere { key, nonce, claim, exit });
                }
            }
            ExitMessage::Closed { key, nonce } => {
                if self.sessions.get(&key) == Some(&(link, nonce)) {
                    self.sessions.remove(&key);
                }
            }
            ExitMessage::Load { load, state, .. } => {
                (self.links[link].load, self.links[link].state) = (load, state);
                self.tell_exits();
            }
            ExitMessage::Applied { revision } => {
                self.links[link].applied = revision;
                self.tell_exits();
            }
        }
    }

    fn write(&mut self, link: usize, rows: Vec<RowChange>) -> Outcome {
        if self.is_away || self.links[link].behaviour == Behaviour::Cut {
            return Outcome::Unavailable;
        }
        let seen = self.links[link].applied;
        let is_late = |row: &RowChange| {
            self.changed.get(&id_of(row)).is_some_and(|(revision, by)| *revision > seen && *by != link)
        };
        let is_deletion = |row: &RowChange| id_of(row).starts_with('-');
        let mut after = self.rows.clone();
        for row in &rows {
            let id = id_of(row);
            let id = id.trim_start_matches('-').to_owned();
            if is_deletion(row) {
                after.remove(&id)
            } else {
                after.insert(id, row.clone())
            };
        }
        let written = ClientRegistry::from_rows(after.values().cloned());
        // If reading the rows changes one of them because of another, for instance because two clients have the same address, the
        // rows contradict each other.
        let fits = written.is_ok_and(|written| {
            written.rows().count() == after.len()
                && written.rows().all(|row| after.values().any(|other| *other == row))
        });
        if rows.iter().any(is_late) || !fits {
            self.conflicts += 1;
            return Outcome::Conflict;
        }
        self.rows = after;
        self.revision += 1;
        let revision = self.revision;
        for row in &rows {
            self.changed.insert(id_of(row).trim_start_matches('-').to_owned(), (revision, link));
        }
        for other in (0..self.links.len()).filter(|other| *other != link) {
            self.send(other, FleetMessage::Changes { revision, rows: rows.clone() });
        }
        Outcome::Stored { revision }
    }

    /// Sends a newly connected exit the store's whole state.
    fn welcome(&mut self, link: usize, to_exit: mpsc::UnboundedSender<FleetMessage>) {
        self.links[link].to_exit = Some(to_exit);
        self.links[link].connections += 1;
        self.tell_store_to(link);
        let rows: Vec<RowChange> = self.rows.values().cloned().collect();
        let revision = self.revision;
        let mut parts: Vec<Vec<RowChange>> = rows.chunks(100).map(<[_]>::to_vec).collect();
        parts.push(Vec::new());
        let last = parts.len() - 1;
        for (number, rows) in parts.into_iter().enumerate() {
            self.send(link, FleetMessage::Whole { revision, rows, is_last: number == last });
        }
        self.tell_exits();
    }
}

/// Returns the name of a row, with a dash in front if the change deletes the row.
fn id_of(row: &RowChange) -> String {
    match row {
        RowChange::Client { key, client } => format!("{}client {key}", dash(client.is_none())),
        RowChange::Invitation { token, invitation } => {
            format!("{}invitation {token:?}", dash(invitation.is_none()))
        }
        RowChange::Removed { key, removed } => format!("{}removed {key}", dash(removed.is_none())),
    }
}

fn dash(is_deletion: bool) -> &'static str {
    if is_deletion { "-" } else { "" }
}

async fn run(shared: Arc<Mutex<Shared>>, link: usize) {
    loop {
        let (socket, behaviour) = {
            let shared = shared.lock().unwrap();
            (shared.links[link].socket.clone(), shared.links[link].behaviour)
        };
        if behaviour != Behaviour::Dead
            && let Ok(stream) = UnixStream::connect(&socket).await
        {
            serve(&shared, link, stream).await;
            let mut shared = shared.lock().unwrap();
            shared.links[link].to_exit = None;
            shared.tell_exits();
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn serve(shared: &Arc<Mutex<Shared>>, link: usize, stream: UnixStream) {
    let (mut from, mut to) = stream.into_split();
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let (heard, mut messages) = mpsc::unbounded_channel();
    let reading = tokio::spawn(async move {
        while let Ok(Some(message)) = read_frame::<ExitMessage>(&mut from).await {
            drop(heard.send(message));
        }
    });
    let mut beat = tokio::time::interval(Duration::from_millis(200));
    let mut beats = 0;
    loop {
        let behaviour = shared.lock().unwrap().links[link].behaviour;
        match behaviour {
            Behaviour::Dead => break,
            Behaviour::Hangs => {
                if reading.is_finished() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
            Behaviour::Works | Behaviour::Cut => {}
        }
        let raw = shared.lock().unwrap().links[link].raw.take();
        if let Some(raw) = raw
            && to.write_all(&raw).await.is_err()
        {
            break;
        }
        tokio::select! {
            message = messages.recv() => {
                let Some(message) = message else { break };
                let delay = shared.lock().unwrap().delay;
                if matches!(message, ExitMessage::Request { .. }) && !delay.is_zero() {
                    tokio::time::sleep(delay).await;
                }
                let is_hello = matches!(message, ExitMessage::Hello { .. });
                let mut shared = shared.lock().unwrap();
                shared.hear(link, message);
                if is_hello {
                    shared.welcome(link, sender.clone());
                }
            }
            message = receiver.recv() => {
                let Some(message) = message else { break };
                if write_frame(&mut to, &message).await.is_err() {
                    break;
                }
            }
            _ = beat.tick() => {
                beats += 1;
                if beats % 5 == 0 {
                    shared.lock().unwrap().tell_store_to(link);
                }
            }
        }
    }
    reading.abort();
}
