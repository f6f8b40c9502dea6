//! Fails with: the client still waits

use std::time::Duration;

use bytes::Bytes;
use noq_faults::{CLIENT, Pair, SERVER, Setup};
use noq_proto::ConnectionError;

#[test]
fn a_client_whose_network_changed_knows_the_stateless_reset_of_a_restarted_server() {
    // The control: without a change of network it does.
    for changes in [false, true] {
        let mut pair = Pair::connected(Setup::new(|_| {}));
        if changes {
            let now = pair.now;
            pair.quic(CLIENT).handle_network_change(None, now);
        }
        pair.run(Duration::from_secs(1));
        pair.restart_server();
        for _ in 0..5 {
            pair.quic(CLIENT).datagrams().send(Bytes::from_static(&[0; 200]), false).unwrap();
            pair.run(Duration::from_millis(200));
        }
        let lost = &pair.sides[CLIENT].lost;
        assert!(
            matches!(lost, Some(ConnectionError::Reset)),
            "the client still waits: {lost:?}, changed: {changes}"
        );
        assert!(pair.sides[SERVER].connection.is_none());
    }
}
