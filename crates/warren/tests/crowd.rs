//! Many clients of one exit: what they cost it, and how long its operator waits for an answer.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use warren_quic::key::{PrivateKey, PublicKey};

use crate::support::library_client::{LibraryClient, runtime, udp};
use crate::support::{Exit, ExitOptions, Namespace, Net, eventually, seconds};

const CONNECTIONS: usize = 4;

/// Scorecard L4 is `WARREN_CROWD=100`: as many clients are connected, and twice as many enrolled.
#[test]
fn many_clients_cost_an_exit_little_and_its_operator_no_waiting() {
    let Some(net) = Net::new() else { return };
    let asked = std::env::var("WARREN_CROWD").ok();
    let (count, idle, busy) = match &asked {
        Some(count) => (count.parse().unwrap(), seconds(10), seconds(10)),
        None => (8, Duration::from_millis(500), Duration::from_secs(1)),
    };
    let keys: Vec<PrivateKey> = (0..count).map(|_| PrivateKey::generate().unwrap()).collect();
    let exit = exit_with(&net, &keys);
    let exit_key = exit.status().text("/public_key").parse().unwrap();

    let start = Instant::now();
    let crowd = Crowd::start(&net.client, keys, exit_key);
    eventually(seconds(60), "every client has all of its connections", || {
        crowd.shared.attached.load(SeqCst) == count * CONNECTIONS
    });
    let up = start.elapsed();

    let before = exit.status();
    std::thread::sleep(idle);
    let after = exit.status();
    let cpu = |status: &crate::support::Status| status.0["process"]["cpu_seconds"].as_f64().unwrap();
    let cpu_idle = (cpu(&after) - cpu(&before)) / idle.as_secs_f64();
    let list = slowest(|| exit.warren.run("exit client list --json").ok());
    let status = slowest(|| exit.warren.run("status --json").ok());
    let page = "curl --silent --fail --max-time 20 http://127.0.0.1:9466/metrics";
    let scrape = slowest(|| net.exit.sh(page).ok());
    assert_eq!(after.number("/clients/connected"), count as u64);
    assert_eq!(after.number("/clients/enrolled"), 2 * count as u64);

    crowd.shared.phase.store(SENDING, SeqCst);
    std::thread::sleep(busy);
    crowd.shared.phase.store(LISTENING, SeqCst);
    let Shared { sent, answered, .. } = &*crowd.shared;
    // What was not answered by then is lost.
    let quiet = Instant::now();
    while answered.load(SeqCst) < sent.load(SeqCst) && quiet.elapsed() < seconds(5) {
        std::thread::sleep(Duration::from_millis(50));
    }
    let (sent, answered) = (sent.load(SeqCst), answered.load(SeqCst));
    let memory_kib = exit.status().number("/process/rss_kib");
    crowd.end();
    println!(
        "measured: {count} clients with {CONNECTIONS} connections each up in {up:.1?}; idle CPU {:.1} % of a core; client list \
         {list:.0?}, status {status:.0?}, scrape {scrape:.0?}; at 10 packets/s each {answered} of {sent} answered; \
         memory {memory_kib} KiB",
        100.0 * cpu_idle
    );
    assert!(memory_kib <= 30 * 1024 + 256 * count as u64, "{memory_kib} KiB");
    assert!(sent > 0 && answered >= sent * 9 / 10, "{answered} of {sent} answered");
    if asked.is_some() {
        assert!(up <= seconds(30), "{up:?}");
        assert!(cpu_idle <= 0.1, "{cpu_idle}");
        for took in [list, status, scrape] {
            assert!(took < Duration::from_millis(100), "{took:?}");
        }
        assert_eq!(answered, sent);
    }
}

/// An exit that knows these clients and as many more.
fn exit_with<'net>(net: &'net Net, keys: &[PrivateKey]) -> Exit<'net> {
    let mut exit = Exit::init(net, &ExitOptions::default());
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
    exit.run();
    exit
}

/// The longest of five times that something takes.
fn slowest<T>(mut what: impl FnMut() -> T) -> Duration {
    let times = (0..5).map(|_| {
        let start = Instant::now();
        what();
        start.elapsed()
    });
    times.max().unwrap()
}

/// Clients on one thread of a host.
struct Crowd {
    shared: Arc<Shared>,
    thread: std::thread::JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    phase: AtomicU8,
    /// Connections that carry traffic.
    attached: AtomicUsize,
    sent: AtomicU64,
    answered: AtomicU64,
}

const SENDING: u8 = 1;
const LISTENING: u8 = 2;
const ENDING: u8 = 3;

impl Crowd {
    fn start(host: &Namespace, keys: Vec<PrivateKey>, exit_key: PublicKey) -> Self {
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

    fn end(self) {
        self.shared.phase.store(ENDING, SeqCst);
        self.thread.join().unwrap();
    }
}

/// One client, which asks the internet host's echo ten times a second while that is asked for.
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
