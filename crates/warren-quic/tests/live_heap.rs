//! Sessions, refused keys and client reloads that come and go leave nothing on the heap (scorecard R7).

#![allow(clippy::print_stdout, reason = "the figures are part of what the test shows")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "helpers of tests may panic")]

mod common;
#[path = "common/counting.rs"]
mod counting;

use std::{
    collections::BTreeMap,
    future::poll_fn,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    sync::atomic::Ordering::Relaxed,
    task::{Context, Poll},
    time::{Duration, Instant, SystemTime},
};

use common::{PATIENCE, RESET_KEY, loopback_socket};
use counting::{Counting, LIVE_BYTES};
use tokio::time::timeout;
use warren_quic::{
    driver::{CloseReason, ConnectionId, Endpoint, Event, Inbox},
    key::{PrivateKey, PublicKey},
    settings::{Driver, TransportSettings},
    strangers::Network,
};
use warren_session::{
    Goodbye,
    client::{ClientAction, ClientConfig, ClientSession, ClientState, ConnectionEnd, Stop},
    clients::{Client as Enrolled, ClientRegistry},
    exit::{ExitAction, ExitSessions, SessionConfig},
};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The scorecard's figure is `WARREN_OPERATIONS=10000`.
const OPERATIONS: usize = 1_000;

const OPERATIONS_WITH_LEAK: usize = 600;

/// Every buffer and table has reached its size after this fraction (a fifth) of the operations.
const WARM_UP: usize = 5;

/// The exit rests after this many operations, for longer than a closed connection stays (three probe timeouts).
/// Without the rests, a fast machine would close more and more connections within that time, and tables would
/// grow.
const REST_EVERY: usize = 50;
const REST: Duration = Duration::from_millis(200);

const GROWTH: usize = 64 * 1024;

/// The file's only test, because another test in the same process would be counted too.
#[tokio::test]
async fn sessions_refused_keys_and_reloads_leave_nothing_on_the_heap() {
    let asked = std::env::var("WARREN_OPERATIONS").ok();
    let operations = asked.map_or(OPERATIONS, |count| count.parse().unwrap());
    let mut world = World::new();
    let start = Instant::now();
    let grown = world.growth(operations, |before| before + GROWTH, |_| {}).await;
    println!(
        "measured: {operations} sessions, refused keys and reloads in {:.1?}, after a warm-up of a fifth of them: the heap has {grown} bytes more",
        start.elapsed()
    );
    assert!(grown <= GROWTH.cast_signed(), "{grown} bytes");

    // The control: the same with a leak, in which the client of each session and of each refused key is kept.
    let mut kept = Vec::new();
    let leaked = world.growth(OPERATIONS_WITH_LEAK, |_| usize::MAX, |client| kept.push(client)).await;
    println!("{leaked} bytes more with {} clients kept", kept.len());
    assert!(leaked > 2 * GROWTH.cast_signed(), "the planted leak was not found: {leaked} bytes");
}

struct World {
    exit: Exit,
    enrolled: PrivateKey,
    stranger: PrivateKey,
}

impl World {
    fn new() -> Self {
        let (enrolled, stranger) = (PrivateKey::generate().unwrap(), PrivateKey::generate().unwrap());
        Self { exit: Exit::new(&enrolled.public()), enrolled, stranger }
    }

    /// The growth of the heap in bytes after the warm-up.
    async fn growth(
        &mut self,
        operations: usize,
        enough: impl Fn(usize) -> usize,
        mut keep: impl FnMut(ClientSession),
    ) -> isize {
        for number in 0..operations / WARM_UP {
            drop(self.operate(number).await);
        }
        let before = self.settle(usize::MAX).await;
        for number in 0..operations {
            self.operate(number).await.map(&mut keep);
        }
        self.settle(enough(before)).await.cast_signed() - before.cast_signed()
    }

    /// Runs operation `number`. Returns the client if the operation used one.
    async fn operate(&mut self, number: usize) -> Option<ClientSession> {
        if number.is_multiple_of(REST_EVERY) {
            self.rest(REST).await;
        }
        let exit = &mut self.exit;
        match number % 3 {
            0 => {
                let mut client = Client::start(&self.enrolled, exit.address, exit.key.public());
                client
                    .until(exit, |client, _| matches!(client.session.state(), ClientState::Up { .. }))
                    .await;
                client.session.stop(Instant::now());
                client.until(exit, |_, exit| exit.sessions.sessions().count() == 0).await;
                Some(client.session)
            }
            1 => {
                let mut client = Client::start(&self.stranger, exit.address, exit.key.public());
                let refused = ClientState::Stopped(Stop::Goodbye(Goodbye::NotEnrolled));
                client.until(exit, |client, _| *client.session.state() == refused).await;
                Some(client.session)
            }
            _ => {
                exit.reload(number);
                None
            }
        }
    }

    /// Lets the exit alone finish its pending work.
    async fn rest(&mut self, time: Duration) {
        drop(timeout(time, poll_fn(|cx| self.exit.turn(cx))).await);
    }

    /// The bytes in use once the exit has cleaned up after departed clients. A slow machine gets time to come down to `enough`.
    async fn settle(&mut self, enough: usize) -> usize {
        let mut least = usize::MAX;
        // Closed connections stay for three probe timeouts.
        for round in 0..100 {
            if round >= 12 && least <= enough {
                break;
            }
            self.rest(Duration::from_millis(100)).await;
            least = least.min(LIVE_BYTES.load(Relaxed));
        }
        least
    }
}

struct Exit {
    endpoint: Endpoint,
    inbox: Inbox,
    sessions: ExitSessions,
    address: SocketAddr,
    key: PrivateKey,
}

impl Exit {
    fn new(client: &PublicKey) -> Self {
        let listen = loopback_socket();
        let address = listen.local_addr().unwrap();
        let key = PrivateKey::generate().unwrap();
        let settings = TransportSettings { driver: Driver::Warren, ..TransportSettings::default() };
        let endpoint = Endpoint::exit(settings, vec![key.clone()], vec![listen], RESET_KEY).unwrap();
        let mut registry = ClientRegistry::new();
        registry.add(Enrolled::new("laptop", *client, SystemTime::UNIX_EPOCH)).unwrap();
        let config =
            SessionConfig { ipv4: Some("10.66.0.0/24".parse().unwrap()), ..SessionConfig::default() };
        let (now, wall) = (Instant::now(), SystemTime::now());
        let sessions = ExitSessions::new(config, registry, now, wall, Box::new(random)).unwrap();
        Self { endpoint, inbox: Inbox::new(), sessions, address, key }
    }

    /// Adds a client, or applies a clients' file without that client. The key file stays unchanged.
    fn reload(&mut self, number: usize) {
        if self.sessions.registry().by_name("guest").is_some() {
            let mut edited: ClientRegistry =
                toml::from_str(&toml::to_string(self.sessions.registry()).unwrap()).unwrap();
            edited.remove("guest", SystemTime::UNIX_EPOCH).unwrap();
            self.sessions.adopt(Instant::now(), edited).unwrap();
        } else {
            // Removed keys are remembered forever, by design. So this test uses only a few keys, again and
            // again.
            let key = PublicKey([u8::try_from(number % 4).unwrap() + 1; 32]);
            let guest = Enrolled::new("guest", key, SystemTime::UNIX_EPOCH);
            self.sessions.add_client(guest, Some(key)).unwrap();
        }
        self.endpoint.set_identities(std::slice::from_ref(&self.key)).unwrap();
        self.carry_out();
    }

    /// Does the pending work. Never ready: the caller decides when to stop.
    fn turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.endpoint.poll(cx, &mut self.inbox).is_ready() {
            let now = Instant::now();
            for event in self.inbox.events.drain(..) {
                match event {
                    Event::Connected { connection, peer, remote, .. } => {
                        let network = Network::of(remote).address();
                        self.sessions.connected(now, connection.0, peer, network);
                    }
                    Event::Control { connection, data } => self.sessions.received(now, connection.0, &data),
                    Event::Closed { connection, .. } => self.sessions.closed(now, connection.0),
                    Event::Writable { .. } | Event::Answers { .. } => {}
                }
            }
            self.inbox.clear();
            self.carry_out();
        }
        self.endpoint.flush(cx);
        Poll::Pending
    }

    fn carry_out(&mut self) {
        while let Some(action) = self.sessions.poll_action() {
            match action {
                ExitAction::Send { connection, bytes } => {
                    drop(self.endpoint.send_control(ConnectionId(connection), &bytes));
                }
                ExitAction::Close { connection, reason } => {
                    self.endpoint.close(ConnectionId(connection), reason.code(), &reason.to_string());
                }
                ExitAction::Enrolled { .. }
                | ExitAction::SetWireGuard { .. }
                | ExitAction::Open { .. }
                | ExitAction::Attach { .. }
                | ExitAction::Detach { .. }
                | ExitAction::Stays { .. }
                | ExitAction::End { .. } => {}
                ExitAction::Store(request) => self.sessions.stored(Instant::now(), request.id, Ok(())),
            }
        }
    }
}

/// A client's process from start to end.
struct Client {
    endpoint: Endpoint,
    inbox: Inbox,
    session: ClientSession,
    exit: (SocketAddr, PublicKey),
    connections: BTreeMap<u32, ConnectionId>,
}

impl Client {
    fn start(key: &PrivateKey, address: SocketAddr, exit: PublicKey) -> Self {
        let settings = TransportSettings { driver: Driver::Warren, ..TransportSettings::default() };
        let config = ClientConfig { connections: 1, name: "library".into(), ..ClientConfig::default() };
        let mut session = ClientSession::new(config, Box::new(random));
        session.start(Instant::now());
        let endpoint = Endpoint::client(settings, key.clone()).unwrap();
        let (inbox, connections) = (Inbox::new(), BTreeMap::new());
        Self { endpoint, inbox, session, exit: (address, exit), connections }
    }

    /// Lets both sides run until a condition holds.
    async fn until(&mut self, exit: &mut Exit, holds: impl Fn(&Self, &Exit) -> bool) {
        let waiting = poll_fn(|cx| {
            self.turn(cx);
            // The exit's answers wake this task.
            let _never = exit.turn(cx);
            if holds(self, exit) { Poll::Ready(()) } else { Poll::Pending }
        });
        assert!(timeout(PATIENCE, waiting).await.is_ok(), "timed out: {:?}", self.session.state());
    }

    fn turn(&mut self, cx: &mut Context<'_>) {
        self.carry_out();
        while self.endpoint.poll(cx, &mut self.inbox).is_ready() {
            let now = Instant::now();
            for event in self.inbox.events.drain(..) {
                match event {
                    Event::Connected { .. } => self.session.connected(now, 0),
                    Event::Control { data, .. } => self.session.received(now, 0, &data),
                    Event::Closed { reason, .. } => {
                        self.connections.clear();
                        self.session.closed(now, 0, end_of(&reason));
                    }
                    Event::Writable { .. } | Event::Answers { .. } => {}
                }
            }
            self.inbox.clear();
            self.carry_out();
        }
        self.endpoint.flush(cx);
    }

    fn carry_out(&mut self) {
        while let Some(action) = self.session.poll_action() {
            match action {
                ClientAction::Connect { index } => {
                    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
                    socket.set_nonblocking(true).unwrap();
                    let connection = self.endpoint.connect(socket, self.exit.0, &[self.exit.1]).unwrap();
                    self.connections.insert(index, connection);
                }
                ClientAction::Send { index, bytes } => {
                    drop(self.endpoint.send_control(self.connections[&index], &bytes));
                }
                ClientAction::Close { index, reason } => {
                    let connection = self.connections.remove(&index).unwrap();
                    self.endpoint.close(connection, reason.code(), &reason.to_string());
                }
                ClientAction::Attach { .. }
                | ClientAction::Detach { .. }
                | ClientAction::Welcome(_)
                | ClientAction::Down { .. }
                | ClientAction::Changed(_)
                | ClientAction::ExitKeys { .. }
                | ClientAction::Roster { .. }
                | ClientAction::AskedToLeave
                | ClientAction::Stopped { .. } => {}
            }
        }
    }
}

fn end_of(reason: &CloseReason) -> ConnectionEnd {
    let CloseReason::Peer { code, .. } = reason else { return ConnectionEnd::Lost(reason.to_string()) };
    let goodbye = u32::try_from(*code).ok().and_then(Goodbye::from_code);
    goodbye.map_or_else(|| ConnectionEnd::Lost(reason.to_string()), ConnectionEnd::Goodbye)
}

fn random(bytes: &mut [u8]) {
    getrandom::fill(bytes).unwrap();
}
