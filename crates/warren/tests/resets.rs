//! Forged ends of connections: stateless resets and closes that their peer never sent.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use warren_quic::key::PrivateKey;

use crate::support::counters::HEADERS;
use crate::support::forged::{Forger, answered, stranger, swallow_answers};
use crate::support::{Client, Exit, Net, eventually, seconds};

/// Payloads to the exit.
const LENGTH: usize = 300;

/// Scorecard B7.
#[test]
#[ignore = "takes a while; `scripts/torture forged` runs it"]
fn a_hundred_thousand_forged_ends_end_no_connection_and_next_to_nothing_is_said_to_them() {
    const EACH: u32 = 25_000;
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();
    swallow_answers(&net);
    let status = exit.status();
    let remotes: Vec<SocketAddrV4> = status
        .list("/connections")
        .iter()
        .map(|connection| connection["remote"].as_str().unwrap().parse().unwrap())
        .collect();
    assert_eq!(remotes.len(), 4);
    let listener = SocketAddrV4::new(Net::EXIT_V4.parse().unwrap(), 443);
    let forger = Forger::on(&net.second_client());
    // Any 32 bytes do as what nobody can know.
    let secrets: Vec<Vec<u8>> =
        (0..64).map(|_| PrivateKey::generate().unwrap().public().0.repeat(LENGTH / 32 + 1)).collect();
    // As a connection's packet, which a reset looks like, and as a Handshake packet with a close in it.
    let forged = |number: u32, long: bool| {
        let secret = &secrets[usize::try_from(number).unwrap() % secrets.len()];
        let mut datagram = secret[..LENGTH].to_vec();
        datagram[0] = if long { 0xe0 | datagram[0] & 3 } else { 0x40 | datagram[0] & 0x3f };
        if long {
            datagram[1..5].copy_from_slice(&1_u32.to_be_bytes());
            datagram[5] = 8;
        }
        datagram[20..24].copy_from_slice(&number.to_be_bytes());
        datagram
    };
    let pinging = net.client.start(&["ping", "-q", "-i", "0.05", "-W", "5", Net::INTERNET_V4]);
    let start = Instant::now();
    for number in 0..EACH {
        let remote = remotes[usize::try_from(number).unwrap() % remotes.len()];
        forger.send_to(listener, remote, &forged(number, false));
        forger.send_to(listener, remote, &forged(number, true));
        forger.send_to(remote, listener, &forged(number, number % 2 == 0));
        forger.send_to(stranger(number), listener, &forged(number, false));
        if number % 5 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let took = start.elapsed();
    pinging.signal(Signal::INT);
    eventually(seconds(10), "ping sums up", || pinging.output().contains("packet loss"));
    let pings = pinging.output().lines().find(|line| line.contains("packet loss")).unwrap().to_owned();
    let (resets, bytes) = answered(&net);
    let ended = |status: &crate::support::Status| status.number("/totals/connections_ended");
    println!(
        "measured: {} forged ends in {took:.1?}: {} connections ended, {resets} resets of {bytes} bytes for packets of no connection; {pings}",
        4 * EACH,
        ended(&client.status()) + ended(&exit.status()),
    );
    assert_eq!((ended(&client.status()), ended(&exit.status())), (0, 0));
    assert!(resets <= 50 * took.as_secs(), "{resets} in {took:?}");
    assert!(bytes < resets.max(1) * (LENGTH as u64 + HEADERS), "{bytes} in {resets}");
    let lost: f64 =
        pings.split_whitespace().find_map(|word| word.strip_suffix('%')).unwrap().parse().unwrap();
    assert!(lost <= 1.0, "{pings}");
    client.down();
}
