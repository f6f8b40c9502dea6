//! Fails with: panicked

use std::time::Duration;

use noq_faults::{CLIENT, Pair, SERVER, Setup};
use noq_proto::{AckFrequencyConfig, Dir, VarInt};

/// The first probe repeats a RESET_STREAM frame of four bytes, the second an ACK_FREQUENCY frame, which is longer.
#[test]
fn two_loss_probes_of_which_the_second_is_larger_are_sent() {
    let mut pair = Pair::connected(Setup::new(|transport| {
        let mut frequency = AckFrequencyConfig::default();
        frequency.max_ack_delay(Some(Duration::from_secs(1))).ack_eliciting_threshold(VarInt::from_u32(100));
        transport.ack_frequency_config(Some(frequency));
    }));
    let stream = pair.quic(CLIENT).streams().open(Dir::Uni).unwrap();
    // The server's answer comes late, which makes the round trip long and so another delay of acknowledgements right.
    pair.quic(CLIENT).send_stream(stream).write(&[0; 100]).unwrap();
    for packet in pair.transmit(CLIENT) {
        pair.deliver(SERVER, &packet);
    }
    pair.now += Duration::from_millis(100);
    let answers = pair.transmit(SERVER);
    assert!(!answers.is_empty());
    pair.quic(CLIENT).send_stream(stream).reset(VarInt::from_u32(0)).unwrap();
    let lost = pair.transmit_without_timers(CLIENT).len();
    pair.now += Duration::from_secs(1);
    for packet in answers {
        pair.deliver(CLIENT, &packet);
    }
    // Lost as well: what asks for that delay.
    let (lost, before) = (lost + pair.transmit(CLIENT).len(), pair.now);
    assert!(lost >= 2, "{lost}");
    pair.now += Duration::from_secs(10);
    let probes = pair.transmit(CLIENT);
    assert!(probes.len() >= 2, "{} after {:?}", probes.len(), pair.now - before);
}
