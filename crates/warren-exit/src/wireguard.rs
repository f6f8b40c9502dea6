//! The parts that an exit needs to serve WireGuard clients: its key, its sockets, and the configurations of new clients.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use anyhow::{Context as _, anyhow, bail};
use warren_config::{
    Endpoint, ExitSettings, WireGuardSettings, counted, make_clients_directory, read_wireguard_key,
    wireguard_key_path, write_wireguard_key,
};
use warren_control::NewClient;
use warren_daemon::entropy;
use warren_session::PublicKey;
use warren_session::clients::{ClientRegistry, PresharedKey, WireGuardClient};
use warren_tunnel::WireGuardCarrier;
use warren_wireguard::PrivateKey;
use zeroize::Zeroizing;

use crate::host::INNER_MTU;
use crate::{invitation, sockets};

/// The capacity of a configuration's buffer in bytes. A configuration is far shorter.
const LONGEST: usize = 4_096;

/// The MTU that new clients' configurations name.
const MTU: u16 = INNER_MTU;

/// The sockets and the key, if the exit serves WireGuard.
///
/// # Errors
/// When a port is taken, or the key cannot be read or made.
pub(crate) fn carrier(
    config: &ExitSettings,
    clients: &Path,
    registry: &ClientRegistry,
) -> anyhow::Result<Option<WireGuardCarrier>> {
    let users = registry.iter().filter(|client| client.wireguard.is_some()).count();
    let Some(WireGuardSettings { listen, .. }) = &config.wireguard else {
        if users > 0 {
            tracing::warn!(
                "exit.toml has no [wireguard], so {} cannot connect",
                counted(users, "WireGuard client")
            );
        }
        return Ok(None);
    };
    let key = key(clients, users)?;
    // The sockets are for one worker, because only the first worker serves WireGuard.
    let sockets = sockets::bind(listen, 1)?.into_iter().flatten().collect();
    Ok(Some(WireGuardCarrier { key, sockets, mtu: MTU }))
}

/// Reads the exit's WireGuard key. Makes a key if there is none. But if `users` is above 0, that many clients have the key in
/// their configurations. Then the key was lost, and this fails. `clients` is the file that `[clients] file` names.
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
    let key = PrivateKey::new(entropy::bytes()?);
    match write_wireguard_key(&path, &key) {
        Ok(()) => Ok(key),
        // A command and the exit may make the key at the same moment. The second one uses the key of the first one.
        Err(error) => read_wireguard_key(&path)?.ok_or(error.into()),
    }
}

/// The message about a key that is lost although clients need it.
fn lost(path: &Path, users: usize) -> String {
    let key = path.display();
    let directory = path.parent().unwrap_or(path).display();
    let need = counted(users, "WireGuard client") + if users == 1 { " needs" } else { " need" };
    format!(
        "{key} is missing, and {need} this key; restore it from a backup, or make a new one with \
         `(umask 077; warren keygen > {key}; chown --reference={directory} {key})`, start the exit, and write the WireGuard key that `warren status exit --all` shows into each client's configuration"
    )
}

/// Returns where WireGuard clients reach the exit: the endpoint in `[wireguard]`, or else the exit's own host and the port that
/// it listens on.
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

/// A new client's key.
pub enum NewKey {
    /// The exit has made the key. The client's configuration contains the only copy.
    Ours(PrivateKey),
    /// The private key stays on the client.
    Theirs(PublicKey),
}

impl NewKey {
    /// Makes a key.
    ///
    /// # Errors
    /// When the kernel gives no random bytes.
    pub fn generate() -> anyhow::Result<Self> {
        Ok(Self::Ours(PrivateKey::new(*Zeroizing::new(entropy::bytes()?))))
    }

    fn public(&self) -> PublicKey {
        match self {
            Self::Ours(key) => key.public(),
            Self::Theirs(key) => *key,
        }
    }

    /// The key's line in the client's configuration.
    fn line(&self) -> Zeroizing<String> {
        Zeroizing::new(match self {
            Self::Ours(key) => format!("PrivateKey = {}", *key.to_base64()),
            Self::Theirs(key) => format!("# PrivateKey = the one that belongs to {key}"),
        })
    }
}

/// Returns a new client with this key, and its configuration. If the key was made here, no copy of the private key exists
/// elsewhere.
///
/// # Errors
/// When the exit serves no WireGuard, or exit.toml has no endpoint.
pub fn new_client(
    config: &ExitSettings,
    exit_key: PublicKey,
    (name, key): (&str, &NewKey),
    (ipv4, ipv6): (Option<Ipv4Addr>, Option<Ipv6Addr>),
) -> anyhow::Result<(NewClient, Zeroizing<String>)> {
    let endpoint = endpoint(config)?;
    let preshared = PresharedKey::new(entropy::bytes()?);
    let mut addresses = ipv4.map(|ipv4| format!("{ipv4}/32")).into_iter().collect::<Vec<_>>();
    addresses.extend(ipv6.map(|ipv6| format!("{ipv6}/128")));
    // The buffer has room for the whole text. A string that grows leaves its old buffer behind, unwiped.
    let mut text = Zeroizing::new(String::with_capacity(LONGEST));
    write!(
        text,
        "# {name}, a client of {endpoint}\n[Interface]\n{key}\nAddress = {addresses}\n",
        key = *key.line(),
        addresses = addresses.join(", "),
    )?;
    if !config.dns.is_empty() {
        let servers: Vec<String> = config.dns.iter().map(IpAddr::to_string).collect();
        writeln!(text, "DNS = {}", servers.join(", "))?;
    }
    // wg(8) proposes 25 seconds for peers behind NAT or a firewall.
    write!(
        text,
        "MTU = {MTU}\n\n[Peer]\nPublicKey = {exit_key}\nPresharedKey = {preshared}\n\
         AllowedIPs = 0.0.0.0/0, ::/0\nEndpoint = {endpoint}\nPersistentKeepalive = 25\n",
        preshared = preshared.to_base64(),
    )?;
    let client = NewClient {
        wireguard: Some(WireGuardClient { preshared_key: Some(preshared) }),
        ..NewClient::new(name.to_owned(), key.public(), ipv4, ipv6)
    };
    Ok((client, text))
}

/// Returns the requested addresses, or the lowest free ones. They stay the client's, because its configuration names them.
///
/// # Errors
/// When no address is left.
pub fn free_addresses(
    config: &ExitSettings,
    taken: &HashSet<IpAddr>,
    asked: (Option<Ipv4Addr>, Option<Ipv6Addr>),
) -> anyhow::Result<(Option<Ipv4Addr>, Option<Ipv6Addr>)> {
    let is_free = |address: &IpAddr| {
        !taken.contains(address) && warren_config::client_address(*address, config.ipv4, config.ipv6).is_ok()
    };
    let full = || {
        anyhow!(
            "every address of [addresses] in exit.toml is a client's; remove clients, or set --ipv4 and --ipv6"
        )
    };
    let mut addresses = asked;
    if let (None, Some(pool)) = (asked.0, config.ipv4) {
        let free = pool.hosts().find(|address| is_free(&IpAddr::V4(*address)));
        addresses.0 = Some(free.with_context(full)?);
    }
    if let (None, Some(pool)) = (asked.1, config.ipv6) {
        let free = pool.hosts().find(|address| is_free(&IpAddr::V6(*address)));
        addresses.1 = Some(free.with_context(full)?);
    }
    Ok(addresses)
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
        // The advice in the message works: a key from `warren keygen` is also a WireGuard key.
        std::fs::write(&path, &*warren_quic::key::PrivateKey::generate().unwrap().to_line()).unwrap();
        assert_ne!(key(&clients, 3).unwrap().public(), made.public());
    }
}
