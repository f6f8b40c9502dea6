//! Measures how much capacity remains for legitimate clients while strangers flood the exit with Initials.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use warren_quic::key::{PrivateKey, PublicKey};

use crate::support::cores::Core;
use crate::support::crowd::{CONNECTIONS, Crowd, SENDING, exit_with};
use crate::support::forged::{Flood, answered, swallow_answers};
use crate::support::library_client::{LibraryClient, runtime};
use crate::support::memory::{forget_peak, peak_kib};
use crate::support::memory_limit::MemoryLimit;
use crate::support::trains::{capacity, offer};
use crate::support::{Client, Exit, Namespace, Net, asked, eventually, flows, peer, seconds};

/// Bytes of an inner UDP payload.
const LENGTH: u64 = 1_172;
/// Number of first flights of clients that do not exist. Each flight has two Initials.
const FLIGHTS: usize = 1_000;
/// The exit's status field that counts Retries.
const UNPROVEN: &str = "/strangers/address_unproven";

/// For row B5 of the scorecard (docs/torture.md), run this test with `WARREN_FLOOD_SECONDS=30`, the time of each of the four
/// floods.
///
/// As in L7, both ends of the tunnel share one core. The other core runs the sender, the flood and the new tunnels. The kernel
/// delivers packets to the exit's socket on the sender's core, so this work is there too. The tunnel's core therefore does
/// only the exit's own work for the flood. The capacity is measured in the same way, without the flood.
#[test]
#[ignore = "a measurement; `scripts/torture bounds` runs it"]
fn a_flood_of_initials_leaves_tunnels_most_of_what_they_carry_and_lets_new_ones_begin() {
    let Some(net) = Net::new() else { return };
    let lasting = seconds(asked("WARREN_FLOOD_SECONDS").unwrap_or(5));
    let mut exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    let newcomer = PrivateKey::generate().unwrap();
    exit.enrol_key("newcomer", &newcomer.public().to_string());
    let exit_key = exit.status().text("/public_key").parse().unwrap();
    let others = net.second_client();
    swallow_answers(&net);
    client.up();
    let [tunnels, rest] = Core::two();
    let client_pid = i32::try_from(client.status().number("/pid")).unwrap();
    [client_pid, exit.daemon().pid()].into_iter().for_each(|pid| tunnels.take_process(pid));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            rest.take_this_thread();
            flood_beside_a_tunnel(&net, &mut exit, &others, &newcomer, exit_key, lasting);
        });
    });
    assert_eq!(client.status().number("/totals/connections_ended"), 0);
    assert_eq!(client.status().number("/reconnects"), 0);
    client.down();
}

/// Offers half of the tunnel's capacity while strangers flood the exit in four ways.
fn flood_beside_a_tunnel(
    net: &Net,
    exit: &mut Exit<'_>,
    others: &Namespace,
    newcomer: &PrivateKey,
    exit_key: PublicKey,
    lasting: Duration,
) {
    let capacity = capacity(net, LENGTH);
    let offered = capacity / 2;
    let flights: Arc<Vec<Vec<u8>>> =
        Arc::new(peer::first_flights_of_plain_quic(FLIGHTS).into_iter().flatten().collect());
    let proofs: Arc<Vec<Vec<u8>>> = Arc::new((0..4_096).map(with_wrong_proof).collect());
    println!(
        "measured: {capacity} packets of {} bytes a second, {} Mbit/s, with a core for both ends and no flood; half of it offered",
        LENGTH + 28,
        capacity * (LENGTH + 28) * 8 / 1_000_000
    );

    for (name, silent, payloads, train) in [("silent", true, &proofs, 1), ("answering", false, &flights, 2)] {
        exit.configure(|config| config.with("access", "silent", silent));
        exit.warren.run("reload").ok();
        for (rate, least) in [(5_000, 70), (20_000, 40)] {
            let share = |flood: flows::Flood| flood.received * 100 / flood.sent.max(1);
            let unproven_before = exit.status().number(UNPROVEN);
            let before = forget_peak(exit.daemon().pid());
            let said = answered(net);
            let over = Arc::new(AtomicBool::new(false));
            let (key, until) = (newcomer.clone(), over.clone());
            let beginning = others.enter(move || begin_again_and_again(key, exit_key, &until));
            let flood = Flood::start(others, payloads.clone(), train, rate);
            let carried = offer(net, offered, LENGTH, lasting);
            over.store(true, SeqCst);
            let (strangers, each_second) = flood.end();
            let begun = beginning.join().unwrap();
            let p95 = *begun.get(begun.len() * 95 / 100).expect("tunnels were opened meanwhile");
            let ended = Instant::now();
            let back = eventually(seconds(10), "the tunnel answers", || {
                net.client.sh("ping -c 1 -W 0.3 203.0.113.2").succeeded()
            });
            // The tunnel counts as recovered within two seconds if an interval that begins within this time is good.
            let after = (0..3)
                .map(|_| share(offer(net, offered, LENGTH, seconds(1))))
                .find(|share| *share >= 90)
                .unwrap_or(0);
            let grown = peak_kib(exit.daemon().pid()).saturating_sub(before);
            let answers = answered(net).0 - said.0;
            let unproven = exit.status().number(UNPROVEN) - unproven_before;
            // Goodput is relative to the offered load, even if the sender could not send all of it.
            let goodput = carried.received * 100 / (offered * lasting.as_secs()).max(1);
            println!(
                "measured: {name}, {} Initials/s: goodput {goodput} % of the offered load, {} of {strangers} strangers answered, \
                 {unproven} asked to prove their address; new tunnels p95 {p95:.2?} of {}; the exit grew by {grown} KiB; after the flood \
                 {} % of the packets arrive, the first answer after {back:.1?}",
                each_second,
                answers,
                begun.len(),
                after,
            );
            assert!(goodput >= least, "{goodput} %");
            assert!(grown <= 32 * 1024, "{grown} KiB");
            assert!(ended.elapsed() < seconds(60) && back <= seconds(2), "{back:?}");
            assert!(after >= 90, "{after} % after the flood");
            assert!(!silent || answers == 0, "{answers} answers of a silent exit");
            // The exit answers the first 100 handshakes with several datagrams each. While these are half-open, other attempts
            // get a Retry.
            assert!(silent || unproven > answers / 2, "{unproven} of {answers} answers asked for a proof");
            if rate == 5_000 {
                assert!(p95 <= seconds(3), "{begun:?}");
            }
        }
    }
}

/// For row R2 of the scorecard (docs/torture.md), run this test with `WARREN_CROWD=100`.
#[test]
#[ignore = "takes a minute; `scripts/torture bounds` runs it"]
fn a_hundred_clients_and_a_flood_fit_into_128_mib() {
    let Some(net) = Net::new() else { return };
    let count = asked("WARREN_CROWD").unwrap_or(20);
    let lasting = if count >= 100 { seconds(30) } else { seconds(3) };
    let keys: Vec<PrivateKey> = (0..count).map(|_| PrivateKey::generate().unwrap()).collect();
    let memory = MemoryLimit::new("exit", 128 << 20);
    let mut exit = exit_with(&net, &keys);
    exit.run_within(&memory);
    let exit_key = exit.status().text("/public_key").parse().unwrap();
    let others = net.second_client();
    swallow_answers(&net);
    let flights: Arc<Vec<Vec<u8>>> =
        Arc::new(peer::first_flights_of_plain_quic(FLIGHTS).into_iter().flatten().collect());
    let proofs: Arc<Vec<Vec<u8>>> = Arc::new((0..4_096).map(with_wrong_proof).collect());
    let crowd = Crowd::start(&net.client, keys, exit_key);
    let all = |crowd: &Crowd| crowd.shared.attached.load(SeqCst) == count * CONNECTIONS;
    eventually(seconds(60), "every client has all of its connections", || all(&crowd));
    crowd.shared.phase.store(SENDING, SeqCst);

    for (silent, payloads, train) in [(true, &proofs, 1), (false, &flights, 2)] {
        exit.configure(|config| config.with("access", "silent", silent));
        exit.warren.run("reload").ok();
        let flood = Flood::start(&others, payloads.clone(), train, 20_000);
        std::thread::sleep(lasting);
        println!("silent {silent}: strangers' Initials, and each second: {:?}", flood.end());
    }

    assert!(exit.daemon().is_running());
    eventually(seconds(10), "every client is there", || all(&crowd));
    let (rss, peak, killed) = (peak_kib(exit.daemon().pid()), memory.peak_kib(), memory.killed());
    let answered = crowd.shared.answered.load(SeqCst);
    let sent = crowd.shared.sent.load(SeqCst);
    crowd.end();
    println!(
        "measured: {count} clients with {CONNECTIONS} connections each beside two floods of {lasting:?}: the exit had {rss} KiB at most, \
         its cgroup {peak} KiB with what the kernel holds for it, {killed} ended; {answered} of {sent} answered meanwhile"
    );
    assert_eq!(killed, 0);
    assert!(rss <= 96 * 1024, "{rss} KiB");
    assert!(answered > sent / 2, "{answered} of {sent}");
}

/// The `number`th client's Initial, with an invalid proof.
fn with_wrong_proof(number: u64) -> Vec<u8> {
    let mut packet =
        [&[0xc0, 0, 0, 0, 1, 20][..], &[0xab; 12], &number.to_be_bytes(), &[0, 16], &[0x5a; 16]].concat();
    // After the header, the datagram has a two-byte length, and filler in place of packet number and content.
    let rest = u16::try_from(1_200 - packet.len() - 2).unwrap();
    packet.extend((rest | 0x4000).to_be_bytes());
    packet.resize(1_200, 0x77);
    packet
}

/// Opens a session every two seconds. Returns how long each took, sorted.
fn begin_again_and_again(key: PrivateKey, exit_key: PublicKey, over: &AtomicBool) -> Vec<Duration> {
    runtime().block_on(async {
        let mut took = Vec::new();
        while !over.load(SeqCst) {
            let start = Instant::now();
            let mut client = LibraryClient::start(key.clone(), exit_key, 1);
            client.until("it is up", |client| client.attached() == 1).await;
            took.push(start.elapsed());
            while start.elapsed() < seconds(2) && !over.load(SeqCst) {
                client.run(Duration::from_millis(50)).await;
            }
        }
        took.sort();
        took
    })
}
