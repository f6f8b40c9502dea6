//! Fails with: buffers are kept

use std::time::Duration;

use bytes::BytesMut;
use noq_faults::{CLIENT, Pair, SERVER, Setup};
use noq_proto::Dir;

/// Large enough for a batch of datagrams, as a socket with GRO hands over.
const BUFFER: usize = 64 * 1024;
const PACKETS: u8 = 100;

/// The first byte of a stream is lost, so that all others wait for it.
#[test]
fn a_byte_that_waits_on_a_stream_keeps_no_buffer() {
    let mut pair = Pair::connected(Setup::new(|_| {}));
    let stream = pair.quic(CLIENT).streams().open(Dir::Uni).unwrap();
    let mut buffer = BytesMut::with_capacity(BUFFER);
    let mut kept = 0;
    for number in 0..PACKETS {
        pair.quic(CLIENT).send_stream(stream).write(&[number]).unwrap();
        for packet in pair.transmit(CLIENT) {
            if number == 0 {
                continue;
            }
            if !buffer.try_reclaim(BUFFER) {
                buffer = BytesMut::with_capacity(BUFFER);
                kept += 1;
            }
            buffer.extend_from_slice(&packet);
            pair.deliver_in(SERVER, buffer.split());
        }
    }
    assert!(kept <= 3, "{kept} buffers are kept, {} KiB, for {PACKETS} bytes", kept * BUFFER / 1024);
    // They did arrive: with the first, all can be read.
    pair.run(Duration::from_secs(2));
    let mut stream = pair.quic(SERVER).recv_stream(stream);
    let mut chunks = stream.read(true).unwrap();
    let mut read = Vec::new();
    while let Ok(Some(chunk)) = chunks.next(1_000) {
        read.extend(chunk.bytes);
    }
    let _transmit = chunks.finalize();
    assert_eq!(read, (0..PACKETS).collect::<Vec<_>>());
}
