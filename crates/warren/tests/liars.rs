//! Peers that prove who they are and lie: what they say goes nowhere, is counted, takes bounded room, and costs nobody else.
#![allow(clippy::indexing_slicing, clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::net::Ipv4Addr;

use warren_quic::key::PrivateKey;
use warren_session::message::{Message, Welcome, encode};

use crate::support::library_client::{LibraryClient, runtime, udp};
use crate::support::lying_exit::{self, LyingExit};
use crate::support::{Client, Exit, ExitOptions, Net, Status, asked, eventually, finished, seconds};

/// Of each kind of lie; scorecard B3 is `WARREN_LIES=2000`.
fn each() -> u16 {
    asked("WARREN_LIES").unwrap_or(200)
}

const PORT: u16 = 7;
/// What may be added to a daemon's memory by all that a peer says.
const ROOM_KIB: u64 = 8 * 1024;

#[test]
#[ignore = "its cryptography is Python's own and slow; `scripts/torture --release wires` runs it"]
fn a_client_that_breaks_the_protocols_is_closed_with_the_reason_and_costs_others_nothing() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let honest = Client::with(&net, &exit.enrol("laptop"));
    honest.up();
    let line = exit.warren.run("exit invite liar").ok();
    let invitation = line.strip_prefix("warren join ").unwrap();
    let before = exit.status();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/wire/liar.py");
    let second = net.second_client();

    let pinging = net.client.start(&["ping", "-q", "-i", "0.1", "-W", "5", Net::INTERNET_V4]);
    let said = finished(&mut second.command(&["python3", "-B", script, invitation]));
    pinging.signal(rustix::process::Signal::INT);

    let text = format!("{}{}", said.stdout, said.stderr);
    println!("{text}");
    assert!(said.succeeded() && text.contains("measured: "), "{text}");
    eventually(seconds(10), "ping sums up", || pinging.output().contains("packet loss"));
    let sum = pinging.output();
    let line = sum.lines().find(|line| line.contains("packets transmitted")).unwrap();
    let numbers: Vec<u64> = line
        .split(|character: char| !character.is_ascii_digit())
        .filter_map(|word| word.parse().ok())
        .collect();
    // The last one may have been under way.
    assert!(numbers[0] - numbers[1] <= 1, "{sum}");
    assert_room(&exit.status(), &before);
    honest.down();
}

#[test]
fn what_a_lying_client_sends_reaches_nobody_and_is_counted() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let key = PrivateKey::generate().unwrap();
    exit.enrol_key("liar", &key.public().to_string());
    let honest = Client::with(&net, &exit.enrol("laptop"));
    honest.up();
    let exit_key = exit.status().text("/public_key").parse().unwrap();
    let internet: Ipv4Addr = Net::INTERNET_V4.parse().unwrap();
    let second = net.second_client();
    let (to_test, from_liar) = std::sync::mpsc::channel();
    let (go_on, may_go_on) = std::sync::mpsc::channel();
    let lying = second.enter(move || {
        runtime().block_on(async move {
            let mut liar = LibraryClient::start(key, exit_key, 1);
            liar.until("it is up", |client| client.attached() == 1).await;
            let own = liar.welcome().unwrap().ipv4.unwrap().0;
            may_go_on.recv().unwrap();
            let lies = malformed(own, internet);
            for lie in &lies {
                liar.say_whole(lie).await;
            }
            to_test.send(lies.len() as u64).unwrap();
            liar.until("all is counted", |_| may_go_on.try_recv().is_ok()).await;
            // The same, but true.
            for _ in 0..each() {
                liar.send_whole(&udp(own, (internet, PORT), 30_000, b"hello")).await;
            }
            liar.until("it is answered", |client| client.received().is_some()).await;
        });
    });
    let before = exit.status();
    go_on.send(()).unwrap();
    let lies = from_liar.recv().unwrap();

    // A wire may lose some; whatever arrived was refused.
    let refused = |status: &Status| status.drops("tun") - before.drops("tun");
    let mut after = exit.status();
    eventually(seconds(20), "the lies are counted", || {
        after = exit.status();
        refused(&after) >= lies * 3 / 4 && after.number("/totals/assemblies_pending") == 0
    });
    assert!(refused(&after) <= lies, "{} of {lies}", refused(&after));
    let added = |field: &str| after.number(field) - before.number(field);
    assert_eq!(
        added("/totals/carrier_received_packets") - added("/totals/tun_written_packets"),
        refused(&after)
    );
    for reason in ["bad_datagram", "bad_packet", "bad_checksum_flag", "bad_fragment", "fragment_timeout"] {
        let counted = after.drop("tun", reason) - before.drop("tun", reason);
        assert!(counted >= u64::from(each()) / 2, "{reason}: {counted}");
    }
    println!("measured: of {lies} lies {} counted and none passed on", refused(&after));
    assert_room(&after, &before);
    honest.sh("ping -c 1 -W 5 203.0.113.2");

    go_on.send(()).unwrap();
    lying.join().unwrap();
    honest.down();
}

#[test]
fn what_a_lying_exit_sends_reaches_no_program_and_its_connection_is_closed() {
    let Some(net) = Net::new() else { return };
    let key = PrivateKey::generate().unwrap();
    // Only its profile is wanted; the one who lies listens instead.
    let profile = Exit::init(&net, &ExitOptions::default()).enrol("laptop");
    let client = Client::with(&net, &profile.with_exit("public_key", key.public().to_string()));
    let mut lies = malformed(lying_exit::GATEWAY, lying_exit::LEASE);
    for destination in [[10, 99, 0, 3], [192, 0, 2, 2], [127, 0, 0, 1], [224, 0, 0, 1], [255; 4]] {
        let packet = udp(lying_exit::GATEWAY, (destination.into(), PORT), 30_000, b"hello");
        lies.extend((0..each()).map(|_| framed(&packet)));
    }
    let count = lies.len() as u64;
    let exit = LyingExit::start(&net, key, lies, encode(&Message::Welcome(Welcome::default())));
    let _daemon = client.run("info");
    let before = client.status();

    exit.lie(seconds(60));

    let refused = |status: &Status| status.drops("tun") - before.drops("tun");
    let mut after = client.status();
    eventually(seconds(20), "the lies are counted", || {
        after = client.status();
        refused(&after) >= count * 3 / 4 && after.number("/totals/assemblies_pending") == 0
    });
    assert!(refused(&after) <= count, "{} of {count}", refused(&after));
    let wrong = after.drop("tun", "wrong_destination") - before.drop("tun", "wrong_destination");
    assert!(wrong >= u64::from(each()) * 4, "{wrong}");
    assert_room(&after, &before);
    // Then it says Welcome again.
    eventually(seconds(20), "the connection is closed for what it said", || {
        client.status().number("/totals/connections_ended") > before.number("/totals/connections_ended")
    });
}

/// Datagrams that no honest peer sends, each of which is at most one packet to be counted.
fn malformed(source: Ipv4Addr, destination: Ipv4Addr) -> Vec<Vec<u8>> {
    let good = udp(source, (destination, PORT), 30_000, b"hello");
    let broken = |at: usize, value: u8| {
        let mut packet = good.clone();
        packet[at] = value;
        framed(&packet)
    };
    let mut lies = Vec::new();
    for number in 0..each() {
        let nibble = u8::try_from(number % 16).unwrap();
        if nibble != 4 && nibble != 6 {
            lies.push(broken(0, nibble << 4 | 5));
        }
        // A header of 4 words, a length beyond the packet, one cut short, and datagrams of another kind or with another flag.
        lies.push(broken(0, 0x44));
        lies.push(broken(3, 0xff));
        lies.push(framed(&good[..19]));
        lies.push([&[0x20 | nibble], good.as_slice()].concat());
        lies.push([&[0x02], good.as_slice()].concat());
        // A partial checksum of what has none.
        let mut icmp = good.clone();
        icmp[9] = 1;
        lies.push([&[0x01], icmp.as_slice()].concat());
        // Half of a packet that never comes.
        lies.push(fragment(u32::from(number), 1_000, 0, 500));
    }
    // A fragment of nothing, one that ends beyond its packet, and two that overlap.
    for number in 0..each() {
        lies.push(fragment(10_000 + u32::from(number), 1_000, 0, 600));
        lies.push(fragment(10_000 + u32::from(number), 1_000, 500, 500));
        lies.push(fragment(u32::from(number), 0, 0, 10));
        lies.push(fragment(u32::from(number), 1_000, 999, 2));
    }
    lies
}

fn framed(packet: &[u8]) -> Vec<u8> {
    [&[0x00], packet].concat()
}

fn fragment(id: u32, total: u16, offset: u16, length: usize) -> Vec<u8> {
    let head = [&[0x10], id.to_be_bytes().as_slice(), &total.to_be_bytes(), &offset.to_be_bytes()].concat();
    [head, vec![0x45; length]].concat()
}

#[track_caller]
fn assert_room(after: &Status, before: &Status) {
    let grown = after.number("/process/rss_kib").saturating_sub(before.number("/process/rss_kib"));
    assert!(grown <= ROOM_KIB, "{grown} KiB more");
}
