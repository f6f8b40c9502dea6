//! A silent exit reveals nothing to anybody who does not know its key.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "helpers of tests may panic")]

mod common;

use std::time::Duration;

use common::{Drivers, Pair, Side, loopback_socket};
use warren_quic::{
    driver::Endpoint,
    key::{PrivateKey, PublicKey},
    settings::TransportSettings,
    strangers::{Strangers, Turned},
};

test_every_driver!(
    a_silent_exit_answers_no_probe_and_any_other_does,
    a_proof_that_somebody_else_has_shown_is_worth_nothing,
    what_is_said_to_an_address_that_nobody_has_proven_is_three_times_what_came,
);

async fn a_silent_exit_answers_no_probe_and_any_other_does(drivers: Drivers) {
    for silent in [true, false] {
        let strangers = Strangers::new(silent);
        let mut pair = pair(drivers, &strangers);
        let plain = loopback_socket();
        let initials = initials_for(&mut pair, drivers, PrivateKey::generate().unwrap().public()).await;
        for probe in &initials {
            plain.send_to(probe, pair.exit_address).unwrap();
        }
        let of_another_version = loopback_socket();
        of_another_version.send_to(&another_version(), pair.exit_address).unwrap();
        let noise = loopback_socket();
        for probe in noises() {
            noise.send_to(&probe, pair.exit_address).unwrap();
        }

        // Packets sent before this handshake are processed before it completes.
        pair.connect().await;

        for (scanner, answered) in [(&plain, !silent), (&of_another_version, !silent), (&noise, false)] {
            assert_eq!(scanner.recv(&mut [0; 1_500]).is_ok(), answered, "silent: {silent}");
        }
        assert_eq!(strangers.turned_away(Turned::NoProof) > 0, silent);
    }
}

async fn a_proof_that_somebody_else_has_shown_is_worth_nothing(drivers: Drivers) {
    let strangers = Strangers::new(true);
    let mut pair = pair(drivers, &strangers);
    let exit_key = pair.exit_key;
    let initials = initials_for(&mut pair, drivers, exit_key).await;
    let (first, other) = (loopback_socket(), loopback_socket());
    for scanner in [&first, &other] {
        for initial in &initials {
            scanner.send_to(initial, pair.exit_address).unwrap();
        }
        pair.connect().await;
    }

    assert!(first.recv(&mut [0; 1_500]).is_ok(), "the first sender of the proof is answered");
    assert!(other.recv(&mut [0; 1_500]).is_err(), "a repeated proof is not answered");
    assert_eq!(strangers.turned_away(Turned::Replayed), initials.len() as u64);
}

/// RFC 9000 section 8.1, including retransmissions.
async fn what_is_said_to_an_address_that_nobody_has_proven_is_three_times_what_came(drivers: Drivers) {
    let mut pair = pair(drivers, &Strangers::new(false));
    let initials = initials_for(&mut pair, drivers, PrivateKey::generate().unwrap().public()).await;
    let scanner = loopback_socket();
    for initial in &initials {
        scanner.send_to(initial, pair.exit_address).unwrap();
    }

    // Longer than a handshake may take.
    pair.run_for(Duration::from_secs(11)).await;

    let sent: usize = initials.iter().map(Vec::len).sum();
    let mut buffer = [0; 1_500];
    let said: Vec<usize> = std::iter::from_fn(|| scanner.recv(&mut buffer).ok()).collect();
    let total: usize = said.iter().sum();
    assert!(total > 2 * sent && total <= 3 * sent, "{said:?} for {sent}");
}

fn pair(drivers: Drivers, strangers: &Strangers) -> Pair {
    Pair::new(drivers, &TransportSettings { strangers: strangers.clone(), ..Default::default() })
}

/// The Initials of a client that pins `key`, collected by a socket that never answers.
async fn initials_for(pair: &mut Pair, drivers: Drivers, key: PublicKey) -> Vec<Vec<u8>> {
    let listener = loopback_socket();
    let settings = drivers.client(TransportSettings::default());
    let mut client = Side::new(Endpoint::client(settings, PrivateKey::generate().unwrap()).unwrap());
    client.endpoint.connect(loopback_socket(), listener.local_addr().unwrap(), &[key]).unwrap();
    std::mem::swap(&mut pair.client, &mut client);
    let mut initials = Vec::new();
    pair.until("both datagrams of a hello have arrived", |_| {
        let mut buffer = [0; 1_500];
        while let Ok(length) = listener.recv(&mut buffer) {
            initials.push(buffer[..length].to_vec());
        }
        initials.len() >= 2
    })
    .await;
    std::mem::swap(&mut pair.client, &mut client);
    initials
}

/// An Initial of a QUIC version that does not exist.
fn another_version() -> Vec<u8> {
    let mut packet = [&[0xc0, 0xba, 0xba, 0xba, 0xba, 8][..], &[2; 8], &[8], &[1; 8]].concat();
    packet.resize(1_200, 0);
    packet
}

/// Random bytes, and packets that look like those of connections that never existed.
fn noises() -> Vec<Vec<u8>> {
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed.to_le_bytes()[3]
    };
    let mut packets = Vec::new();
    for length in [1, 20, 40, 100, 1_200, 1_472] {
        for first in [0x00, 0x40, 0x5f, 0xc0, 0xd0, 0xe0, 0xf0] {
            // The worker byte of this connection ID may be valid. An outsider cannot know more.
            let mut packet: Vec<u8> =
                [first, 0].into_iter().chain((2..length.max(2)).map(|_| random())).collect();
            packet.truncate(length);
            packets.push(packet);
        }
    }
    packets
}
