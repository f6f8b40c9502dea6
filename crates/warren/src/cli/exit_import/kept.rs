//! An import that keeps all keys, so that clients connect with the files that they have.

use std::path::Path;

use anyhow::bail;
use warren_session::clients::{PresharedKey, WireGuardClient};
use warren_wireguard::{PrivateKey, parse_public_key};

use super::refused::Refused;
use super::table::table;
use super::wireguard::{KeyText, Peer, WireGuardServer};
use crate::cli::args::ImportWireGuardArgs;
use crate::cli::exit_client::ClientStore;
use warren_config::{
    ExitSettings, make_clients_directory, read_wireguard_key, replace_wireguard_key, wireguard_key_path,
};
use warren_control::{ClientView, NewClient};
use warren_daemon::directories::Directories;
use warren_daemon::output;

/// What is imported, and into what.
pub(super) struct Import {
    pub(super) server: WireGuardServer,
    /// The clients of the server's peers, in their order, without keys.
    pub(super) planned: Vec<NewClient>,
    pub(super) enrolled: Vec<ClientView>,
}

/// Enrols every peer with its own keys and takes over the server's, or does nothing.
pub(super) fn run(
    config: &ExitSettings,
    directories: &Directories,
    args: &ImportWireGuardArgs,
    import: &Import,
    store: &mut dyn ClientStore,
) -> anyhow::Result<()> {
    let Import { server, planned, .. } = import;
    let exit_key = private_key(server).map_err(|refused| refused.of(&args.file))?;
    let pairs = planned.iter().zip(&server.peers);
    let clients: Result<Vec<_>, Refused> = pairs.map(|(client, peer)| with_keys(client, peer)).collect();
    let clients = clients.map_err(|refused| refused.of(&args.file))?;
    let clients_path = config.clients_path(&directories.state);
    let change = key_change(&wireguard_key_path(&clients_path), &exit_key, &import.enrolled)?;
    output::print(&table(planned))?;
    if args.dry_run {
        return output::print(&format!(
            "{} clients would be enrolled with the keys that they have; nothing was changed.\n",
            clients.len()
        ));
    }
    // Before the clients: they are of no use with another key, and the key does no harm without them.
    if change == KeyChange::Write {
        write_key(&clients_path, &exit_key)?;
    }
    store.add_all(&clients)?;
    output::print(&format!(
        "Enrolled {} clients. They keep their keys, and can connect with their existing files.\n",
        clients.len()
    ))?;
    say_what_is_left(config, server, change);
    Ok(())
}

/// Tells the operator what to do next, and what these clients lack.
fn say_what_is_left(config: &ExitSettings, server: &WireGuardServer, change: KeyChange) {
    let restart = if change == KeyChange::Write {
        ", and restart the exit if it runs, because it still uses its old key"
    } else {
        ""
    };
    output::note(format!("Stop the WireGuard server: both use its key and its addresses{restart}."));
    let ports: Vec<u16> = config
        .wireguard
        .iter()
        .flat_map(|wireguard| &wireguard.listen)
        .map(|address| address.port())
        .collect();
    if let Some(port) = server.listen_port.filter(|port| !ports.contains(port)) {
        output::note(format!(
            "The clients know UDP port {port}, and the exit does not listen there; write listen = \"0.0.0.0:{port}\" into [wireguard]."
        ));
    }
    output::note(
        "WireGuard clients get no repair of lost packets, no silence towards strangers and no post-quantum keys. \
         Upgrade one with: warren exit client set NAME --public-key KEY",
    );
}

/// What becomes of the exit's WireGuard key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyChange {
    /// It is the server's already.
    Keep,
    /// The exit gets the server's.
    Write,
}

/// Refuses to replace a key that clients use.
fn key_change(path: &Path, key: &PrivateKey, enrolled: &[ClientView]) -> anyhow::Result<KeyChange> {
    let Some(own) = read_wireguard_key(path)? else { return Ok(KeyChange::Write) };
    if own.public() == key.public() {
        return Ok(KeyChange::Keep);
    }
    if let Some(user) = enrolled.iter().find(|client| client.wireguard) {
        bail!(
            "the exit has a WireGuard key of its own, which client {} uses; remove its WireGuard clients first, or import with --new-keys",
            user.name
        );
    }
    Ok(KeyChange::Write)
}

fn write_key(clients: &Path, key: &PrivateKey) -> anyhow::Result<()> {
    make_clients_directory(clients)?;
    replace_wireguard_key(&wireguard_key_path(clients), key).map_err(Into::into)
}

fn private_key(server: &WireGuardServer) -> Result<PrivateKey, Refused> {
    let KeyText { line, text } = server.private_key.as_ref().ok_or(Refused {
        line: 1,
        sentence: "this file has no PrivateKey, so the clients could not recognise the exit; give the server's file, or import with --new-keys".to_owned(),
    })?;
    let key = PrivateKey::from_base64(text);
    key.map_err(|error| Refused { line: *line, sentence: format!("PrivateKey {error}; correct the line") })
}

fn with_keys(client: &NewClient, peer: &Peer) -> Result<NewClient, Refused> {
    let Some(KeyText { line, text }) = &peer.public_key else {
        let sentence = "this peer has no PublicKey; add it, or remove the peer".to_owned();
        return Err(Refused { line: peer.line, sentence });
    };
    let public_key = parse_public_key(text)
        .map_err(|error| Refused { line: *line, sentence: format!("PublicKey {error}; correct the line") })?;
    let preshared_key = match &peer.preshared_key {
        None => None,
        Some(KeyText { line, text }) => Some(PresharedKey::from_base64(text).ok_or_else(|| Refused {
            line: *line,
            sentence: "PresharedKey is not 32 bytes in base64; correct the line".to_owned(),
        })?),
    };
    Ok(NewClient { public_key, wireguard: Some(WireGuardClient { preshared_key }), ..client.clone() })
}
