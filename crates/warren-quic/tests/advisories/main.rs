//! Tries the vulnerabilities published for quinn on the pinned noq, which derives from quinn. cargo-deny reports only
//! advisories that name noq, and these name quinn.
//!
//! | advisory | vulnerability | test |
//! |---|---|---|
//! | RUSTSEC-2021-0035 | the memory layout of socket addresses was assumed | `socket_addresses_are_the_kernel_s`;
//! noq-udp leaves them to socket2, which copies field by field |
//! | RUSTSEC-2023-0063 | a frame of an unknown type panicked | `frames_of_unknown_types_end_the_attempt` |
//! | RUSTSEC-2024-0373 | attempts that got a Retry left a state behind that panicked |
//! `attempts_leave_nothing_behind_however_they_are_dealt_with` |
//! | RUSTSEC-2026-0037 | transport parameters with invalid values panicked | `invalid_transport_parameters_end_the_attempt` |
//! | RUSTSEC-2026-0185 | stream fragments with gaps took unbounded memory | `gaps_in_the_handshake_take_bounded_room`,
//! as far as a stranger gets; the control stream's window is 64 KiB |
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "helpers of tests may panic")]

#[path = "../common/attacker.rs"]
mod attacker;
mod exit;

use std::io::IoSliceMut;
use std::net::UdpSocket;
use std::time::Duration;

use attacker::{Attacker, crypto_frame, odd_parameters, unknown_frames};
use exit::{Exit, Fate};

#[test]
fn a_whole_hello_is_answered() {
    let mut exit = Exit::new();
    let attacker = Attacker::new(1);
    let fate = exit.take_in(&attacker.hello(&attacker.usual_parameters()));
    assert_eq!(fate, Fate::Answered, "a valid hello is answered, so the tests below mean something");
}

#[test]
fn socket_addresses_are_the_kernel_s() {
    for (from, to) in [("127.1.2.3:0", "127.4.5.6:0"), ("[::1]:0", "[::1]:0")] {
        let [from, to] = [from, to].map(|address| UdpSocket::bind(address).unwrap());
        let [from_address, to_address] = [&from, &to].map(|socket| socket.local_addr().unwrap());
        let [sender, receiver] =
            [&from, &to].map(|socket| noq_udp::UdpSocketState::new(socket.into()).unwrap());
        let transmit = noq_udp::Transmit {
            destination: to_address,
            ecn: None,
            contents: b"hello",
            segment_size: None,
            src_ip: Some(from_address.ip()),
        };

        sender.try_send((&from).into(), &transmit).unwrap();

        let mut buffer = [0; 64];
        let mut meta = [noq_udp::RecvMeta::default()];
        let received = (0..10_000).find_map(|_| {
            let received = receiver.recv((&to).into(), &mut [IoSliceMut::new(&mut buffer)], &mut meta);
            // The socket is non-blocking by now.
            received.inspect_err(|_| std::thread::sleep(Duration::from_millis(1))).ok()
        });
        assert_eq!(received, Some(1));
        assert_eq!((meta[0].addr, meta[0].dst_ip), (from_address, Some(to_address.ip())));
        assert_eq!(&buffer[..meta[0].len], b"hello");
    }
}

#[test]
fn frames_of_unknown_types_end_the_attempt() {
    let mut exit = Exit::new();
    for (number, [short, long, cut]) in (0..).zip(unknown_frames()) {
        assert_eq!(
            exit.take_in(&[Attacker::new(number).initial(0, &[], &short)]),
            Fate::Closed,
            "{short:x?}"
        );
        assert_eq!(exit.take_in(&[Attacker::new(100 + number).initial(0, &[], &long)]), Fate::Closed);
        let cut = Attacker::new(200 + number).full_initial(0, &[], &cut);
        assert_eq!(exit.take_in(&[cut]), Fate::Closed, "{short:x?} cut short");
    }
    exit.assert_it_still_answers();
}

#[test]
fn invalid_transport_parameters_end_the_attempt() {
    let mut exit = Exit::new();
    let odd = odd_parameters();
    let mut closed = 0;
    for (number, odd) in (0..).zip(&odd) {
        let attacker = Attacker::new(number);
        let parameters = [attacker.usual_parameters(), odd.clone()].concat();
        closed += usize::from(exit.take_in(&attacker.hello(&parameters)) == Fate::Closed);
    }
    assert!(closed > odd.len() / 2, "most are refused: {closed} of {}", odd.len());
    exit.assert_it_still_answers();
}

#[test]
fn attempts_leave_nothing_behind_however_they_are_dealt_with() {
    let mut exit = Exit::new();
    for number in 0..64 {
        let attacker = Attacker::new(number);
        let hello = attacker.hello(&attacker.usual_parameters());
        let retry = exit.retry(&attacker, &hello[0]);
        // The first Initial arrives again before, between and after the other packets, as networks duplicate packets.
        exit.retry(&attacker, &hello[0]);
        exit.ignore(&hello[0]);
        exit.refuse(&hello[0]);
        let proven = attacker.after_retry(&retry).hello_with(&attacker.usual_parameters(), &retry.token);
        match number % 3 {
            0 => exit.ignore(&proven[0]),
            1 => exit.refuse(&proven[0]),
            _ => assert_eq!(exit.take_in(&proven), Fate::Answered),
        }
        exit.ignore(&hello[0]);
    }
    exit.assert_it_still_answers();
    assert_eq!(exit.connections(), 0);
}

#[test]
fn gaps_in_the_handshake_take_bounded_room() {
    let mut exit = Exit::new();
    let attacker = Attacker::new(1);
    let mut packets = Vec::new();
    // Every second byte of a stream, so that the stream is never complete. Its length exceeds the buffer's limit.
    for (number, offsets) in (0..).zip((1..40_000_u64).step_by(2).collect::<Vec<_>>().chunks(150)) {
        let frames: Vec<u8> = offsets.iter().flat_map(|offset| crypto_frame(*offset, &[1])).collect();
        packets.push(attacker.initial(number, &[], &frames));
    }
    assert_eq!(exit.take_in(&packets), Fate::Closed, "more than 16 KiB of gaps are not kept");
    exit.assert_it_still_answers();
}
