//! The part of the configuration that the sessions' state machine needs.

use ipnet::IpNet;
use warren_session::exit::{Announced, FleetNews, SessionConfig};
use warren_session::{MAX_ROUTES, ROSTER, UPDATES};

use crate::host::INNER_MTU;
use warren_config::ExitSettings;

/// Returns the settings that are announced to clients, and that may change while clients are connected.
pub(crate) fn announced(config: &ExitSettings) -> Announced {
    let told = if config.allow.len() <= MAX_ROUTES { config.allow.as_slice() } else { &[] };
    let routes = told.iter().map(IpNet::trunc).collect();
    Announced { dns: config.dns.clone(), routes, exit_keys: config.public_keys() }
}

/// Warns if clients cannot be told the networks that they may reach.
pub(crate) fn warn_of_networks_untold(config: &ExitSettings) {
    let networks = config.allow.len();
    if networks > MAX_ROUTES {
        tracing::warn!(
            "clients are not told of the {networks} networks in allow of [access], because a message has room for {MAX_ROUTES}"
        );
    }
}

/// The part of the configuration that the sessions' state machine needs.
pub(crate) fn session_settings(config: &ExitSettings) -> SessionConfig {
    let Announced { dns, routes, exit_keys } = announced(config);
    SessionConfig {
        ipv4: config.ipv4,
        ipv6: config.ipv6,
        mtu: INNER_MTU,
        dns,
        routes,
        exit_keys,
        max_connections: config.transport.connections(),
        keep_alive: warren_quic::settings::KEEP_ALIVE,
        features: config.transport.features() | UPDATES | ROSTER,
        fleet: FleetNews::default(),
    }
}
