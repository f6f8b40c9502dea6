//! Tests what an exit answers to strangers who do not know its key.
#![allow(clippy::indexing_slicing, clippy::unwrap_used, reason = "test code")]

use std::net::UdpSocket;
use std::time::Instant;

use warren_quic::key::PublicKey;

use crate::support::attacker::{Attacker, Retry};
use crate::support::hostile::proof;
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
    // Of the random packets, only the Initial could get an answer.
    let refused = plain.len() + version.len() + 1;

    eventually(seconds(10), "the exit has processed all packets", || {
        turned_away(&exit, "no_proof") >= refused as u64
    });
    // A client with a profile is served meanwhile.
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
        eventually(seconds(10), "the scanner is answered", || heard(&scanner) > 0);
    }
}

/// Scorecard S10, for an exit that answers everybody who speaks QUIC.
#[test]
fn who_speaks_another_protocol_hears_nothing() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    for silent in [true, false] {
        exit.configure(|config| config.with("access", "silent", silent));
        exit.warren.run("reload").ok();
        let (before, probes) = (received_by(&net.exit), probes());
        let scanner = socket_on(&net.client);
        send(&scanner, &probes);
        eventually(seconds(10), "all datagrams were received", || {
            received_by(&net.exit) >= before + probes.len()
        });
        assert_eq!(heard(&scanner), 0, "silent: {silent}");

        send(&scanner, &peer::first_flight_of_plain_quic());
        if !silent {
            eventually(seconds(10), "the control: QUIC is answered", || heard(&scanner) > 0);
        }
    }
}

#[test]
fn a_client_s_first_packets_are_worth_nothing_to_who_repeats_them() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let flight = peer::first_flight_of_a_client(exit.status().text("/public_key").parse().unwrap());

    let client = socket_on(&net.client);
    send(&client, &flight);
    eventually(seconds(10), "the scanner is answered", || heard(&client) > 0);
    let repeater = socket_on(&net.second_client());
    send(&repeater, &flight);

    eventually(seconds(10), "the exit has processed all packets", || {
        turned_away(&exit, "replayed_proof") >= flight.len() as u64
    });
    assert_eq!(heard(&repeater), 0);
}

#[test]
fn a_retry_token_is_worth_nothing_at_another_address_or_later() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let exit_key = exit.status().text("/public_key").parse().unwrap();
    let asked = asked_for_proofs_of_their_addresses(&net, exit_key);
    let retried = Instant::now();
    let [prompt, late] = asked.map(|(socket, attacker, retry)| {
        let parameters = attacker.usual_parameters();
        (socket, attacker.after_retry(&retry).hello_with(&parameters, &retry.token))
    });
    let observer = socket_on(&net.second_client());
    let refused = |socket: &UdpSocket, packets: &[Vec<u8>]| {
        let before = turned_away(&exit, "no_proof");
        send(socket, packets);
        eventually(seconds(10), "the exit has processed all packets", || {
            assert_eq!(heard(socket), 0);
            turned_away(&exit, "no_proof") >= before + packets.len() as u64
        });
        assert_eq!(heard(socket), 0);
    };

    refused(&observer, &prompt.1);

    // Retries to the second datagram of each ClientHello are not counted.
    let _retries = heard(&prompt.0) + heard(&late.0);
    send(&prompt.0, &prompt.1);
    eventually(seconds(5), "the control: its own address is answered", || heard(&prompt.0) > 0);
    assert!(retried.elapsed() < seconds(10), "while the token is new");

    std::thread::sleep(seconds(12).saturating_sub(retried.elapsed()));
    refused(&late.0, &late.1);
}

/// Starts handshakes that are never finished, until the exit has asked two of them to prove their addresses.
fn asked_for_proofs_of_their_addresses(net: &Net, exit_key: PublicKey) -> [(UdpSocket, Attacker, Retry); 2] {
    let mut asked = Vec::new();
    let mut others = Vec::new();
    for number in 0..400 {
        let (socket, attacker) = (socket_on(&net.client), Attacker::new(number));
        let proof = proof(exit_key, &attacker.destination);
        send(&socket, &attacker.hello_with(&attacker.usual_parameters(), &proof));
        let mut answer = [0; 2_048];
        let mut length = None;
        eventually(seconds(5), "the exit answers", || {
            length = socket.recv(&mut answer).ok();
            length.is_some()
        });
        match Retry::read(&attacker, &answer[..length.unwrap()]) {
            Some(retry) => asked.push((socket, attacker, retry)),
            None => others.push(socket),
        }
        if asked.len() == 2 {
            break;
        }
    }
    asked.try_into().unwrap_or_else(|_| panic!("the exit sent no Retry"))
}

/// Random bytes, packets that look like those of connections that never existed, and an Initial without a token.
fn noise() -> Vec<Vec<u8>> {
    let packet = |first: u8| {
        let random = (0..1_200_u32).map(|index| u8::try_from(index * index % 251).unwrap());
        let mut packet: Vec<u8> = [first, 0, 0, 0, 1, 8].into_iter().chain(random).collect();
        packet.truncate(1_200);
        packet
    };
    [0x00, 0x40, 0x5f, 0xc0].map(packet).into()
}

/// What scanners send to a UDP port in protocols other than QUIC, and some random bytes.
fn probes() -> Vec<Vec<u8>> {
    let dns = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x07version\x04bind\0\0\x10\0\x03";
    let ntp = [&[0xe3][..], &[0; 47]].concat();
    let stun = [&[0, 1, 0, 0, 0x21, 0x12, 0xa4, 0x42][..], &[7; 12]].concat();
    let dtls = [&[22, 0xfe, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 54, 1, 0, 0, 42][..], &[3; 50]].concat();
    let wireguard = [&[1, 0, 0, 0][..], &[9; 144]].concat();
    let openvpn = [&[0x38][..], &[5; 8], &[0; 5]].concat();
    let ike = [&[4; 8][..], &[0; 8], &[0x21, 0x20, 0x22, 0x08, 0, 0, 0, 0, 0, 0, 0, 28]].concat();
    let snmp = b"\x30\x26\x02\x01\x01\x04\x06public\xa1\x19\x02\x04\0\0\0\x01\x02\x01\0\x02\x01\0";
    let sip = b"OPTIONS sip:a@b SIP/2.0\r\nVia: SIP/2.0/UDP c;branch=z9hG4bK1\r\nCSeq: 1 OPTIONS\r\n\r\n";
    let http = b"GET / HTTP/1.1\r\nHost: exit\r\n\r\n";
    let short = [b"".to_vec(), b"\n".to_vec(), vec![0xff; 3], vec![0x55; 1_200]];
    let others = [dtls, ntp, stun, wireguard, openvpn, ike];
    let texts = [&dns[..], snmp, sip, http].map(<[u8]>::to_vec);
    others.into_iter().chain(texts).chain(short).collect()
}

/// An Initial of a QUIC version that does not exist.
fn of_another_version() -> Vec<u8> {
    let mut packet = [&[0xc0, 0xba, 0xba, 0xba, 0xba, 8][..], &[2; 8], &[8], &[1; 8]].concat();
    packet.resize(1_200, 0);
    packet
}

/// A socket with its own address on a host.
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

/// The number of datagrams that programs on a host have received.
fn received_by(host: &Namespace) -> usize {
    let counted = host.sh("grep '^Udp: [0-9]' /proc/net/snmp").ok();
    counted.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Bytes received since the last call.
fn heard(socket: &UdpSocket) -> usize {
    let mut buffer = [0; 2_048];
    std::iter::from_fn(|| socket.recv(&mut buffer).ok()).sum()
}

fn turned_away(exit: &Exit<'_>, why: &str) -> u64 {
    exit.status().number(&format!("/strangers/{why}"))
}
