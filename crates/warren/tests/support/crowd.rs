//! Many clients of one exit on one thread.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use warren_quic::key::{PrivateKey, PublicKey};

use super::library_client::{LibraryClient, runtime, udp};
use super::{Exit, ExitOptions, Namespace, Net};

/// Connections of each client.
pub const CONNECTIONS: usize = 4;

/// An exit that is not running yet. It has enrolled these clients and as many others.
pub fn exit_with<'net>(net: &'net Net, keys: &[PrivateKey]) -> Exit<'net> {
    let exit = Exit::init(net, &ExitOptions::default());
    exit.configure(|config| config.with("metrics", "clients", true));
    exit.enrol("first");
    exit.warren.run("exit client remove first").ok();
    let mut registry = String::new();
    let others = keys.iter().map(|_| PrivateKey::generate().unwrap().public());
    for (number, key) in keys.iter().map(PrivateKey::public).chain(others).enumerate() {
        let table = "[[client]]\nname = \"client-";
        writeln!(registry, "{table}{number}\"\npublic_key = \"{key}\"\ncreated = \"2026-01-01T00:00:00Z\"")
            .unwrap();
    }
    std::fs::write(exit.warren.state("exit/clients.toml"), registry).unwrap();
    exit
}

/// The traffic of one client.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    /// Number of connections of the client's session.
    pub connections: usize,
    /// Number of packets that the client sends at once.
    pub burst: usize,
    /// Payload bytes of each packet.
    pub payload: usize,
    /// The interval between two bursts while sending is on.
    pub every: Duration,
}

impl Default for Habits {
    fn default() -> Self {
        Self { connections: CONNECTIONS, burst: 1, payload: 5, every: Duration::from_millis(100) }
    }
}

/// Many clients on one thread of a host.
#[derive(Debug)]
pub struct Crowd {
    pub shared: Arc<Shared>,
    thread: std::thread::JoinHandle<()>,
}

/// The instructions to the clients, and their results.
#[derive(Debug, Default)]
pub struct Shared {
    pub phase: AtomicU8,
    /// Connections that carry traffic.
    pub attached: AtomicUsize,
    pub sent: AtomicU64,
    pub answered: AtomicU64,
}

pub const SENDING: u8 = 1;
pub const LISTENING: u8 = 2;
const ENDING: u8 = 3;

impl Crowd {
    pub fn start(host: &Namespace, keys: Vec<PrivateKey>, exit_key: PublicKey) -> Self {
        Self::with(host, keys, exit_key, Habits::default())
    }

    pub fn with(host: &Namespace, keys: Vec<PrivateKey>, exit_key: PublicKey, habits: Habits) -> Self {
        let shared = Arc::new(Shared::default());
        let of_thread = shared.clone();
        let thread = host.enter(move || {
            let clients = tokio::task::LocalSet::new();
            clients.block_on(&runtime(), async {
                let clients: Vec<_> = keys
                    .into_iter()
                    .map(|key| tokio::task::spawn_local(live(key, exit_key, habits, of_thread.clone())))
                    .collect();
                for client in clients {
                    client.await.unwrap();
                }
            });
        });
        Self { shared, thread }
    }

    pub fn end(self) {
        self.shared.phase.store(ENDING, SeqCst);
        self.thread.join().unwrap();
    }
}

/// One client. While sending is on, it sends to the internet host's echo, ten times a second unless its habits say otherwise.
async fn live(key: PrivateKey, exit_key: PublicKey, habits: Habits, shared: Arc<Shared>) {
    let mut client = LibraryClient::start(key, exit_key, u32::try_from(habits.connections).unwrap());
    let internet: Ipv4Addr = Net::INTERNET_V4.parse().unwrap();
    let payload = vec![b'x'; habits.payload];
    // `left` is the number of packets of the last burst that could not be sent yet.
    let (mut attached, mut next, mut left) = (0, Instant::now(), 0);
    loop {
        client.run(Duration::from_millis(20)).await;
        shared.attached.fetch_add(client.attached(), SeqCst);
        shared.attached.fetch_sub(attached, SeqCst);
        attached = client.attached();
        while client.received().is_some() {
            shared.answered.fetch_add(1, SeqCst);
        }
        let phase = shared.phase.load(SeqCst);
        if phase == ENDING {
            return;
        }
        let source = client.welcome().and_then(|welcome| welcome.ipv4);
        if let (SENDING, Some((source, _))) = (phase, source) {
            let now = Instant::now();
            if left == 0 && next <= now {
                (left, next) = (habits.burst, now + habits.every);
            }
            let packet = udp(source, (internet, 7), 30_000, &payload);
            let sent = (0..left).take_while(|_| client.send(&packet)).count();
            left -= sent;
            shared.sent.fetch_add(sent as u64, SeqCst);
        }
    }
}
