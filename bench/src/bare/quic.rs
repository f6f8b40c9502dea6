//! The QUIC endpoint of a side, with settings close to those of Warren's tunnels.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use aws_lc_rs::hmac;
use noq_proto::{
    AckFrequencyConfig, ClientConfig, Connection, ConnectionHandle, Endpoint, EndpointConfig, ServerConfig,
    TransportConfig, VarInt,
    congestion::CubicConfig,
    crypto::rustls::{QuicClientConfig, QuicServerConfig},
};
use warren_quic::{
    key::PrivateKey,
    tls::{self, PresentedKey},
};

/// Fixed keys, which need not be secret, because both ends belong to the same benchmark.
const EXIT_KEY: &str = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";
const CLIENT_KEY: &str = "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=";

/// The UDP payload of a full packet: the inner MTU of 1,380 and QUIC's overhead.
const PAYLOAD: u16 = 1_420;
/// Size in bytes of each of the connection's two datagram buffers.
pub(super) const BUFFER: usize = 1 << 20;

/// Makes a client's endpoint and starts its connection.
pub(super) fn client(remote: SocketAddr) -> anyhow::Result<(Endpoint, ConnectionHandle, Connection)> {
    let (identity, exit) = (PrivateKey::from_base64(CLIENT_KEY)?, PrivateKey::from_base64(EXIT_KEY)?);
    let tls = tls::client(&identity, &[exit.public()], PresentedKey::default(), None)?;
    let mut config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
    config.transport_config(transport());
    let mut endpoint = Endpoint::new(endpoint(), None, false);
    // The client authenticates the exit by its public key, so any server name will do. RFC 2606 reserves `.invalid`.
    let (handle, connection) = endpoint
        .connect(Instant::now(), config, remote, "exit.invalid")
        .context("cannot connect to the exit's side")?;
    Ok((endpoint, handle, connection))
}

/// Makes an exit's endpoint.
pub(super) fn exit() -> anyhow::Result<Endpoint> {
    let tls = tls::exit(&PrivateKey::from_base64(EXIT_KEY)?)?;
    let mut config = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls)?));
    config.transport_config(transport());
    Ok(Endpoint::new(endpoint(), Some(Arc::new(config)), false))
}

fn endpoint() -> Arc<EndpointConfig> {
    // The key of stateless reset tokens (RFC 9000 section 10.3) need not be secret either.
    let mut config = EndpointConfig::new(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, &[1; 32])));
    config.grease_quic_bit(false);
    Arc::new(config)
}

fn transport() -> Arc<TransportConfig> {
    let mut acknowledgements = AckFrequencyConfig::default();
    acknowledgements
        .ack_eliciting_threshold(VarInt::from_u32(60))
        .max_ack_delay(Some(Duration::from_millis(5)))
        .reordering_threshold(VarInt::from_u32(99));
    // The link's MTU is known to be 1,500, so the packet size is fixed and path MTU discovery is off.
    let mut config = TransportConfig::default();
    config
        .initial_mtu(PAYLOAD)
        .min_mtu(PAYLOAD)
        .mtu_discovery_config(None)
        .ack_frequency_config(Some(acknowledgements))
        .packet_threshold(100)
        .datagram_send_buffer_size(BUFFER)
        .datagram_receive_buffer_size(Some(BUFFER))
        .allow_spin(false)
        .keep_alive_interval(Some(Duration::from_secs(5)))
        .congestion_controller_factory(Arc::new(CubicConfig::default()));
    Arc::new(config)
}
