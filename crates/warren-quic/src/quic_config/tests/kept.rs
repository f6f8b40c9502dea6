//! What a connection keeps of the data that it receives: the bytes, not the buffer in which they arrived.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::time::Duration;

use noq_proto::Dir;

use super::world::{CLIENT, EXIT, World, settings};

#[test]
fn what_waits_on_a_stream_keeps_no_buffer() {
    let mut world = World::connected(&settings());
    world.run(Duration::from_secs(1), Some(&[100]));
    assert_eq!(world.kept, 0, "datagrams are read at once");

    let stream = world.quic(CLIENT).streams().open(Dir::Bi).unwrap();
    for number in 0..100 {
        // The first byte is lost for so long that all others wait for it.
        world.loss_per_mille = if number == 0 { 1_000 } else { 0 };
        assert_eq!(world.quic(CLIENT).send_stream(stream).write(&[number]), Ok(1));
        world.run(Duration::from_millis(1), None);
    }
    world.run(Duration::from_secs(1), None);
    // Nobody reads the stream, so the bytes wait even after they are in order.
    assert_eq!(world.kept, 0);
    let mut stream = world.quic(EXIT).recv_stream(stream);
    let mut chunks = stream.read(true).unwrap();
    let mut read = Vec::new();
    while let Ok(Some(chunk)) = chunks.next(1_000) {
        read.extend(chunk.bytes);
    }
    let _transmit = chunks.finalize();
    assert_eq!(read, (0..100).collect::<Vec<u8>>(), "they did arrive");
}
