//! Fails with: the client was not told

use std::time::Duration;

use noq_faults::{CLIENT, Pair, Setup, client_tls, quic_client, quic_server, server_tls};
use noq_proto::{ClientConfig, ServerConfig};

/// RFC 9000 section 8.1 bounds what is sent to an address that is not validated yet, and leaves room for a CONNECTION_CLOSE.
#[test]
fn a_client_whose_hello_spans_packets_is_told_that_no_protocol_is_common() {
    // The control: a ClientHello of one packet is answered.
    for protocols in [1, 200] {
        let (mut client, mut server) = (client_tls(), server_tls(300));
        client.alpn_protocols =
            (0..protocols).map(|number| format!("protocol-{number}").into_bytes()).collect();
        server.alpn_protocols = vec![b"another".to_vec()];
        let mut setup = Setup::new(|_| {});
        setup.client = ClientConfig::new(quic_client(client));
        setup.server = ServerConfig::with_crypto(quic_server(server));
        let mut pair = Pair::new(setup);
        pair.run(Duration::from_secs(3));
        assert!(pair.quic(CLIENT).is_closed(), "the client was not told, with {protocols} protocols");
    }
}
