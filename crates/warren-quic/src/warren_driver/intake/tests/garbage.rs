//! An exit that is behind, and somebody without the exit's key who fills the strangers' queue space.

use std::net::Ipv4Addr;

use super::*;
use crate::{
    key::PrivateKey,
    settings::TransportSettings,
    socket::{SocketConfig, bind},
    strangers::{IdKey, OWN_ID_LENGTH, Strangers, token},
    warren_driver::WarrenEndpoint,
};

const RESET_KEY: [u8; 64] = [7; 64];
const LENGTH: usize = 1_200;

#[tokio::test]
async fn garbage_takes_no_room_from_an_initial_that_waits_alone_or_in_batches() {
    let key = PrivateKey::generate().unwrap();
    let mut exit = exit(&key);
    let initial = initial(&key);
    keep(&mut exit, &initial);
    let before = exit.intake.bytes;

    for _ in 0..LIMIT / LENGTH {
        for datagram in [short(&[5; OWN_ID_LENGTH]), handshake(&[5; OWN_ID_LENGTH])] {
            keep(&mut exit, &datagram);
            keep(&mut exit, &datagram.repeat(4));
        }
    }

    assert_eq!(exit.intake.bytes, before);
    assert_eq!(exit.intake.pop(true).map(|batch| batch.bytes.to_vec()), Some(initial));
    assert_eq!(exit.socket_stats().intake_drops, 0);
}

#[tokio::test]
async fn of_a_batch_what_goes_to_an_id_of_the_exit_s_waits() {
    let mut exit = exit(&PrivateKey::generate().unwrap());
    let mut own = [5; OWN_ID_LENGTH];
    IdKey::new(&RESET_KEY).sign(&mut own);
    let garbage = short(&[5; OWN_ID_LENGTH]);
    let last = &short(&own)[..LENGTH / 2];

    keep(&mut exit, &[&garbage, &short(&own), &garbage, &handshake(&own), last].concat());
    let batch = exit.intake.pop(true).unwrap();
    assert_eq!(batch.datagrams(), 3);
    assert_eq!(batch.bytes, [&short(&own), &handshake(&own), last].concat());

    // The control: datagrams with such IDs fill the queue space.
    for _ in 0..=LIMIT / LENGTH {
        keep(&mut exit, &short(&own));
    }
    assert!(exit.socket_stats().intake_drops > 0);
}

fn exit(key: &PrivateKey) -> WarrenEndpoint {
    let socket = bind(SocketConfig::new((Ipv4Addr::LOCALHOST, 0).into())).unwrap();
    let settings = TransportSettings { strangers: Strangers::new(true), ..TransportSettings::default() };
    WarrenEndpoint::exit(settings, std::slice::from_ref(key), vec![socket], &RESET_KEY).unwrap()
}

/// Queues datagrams as if they had come in one batch.
fn keep(exit: &mut WarrenEndpoint, bytes: &[u8]) {
    let mut meta = RecvMeta::default();
    meta.addr = ([192, 0, 2, 1], 1).into();
    (meta.len, meta.stride) = (bytes.len(), LENGTH);
    exit.keep_batch(0, &meta, &BytesMut::from(bytes), Instant::now());
}

fn short(id: &[u8]) -> Vec<u8> {
    filled(&[&[0x40], id])
}

fn handshake(id: &[u8]) -> Vec<u8> {
    filled(&[&[0xe0, 0, 0, 0, 1, 12], id])
}

/// A client's first packet, which proves that the client knows the exit's key.
fn initial(key: &PrivateKey) -> Vec<u8> {
    let id = [3; 20];
    filled(&[&[0xc0, 0, 0, 0, 1, 20], &id, &[0, 16], &token(&[key.public()], &id)])
}

fn filled(parts: &[&[u8]]) -> Vec<u8> {
    let mut packet = parts.concat();
    packet.resize(LENGTH, 0x5a);
    packet
}
