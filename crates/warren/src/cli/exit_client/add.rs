//! `warren exit client add`: enrols a client and writes its profile.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context, anyhow, bail};
use warren_quic::key::{PrivateKey, PublicKey};

use super::invite::EARLIER_IS_VOID;
use super::store::ClientStore;
use super::wg_quick;
use crate::cli::args::ClientAddArgs;
use crate::cli::{host_networks, keys};
use warren_config::storage;
use warren_config::{ClientKey, ExitSettings, ProfileName, client_address, describe, profile_text};
use warren_control::NewClient;
use warren_daemon::output;
use warren_exit::invitation;

/// Enrols a client and writes its profile. If anything fails, the client is not enrolled.
pub(super) fn run(
    config: &ExitSettings,
    args: &ClientAddArgs,
    store: &mut dyn ClientStore,
) -> anyhow::Result<()> {
    let endpoint = invitation::endpoint(config)?;
    check(config, args, true)?;
    let key = match own_key(args)? {
        Some(public) => ClientKey::Theirs(public),
        None => ClientKey::Ours(PrivateKey::generate()?),
    };
    let profile = profile_text(&args.name, endpoint, &config.public_keys(), &key);
    let client = NewClient {
        prefixes: args.prefixes.clone(),
        rate_limit: args.rate_limit,
        allow_removed: args.allow_removed,
        ..NewClient::new(args.name.clone(), key.public(), args.ipv4, args.ipv6)
    };
    let is_invited = store.is_invited(&args.name)?;
    match &args.output {
        Some(path) => to_file(path, &profile, &client, store),
        None => {
            if args.public_key.is_none() {
                // This is checked before the client is enrolled.
                output::refuse_to_lose("the only copy of the client's key")?;
            }
            to_stdout(&profile, &client, store)
        }
    }?;
    if is_invited {
        output::note(EARLIER_IS_VOID);
    }
    Ok(())
}

pub(super) fn check(config: &ExitSettings, args: &ClientAddArgs, is_profile: bool) -> anyhow::Result<()> {
    invitation::check_name(&args.name)?;
    check_key(config, args.public_key)?;
    host_networks::refuse(&args.prefixes, config)?;
    for address in [args.ipv4.map(IpAddr::V4), args.ipv6.map(IpAddr::V6)].into_iter().flatten() {
        client_address(address, config.ipv4, config.ipv6).map_err(|sentence| anyhow!(sentence))?;
    }
    match &args.output {
        Some(path) if is_profile => Ok(ProfileName::of_file(path).map(drop)?),
        Some(_) | None => Ok(()),
    }
}

/// Returns the Warren key in the arguments, if there is one.
fn own_key(args: &ClientAddArgs) -> anyhow::Result<Option<PublicKey>> {
    let key = args.public_key.map(|key| key.to_string().parse::<PublicKey>()).transpose();
    key.map_err(|error| anyhow!("--public-key: {error}"))
}

pub(super) fn check_key(config: &ExitSettings, key: Option<PublicKey>) -> anyhow::Result<()> {
    if key.is_some_and(|key| config.public_keys().contains(&key)) {
        bail!("--public-key is the exit's own; give the key that \"warren pubkey\" prints on the client");
    }
    Ok(())
}

/// Writes the profile into a file and then enrols the client. In this order, the key of an enrolled client is never lost.
pub(super) fn to_file(
    path: &Path,
    profile: &str,
    client: &NewClient,
    store: &mut dyn ClientStore,
) -> anyhow::Result<()> {
    storage::create_new(path, profile.as_bytes(), 0o600).map_err(|error| {
        if error.kind() == io::ErrorKind::AlreadyExists {
            anyhow!("{} exists already; name another file, or remove this one", path.display())
        } else {
            anyhow!("{} cannot be written: {}; name another file", path.display(), describe(&error))
        }
    })?;
    store.add(client).inspect_err(|_| {
        let _ = fs::remove_file(path);
    })?;
    let file_name = Path::new(path.file_name().unwrap_or(path.as_os_str()));
    let next = match client.wireguard {
        Some(_) => {
            format!("import it in the WireGuard app, or run there: {}", wg_quick::command_for(file_name))
        }
        None => format!("run there: warren up ./{}", file_name.display()),
    };
    output::print(&format!(
        "Enrolled {} and wrote {}. Move the file to the client, and {next}\n",
        client.name,
        path.display(),
    ))
}

pub(super) fn to_stdout(
    profile: &str,
    client: &NewClient,
    store: &mut dyn ClientStore,
) -> anyhow::Result<()> {
    store.add(client)?;
    keys::warn_if_others_read_stdout(if client.wireguard.is_some() { "configuration" } else { "profile" });
    if let Err(error) = output::print_all(profile) {
        // The client's key could not be printed, so the client is removed again.
        store.remove(&client.name).with_context(|| {
            format!("its profile could not be written; run: warren exit client remove {}", client.name)
        })?;
        return Err(error);
    }
    Ok(())
}
