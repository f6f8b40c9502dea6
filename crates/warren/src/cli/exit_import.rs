//! `warren exit import wireguard`: enrols the peers of a WireGuard server as clients of this exit, with new keys or with their
//! existing ones.

mod clash;
mod found;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod kept;
mod label;
mod left;
mod present;
mod refused;
mod table;
mod wireguard;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, anyhow, bail};
use ipnet::IpNet;
use warren_quic::key::{PrivateKey, PublicKey};
use warren_session::clients::{Client, ClientRegistry, RegistryError};
use warren_session::exit::check_clients;

use self::clash::Renamed;
use self::found::Import;
use self::present::Present;
use self::refused::Refused;
use self::wireguard::{Peer, WireGuardServer};
use super::args::ImportWireGuardArgs;
use super::exit_client::{ClientStore, all};
use warren_config::storage;
use warren_config::{ClientKey, profile_text};
use warren_config::{
    ConfigError, ExitSettings, ProfileName, RemoteExit, counted, describe, free_name, load_exit,
    load_profile, utf8,
};
use warren_control::{ClientView, NewClient, PageQuery};
use warren_daemon::directories::Directories;
use warren_daemon::output;
use warren_exit::invitation::endpoint;

/// Enrols every peer and writes its profile. If anything fails, nothing is changed.
///
/// # Errors
/// The line of the file, or the conflict, that prevents the import.
pub(crate) fn run(
    directories: &Directories,
    args: &ImportWireGuardArgs,
    open: impl FnOnce(&ExitSettings) -> anyhow::Result<Box<dyn ClientStore>>,
) -> anyhow::Result<()> {
    let config = load_exit(&directories.config.join("exit.toml"))?;
    // The endpoint is checked before anything is changed, because without it the clients' profiles could not be written.
    endpoint(&config)?;
    let file = args.file.display();
    let bytes = fs::read(&args.file).map_err(|error| {
        anyhow!("{file} cannot be read: {}; name a WireGuard server's file", describe(&error))
    })?;
    let mut server = read(&args.file, &bytes)?;
    if server.peers.is_empty() {
        return output::print(&format!("{file} has no [Peer]; nothing was changed.\n"));
    }
    let mut store = open(&config)?;
    let enrolled = all(&PageQuery::default(), |page| store.clients(page))?.rows;
    let keeps_keys = config.wireguard.is_some() && !args.new_keys;
    let present = Present::take(&mut server.peers, &enrolled, keeps_keys, |peer| client_of(peer, &config));
    let Plan { clients: planned, renamed } =
        plan(&server, &config, &enrolled).map_err(|refused| refused.of(&args.file))?;
    if !args.rename {
        refuse_clashes(&args.file, &renamed)?;
    }
    let import = Import { server, planned, enrolled, present };
    if keeps_keys {
        return kept::run(&config, directories, args, &import, store.as_mut());
    }
    with_new_keys(&config, directories, args, &import, store.as_mut())
}

/// Enrols the peers as Warren's clients.
fn with_new_keys(
    config: &ExitSettings,
    directories: &Directories,
    args: &ImportWireGuardArgs,
    import: &Import,
    store: &mut dyn ClientStore,
) -> anyhow::Result<()> {
    let Import { server, planned, .. } = import;
    let endpoint = endpoint(config)?;
    let directory = args.output.clone().unwrap_or_else(|| directories.config.join("clients"));
    let exit =
        RemoteExit { endpoint: endpoint.clone(), public_keys: config.public_keys(), server_name: None };
    // Checks every file before the first one is written.
    let keys = all_left_behind(planned, &directory, &exit, store)?;
    import.announce()?;
    if planned.is_empty() {
        return output::print("Nothing was changed.\n");
    }
    if args.dry_run {
        let clients = counted(planned.len(), "client");
        return output::print(&format!("{clients} would be enrolled; nothing was changed.\n"));
    }
    enrol_with_new_keys(planned, keys, &directory, &exit, store)?;
    if let Some(network) = server.networks.iter().find(|network| uses(config, network)) {
        output::note(format!("Stop the WireGuard server before the exit runs: both use {network}."));
    }
    Ok(())
}

/// Enrols all clients, and writes a profile for each one that has none.
fn enrol_with_new_keys(
    planned: &[NewClient],
    keys: Vec<Option<PrivateKey>>,
    directory: &Path,
    exit: &RemoteExit,
    store: &mut dyn ClientStore,
) -> anyhow::Result<()> {
    let mut clients = Vec::new();
    let mut written = Profiles::default();
    storage::make_directory(directory).map_err(|error| {
        anyhow!("{} cannot be created: {}; name another with --output", directory.display(), describe(&error))
    })?;
    storage::remove_abandoned(directory);
    for (client, left) in planned.iter().zip(keys) {
        let public_key = match left {
            Some(key) => key.public(),
            None => {
                let key = PrivateKey::generate()?;
                let public_key = key.public();
                let text =
                    profile_text(&client.name, &exit.endpoint, &exit.public_keys, &ClientKey::Ours(key));
                written.write(profile_path(directory, client), text.as_bytes())?;
                public_key
            }
        };
        clients.push(NewClient { public_key, ..client.clone() });
    }
    // The clients are enrolled after all profiles are written. If this command is killed earlier, no enrolled key is lost, and
    // the next import uses the profiles that were written.
    store.add_all(&clients)?;
    // Once the exit knows the keys, the profiles must not be removed.
    written.keep();
    output::print(&format!(
        "Enrolled {}; the profiles are in {}. Move each to its machine, and run there: warren up ./NAME.toml\n",
        counted(clients.len(), "client"),
        directory.display(),
    ))
}

/// Refuses names that other clients have, and proposes other names.
fn refuse_clashes(file: &Path, renamed: &[Renamed]) -> Result<(), ConfigError> {
    match (renamed.first(), clash::sentence(renamed)) {
        (Some(first), Some(sentence)) => Err(ConfigError::at_line(file, first.line, sentence)),
        _ => Ok(()),
    }
}

fn read(file: &Path, bytes: &[u8]) -> Result<WireGuardServer, ConfigError> {
    wireguard::parse(file, utf8(file, bytes)?)
}

fn profile_path(directory: &Path, client: &NewClient) -> PathBuf {
    directory.join(format!("{}.toml", client.name))
}

/// Returns, for each client, the key that a killed import left for it.
fn all_left_behind(
    planned: &[NewClient],
    directory: &Path,
    exit: &RemoteExit,
    store: &mut dyn ClientStore,
) -> anyhow::Result<Vec<Option<PrivateKey>>> {
    let removed = all(&PageQuery::default(), |page| store.removed(page))?.rows;
    let removed: Vec<PublicKey> = removed.into_iter().map(|removed| removed.public_key).collect();
    planned.iter().map(|client| left_behind(&profile_path(directory, client), exit, &removed)).collect()
}

/// Returns the key in a profile that a killed import left. Clients are enrolled only after all profiles are written, so this
/// import can use the profile's key.
fn left_behind(path: &Path, exit: &RemoteExit, removed: &[PublicKey]) -> anyhow::Result<Option<PrivateKey>> {
    if fs::symlink_metadata(path).is_err() {
        return Ok(None);
    }
    match load_profile(path) {
        Ok(profile) if removed.contains(&profile.private_key.public()) => bail!(
            "{} has the key of a client that was removed; delete the file, or name another directory with --output",
            path.display()
        ),
        Ok(profile) if profile.exit == *exit => Ok(Some(profile.private_key)),
        _ => bail!(
            "{} exists already; nothing was changed; name another directory with --output",
            path.display()
        ),
    }
}

/// The plan of an import.
#[derive(Debug)]
struct Plan {
    /// The clients to enrol, without those that are already enrolled. Their keys are set later.
    clients: Vec<NewClient>,
    /// The clients whose names in the file are taken.
    renamed: Vec<Renamed>,
}

fn plan(server: &WireGuardServer, config: &ExitSettings, enrolled: &[ClientView]) -> Result<Plan, Refused> {
    let mut registry = ClientRegistry::new();
    for view in enrolled {
        let client = NewClient {
            prefixes: view.prefixes.clone(),
            ..NewClient::new(view.name.clone(), view.public_key, view.ipv4, view.ipv6)
        };
        // Errors are ignored, because these clients are already enrolled, so they do not conflict with each other.
        drop(enrol(&mut registry, &client));
    }
    // If the exit could not start even with the clients that are already enrolled, this check is skipped, because the import is
    // not the reason.
    let could_start = check_clients(config.ipv4, config.ipv6, &registry).is_ok();
    let mut planned: Vec<NewClient> = Vec::new();
    let mut renamed = Vec::new();
    for peer in &server.peers {
        let refused = |sentence: String| Refused { line: peer.line, sentence };
        let mut client = client_of(peer, config).map_err(refused)?;
        if is_clash(&client, &registry, enrolled) {
            let is_taken = |name: &str| {
                registry.by_name(name).is_some()
                    || server.peers.iter().any(|peer| peer.name.as_deref() == Some(name))
            };
            let to = free_name(&client.name, is_taken);
            let from = std::mem::replace(&mut client.name, to.clone());
            let holder = planned.iter().zip(&server.peers).find(|(other, _)| other.name == from);
            renamed.push(Renamed { line: peer.line, from, to, holder: holder.map(|(_, peer)| peer.line) });
        }
        enrol(&mut registry, &client).map_err(|error| {
            let holder =
                planned.iter().zip(&server.peers).find(|(other, _)| holder(&error) == Some(&other.name));
            refused(match holder {
                Some((client, other)) => {
                    format!("{error} ({:?} is the peer at line {})", client.name, other.line)
                }
                None => error.to_string(),
            })
        })?;
        // Checks all other requirements of an exit for its clients. The earlier peers have passed this check, so an error is
        // about this peer.
        if could_start {
            check_clients(config.ipv4, config.ipv6, &registry).map_err(|error| refused(error.to_string()))?;
        }
        planned.push(client);
    }
    Ok(Plan { clients: planned, renamed })
}

/// Whether another client has this client's name. An enrolled client with the same name and the same address is not a clash,
/// because it is this peer, enrolled by an earlier import.
fn is_clash(client: &NewClient, registry: &ClientRegistry, enrolled: &[ClientView]) -> bool {
    let is_same = |view: &ClientView| {
        let equal = (view.ipv4.is_some() && view.ipv4 == client.ipv4)
            || (view.ipv6.is_some() && view.ipv6 == client.ipv6);
        view.name == client.name && equal
    };
    registry.by_name(&client.name).is_some() && !enrolled.iter().any(is_same)
}

/// Adds a client to the registry, to find conflicts. Its key is a placeholder.
fn enrol(registry: &mut ClientRegistry, client: &NewClient) -> Result<(), RegistryError> {
    // The placeholder differs for each client, because a registry refuses the same key twice.
    let mut key = [0; 32];
    key[..8].copy_from_slice(&(registry.len() as u64).to_be_bytes());
    let mut entry = Client::new(client.name.clone(), PublicKey(key), SystemTime::UNIX_EPOCH);
    (entry.ipv4, entry.ipv6) = (client.ipv4, client.ipv6);
    entry.prefixes.clone_from(&client.prefixes);
    registry.add(entry)
}

/// The name of the client that already has the name, address or prefix that the error is about.
fn holder(error: &RegistryError) -> Option<&String> {
    if let RegistryError::NameTaken { name: holder }
    | RegistryError::AddressTaken { holder, .. }
    | RegistryError::PrefixTaken { holder, .. } = error
    {
        return Some(holder);
    }
    None
}

fn client_of(peer: &Peer, config: &ExitSettings) -> Result<NewClient, String> {
    // The name and the key are set below.
    let mut client = NewClient::new(String::new(), config.keys.current.public(), None, None);
    for network in &peer.allowed_ips {
        let is_host = network.prefix_len() == network.max_prefix_len();
        match (is_host, network) {
            (true, IpNet::V4(host)) if client.ipv4.is_none() => client.ipv4 = Some(host.addr()),
            (true, IpNet::V6(host)) if client.ipv6.is_none() => client.ipv6 = Some(host.addr()),
            _ if network.prefix_len() == 0 => {
                return Err(format!(
                    "{network} routes all traffic to this peer; a client cannot be an exit, so remove this network"
                ));
            }
            _ => client.prefixes.push(network.trunc()),
        }
    }
    let addresses = [client.ipv4.map(std::net::IpAddr::V4), client.ipv6.map(std::net::IpAddr::V6)];
    for address in addresses.into_iter().flatten() {
        warren_config::client_address(address, config.ipv4, config.ipv6).map_err(|sentence| {
            format!("{sentence}, or write this network into [addresses] in {}", config.path.display())
        })?;
    }
    client.name = match (&peer.name, addresses.into_iter().flatten().next()) {
        (Some(name), _) => name.clone(),
        (None, Some(address)) => format!("peer-{}", address.to_string().replace([':', '.'], "-")),
        (None, None) => format!("peer-{}", peer.line),
    };
    if let Err(reason) = client.name.parse::<ProfileName>() {
        return Err(format!(
            "the name {:?} {reason}; give the peer another name in a comment: # Name = laptop",
            client.name
        ));
    }
    Ok(client)
}

fn uses(config: &ExitSettings, network: &IpNet) -> bool {
    let own = [config.ipv4.map(IpNet::V4), config.ipv6.map(IpNet::V6)];
    own.into_iter().flatten().any(|own| own.contains(network) || network.contains(&own))
}

/// Profiles that were written. Dropping this removes them, unless `keep` was called.
#[derive(Default)]
struct Profiles(Vec<PathBuf>);

impl Profiles {
    fn write(&mut self, path: PathBuf, text: &[u8]) -> anyhow::Result<()> {
        storage::create_new(&path, text, 0o600).with_context(|| {
            format!(
                "{} cannot be written; nothing was changed; name another directory with --output",
                path.display()
            )
        })?;
        self.0.push(path);
        Ok(())
    }

    fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for Profiles {
    fn drop(&mut self) {
        for path in &self.0 {
            // If the file cannot be removed, it does no harm, because the exit does not know its key.
            drop(fs::remove_file::<&Path>(path));
        }
    }
}

#[cfg(test)]
mod tests;
