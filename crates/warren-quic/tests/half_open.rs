//! An attacker occupies all of an exit's seats for handshakes. The attacker knows the exit's key, proves its addresses, and
//! finishes no handshake.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "helpers of tests may panic")]

#[path = "common/attacker.rs"]
#[allow(dead_code, reason = "each test file uses a part of it")]
mod attacker;
mod common;

use std::{net::UdpSocket, time::Duration};

use attacker::{Attacker, Retry};
use aws_lc_rs::hmac;
use common::{Drivers, Pair};
use warren_quic::{
    key::PublicKey,
    settings::TransportSettings,
    socket::{SocketConfig, bind},
    strangers::{Strangers, Turned},
};

test_every_driver!(a_client_connects_to_an_exit_whose_places_are_all_taken);

/// The most handshakes that may be in progress.
const PLACES: usize = 384;
const NETWORKS: usize = 64;
const SOURCE: [u8; 8] = [0x5c; 8];

async fn a_client_connects_to_an_exit_whose_places_are_all_taken(drivers: Drivers) {
    let strangers = Strangers::new(true);
    let mut pair =
        Pair::new(drivers, &TransportSettings { strangers: strangers.clone(), ..Default::default() });
    let sockets: Vec<UdpSocket> = (1..=NETWORKS)
        .map(|network| bind(SocketConfig::new(format!("127.0.{network}.1:0").parse().unwrap())).unwrap())
        .collect();
    let frames = Attacker::hello_frames(&attacker(Vec::new()).usual_parameters());
    let (mut begun, mut most) = (0_u64, 0);
    while strangers.turned_away(Turned::Displaced) < 50 {
        assert!(begun < 5_000, "{:?}", strangers.handshakes());
        let socket = &sockets[usize::try_from(begun).unwrap() % NETWORKS];
        begin(socket, &pair, begun, &frames);
        begun += 1;
        pair.run_for(Duration::from_millis(2)).await;
        sockets.iter().for_each(|socket| prove(socket, &frames));
        most = most.max(strangers.handshakes().in_flight);
    }
    assert_eq!(most, PLACES, "all places are taken, and no more");

    for _ in 0..10 {
        let before = strangers.turned_away(Turned::Displaced);
        pair.connect().await;
        assert!(strangers.turned_away(Turned::Displaced) > before, "another handshake was displaced");
        // The attacker takes the seat that the client has vacated.
        for socket in &sockets[..2] {
            begin(socket, &pair, begun, &frames);
            begun += 1;
        }
        pair.run_for(Duration::from_millis(20)).await;
        sockets.iter().for_each(|socket| prove(socket, &frames));
        pair.run_for(Duration::from_millis(20)).await;
    }
    assert!(strangers.handshakes().in_flight <= PLACES);
}

fn begin(socket: &UdpSocket, pair: &Pair, number: u64, frames: &[Vec<u8>]) {
    let attempt = attacker([&[0xd1; 12][..], &number.to_be_bytes()].concat());
    let token = proof(pair.exit_key, &attempt.destination);
    for packet in attempt.initials(&token, frames) {
        socket.send_to(&packet, pair.exit_address).unwrap();
    }
}

/// Follows each Retry that a socket received, and ignores all other packets.
fn prove(socket: &UdpSocket, frames: &[Vec<u8>]) {
    let (mut buffer, any) = ([0; 2_048], attacker(Vec::new()));
    while let Ok((length, exit)) = socket.recv_from(&mut buffer) {
        let Some(retry) = Retry::read(&any, &buffer[..length]) else { continue };
        for packet in any.after_retry(&retry).initials(&retry.token, frames) {
            socket.send_to(&packet, exit).unwrap();
        }
    }
}

fn attacker(destination: Vec<u8>) -> Attacker {
    Attacker { destination, source: SOURCE }
}

/// The token that proves knowledge of the exit's key, as documented in `docs/silent-mode.md`.
fn proof(key: PublicKey, first_id: &[u8]) -> Vec<u8> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, &key.0);
    hmac::sign(&key, &[b"warren/1 initial proof", first_id].concat()).as_ref()[..16].to_vec()
}
