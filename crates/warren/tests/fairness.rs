//! How much of an exit's capacity one client can use, and how much remains for others.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use warren_quic::key::{PrivateKey, PublicKey};

use crate::support::counters::packets_of_one;
use crate::support::library_client::{LibraryClient, runtime, udp};
use crate::support::{Exit, Net, seconds};

/// The greedy client's port. The others use the ports after it.
const FIRST_PORT: u16 = 5_400;
/// The length of an inner packet in bytes.
const LENGTH: usize = 1_228;
const MEGABITS: f64 = 10.0;
const LASTING: Duration = seconds(15);

/// Scorecard L6: each of the three clients gets at least 90 % of its rate and loses at most 1 %.
#[test]
#[ignore = "a measurement; scripts/torture runs it"]
fn three_clients_keep_their_rate_beside_one_that_takes_what_it_gets() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let keys: Vec<PrivateKey> = (0..4).map(|_| PrivateKey::generate().unwrap()).collect();
    for (number, key) in keys.iter().enumerate() {
        exit.enrol_key(&format!("client-{number}"), &key.public().to_string());
    }
    let exit_key = exit.status().text("/public_key").parse().unwrap();
    let counters: String =
        (FIRST_PORT..FIRST_PORT + 4).map(|port| format!("udp dport {port} counter drop; ")).collect();
    let prerouting =
        format!("table inet seen {{ chain in {{ type filter hook prerouting priority raw; {counters} }}; }}");
    net.internet.host.sh(&format!("nft '{prerouting}'")).ok();

    let mut keys = keys.into_iter();
    let greedy_key = keys.next().unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let greedy_over = over.clone();
    let greedy = net.client.enter(move || runtime().block_on(take_all(greedy_key, exit_key, &greedy_over)));
    let polite = net.client.enter(move || {
        runtime().block_on(async move {
            let clients: Vec<_> =
                keys.zip(FIRST_PORT + 1..).map(|(key, port)| paced(key, exit_key, port)).collect();
            let local = tokio::task::LocalSet::new();
            let tasks: Vec<_> = clients.into_iter().map(|client| local.spawn_local(client)).collect();
            local.await;
            let mut sent = Vec::new();
            for task in tasks {
                sent.push(task.await.unwrap());
            }
            sent
        })
    });
    let sent = polite.join().unwrap();
    over.store(true, SeqCst);
    let greedy_sent = greedy.join().unwrap();
    std::thread::sleep(seconds(1));

    let listed = net.internet.host.sh("nft list table inet seen").ok();
    let arrived = |port: u16| {
        let rule = listed.lines().find(|line| line.contains(&format!("dport {port} "))).unwrap();
        packets_of_one(rule)
    };
    let polite: Vec<(u64, u64)> = sent.iter().copied().zip((FIRST_PORT + 1..).map(arrived)).collect();
    println!(
        "measured: packets sent and arrived: {polite:?}; of the greedy client, {} of {greedy_sent} arrived",
        arrived(FIRST_PORT)
    );
    let whole = MEGABITS * 1e6 / 8.0 / LENGTH as f64 * LASTING.as_secs_f64();
    for (sent, arrived) in polite {
        assert!(arrived as f64 >= 0.9 * whole, "{arrived} of {whole}");
        assert!(arrived as f64 >= 0.99 * sent as f64, "{arrived} of {sent}");
    }
}

async fn up(key: PrivateKey, exit_key: PublicKey) -> (LibraryClient, Ipv4Addr) {
    let mut client = LibraryClient::start(key, exit_key, 1);
    client.until("the client is up", |client| client.attached() == 1).await;
    let source = client.welcome().unwrap().ipv4.unwrap().0;
    (client, source)
}

/// Sends as much as the connection accepts.
async fn take_all(key: PrivateKey, exit_key: PublicKey, over: &AtomicBool) -> u64 {
    let (mut client, source) = up(key, exit_key).await;
    let packet = packet(source, FIRST_PORT);
    let mut sent = 0;
    while !over.load(SeqCst) {
        while client.send(&packet) {
            sent += 1;
        }
        client.run(Duration::from_millis(1)).await;
    }
    sent
}

/// Sends [`MEGABITS`] Mbit/s.
async fn paced(key: PrivateKey, exit_key: PublicKey, port: u16) -> u64 {
    let (mut client, source) = up(key, exit_key).await;
    let packet = packet(source, port);
    let start = Instant::now();
    let mut sent = 0_u64;
    while start.elapsed() < LASTING {
        let due = start.elapsed().as_secs_f64() * MEGABITS * 1e6 / 8.0 / LENGTH as f64;
        while (sent as f64) < due && client.send(&packet) {
            sent += 1;
        }
        client.run(Duration::from_millis(2)).await;
    }
    // Gives the last queued packets time to leave.
    for _ in 0..50 {
        client.run(Duration::from_millis(5)).await;
    }
    sent
}

fn packet(source: Ipv4Addr, port: u16) -> Vec<u8> {
    udp(source, (Net::INTERNET_V4.parse().unwrap(), port), 30_000, &[7; LENGTH - 28])
}
