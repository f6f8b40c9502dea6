//! Fails with: panicked

use std::time::Duration;

use noq_faults::{CLIENT, Pair, SERVER, Setup, quic_server, server_tls};
use noq_proto::ServerConfig;

/// RFC 9002 appendix A.8. The client has acknowledged the first part of the server's flight in a Handshake packet, which ends its Initial
/// keys, and learns its 1-RTT keys from the rest before a packet of its own that asks for an answer is under way.
#[test]
fn a_probe_that_is_due_when_the_last_flight_comes_has_keys() {
    let mut parts = 0;
    for cut in 0.. {
        let mut setup = Setup::new(|_| {});
        setup.server = ServerConfig::with_crypto(quic_server(server_tls(3_000)));
        let mut pair = Pair::new(setup);
        for packet in pair.transmit(CLIENT) {
            pair.deliver(SERVER, &packet);
        }
        // The server paces its flight.
        let mut flight = Vec::new();
        for _ in 0..10 {
            flight.extend(pair.transmit_without_timers(SERVER));
            pair.now += Duration::from_millis(20);
        }
        parts = parts.max(flight.len());
        if cut >= flight.len() {
            break;
        }
        let (first, rest) = flight.split_at(cut);
        for packet in first {
            pair.deliver(CLIENT, packet);
        }
        let _lost = pair.transmit(CLIENT);
        pair.now += Duration::from_secs(3);
        // The rest comes in before the timer, which is late, is looked at.
        for packet in rest {
            pair.deliver(CLIENT, packet);
        }
        pair.run(Duration::from_secs(1));
        assert!(!pair.quic(CLIENT).is_handshaking(), "cut after {cut} of {}", flight.len());
    }
    assert!(parts > 1, "there is nothing between the parts of {parts}");
}
