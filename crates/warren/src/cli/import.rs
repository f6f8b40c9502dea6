//! `warren import wireguard`: writes a profile with the routes, resolvers and exclusions of a WireGuard client's file, and the
//! exit of an invitation.

mod translate;
mod wireguard;

use std::fs;
use std::path::Path;

use anyhow::anyhow;

use self::translate::Translated;
use super::args::{ImportProfileArgs, JoinArgs};
use super::join;
use warren_config::{ClientKey, ConfigError, check_profile, describe, profile_text_with, utf8};
use warren_daemon::directories::Directories;
use warren_daemon::output;
use warren_quic::key::PrivateKey;

/// Enrols this machine, and writes the profile. With `--dry-run`, only prints the settings that the profile would get from the
/// file.
///
/// # Errors
/// The line of the file that cannot be imported, or an error of `warren join`.
pub(crate) async fn run(directories: &Directories, arguments: ImportProfileArgs) -> anyhow::Result<()> {
    let ImportProfileArgs { file, invite, name, timeout, dry_run } = arguments;
    let bytes = fs::read(&file).map_err(|error| {
        anyhow!("{} cannot be read: {}; name a WireGuard client's file", file.display(), describe(&error))
    })?;
    let Translated { settings, notes } = read(&file, &bytes)?;
    match invite.filter(|_| !dry_run) {
        Some(invite) => join::run_with(directories, JoinArgs { invite, name, timeout }, &settings).await?,
        None => {
            check(&settings)?;
            output::print(&format!(
                "# The settings that a profile gets from {}. Nothing was changed.\n\n{settings}",
                file.display()
            ))?;
        }
    }
    notes.iter().for_each(output::note);
    Ok(())
}

/// Checks that a profile can have these settings, as `warren join` does with the profile itself.
fn check(settings: &str) -> anyhow::Result<()> {
    let [client, exit] = [PrivateKey::generate()?, PrivateKey::generate()?];
    let endpoint = "exit.example.net:443".parse().map_err(anyhow::Error::msg)?;
    let text = profile_text_with("home", &endpoint, &[exit.public()], &ClientKey::Ours(client), settings);
    Ok(check_profile(Path::new("home.toml"), &text)?)
}

fn read(file: &Path, bytes: &[u8]) -> Result<Translated, ConfigError> {
    let client = wireguard::parse(file, utf8(file, bytes)?)?;
    translate::translate(file, &client)
}
