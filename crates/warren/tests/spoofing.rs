//! An enrolled peer other than Warren's client sends packets with foreign source addresses, which the exit must drop.
#![allow(clippy::indexing_slicing, clippy::unwrap_used, reason = "test code")]

use std::cell::Cell;
use std::net::Ipv4Addr;

use warren_quic::key::PrivateKey;

use crate::support::counters::packets_of_one;
use crate::support::library_client::{LibraryClient, runtime, udp, udp6};
use crate::support::{Exit, Net, Status, eventually, seconds};

/// The number that row A1 of the scorecard (docs/torture.md) requires.
const PACKETS: u64 = 10_000;
/// The control: packets with the sender's own source.
const OWN: u64 = 100;
const PORT: u16 = 5_304;

#[test]
fn ten_thousand_packets_with_the_sources_of_others_reach_nobody_and_are_counted() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let keys: [PrivateKey; 2] = std::array::from_fn(|_| PrivateKey::generate().unwrap());
    for (name, key) in ["mallory", "victim"].into_iter().zip(&keys) {
        exit.enrol_key(name, &key.public().to_string());
    }
    let exit_key = exit.status().text("/public_key").parse().unwrap();
    let counter = format!("udp dport {PORT} counter");
    net.internet
        .host
        .sh(&format!(
            "nft 'table inet seen {{ chain in {{ type filter hook input priority 0; {counter}; }}; }}'"
        ))
        .ok();
    let seen = || packets_of_one(&net.internet.host.sh("nft list table inet seen").ok());
    let dropped = |status: &Status| status.drop("tun", "spoofed_source");
    let delivered = |status: &Status| status.number("/totals/carrier_received_packets");

    let [mallory, victim] = keys;
    let (to_test, from_client) = std::sync::mpsc::channel();
    let (go_on, may_go_on) = std::sync::mpsc::channel();
    let clients = net.client.enter(move || {
        runtime().block_on(async move {
            let mut victim = LibraryClient::start(victim, exit_key, 1);
            victim.until("the victim is up", |client| client.attached() == 1).await;
            let mut mallory = LibraryClient::start(mallory, exit_key, 1);
            mallory.until("the attacker is up", |client| client.attached() == 1).await;
            let address = |client: &LibraryClient| client.welcome().unwrap().ipv4.unwrap().0;
            let (own, other) = (address(&mallory), address(&victim));
            let internet: Ipv4Addr = Net::INTERNET_V4.parse().unwrap();
            to_test.send(()).unwrap();
            let mut allowed = true;
            let mut number = 0_u64;
            while allowed {
                for _ in 0..500 {
                    mallory.send_whole(&spoofed(number, other, internet)).await;
                    number += 1;
                }
                to_test.send(()).unwrap();
                allowed = may_go_on.recv().unwrap();
            }
            // The same packets pass with their own source.
            for _ in 0..OWN {
                mallory.send_whole(&udp(own, (internet, PORT), 30_000, b"hello")).await;
            }
            to_test.send(()).unwrap();
            // The attacker must keep running until its queued packets have left.
            let over = Cell::new(false);
            let goes_on = |_: &mut LibraryClient| {
                over.set(over.get() || may_go_on.try_recv().is_ok());
                over.get()
            };
            tokio::join!(
                victim.until("the test goes on", goes_on),
                mallory.until("the test goes on", goes_on)
            );
            assert!(victim.received().is_none(), "nothing reached the other client");
        });
    });

    from_client.recv().unwrap();
    let before = exit.status();
    for round in 0.. {
        from_client.recv().unwrap();
        let after = exit.status();
        assert!(round < 200, "only {} of {PACKETS} were counted", dropped(&after));
        if dropped(&after) - dropped(&before) >= PACKETS {
            break;
        }
        go_on.send(true).unwrap();
    }
    // Packets in flight still arrive, and are dropped too.
    eventually(seconds(10), "no spoofed packet passes", || {
        let after = exit.status();
        dropped(&after) - dropped(&before) == delivered(&after) - delivered(&before)
    });
    let written = |status: &Status| status.number("/totals/tun_written_packets");
    assert_eq!(written(&exit.status()), written(&before));
    assert_eq!(seen(), 0);
    go_on.send(false).unwrap();
    from_client.recv().unwrap();
    eventually(seconds(10), "its own packets all pass, and no others", || seen() == OWN);
    go_on.send(true).unwrap();
    clients.join().unwrap();
}

/// A packet with a foreign source: the other client, the exit, an internet host, an unassigned address, and others.
fn spoofed(number: u64, other: Ipv4Addr, internet: Ipv4Addr) -> Vec<u8> {
    const IPV6: [&str; 5] =
        ["fd66:6666::1", "fd66:6666::ffff", "fe80::1", "::ffff:10.66.0.1", "2001:db8:3::2"];
    let ipv4 =
        [other, [10, 66, 0, 1].into(), internet, [127, 0, 0, 1].into(), [0; 4].into(), [255; 4].into()];
    let place = usize::try_from(number).unwrap();
    let destination = if number.is_multiple_of(2) { internet } else { other };
    match ipv4.get(place % 11) {
        Some(source) => udp(*source, (destination, PORT), 30_000, b"hello"),
        None => udp6(IPV6[place % 11 - 6], Net::INTERNET_V6, b"hello"),
    }
}
