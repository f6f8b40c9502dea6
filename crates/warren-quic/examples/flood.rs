//! Measures what a flood of Initials costs an exit over loopback. The figure is the number of Initials that the exit refuses per
//! second of its thread's CPU time. The figure depends on the content of the Initials.
//!
//! `cargo run --release -p warren-quic --example flood -- 3` takes three seconds for each row.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a program to be read on a terminal")]

use std::{
    env, fs,
    future::poll_fn,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    task::Poll,
    thread,
    time::{Duration, Instant},
};

use warren_quic::{
    driver::{Endpoint, Inbox},
    key::PrivateKey,
    settings::{Driver, TransportSettings},
    socket::{SocketConfig, bind},
    strangers::{Strangers, Turned},
};

/// Number of different Initials, which are sent in turn.
const DIFFERENT: u64 = 4_096;

fn main() {
    let seconds = env::args().nth(1).map_or(3, |text| text.parse().unwrap());
    println!("| Initials of 1,200 bytes | exit | sent | refused | CPU s of the exit | refused per CPU s |");
    println!("|---|---|---:|---:|---:|---:|");
    for (name, token) in [("without a token", 0), ("with a wrong proof", 16)] {
        for silent in [true, false] {
            row(name, token, silent, Duration::from_secs(seconds));
        }
    }
}

fn row(name: &str, token: usize, silent: bool, time: Duration) {
    let strangers = Strangers::new(silent);
    let over = Arc::new(AtomicBool::new(false));
    let socket = bind(SocketConfig::new((Ipv4Addr::LOCALHOST, 0).into())).unwrap();
    let address = socket.local_addr().unwrap();
    let exit = {
        let (strangers, over) = (strangers.clone(), over.clone());
        thread::spawn(move || exit(socket, strangers, &over))
    };
    let sent = flood(address, token, time);
    over.store(true, SeqCst);
    let (received, cpu) = exit.join().unwrap();
    // An exit that answers strangers accepts as many attempts as it can. It refuses the others with a close
    // or silently.
    let refused = if silent { strangers.turned_away(Turned::NoProof) } else { received };
    let exit = if silent { "silent" } else { "answers" };
    println!("| {name} | {exit} | {sent} | {refused} | {cpu:.2} | {:.0} |", refused as f64 / cpu);
}

/// Runs an exit until `over` is set. Returns the datagrams that it received and the CPU seconds of its thread.
fn exit(socket: UdpSocket, strangers: Strangers, over: &AtomicBool) -> (u64, f64) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let settings = TransportSettings { driver: Driver::Warren, strangers, ..Default::default() };
        let mut endpoint =
            Endpoint::exit(settings, vec![PrivateKey::generate().unwrap()], vec![socket], [7; 32]).unwrap();
        let mut inbox = Inbox::new();
        let mut tick = tokio::time::interval(Duration::from_millis(50));
        let before = cpu_seconds();
        poll_fn(|cx| {
            while tick.poll_tick(cx).is_ready() {}
            while endpoint.poll(cx, &mut inbox).is_ready() {
                inbox.clear();
            }
            endpoint.flush(cx);
            if over.load(SeqCst) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        (endpoint.socket_stats().bytes_received / 1_200, cpu_seconds() - before)
    })
}

/// Sends Initials with changing connection IDs as fast as possible. Returns how many.
fn flood(to: SocketAddr, token: usize, time: Duration) -> u64 {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    socket.connect(to).unwrap();
    let packets: Vec<Vec<u8>> = (0..DIFFERENT).map(|number| initial(number, token)).collect();
    let start = Instant::now();
    let mut sent = 0;
    while start.elapsed() < time {
        for packet in &packets {
            sent += u64::from(socket.send(packet).is_ok());
        }
    }
    sent
}

fn initial(number: u64, token: usize) -> Vec<u8> {
    let mut packet = [&[0xc0, 0, 0, 0, 1, 20][..], &[0xab; 12], &number.to_be_bytes(), &[0]].concat();
    packet.push(u8::try_from(token).unwrap());
    packet.resize(packet.len() + token, 0x5a);
    // The packet fills the rest of the datagram: its length in two bytes, then filler for packet number and content.
    let rest = u16::try_from(1_200 - packet.len() - 2).unwrap();
    packet.extend((rest | 0x4000).to_be_bytes());
    packet.resize(1_200, 0x77);
    packet
}

/// CPU time of this thread (the first figure of schedstat, in nanoseconds).
fn cpu_seconds() -> f64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    let nanoseconds: f64 = text.split_whitespace().next().unwrap().parse().unwrap();
    nanoseconds / 1e9
}
