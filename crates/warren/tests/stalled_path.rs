//! A path that stalls under load. Queued packets take bounded memory, and packets that have waited too long are dropped.
#![allow(clippy::indexing_slicing, clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::support::memory::rss_kib;
use crate::support::{Client, Exit, Net, eventually, seconds};

const PORT: u16 = 5_300;
/// Enough flows that each of the client's connections has some.
const FLOWS: usize = 16;
const PACKETS_PER_SECOND: u64 = 10_000;
const LENGTH: usize = 1_200;
const CONNECTIONS: u64 = 4;
/// The memory that a connection may use for packets: its queue, and the datagrams for the next drive in QUIC.
const BUFFER_KIB: u64 = 1_536 + 128;

/// Scorecard R5: at most 4 MiB besides the buffers, and at most 1 % of the delivered packets are older than a second.
#[test]
#[ignore = "a measurement; `scripts/torture bounds` runs it"]
fn a_path_that_stands_still_for_five_seconds_fills_no_memory_and_delivers_nothing_old() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    let daemon = client.run("info");
    let over = Arc::new(AtomicBool::new(false));
    let arrivals = Arc::new(Mutex::new(Vec::new()));
    let start = Instant::now();
    let (is_over, arrived) = (over.clone(), arrivals.clone());
    let receiving = net.internet.host.enter(move || receive(start, &is_over, &arrived));
    let is_over = over.clone();
    let sending = net.client.enter(move || send(start, &is_over));
    eventually(seconds(20), "the load has started", || arrivals.lock().unwrap().len() > 5_000);
    let base = rss_kib(daemon.pid());

    net.black_hole();
    let stalled = Instant::now();
    let mut peak = base;
    while stalled.elapsed() < seconds(5) {
        peak = peak.max(rss_kib(daemon.pid()));
        std::thread::sleep(Duration::from_millis(20));
    }
    net.unfilter();
    let resumed = start.elapsed();
    let since = |arrivals: &[Arrival]| arrivals.iter().filter(|arrival| arrival.at >= resumed).count();
    let back = eventually(seconds(30), "the load is back", || {
        peak = peak.max(rss_kib(daemon.pid()));
        since(&arrivals.lock().unwrap()) > 20_000
    });
    over.store(true, SeqCst);
    sending.join().unwrap();
    receiving.join().unwrap();

    let arrivals = std::mem::take(&mut *arrivals.lock().unwrap());
    let after: Vec<Duration> =
        arrivals.iter().filter(|arrival| arrival.at >= resumed).map(|arrival| arrival.age).collect();
    let old = after.iter().filter(|age| **age > seconds(1)).count();
    let first = arrivals.iter().map(|arrival| arrival.at).find(|at| *at >= resumed).unwrap();
    let last = arrivals.iter().map(|arrival| arrival.at).rfind(|at| *at < resumed).unwrap();
    let (gap, first) = (first - last, first - resumed);
    let status = client.status();
    let dropped = status.drops("carrier");
    let grown = peak - base;
    println!(
        "measured: a stall of 5 s under {} packets/s: {grown} KiB more at most; the first packet {first:.0?} after it; of {} \
         delivered in the {back:.1?} behind it {old} were older than a second, the oldest {:.0?}; the client dropped {dropped}",
        PACKETS_PER_SECOND,
        after.len(),
        after.iter().max().unwrap()
    );
    // The control: the path really stalled, and the load was larger than the queues.
    assert!(gap >= seconds(4), "{gap:?}");
    assert!(dropped >= 2 * PACKETS_PER_SECOND, "{dropped}");
    assert!(grown <= CONNECTIONS * BUFFER_KIB + 4 * 1024, "{grown} KiB");
    assert!(old * 100 <= after.len(), "{old} of {}", after.len());
    assert_eq!(status.number("/reconnects"), 0);
}

/// A packet's arrival, relative to the test's start.
#[derive(Clone, Copy)]
struct Arrival {
    at: Duration,
    age: Duration,
}

fn receive(start: Instant, over: &AtomicBool, arrivals: &Mutex<Vec<Arrival>>) {
    let socket = UdpSocket::bind((Net::INTERNET_V4, PORT)).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let mut packet = [0; LENGTH];
    while !over.load(SeqCst) {
        let Ok(LENGTH) = socket.recv(&mut packet) else { continue };
        let at = start.elapsed();
        let sent = Duration::from_micros(u64::from_be_bytes(packet[..8].try_into().unwrap()));
        arrivals.lock().unwrap().push(Arrival { at, age: at.saturating_sub(sent) });
    }
}

/// Sends packets with their send time, without waiting for earlier ones.
fn send(start: Instant, over: &AtomicBool) {
    let sockets: Vec<UdpSocket> = (0..FLOWS)
        .map(|_| {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.connect((Net::INTERNET_V4, PORT)).unwrap();
            socket.set_nonblocking(true).unwrap();
            socket
        })
        .collect();
    let mut packet = [0; LENGTH];
    let begun = start.elapsed();
    for (number, socket) in (0_u64..).zip(sockets.iter().cycle()) {
        if over.load(SeqCst) {
            return;
        }
        while number * 1_000_000 / PACKETS_PER_SECOND
            > u64::try_from((start.elapsed() - begun).as_micros()).unwrap()
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        let now = u64::try_from(start.elapsed().as_micros()).unwrap();
        packet[..8].copy_from_slice(&now.to_be_bytes());
        // A packet that the kernel does not accept is not sent again, as in a call or a game.
        drop(socket.send(&packet));
    }
}
