//! What the sessions' state machine needs to know of the configuration.

use warren_session::exit::SessionConfig;

use crate::host::INNER_MTU;
use warren_config::ExitSettings;

/// What the sessions need to know of the configuration.
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
