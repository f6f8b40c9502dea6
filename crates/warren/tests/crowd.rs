//! Many clients of one exit: what they cost the exit, and how long its operator waits for an answer.
#![allow(clippy::indexing_slicing, clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use warren_quic::key::PrivateKey;

use crate::support::crowd::{CONNECTIONS, Crowd, LISTENING, SENDING, Shared, exit_with};
use crate::support::{Namespace, Net, asked, eventually, seconds};

/// For row L4 of the scorecard (docs/torture.md), run this test with `WARREN_CROWD=100`. Then 100 clients are connected, and 200
/// are enrolled.
#[test]
fn many_clients_cost_an_exit_little_and_its_operator_no_waiting() {
    let Some(net) = Net::new() else { return };
    let size = asked("WARREN_CROWD");
    let (count, idle, busy) = match size {
        Some(count) => (count, seconds(10), seconds(10)),
        None => (8, Duration::from_millis(500), Duration::from_secs(1)),
    };
    let keys: Vec<PrivateKey> = (0..count).map(|_| PrivateKey::generate().unwrap()).collect();
    let mut exit = exit_with(&net, &keys);
    exit.run_with_log("info,warren_tunnel=debug");
    let exit_key = exit.status().text("/public_key").parse().unwrap();

    let start = Instant::now();
    let crowd = Crowd::start(&net.client, keys, exit_key);
    eventually(seconds(60), "every client has all of its connections", || {
        crowd.shared.attached.load(SeqCst) == count * CONNECTIONS
    });
    let up = start.elapsed();

    let log_before = exit.daemon().output().len();
    let before = exit.status();
    std::thread::sleep(idle);
    let after = exit.status();
    let cpu = |status: &crate::support::Status| status.0["process"]["cpu_seconds"].as_f64().unwrap();
    let cpu_idle = (cpu(&after) - cpu(&before)) / idle.as_secs_f64();
    let list = slowest(|| exit.warren.run("exit client list --json").ok());
    let status = slowest(|| exit.warren.run("status --json").ok());
    let scrape = (0..5).map(|_| scrape(&net.exit)).max().unwrap();
    assert_eq!(after.number("/clients/connected"), count as u64);
    assert_eq!(after.number("/clients/enrolled"), 2 * count as u64);

    crowd.shared.phase.store(SENDING, SeqCst);
    std::thread::sleep(busy);
    crowd.shared.phase.store(LISTENING, SeqCst);
    let Shared { sent, answered, .. } = &*crowd.shared;
    // Packets without an answer within this time count as lost.
    let quiet = Instant::now();
    while answered.load(SeqCst) < sent.load(SeqCst) && quiet.elapsed() < seconds(5) {
        std::thread::sleep(Duration::from_millis(50));
    }
    let (sent, answered) = (sent.load(SeqCst), answered.load(SeqCst));
    let memory_kib = exit.status().number("/process/rss_kib");
    crowd.end();
    let longest_turns = longest_turns(&exit.daemon().output()[log_before..]);
    println!(
        "measured: {count} clients with {CONNECTIONS} connections each up in {up:.1?}; idle CPU {:.1} % of a core; client list \
         {list:.0?}, status {status:.0?}, scrape {scrape:.0?}; at 10 packets/s each {answered} of {sent} answered; \
         memory {memory_kib} KiB; longest turns {longest_turns:?} of CPU time",
        100.0 * cpu_idle
    );
    assert!(memory_kib <= 30 * 1024 + 230 * count as u64, "{memory_kib} KiB");
    assert!(sent > 0 && answered >= sent * 9 / 10, "{answered} of {sent} answered");
    if size.is_some() {
        assert!(up <= seconds(30), "{up:?}");
        assert!(cpu_idle <= 0.1, "{cpu_idle}");
        for took in [list, status, scrape] {
            assert!(took < Duration::from_millis(100), "{took:?}");
        }
        assert_eq!(answered, sent);
    }
}

/// For row L8 of the scorecard (docs/torture.md), run this test with `WARREN_AWAY=600` (seconds).
#[test]
#[ignore = "takes ten minutes; `scripts/torture crowd --release` runs it"]
fn a_hundred_clients_whose_exit_was_away_for_long_are_soon_back_and_tried_seldom_meanwhile() {
    const COUNT: usize = 100;
    let Some(net) = Net::new() else { return };
    let away = seconds(asked("WARREN_AWAY").unwrap_or(60));
    let keys: Vec<PrivateKey> = (0..COUNT).map(|_| PrivateKey::generate().unwrap()).collect();
    let mut exit = exit_with(&net, &keys);
    exit.run();
    let exit_key = exit.status().text("/public_key").parse().unwrap();
    // Each client is on its own host, so that the clients' attempts can be distinguished.
    let hosts = net.clients_beside(u8::try_from(COUNT).unwrap());
    let on_its_host = |(host, key)| Crowd::start(host, vec![key], exit_key);
    let crowd: Vec<Crowd> = hosts.iter().zip(keys).map(on_its_host).collect();
    let attached = |client: &Crowd| client.shared.attached.load(SeqCst);
    let all = || crowd.iter().all(|client| attached(client) == CONNECTIONS);
    eventually(seconds(60), "every client has all of its connections", all);
    // Each attempt uses its own port and starts with a long header.
    let seen = "table inet attempts { set seen { type ipv4_addr . inet_service; size 65535; flags dynamic; }; chain in { \
                type filter hook prerouting priority raw; ip daddr 198.51.100.2 udp dport 443 @th,64,8 & 0xf0 == 0xc0 \
                add @seen { ip saddr . udp sport }; }; }";
    net.router.sh(&format!("nft '{seen}'")).ok();

    exit.stop(Signal::KILL);
    std::thread::sleep(away);
    let listed = net.router.sh("nft -j list set inet attempts seen").ok();
    exit.run();
    let back = eventually(seconds(120), "every client is back", all);

    let memory_kib = exit.status().number("/process/rss_kib");
    crowd.into_iter().for_each(Crowd::end);
    let attempts = attempts_of_each(&listed);
    let (fewest, most) = (attempts.values().min().unwrap(), attempts.values().max().unwrap());
    let mean = attempts.values().sum::<u64>() / COUNT as u64;
    println!(
        "measured: {COUNT} clients whose exit was away for {away:?} made {fewest} to {most} attempts each, {mean} on average, and were \
         all back {back:.1?} after its return; the exit then used {memory_kib} KiB"
    );
    assert_eq!(attempts.len(), COUNT, "every client made attempts");
    assert!(*most <= 40, "{attempts:?}");
    assert!(back <= seconds(30), "{back:?}");
    assert!(memory_kib <= 96 * 1024, "{memory_kib} KiB");
}

/// Returns the longest turns of the exit's only worker in this part of its log. The first line is left out, because it also
/// covers the time before this part.
fn longest_turns(log: &str) -> Vec<Duration> {
    let of_line = |line: &str| line.split("cpu_us=").nth(1)?.split_whitespace().next()?.parse().ok();
    log.lines().filter_map(of_line).map(Duration::from_micros).skip(1).collect()
}

/// The number of attempts from each address in nft's set. Each attempt has its own port.
fn attempts_of_each(listed: &str) -> BTreeMap<String, u64> {
    let listed: serde_json::Value = serde_json::from_str(listed).unwrap();
    let sets = listed["nftables"].as_array().unwrap();
    let mut attempts = BTreeMap::new();
    for element in sets.iter().filter_map(|entry| entry["set"]["elem"].as_array()).flatten() {
        let address = element["concat"][0].as_str().unwrap();
        *attempts.entry(address.to_owned()).or_default() += 1;
    }
    attempts
}

/// The duration of the slowest of five runs.
fn slowest<T>(mut what: impl FnMut() -> T) -> Duration {
    let times = (0..5).map(|_| {
        let start = Instant::now();
        what();
        start.elapsed()
    });
    times.max().unwrap()
}

/// How long the exit takes to return its metrics to an HTTP request. Does not run another program, whose start would be measured
/// too.
fn scrape(host: &Namespace) -> Duration {
    // The exit caches the page for half a second.
    std::thread::sleep(Duration::from_millis(600));
    let asking = host.enter(|| {
        let start = Instant::now();
        let mut stream = TcpStream::connect("127.0.0.1:9466").unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        assert!(page.starts_with("HTTP/1.1 200 OK\r\n") && page.ends_with("# EOF\n"), "{page}");
        start.elapsed()
    });
    asking.join().unwrap()
}
