//! Translates our settings into the QUIC library's configurations, for both drivers. Limits that the library sets too high
//! are lowered here.

mod congestion;
mod connection_ids;
mod resets;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use aws_lc_rs::hmac;
use noq_proto::{
    AckFrequencyConfig, ClientConfig, EndpointConfig, IdleTimeout, MtuDiscoveryConfig, ServerConfig,
    TransportConfig, VarInt,
    crypto::rustls::{QuicClientConfig, QuicServerConfig},
};

use self::{
    congestion::ControllerFactory,
    connection_ids::{ClientIds, ExitIds},
};
pub(crate) use self::{congestion::state_of, connection_ids::ListenerPlace};
use crate::{
    boundary::EndpointError,
    settings::{ETHERNET_MTU, MINIMUM_MTU, TransportSettings},
    socket::SocketUse,
    strangers::{ExitSecrets, IdKey, RETRY_TOKEN_LIFETIME_IN_LIBRARY},
};

/// How many bytes longer IPv6's header is than IPv4's.
const IPV6_EXTRA: u16 = 20;

/// Maximum number of connection attempts waiting to be handled, and the maximum bytes buffered per attempt and in total.
const MAX_INCOMING: usize = 512;
const INCOMING_BYTES: u64 = 8 * 1024;
const INCOMING_BYTES_TOTAL: u64 = 1024 * 1024;

/// Maximum number of stateless resets that an exit sends per second. A replayed packet of an earlier process triggers one.
const RESETS_PER_SECOND: u64 = 50;

/// Time until the next search for a larger MTU: after a finished search, and after a detected black hole.
const MTU_INTERVAL: Duration = Duration::from_secs(600);
const MTU_COOLDOWN: Duration = Duration::from_secs(1);

/// Lost probes of one size after which a search assumes a smaller MTU. RFC 8899 proposes 3. A path with 15 % loss drops three in
/// a row in one of 300 cases, and five in one of 13,000.
const MTU_PROBES: usize = 5;

/// Consecutive lost probes of the current size, while smaller packets get through, after which the path's MTU is assumed to have
/// shrunk. Random loss of 15 % causes that in one of four million cases. Each probe costs a round trip and a probe timeout.
const MTU_CONFIRMATION_PROBES: usize = 8;

/// If no packet of the current size arrives for this long, a probe checks that the size still works. The time is long. A sender
/// of large packets notices their loss within a second or two, and other senders do not need to know the size.
const MTU_CONFIRMATION: Duration = Duration::from_secs(600);

/// The search for the MTU ends when its steps fall below this number of bytes. It still tries the upper bound if the bound is at
/// least this far away. With 10, it reaches both 1,472 and 1,452 exactly, in seven probes.
const MTU_MINIMUM_CHANGE: u16 = 10;

/// A path's idle timeout. Because it is this short, noq sends a loss probe at least every second instead of every two
/// (`MAX_PTO_FAST_INTERVAL`). So noq soon notices that a path works again. Without QUIC multipath, the timeout itself has no
/// effect.
const FAST_PROBES: Duration = Duration::from_secs(24);

/// Checks the settings that noq would misinterpret, or on which it would panic.
pub(crate) fn check(settings: &TransportSettings) -> Result<(), EndpointError> {
    let TransportSettings {
        initial_mtu,
        min_mtu,
        max_mtu,
        idle_timeout,
        keep_alive,
        datagram_receive_buffer,
        ..
    } = settings;
    let wrong = |what: String| Err(EndpointError::Setting(what));
    for (name, mtu) in [("initial_mtu", initial_mtu), ("min_mtu", min_mtu), ("max_mtu", max_mtu)] {
        // An IPv4 packet has at most 65,535 bytes, 28 of them for the IP and UDP headers.
        if !(MINIMUM_MTU..=65_507).contains(mtu) {
            return wrong(format!("{name} is {mtu}, but must be from {MINIMUM_MTU} to 65507"));
        }
    }
    if min_mtu > initial_mtu {
        return wrong(format!(
            "min_mtu is {min_mtu}, but must not exceed initial_mtu, which is {initial_mtu}"
        ));
    }
    // With such settings, an idle connection would time out before its keep-alive.
    if keep_alive.is_some_and(|interval| interval >= *idle_timeout) {
        return wrong(format!(
            "the keep-alive interval must be shorter than the idle timeout, which is {idle_timeout:?}"
        ));
    }
    if !(Duration::from_secs(1)..=Duration::from_secs(3_600)).contains(idle_timeout) {
        return wrong(format!("the idle timeout is {idle_timeout:?}, but must be from 1 s to 1 h"));
    }
    if settings.reordering_threshold < 3 {
        return wrong("reordering_threshold must be at least 3 (RFC 9002 section 6.1.1)".to_owned());
    }
    let largest = usize::from(*max_mtu.max(initial_mtu)) + 1024;
    if *datagram_receive_buffer < largest || settings.datagram_send_buffer() < largest {
        return wrong(format!(
            "a datagram buffer must hold at least one datagram, which has {largest} bytes"
        ));
    }
    Ok(())
}

/// The largest UDP payload that an endpoint accepts.
fn max_payload(settings: &TransportSettings) -> u16 {
    settings.max_mtu.max(settings.initial_mtu).max(ETHERNET_MTU)
}

pub(crate) fn socket_use(settings: &TransportSettings, is_exit: bool) -> SocketUse {
    SocketUse {
        gso: settings.udp_gso,
        gro: settings.udp_gro,
        lacking: settings.lacking.clone(),
        max_payload: max_payload(settings),
        keeps_source: is_exit,
    }
}

/// Configures an endpoint. Its stateless reset tokens and the tags of its connection IDs derive from `reset_key`. Only an exit has
/// a `listener` and sends resets. A client sends none, because its port serves one connection and closes with it.
pub(crate) fn endpoint(
    settings: &TransportSettings,
    reset_key: &[u8],
    listener: Option<ListenerPlace>,
) -> EndpointConfig {
    let mut config = EndpointConfig::new(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, reset_key)));
    match listener {
        Some(listener) => {
            let ids = ExitIds::new(settings, IdKey::new(reset_key), listener);
            config.cid_generator(Arc::new(move || Box::new(ids.clone())));
        }
        None => {
            config.cid_generator(Arc::new(|| Box::new(ClientIds)));
        }
    }
    let endpoints = u64::from(settings.worker.count()) * listener.map_or(1, ListenerPlace::count);
    config
        .max_udp_payload_size(max_payload(settings))
        .expect("MTUs are checked to be within QUIC's bounds")
        // The gate in front of an exit understands no other version.
        .supported_versions(vec![1])
        // Greasing the bit (RFC 9287) costs a random number for each packet, and Warren gains nothing from it.
        .grease_quic_bit(false)
        .min_reset_interval(reset_interval(endpoints));
    config
}

/// The interval between two resets of one endpoint of an exit. Endpoints do not share a budget, so each gets a fraction of
/// [`RESETS_PER_SECOND`].
fn reset_interval(endpoints: u64) -> Duration {
    let endpoints = endpoints.max(1);
    match RESETS_PER_SECOND / endpoints {
        // With more endpoints than resets per second, each sends less than one per second.
        0 => Duration::from_secs(endpoints.div_ceil(RESETS_PER_SECOND)),
        // The share is rounded down and the interval up, so that no second exceeds the limit.
        share => Duration::from_nanos(1_000_000_000_u64.div_ceil(share)),
    }
}

pub(crate) fn client(
    settings: &TransportSettings,
    remote: SocketAddr,
    tls: rustls::ClientConfig,
) -> ClientConfig {
    let tls = QuicClientConfig::try_from(tls)
        .expect("the provider has AES-128-GCM, which QUIC's Initial packets need");
    let mut config = ClientConfig::new(Arc::new(tls));
    config.transport_config(Arc::new(client_transport(settings, remote)));
    config
}

fn client_transport(settings: &TransportSettings, remote: SocketAddr) -> TransportConfig {
    let mut transport = transport(settings, remote);
    // The exit opens no streams.
    transport.max_concurrent_bidi_streams(VarInt::from_u32(0)).keep_alive_interval(settings.keep_alive);
    transport
}

pub(crate) fn exit(
    settings: &TransportSettings,
    local: SocketAddr,
    tls: rustls::ServerConfig,
    secrets: &ExitSecrets,
) -> ServerConfig {
    let mut transport = transport(settings, local);
    // One stream, for control messages. No keep-alives: nothing may restart the idle timeout of a client that is gone.
    transport.max_concurrent_bidi_streams(VarInt::from_u32(1));
    let mut config = ServerConfig::new(exit_crypto(tls), Arc::new(secrets.retry_tokens.clone()));
    config
        .transport_config(Arc::new(transport))
        // A client gets a new address when it roams, or when its NAT forgets it.
        .migration(true)
        .max_incoming(MAX_INCOMING)
        .incoming_buffer_size(INCOMING_BYTES)
        .incoming_buffer_size_total(INCOMING_BYTES_TOTAL)
        .retry_token_lifetime(RETRY_TOKEN_LIFETIME_IN_LIBRARY);
    // No NEW_TOKEN frames: the only tokens that a silent exit accepts are proofs and Retry tokens.
    config.validation_token.sent(0);
    config
}

/// Converts an exit's TLS configuration for the library.
pub(crate) fn exit_crypto(tls: rustls::ServerConfig) -> Arc<QuicServerConfig> {
    let tls = QuicServerConfig::try_from(tls);
    Arc::new(tls.expect("the provider has AES-128-GCM, which QUIC's Initial packets need"))
}

/// The settings that both sides share. `address` determines the IP version.
fn transport(settings: &TransportSettings, address: SocketAddr) -> TransportConfig {
    let mut ack_frequency = AckFrequencyConfig::default();
    ack_frequency
        .ack_eliciting_threshold(VarInt::from_u32(settings.ack_threshold))
        .max_ack_delay(Some(settings.max_ack_delay))
        // A packet is acknowledged at once if this lets the sender declare an earlier packet lost (RFC 9002 section 6.1.1).
        .reordering_threshold(VarInt::from_u32(settings.reordering_threshold));

    let mut config = TransportConfig::default();
    config
        .transmit_caps(settings.caps.shared())
        // The control stream is bidirectional, and all other data is sent in datagrams.
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .stream_receive_window(VarInt::from_u32(settings.stream_window))
        // There is only one stream, so the connection needs no more room than the stream.
        .receive_window(VarInt::from_u32(settings.stream_window))
        .send_window(u64::from(settings.stream_window))
        .max_idle_timeout(Some(
            IdleTimeout::try_from(settings.idle_timeout).expect("it is checked to be at most 1 h"),
        ))
        .default_path_max_idle_timeout(Some(FAST_PROBES))
        .initial_mtu(settings.initial_mtu)
        .min_mtu(settings.min_mtu)
        .mtu_discovery_config(Some(mtu_discovery(settings, address)))
        .ack_frequency_config(Some(ack_frequency))
        .packet_threshold(settings.reordering_threshold)
        .datagram_send_buffer_size(settings.datagram_send_buffer())
        .datagram_receive_buffer_size(Some(settings.datagram_receive_buffer))
        .enable_segmentation_offload(settings.udp_gso)
        // The bit shows the round-trip time to anybody on the path (RFC 9000 section 17.4).
        .allow_spin(false)
        // A tunnel does not need these extensions of noq. Unless they are off, the transport parameters offer them.
        .send_observed_address_reports(false)
        .receive_observed_address_reports(false)
        .max_concurrent_multipath_paths(0)
        .max_remote_nat_traversal_addresses(0)
        .server_handshake_migration(false);
    config.congestion_controller_factory(Arc::new(ControllerFactory::new(settings)));
    config
}

fn mtu_discovery(settings: &TransportSettings, address: SocketAddr) -> MtuDiscoveryConfig {
    let extra = if address.is_ipv6() { IPV6_EXTRA } else { 0 };
    let mut discovery = MtuDiscoveryConfig::default();
    discovery
        .upper_bound(settings.max_mtu.saturating_sub(extra).max(settings.initial_mtu))
        .interval(MTU_INTERVAL)
        .black_hole_cooldown(MTU_COOLDOWN)
        .minimum_change(MTU_MINIMUM_CHANGE)
        .max_probes(MTU_PROBES)
        .confirm_black_holes(MTU_CONFIRMATION_PROBES, MTU_CONFIRMATION);
    discovery
}

#[cfg(test)]
mod tests;
