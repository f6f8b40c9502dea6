//! What an exit needs to serve WireGuard clients: its key for that, its sockets, and what clients write down of it.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context as _, bail};
use warren_config::{
    Endpoint, ExitSettings, WireGuardSettings, counted, make_clients_directory, read_wireguard_key,
    wireguard_key_path, write_wireguard_key,
};
use warren_session::clients::ClientRegistry;
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
pub(crate) fn carrier(
    config: &ExitSettings,
    clients: &Path,
    registry: &ClientRegistry,
) -> anyhow::Result<Option<WireGuardCarrier>> {
    let Some(WireGuardSettings { listen, .. }) = &config.wireguard else { return Ok(None) };
    let users = registry.iter().filter(|client| client.wireguard.is_some()).count();
    let key = key(clients, users)?;
    let sockets = sockets::bind(listen, 1)?.into_iter().flatten().collect();
    Ok(Some(WireGuardCarrier { key, sockets, mtu: MTU }))
}

/// The exit's WireGuard key. It is made if there is none, unless it was lost: `users` clients have it in their configurations.
/// `clients` is the file that `[clients] file` names.
///
/// # Errors
/// When its file is lost, or cannot be read or made.
pub fn key(clients: &Path, users: usize) -> anyhow::Result<PrivateKey> {
    let path = wireguard_key_path(clients);
    if let Some(key) = read_wireguard_key(&path)? {
        return Ok(key);
    }
    if users > 0 {
        bail!(lost(&path, users));
    }
    make_clients_directory(clients)?;
    let key = PrivateKey::new(warren_daemon::entropy::bytes()?);
    match write_wireguard_key(&path, &key) {
        Ok(()) => Ok(key),
        // A command and the exit may both make it.
        Err(error) => read_wireguard_key(&path)?.ok_or(error.into()),
    }
}

/// The sentence about a key that is gone although clients need it.
fn lost(path: &Path, users: usize) -> String {
    let key = path.display();
    let directory = path.parent().unwrap_or(path).display();
    let need = counted(users, "WireGuard client") + if users == 1 { " needs" } else { " need" };
    format!(
        "{key} is missing, and {need} this key; restore it from a backup, or make a new one with \
         `(umask 077; warren keygen > {key}; chown --reference={directory} {key})` and write its public key into each client's configuration"
    )
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_clients_need_is_not_replaced_and_one_that_nobody_needs_is() {
        let directory = tempfile::tempdir().unwrap();
        let clients = directory.path().join("exit/clients.toml");
        let path = directory.path().join("exit/wireguard.key");
        for (users, need) in [(1, "1 WireGuard client needs"), (3, "3 WireGuard clients need")] {
            let lost = key(&clients, users).unwrap_err().to_string();
            assert!(lost.contains(need) && lost.contains("restore it"), "{lost}");
            assert!(lost.contains(&format!("warren keygen > {}", path.display())), "{lost}");
            assert!(!path.exists());
        }
        let made = key(&clients, 0).unwrap();
        assert_eq!(key(&clients, 3).unwrap().public(), made.public());
        // What the sentence says to do works: a key of `warren keygen` is one of WireGuard too.
        std::fs::write(&path, &*warren_quic::key::PrivateKey::generate().unwrap().to_line()).unwrap();
        assert_ne!(key(&clients, 3).unwrap().public(), made.public());
    }
}
