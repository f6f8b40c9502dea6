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

/// Many clients on one thread of a host.
#[derive(Debug)]
pub struct Crowd {
    pub shared: Arc<Shared>,
    thread: std::thread::JoinHandle<()>,
}

/// The crowd's instructions and results.
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
        let shared = Arc::new(Shared::default());
        let of_thread = shared.clone();
        let thread = host.enter(move || {
            let clients = tokio::task::LocalSet::new();
            clients.block_on(&runtime(), async {
                let clients: Vec<_> = keys
                    .into_iter()
                    .map(|key| tokio::task::spawn_local(live(key, exit_key, of_thread.clone())))
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

/// One client. While sending is on, it sends to the internet host's echo ten times a second.
async fn live(key: PrivateKey, exit_key: PublicKey, shared: Arc<Shared>) {
    let mut client = LibraryClient::start(key, exit_key, u32::try_from(CONNECTIONS).unwrap());
    let internet: Ipv4Addr = Net::INTERNET_V4.parse().unwrap();
    let (mut attached, mut next) = (0, Instant::now());
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
        if let (SENDING, Some((source, _)), true) = (phase, source, next <= Instant::now())
            && client.send(&udp(source, (internet, 7), 30_000, b"hello"))
        {
            shared.sent.fetch_add(1, SeqCst);
            next = Instant::now() + Duration::from_millis(100);
        }
    }
}
