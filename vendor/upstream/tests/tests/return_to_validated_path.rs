//! Fails with: the server said nothing to the client's new address

use std::time::Duration;

use bytes::Bytes;
use noq_faults::{CLIENT, Pair, SERVER, Setup};

/// RFC 9000 section 9.3.2. A client's address changes, as by a NAT that forgot, while the way back loses all for two seconds.
#[test]
fn an_address_whose_validation_failed_is_tried_again() {
    // The control: without that loss the new address is validated.
    for loses in [false, true] {
        let mut pair = Pair::connected(Setup::new(|_| {}));
        pair.sides[CLIENT].address.set_port(2_000);
        for _ in 0..20 {
            pair.quic(CLIENT).datagrams().send(Bytes::from_static(b"up"), false).unwrap();
            pair.run_with(Duration::from_millis(100), |from, _| from == CLIENT || !loses);
        }
        let mut heard = 0;
        for _ in 0..50 {
            pair.quic(CLIENT).datagrams().send(Bytes::from_static(b"up"), false).unwrap();
            pair.quic(SERVER).datagrams().send(Bytes::from_static(b"down"), true).unwrap();
            pair.run(Duration::from_millis(100));
            while pair.quic(CLIENT).datagrams().recv().is_some() {
                heard += 1;
            }
        }
        assert!(
            heard > 10,
            "the server said nothing to the client's new address: {heard}, with loss: {loses}"
        );
        assert!(!pair.quic(SERVER).is_closed());
    }
}
