//! What an exit needs to serve WireGuard clients: its key for that, its sockets, and what clients write down of it.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::Context as _;
use warren_config::{
    Endpoint, ExitSettings, WireGuardSettings, make_clients_directory, read_wireguard_key,
    wireguard_key_path, write_wireguard_key,
};
use warren_tunnel::WireGuardCarrier;
use warren_wireguard::PrivateKey;

use crate::host::INNER_MTU;
use crate::{invitation, sockets};

/// The MTU that new clients' configurations name.
pub const MTU: u16 = INNER_MTU;

/// The sockets and the key, if the exit serves WireGuard.
///
/// # Errors
/// When a port is taken, or the key cannot be read or made.
pub(crate) fn carrier(config: &ExitSettings, clients: &Path) -> anyhow::Result<Option<WireGuardCarrier>> {
    let Some(WireGuardSettings { listen, .. }) = &config.wireguard else { return Ok(None) };
    let sockets = sockets::bind(listen, 1)?.into_iter().flatten().collect();
    Ok(Some(WireGuardCarrier { key: key(clients)?, sockets, mtu: MTU }))
}

/// The exit's WireGuard key, which is made if there is none. `clients` is the file that `[clients] file` names.
///
/// # Errors
/// When its file cannot be read or made.
pub fn key(clients: &Path) -> anyhow::Result<PrivateKey> {
    let path = wireguard_key_path(clients);
    if let Some(key) = read_wireguard_key(&path)? {
        return Ok(key);
    }
    make_clients_directory(clients)?;
    let key = PrivateKey::new(warren_daemon::entropy::bytes()?);
    match write_wireguard_key(&path, &key) {
        Ok(()) => Ok(key),
        // A command and the exit may both make it.
        Err(error) => read_wireguard_key(&path)?.ok_or(error.into()),
    }
}

/// Where WireGuard clients reach the exit: what `[wireguard]` says, else the exit's own host and the port that it listens on.
///
/// # Errors
/// When the exit serves no WireGuard, or exit.toml has no endpoint.
pub fn endpoint(config: &ExitSettings) -> anyhow::Result<Endpoint> {
    let wireguard = config.wireguard.as_ref().with_context(|| {
        format!(
            "{}: the exit serves no WireGuard; write listen = \"0.0.0.0:51820\" into a section [wireguard], and restart the exit",
            config.path.display()
        )
    })?;
    if let Some(endpoint) = &wireguard.endpoint {
        return Ok(endpoint.clone());
    }
    let port = wireguard.listen.first().map_or(51_820, SocketAddr::port);
    Ok(invitation::endpoint(config)?.with_port(port))
}
