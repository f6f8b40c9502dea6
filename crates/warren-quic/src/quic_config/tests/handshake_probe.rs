//! A handshake's probe that is due just when the rest of the exit's flight arrives (patch `handshake-probe-keys`).
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests may panic")]

use std::time::Duration;

use super::{
    fast_path::Pair,
    world::{CLIENT, EXIT},
};

/// The client answers the first part of the exit's flight with an acknowledgement in a Handshake packet, and then drops its Initial
/// keys. The rest of the flight gives the client its 1-RTT keys, while none of its own packets is in flight.
#[test]
fn probe_that_is_due_when_the_last_flight_comes_has_keys() {
    let mut parts = 1;
    for cut in 0.. {
        let mut pair = Pair::new();
        for packet in pair.transmit(CLIENT) {
            pair.deliver(EXIT, &packet);
        }
        let flight = pair.transmit(EXIT);
        parts = parts.max(flight.len());
        if cut == flight.len() {
            break;
        }
        let (first, rest) = flight.split_at(cut);
        first.iter().for_each(|packet| pair.deliver(CLIENT, packet));
        let _lost = pair.transmit(CLIENT);
        pair.now += Duration::from_secs(3);
        rest.iter().for_each(|packet| pair.deliver(CLIENT, packet));
        for packet in pair.transmit(CLIENT) {
            pair.deliver(EXIT, &packet);
        }
        pair.settle();
        assert!(!pair.is_lost && !pair.quic(CLIENT).is_handshaking(), "cut after {cut} of {}", flight.len());
    }
    assert!(parts > 1, "there is nothing between the parts of {parts}");
}
