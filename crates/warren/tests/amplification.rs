//! How much an exit that answers strangers sends to a forged source address.
#![allow(clippy::indexing_slicing, clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::time::Duration;

use crate::support::counters::{HEADERS, packets_and_bytes_of_one};
use crate::support::forged::{Forger, answered, stranger, swallow_answers};
use crate::support::{Exit, ExitOptions, Net, peer, seconds};

/// A time after which an exit has given up a half-open handshake.
const FORGOTTEN: Duration = seconds(15);

/// Scorecard B4: RFC 9000, section 8.1.
#[test]
#[ignore = "waits for retransmissions; `scripts/torture forged` runs it"]
fn forged_first_flights_bring_three_times_their_bytes_at_most_and_less_where_addresses_must_be_proven() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::init(&net, &ExitOptions::default());
    exit.configure(|config| config.with("access", "silent", false));
    exit.run();
    swallow_answers(&net);
    let forger = Forger::on(&net.second_client());
    let flights = peer::first_flights_of_plain_quic(203);
    let provoke = |number: u32, datagrams: &[Vec<u8>]| {
        let before = answered(&net);
        datagrams.iter().for_each(|datagram| forger.send(stranger(number), datagram));
        std::thread::sleep(FORGOTTEN);
        let after = answered(&net);
        let sent: u64 = datagrams.iter().map(|datagram| datagram.len() as u64).sum();
        let answers = after.0 - before.0;
        (sent, answers, (after.1 - before.1).saturating_sub(answers * HEADERS))
    };
    let (alone, alone_answers, alone_bytes) = provoke(0, &flights[0][..1]);
    let (whole, whole_answers, whole_bytes) = provoke(1, &flights[1]);

    // Starts so many half-open handshakes that the exit requires address validation for the next one.
    for (number, flight) in (10..).zip(&flights[2..202]) {
        forger.send(stranger(number), &flight[0]);
    }
    std::thread::sleep(Duration::from_millis(200));
    let last = stranger(100_000);
    let rule = format!("ip daddr {} counter drop;", last.ip());
    net.router
        .sh(&format!("nft 'table ip last {{ chain c {{ type filter hook forward priority -1; {rule} }}; }}'"))
        .ok();
    forger.send(last, &flights[202][0]);
    std::thread::sleep(FORGOTTEN);
    let listed = net.router.sh("nft list table ip last").ok();
    let (retries, retry_bytes) = packets_and_bytes_of_one(&listed);

    println!(
        "measured: answers to a forged Initial of {alone} bytes: {alone_answers} datagrams with {alone_bytes} bytes; to a first flight \
         of {whole} bytes: {whole_answers} with {whole_bytes}; to an Initial of {} bytes if addresses must be proven: {retries} with {}",
        flights[202][0].len(),
        retry_bytes.saturating_sub(retries * HEADERS)
    );
    assert!(alone_answers > 0 && alone_bytes <= 3 * alone, "{alone_bytes} of {alone}");
    assert!(whole_answers > 0 && whole_bytes <= 3 * whole, "{whole_bytes} of {whole}");
    assert!(
        retries == 1 && retry_bytes - HEADERS <= flights[202][0].len() as u64,
        "{retries} with {retry_bytes}"
    );
}
