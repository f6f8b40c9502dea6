//! `warren exit client add`: enrols a client and writes the profile that it connects with.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context, anyhow, bail};
use warren_quic::key::{PrivateKey, PublicKey};
use warren_session::clients::is_valid_name;
use zeroize::Zeroizing;

use super::invite::{EARLIER_IS_VOID, is_invited};
use super::store::{ClientStore, NewClient};
use crate::cli::args::ClientAddArgs;
use crate::cli::{keys, output, own_networks};
use crate::config::{Endpoint, ExitConfig, ProfileName, client_address, describe};
use crate::storage;

/// Enrols a client; whatever fails, the client is enrolled and has its profile, or neither.
pub(super) fn run(
    config: &ExitConfig,
    args: &ClientAddArgs,
    store: &mut dyn ClientStore,
) -> anyhow::Result<()> {
    let endpoint = endpoint(config)?;
    check(config, args)?;
    let key = match args.public_key {
        Some(public) => ClientKey::Theirs(public),
        None => ClientKey::Ours(PrivateKey::generate()?),
    };
    let profile = profile(&args.name, endpoint, &config.public_keys(), &key);
    let client = NewClient {
        prefixes: args.prefixes.clone(),
        rate_limit: args.rate_limit,
        allow_removed: args.allow_removed,
        ..NewClient::new(args.name.clone(), key.public(), args.ipv4, args.ipv6)
    };
    let is_invited = is_invited(store, &args.name)?;
    match &args.output {
        Some(path) => to_file(path, &profile, &client, store),
        None => {
            if args.public_key.is_none() {
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

/// What clients reach the exit at, which exit.toml may leave out.
pub(crate) fn endpoint(config: &ExitConfig) -> anyhow::Result<&Endpoint> {
    config.endpoint.as_ref().with_context(|| {
        let file = config.path.display();
        format!("{file}: endpoint is missing in [exit]; write the host and port that clients reach")
    })
}

/// Whose the private key of a new profile is.
pub(crate) enum ClientKey {
    /// Made here; the profile holds it and nothing else does.
    Ours(PrivateKey),
    /// Made by the client, which keeps the private half.
    Theirs(PublicKey),
}

impl ClientKey {
    fn public(&self) -> PublicKey {
        match self {
            Self::Ours(private) => private.public(),
            Self::Theirs(public) => *public,
        }
    }
}

fn check(config: &ExitConfig, args: &ClientAddArgs) -> anyhow::Result<()> {
    check_name(&args.name)?;
    check_key(config, args.public_key)?;
    own_networks::refuse(&args.prefixes, config)?;
    for address in [args.ipv4.map(IpAddr::V4), args.ipv6.map(IpAddr::V6)].into_iter().flatten() {
        client_address(address, config.ipv4, config.ipv6).map_err(|sentence| anyhow!(sentence))?;
    }
    match &args.output {
        Some(path) => Ok(ProfileName::of_file(path).map(drop)?),
        None => Ok(()),
    }
}

pub(super) fn check_key(config: &ExitConfig, key: Option<PublicKey>) -> anyhow::Result<()> {
    if key.is_some_and(|key| config.public_keys().contains(&key)) {
        bail!("--public-key is the exit's own; give the key that \"warren pubkey\" prints on the client");
    }
    Ok(())
}

pub(super) fn check_name(name: &str) -> anyhow::Result<()> {
    if !is_valid_name(name) {
        bail!(
            "{:?} cannot be a client's name: use 1 to 63 of a-z, 0-9, dot, dash and underscore, beginning with a letter or digit",
            name.chars().take(80).collect::<String>()
        );
    }
    Ok(())
}

/// The file comes first, so that an enrolled client's key is never lost.
fn to_file(
    path: &Path,
    profile: &str,
    client: &NewClient,
    store: &mut dyn ClientStore,
) -> anyhow::Result<()> {
    storage::create_new(path, profile.as_bytes(), 0o600).map_err(|error| {
        if error.kind() == io::ErrorKind::AlreadyExists {
            anyhow!("{} exists already; name another file, or remove it", path.display())
        } else {
            anyhow!("{} cannot be written: {}; name another file", path.display(), describe(&error))
        }
    })?;
    store.add(client).inspect_err(|_| {
        let _ = fs::remove_file(path);
    })?;
    let file_name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    output::print(&format!(
        "Enrolled {} and wrote {}. Move it to the client, and there run: warren up ./{file_name}\n",
        client.name,
        path.display(),
    ))
}

fn to_stdout(profile: &str, client: &NewClient, store: &mut dyn ClientStore) -> anyhow::Result<()> {
    store.add(client)?;
    keys::warn_if_others_read_stdout("profile");
    if let Err(error) = output::print_all(profile) {
        store.remove(&client.name).with_context(|| {
            format!("its profile could not be written; run: warren exit client remove {}", client.name)
        })?;
        return Err(error);
    }
    Ok(())
}

/// A profile with all that `warren up` needs; what it leaves out has its default.
pub(crate) fn profile(
    name: &str,
    endpoint: &Endpoint,
    exit: &[PublicKey],
    key: &ClientKey,
) -> Zeroizing<String> {
    let key_line = match key {
        ClientKey::Ours(private) => {
            Zeroizing::new(format!("private_key = \"{}\"", private.to_base64().as_str()))
        }
        ClientKey::Theirs(public) => {
            let line = format!(
                "private_key_file = \"{name}.key\"   # the private key of {public}, beside this file"
            );
            Zeroizing::new(line)
        }
    };
    let exit = match exit {
        [only] => format!("\"{only}\""),
        // While the exit's key is being rotated.
        several => {
            let keys: Vec<String> = several.iter().map(|key| format!("\"{key}\"")).collect();
            format!("[{}]", keys.join(", "))
        }
    };
    Zeroizing::new(format!(
        "# {name}, a client of {endpoint}. Keep this file to yourself (chmod 600), and connect with: warren up FILE\n\n\
         [client]\n{}\n\n[[exit]]\nendpoint = \"{endpoint}\"\npublic_key = {exit}\n",
        key_line.as_str()
    ))
}
