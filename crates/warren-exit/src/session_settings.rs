//! The part of the configuration that the sessions' state machine needs.

use ipnet::IpNet;
use warren_session::exit::{Announced, SessionConfig};
use warren_session::{MAX_ROUTES, UPDATES};

use crate::host::INNER_MTU;
use warren_config::ExitSettings;

/// What clients are told, which may change while they are connected.
pub(crate) fn announced(config: &ExitSettings) -> Announced {
    let routes: Vec<IpNet> = config.allow.iter().map(IpNet::trunc).collect();
    let has_room = routes.len() <= MAX_ROUTES;
    if !has_room {
        tracing::warn!(
            "clients are not told of the {} networks in allow of [access], because a message has room for {MAX_ROUTES}",
            routes.len()
        );
    }
    let routes = routes.into_iter().filter(|_| has_room).collect();
    Announced { dns: config.dns.clone(), routes, exit_keys: config.public_keys() }
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
        features: config.transport.features() | UPDATES,
    }
}
