//! What somebody hears from an exit whose key he does not know.
#![allow(clippy::unwrap_used, reason = "test code")]

use std::net::UdpSocket;

use crate::support::{Client, Exit, Namespace, Net, eventually, peer, seconds};

#[test]
fn a_scanner_hears_nothing_until_the_exit_is_told_to_answer() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let host = net.second_client();
    let (plain, version) = (peer::first_flight_of_plain_quic(), vec![of_another_version()]);
    let scanners = [&plain, &version, &noise()].map(|probes| {
        let scanner = socket_on(&host);
        send(&scanner, probes);
        scanner
    });
    // Of the noise, the Initial alone could get an answer.
    let refused = plain.len() + version.len() + 1;

    eventually(seconds(10), "all was looked at", || turned_away(&exit, "no_proof") >= refused as u64);
    // Who has a profile is answered meanwhile.
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();
    client.down();
    assert_eq!(turned_away(&exit, "no_proof"), refused as u64);
    for scanner in &scanners {
        assert_eq!(heard(scanner), 0);
    }

    exit.configure(|config| config.with("access", "silent", false));
    exit.warren.run("reload").ok();
    for probes in [&plain, &version] {
        let scanner = socket_on(&host);
        send(&scanner, probes);
        eventually(seconds(10), "it is answered", || heard(&scanner) > 0);
    }
}

#[test]
fn a_client_s_first_packets_are_worth_nothing_to_who_repeats_them() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let flight = peer::first_flight_of_a_client(exit.status().text("/public_key").parse().unwrap());

    let client = socket_on(&net.client);
    send(&client, &flight);
    eventually(seconds(10), "it is answered", || heard(&client) > 0);
    let repeater = socket_on(&net.second_client());
    send(&repeater, &flight);

    eventually(seconds(10), "all was looked at", || {
        turned_away(&exit, "replayed_proof") >= flight.len() as u64
    });
    assert_eq!(heard(&repeater), 0);
}

/// Bytes without a meaning, what looks like packets of connections that there never were, and an Initial without a token.
fn noise() -> Vec<Vec<u8>> {
    let packet = |first: u8| {
        let random = (0..1_200_u32).map(|index| u8::try_from(index * index % 251).unwrap());
        let mut packet: Vec<u8> = [first, 0, 0, 0, 1, 8].into_iter().chain(random).collect();
        packet.truncate(1_200);
        packet
    };
    [0x00, 0x40, 0x5f, 0xc0].map(packet).into()
}

/// An Initial of a version that nobody speaks.
fn of_another_version() -> Vec<u8> {
    let mut packet = [&[0xc0, 0xba, 0xba, 0xba, 0xba, 8][..], &[2; 8], &[8], &[1; 8]].concat();
    packet.resize(1_200, 0);
    packet
}

/// A socket of its own address on a host.
fn socket_on(host: &Namespace) -> UdpSocket {
    host.enter(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.connect((Net::EXIT_V4, 443)).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket
    })
    .join()
    .unwrap()
}

fn send(socket: &UdpSocket, packets: &[Vec<u8>]) {
    for packet in packets {
        socket.send(packet).unwrap();
    }
}

/// Bytes that came since the last look.
fn heard(socket: &UdpSocket) -> usize {
    let mut buffer = [0; 2_048];
    std::iter::from_fn(|| socket.recv(&mut buffer).ok()).sum()
}

fn turned_away(exit: &Exit<'_>, why: &str) -> u64 {
    exit.status().number(&format!("/strangers/{why}"))
}
