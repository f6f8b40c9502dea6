//! The memory that a half-open handshake takes at an exit.
#![allow(clippy::print_stdout, reason = "the figures are part of what the test shows")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "helpers of tests may panic")]

#[path = "common/attacker.rs"]
#[allow(dead_code, reason = "each test file uses a part of it")]
mod attacker;
mod common;
#[path = "common/counting.rs"]
mod counting;

use std::{net::UdpSocket, sync::atomic::Ordering::Relaxed, time::Duration};

use attacker::Attacker;
use aws_lc_rs::hmac;
use common::{Drivers, Pair};
use counting::{Counting, LIVE_BYTES};
use warren_quic::{
    settings::{Driver, TransportSettings},
    socket::{SocketConfig, bind},
    strangers::Strangers,
};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Few enough handshakes that clients need not prove their addresses.
const HANDSHAKES: usize = 48;
/// Handshakes before counting starts, so that buffers and tables have reached their size.
const WARM_UP: usize = 16;

/// Maximum memory of one half-open handshake. A handshake that kept a receive buffer of 64 KiB alive would exceed it.
const MOST: usize = 100 * 1_024;

/// The file's only test, because another test in the same process would be counted too.
#[tokio::test]
async fn a_half_open_handshake_keeps_no_receive_buffer() {
    let strangers = Strangers::new(true);
    let settings = TransportSettings { strangers: strangers.clone(), ..Default::default() };
    let mut pair = Pair::new(Drivers { client: Driver::Warren, exit: Driver::Warren }, &settings);
    let frames = Attacker::hello_frames(&attacker(Vec::new()).usual_parameters());
    let mut sockets = Vec::new();
    let mut before = 0;
    for number in 0..WARM_UP + HANDSHAKES {
        if number == WARM_UP {
            before = LIVE_BYTES.load(Relaxed);
        }
        let socket = bind(SocketConfig::new("127.0.0.1:0".parse().unwrap())).unwrap();
        begin(&socket, &pair, number, &frames);
        sockets.push(socket);
        pair.run_for(Duration::from_millis(10)).await;
    }
    let each = (LIVE_BYTES.load(Relaxed) - before) / HANDSHAKES;
    println!("measured: {each} bytes for each half-open handshake");
    assert_eq!(strangers.handshakes().in_flight, WARM_UP + HANDSHAKES, "all handshakes are in progress");
    assert!(each < MOST, "{each} bytes");
}

fn begin(socket: &UdpSocket, pair: &Pair, number: usize, frames: &[Vec<u8>]) {
    let attempt = attacker([&[0xd1; 12][..], &(number as u64).to_be_bytes()].concat());
    let key = hmac::Key::new(hmac::HMAC_SHA256, &pair.exit_key.0);
    let proof = hmac::sign(&key, &[b"warren/1 initial proof", &attempt.destination[..]].concat());
    for packet in attempt.initials(&proof.as_ref()[..16], frames) {
        socket.send_to(&packet, pair.exit_address).unwrap();
    }
}

fn attacker(destination: Vec<u8>) -> Attacker {
    Attacker { destination, source: [0x5c; 8] }
}
