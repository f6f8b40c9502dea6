//! Fails with: assertion failed: min <= max

use std::time::Duration;

use noq_faults::{CLIENT, Pair, SERVER, Setup, with_parameters};
use noq_proto::AckFrequencyConfig;

const MAX_ACK_DELAY: u64 = 0x0b;
/// Of draft-ietf-quic-ack-frequency, in microseconds, where `MAX_ACK_DELAY` is in milliseconds.
const MIN_ACK_DELAY: u64 = 0xff04_de1b;

#[test]
fn a_client_that_acknowledges_late_is_served() {
    let slow: [&[_]; 2] = [
        // The control: a delay that a round trip may have.
        &[(MAX_ACK_DELAY, 25), (MIN_ACK_DELAY, 25_000)],
        &[(MAX_ACK_DELAY, 1_000), (MIN_ACK_DELAY, 1_000_000)],
    ];
    for parameters in slow {
        let mut setup = Setup::new(|transport| {
            transport.ack_frequency_config(Some(AckFrequencyConfig::default()));
        });
        setup.client = with_parameters(parameters);
        let mut pair = Pair::connected(setup);
        pair.run(Duration::from_secs(1));
        assert!(!pair.quic(SERVER).is_closed() && !pair.quic(CLIENT).is_closed());
    }
}
