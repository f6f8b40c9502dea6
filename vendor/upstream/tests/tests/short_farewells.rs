//! Fails with: is kept

use std::time::Duration;

use bytes::Bytes;
use noq_faults::{CLIENT, Pair, SERVER, Setup, with_parameters};
use noq_proto::VarInt;

const MAX_ACK_DELAY: u64 = 0x0b;

/// Its client announces that it may acknowledge as late as can be: 16 s.
#[test]
fn a_closed_connection_is_gone_in_seconds_whatever_its_client_announces() {
    // The control: 25 ms, as everybody.
    for delay in [&[(MAX_ACK_DELAY, 25)], &[(MAX_ACK_DELAY, (1 << 14) - 1)]] {
        let mut setup = Setup::new(|_| {});
        setup.client = with_parameters(delay);
        let mut pair = Pair::connected(setup);
        let now = pair.now;
        pair.quic(SERVER).close(now, VarInt::from_u32(0), Bytes::new());
        pair.run_with(Duration::from_secs(10), |from, _| from == SERVER);
        assert!(pair.quic(SERVER).is_drained(), "the connection is kept after 10 s, with {delay:?}");
    }
}

#[test]
fn a_connection_whose_first_packet_closes_it_is_gone_in_seconds() {
    let mut pair = Pair::new(Setup::new(|_| {}));
    let now = pair.now;
    pair.quic(CLIENT).close(now, VarInt::from_u32(0), Bytes::new());
    pair.run(Duration::from_secs(10));
    let server = pair.sides[SERVER].connection.as_ref();
    assert!(server.is_none_or(|(_, quic)| quic.is_drained()), "the connection is kept after 10 s");
}
