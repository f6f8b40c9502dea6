//! An import that keeps all keys, so that clients connect with their existing files.

use std::collections::HashMap;
use std::path::Path;

use anyhow::bail;
use warren_session::PublicKey;
use warren_session::clients::{PresharedKey, WireGuardClient};
use warren_wireguard::{PrivateKey, parse_public_key};

use super::found::Import;
use super::refused::Refused;
use super::wireguard::{KeyText, Peer, WireGuardServer};
use crate::cli::args::ImportWireGuardArgs;
use crate::cli::exit_client::{ClientStore, all};
use warren_config::{
    ExitSettings, counted, make_clients_directory, read_wireguard_key, replace_wireguard_key,
    wireguard_key_path,
};
use warren_control::{ClientView, NewClient, PageQuery, RemovedView};
use warren_daemon::directories::Directories;
use warren_daemon::output;

/// Enrols every peer with its own key, and gives the exit the server's key. If anything fails, nothing is changed.
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
    let removed = all(&PageQuery::default(), |page| store.removed(page))?.rows;
    refuse_keys(&clients, &server.peers, removed).map_err(|refused| refused.of(&args.file))?;
    let clients_path = config.clients_path(&directories.state);
    let change = key_change(&wireguard_key_path(&clients_path), &exit_key, &import.enrolled)?;
    import.announce()?;
    let port = foreign_port(config, server);
    port.into_iter().for_each(warn_of_port);
    if planned.is_empty() && change == KeyChange::Keep {
        return output::print("Nothing was changed.\n");
    }
    let enrolled = counted(clients.len(), "client");
    if args.dry_run {
        return output::print(&format!(
            "{enrolled} would be enrolled with the present keys; nothing was changed.\n"
        ));
    }
    // The key is written before the clients are enrolled. If this command is killed in between, a key without clients does no
    // harm, but clients could not connect to an exit with another key.
    if change == KeyChange::Write {
        write_key(&clients_path, &exit_key)?;
    }
    store.add_all(&clients)?;
    output::print(&match port {
        None => {
            format!(
                "Enrolled {enrolled}. The keys stay, so that the clients can connect with their existing files.\n"
            )
        }
        Some(port) => format!(
            "Enrolled {enrolled}. The keys stay, but the existing files name UDP port {port}, where this exit does not listen.\n"
        ),
    })?;
    say_what_is_left(change);
    Ok(())
}

/// Refuses keys that two peers have, and keys of removed clients. The error contains the line of the peer.
fn refuse_keys(clients: &[NewClient], peers: &[Peer], removed: Vec<RemovedView>) -> Result<(), Refused> {
    let removed: HashMap<PublicKey, String> =
        removed.into_iter().map(|removed| (removed.public_key, removed.name)).collect();
    let mut lines: HashMap<PublicKey, usize> = HashMap::new();
    for (client, peer) in clients.iter().zip(peers) {
        let refused = |sentence| Err(Refused { line: peer.line, sentence });
        if let Some(name) = removed.get(&client.public_key) {
            return refused(format!(
                "the key of this peer was taken from client {name:?}, which was removed or upgraded; remove the peer from the file, and run: warren exit client add {} --wireguard",
                client.name
            ));
        }
        if let Some(other) = lines.insert(client.public_key, peer.line) {
            return refused(format!(
                "this peer has the same PublicKey as the one at line {other}; remove one of them"
            ));
        }
    }
    Ok(())
}

/// Returns the port in the clients' files if the exit does not listen on it.
fn foreign_port(config: &ExitSettings, server: &WireGuardServer) -> Option<u16> {
    let mut listen = config.wireguard.iter().flat_map(|wireguard| &wireguard.listen);
    server.listen_port.filter(|port| !listen.any(|address| address.port() == *port))
}

fn warn_of_port(port: u16) {
    output::warn(format!(
        "the clients cannot connect before the exit listens on UDP port {port}, which their files name: write listen = [\"0.0.0.0:{port}\", \"[::]:{port}\"] into [wireguard] \
         and restart the exit, once the WireGuard server is stopped"
    ));
}

/// Prints what the operator has to do next, and what does not work for the imported clients.
fn say_what_is_left(change: KeyChange) {
    output::note("Stop the WireGuard server: both use its key and its addresses.");
    if change == KeyChange::Write {
        output::note("If the exit runs, restart it: it still uses its old key.");
    }
    output::note(
        "WireGuard clients get no repair of lost packets, no silence towards strangers and no post-quantum keys. \
         Upgrade one with: warren exit invite NAME",
    );
}

/// What happens to the exit's WireGuard key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyChange {
    /// The exit already has the server's key.
    Keep,
    /// The exit gets the server's key.
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
