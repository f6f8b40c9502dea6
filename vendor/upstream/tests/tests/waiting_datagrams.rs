//! Fails with: datagrams wait

use std::time::Duration;

use bytes::Bytes;
use noq_faults::{CLIENT, Pair, SERVER, Setup};

/// A receive buffer of 8 MiB holds some 5,000 datagrams of a usual size.
const WINDOW: usize = 8 * 1024 * 1024;
const SENT: usize = 100_000;

#[test]
fn few_datagrams_wait_to_be_read_however_small_they_are() {
    let mut pair = Pair::connected(Setup::new(|transport| {
        transport.datagram_receive_buffer_size(Some(WINDOW)).datagram_send_buffer_size(WINDOW);
    }));
    let mut sent = 0;
    while sent < SENT {
        while sent < SENT && pair.quic(CLIENT).datagrams().send(Bytes::new(), false).is_ok() {
            sent += 1;
        }
        pair.run(Duration::from_millis(100));
    }
    let mut waited = 0;
    while pair.quic(SERVER).datagrams().recv().is_some() {
        waited += 1;
    }
    assert!(waited > 1_000, "some are to wait: {waited}");
    assert!(
        waited <= 10_000,
        "{waited} datagrams wait, and a driver reads them all before it receives again"
    );
}
