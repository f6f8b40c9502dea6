//! The part of the configuration that the sessions' state machine needs.

use warren_session::exit::SessionConfig;

use crate::host::INNER_MTU;
use warren_config::ExitSettings;

/// The part of the configuration that the sessions' state machine needs.
pub(crate) fn session_settings(config: &ExitSettings) -> SessionConfig {
    SessionConfig {
        ipv4: config.ipv4,
        ipv6: config.ipv6,
        mtu: INNER_MTU,
        dns: config.dns.clone(),
        routes: Vec::new(),
        max_connections: config.transport.connections(),
        keep_alive: warren_quic::settings::KEEP_ALIVE,
        features: config.transport.features(),
    }
}
