//! An attacker who knows the exit's public key starts any number of handshakes and completes none. Legitimate clients must still
//! be able to connect.
#![allow(clippy::indexing_slicing, clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::time::{Duration, Instant};

use rustix::process::Signal;
use warren_quic::key::{PrivateKey, PublicKey};

use crate::support::crowd::exit_with;
use crate::support::half_open::HalfOpen;
use crate::support::library_client::{LibraryClient, runtime};
use crate::support::memory::{forget_peak, peak_kib, rss_kib};
use crate::support::{Client, Exit, Namespace, Net, asked, eventually, seconds};

const CLIENTS: usize = 20;
const NETWORKS: u8 = 64;
const PER_SECOND: u64 = 500;

/// For row B5 (proven) of the scorecard (docs/torture.md), run this test with `WARREN_HALF_OPEN=30` (seconds), which also limits
/// the times. In the test suite, where the machine may be busy, each client's first attempt must only succeed within the client's
/// own timeout.
#[test]
fn clients_connect_and_sessions_lose_nothing_while_somebody_fills_the_exit_with_half_open_handshakes() {
    let Some(net) = Net::new() else { return };
    let lasting: Option<u64> = asked("WARREN_HALF_OPEN");
    let keys: Vec<PrivateKey> = (0..CLIENTS).map(|_| PrivateKey::generate().unwrap()).collect();
    let neighbour = PrivateKey::generate().unwrap();
    let mut exit = exit_with(&net, &keys);
    exit.enrol_key("neighbour", &neighbour.public().to_string());
    exit.run();
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();
    let exit_key = exit.status().text("/public_key").parse().unwrap();
    let (host, attackers) = (net.clients_beside(1).remove(0), net.second_client());
    let pid = exit.daemon().pid();
    let memory = forget_peak(pid);
    let pinging = net.client.start(&["ping", "-q", "-i", "0.02", "-W", "5", Net::INTERNET_V4]);

    let attack = HalfOpen::start(&net, &attackers, NETWORKS, exit_key, PER_SECOND);
    eventually(LONGEST, "every place is taken, and more addresses are proven than there are places", || {
        under_way(&exit) >= AT_ONCE && attack.counts().1 > AT_ONCE && displaced(&exit) > 0
    });
    let before = displaced(&exit);
    // The neighbour is a client in the same network as one of the attacker's addresses.
    let hosts = [(&host, keys.as_slice()), (&attackers, std::slice::from_ref(&neighbour))];
    let took = connect_beside(&attack, &hosts, exit_key, seconds(lasting.unwrap_or(0)));

    // The control: almost all slots were in use all the time, so clients connected only because the exit displaced other
    // handshakes.
    let most_are_taken = || under_way(&exit) >= AT_ONCE * 9 / 10;
    eventually(LONGEST, "the places that clients have vacated are taken again", most_are_taken);
    let (held, given_up) = (under_way(&exit), displaced(&exit) - before);
    let (begun, proven) = attack.counts();
    let rate = attack.end();
    let peak = peak_kib(pid) - memory;
    pinging.signal(Signal::INT);
    client.sh("ping -c 1 -W 5 203.0.113.2");
    eventually(seconds(10), "ping prints its summary", || pinging.output().contains("packet loss"));
    let pings = pinging.output().lines().find(|line| line.contains("packet loss")).unwrap().to_owned();
    let p95 = took[took.len() * 95 / 100];
    let kept = || rss_kib(pid).saturating_sub(memory);
    eventually(seconds(30), "no half-open handshake is left", || under_way(&exit) == 0);
    let quiet = Instant::now();
    while lasting.is_some() && kept() > KEPT_KIB && quiet.elapsed() < seconds(60) {
        std::thread::sleep(Duration::from_millis(500));
    }
    println!(
        "measured: {rate} handshakes a second begun from {NETWORKS} networks, {begun} in all, {proven} addresses proven; \
         {held} under way, {given_up} displaced; {} clients connected meanwhile, p95 {p95:.0?}, at most {:.0?}; the exit grew by at most \
         {peak} KiB, and by {} KiB in the end; {pings}",
        took.len(),
        took[took.len() - 1],
        kept(),
    );
    assert!(
        given_up > took.len() as u64,
        "{given_up} were displaced, {begun} were started, {proven} addresses were proven"
    );
    let counted: Vec<u64> = pings.split(' ').filter_map(|word| word.parse().ok()).collect();
    // One ping may be in flight when ping is told to end.
    assert!(counted[0] <= counted[1] + 1, "{pings}");
    assert_eq!(client.status().number("/totals/connections_ended"), 0);
    assert_eq!(client.status().number("/reconnects"), 0);
    if lasting.is_some() {
        assert!(rate >= PER_SECOND * 95 / 100, "{rate} a second");
        assert!(p95 <= seconds(3), "{took:?}");
        assert!(peak <= 64 * 1_024 && kept() <= KEPT_KIB, "{peak} KiB, {} KiB after it", kept());
    }
    client.down();
}

/// The most half-open handshakes of an exit.
const AT_ONCE: u64 = 384;

/// How long a busy machine may take to start [`AT_ONCE`] handshakes.
const LONGEST: Duration = seconds(60);

/// Memory that may stay afterwards, in KiB: table capacity, remembered proofs, and pages that a longer-lived allocation keeps.
const KEPT_KIB: u64 = 4_096;

fn under_way(exit: &Exit<'_>) -> u64 {
    exit.status().number("/handshakes_in_flight")
}

fn displaced(exit: &Exit<'_>) -> u64 {
    exit.status().number("/strangers/displaced")
}

/// Connects clients again and again for at least `lasting`, and until the attacker has started enough handshakes to fill all
/// slots again. Returns how long each connection took, sorted.
fn connect_beside(
    attack: &HalfOpen,
    hosts: &[(&Namespace, &[PrivateKey])],
    exit_key: PublicKey,
    lasting: Duration,
) -> Vec<Duration> {
    let ((before, _), start) = (attack.counts(), Instant::now());
    let mut took = Vec::new();
    loop {
        took.extend(hosts.iter().flat_map(|(host, keys)| connect_at_once(host, keys, exit_key)));
        let begun = attack.counts().0 - before;
        if begun > AT_ONCE && start.elapsed() >= lasting {
            took.sort();
            return took;
        }
        assert!(start.elapsed() < lasting + LONGEST, "{begun} were started meanwhile");
        std::thread::sleep(Duration::from_millis(400));
    }
}

/// Connects all clients of one host at once, each with its first attempt. Returns how long each took.
fn connect_at_once(host: &Namespace, keys: &[PrivateKey], exit_key: PublicKey) -> Vec<Duration> {
    let keys = keys.to_vec();
    let all = host.enter(move || {
        let clients = tokio::task::LocalSet::new();
        clients.block_on(&runtime(), async move {
            let connecting: Vec<_> =
                keys.into_iter().map(|key| tokio::task::spawn_local(connect(key, exit_key))).collect();
            let mut took = Vec::new();
            for client in connecting {
                took.push(client.await.unwrap());
            }
            took
        })
    });
    all.join().unwrap()
}

async fn connect(key: PrivateKey, exit_key: PublicKey) -> Duration {
    let start = Instant::now();
    let mut client = LibraryClient::start(key, exit_key, 1);
    client.until("the client is up", |client| client.attached() == 1).await;
    let took = start.elapsed();
    assert_eq!(client.attempts(), 1, "up after {took:?}");
    client.leave().await;
    took
}
