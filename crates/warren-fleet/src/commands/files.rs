//! Files that commands write as root and the user `warren-fleet` reads.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use warren_config::storage::{LockFile, make_directory};
use warren_host::durable_file::{Owner, Unfinished, replace};

use crate::config::{FleetConfig, StoreConfig};
use crate::run::Directories;

/// The file beside the credentials that says with which ticket this host joins.
pub(crate) const ATTEMPT: &str = "join.json";

/// The group of `warren-fleet run` when it runs as a systemd unit.
const GROUP: &str = "warren-fleet";

/// Takes the lock for changing the files of this exit's fleet. It is held until the command ends.
///
/// # Errors
/// If another command has it.
pub(crate) fn lock(directories: &Directories<'_>) -> anyhow::Result<LockFile> {
    let path = directories.runtime.join("fleet.lock");
    let lock = make_directory(directories.runtime).and_then(|_| LockFile::acquire(&path, Duration::ZERO));
    let lock = lock.with_context(|| {
        format!("{} cannot be locked; run this as root, or choose another --runtime-dir", path.display())
    })?;
    lock.with_context(|| {
        format!(
            "another command is changing this exit's fleet (it has locked {}); wait until it has ended, then run this again",
            path.display()
        )
    })
}

/// Replaces a file. The group may read it.
///
/// # Errors
/// If it cannot be written.
pub(crate) fn write(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    if let Some(directory) = path.parent() {
        make_directory(directory).with_context(|| format!("{} cannot be created", directory.display()))?;
    }
    let (mode, owner) = match group() {
        Some(group) if Owner::own().user == 0 => (0o640, Owner { user: 0, group }),
        _ => (0o600, Owner::own()),
    };
    replace(path, Unfinished::Random, content, mode, Some(owner))
        .with_context(|| format!("{} cannot be written", path.display()))
}

/// Returns the directory for the store's credentials. `join` writes them there. For `init`, an operator does.
pub(crate) fn credentials_directory(configuration: &Path) -> PathBuf {
    configuration.join("fleet")
}

/// Removes the store's credentials of an exit that has left its fleet. Returns the secret files in other directories, which stay.
pub(crate) fn forget_credentials(configuration: &Path, store: &StoreConfig) -> anyhow::Result<Vec<PathBuf>> {
    let own = std::path::absolute(credentials_directory(configuration))?;
    let mut kept = Vec::new();
    let secret = [&store.key, &store.password_file];
    for (path, is_secret) in [&store.ca, &store.certificate]
        .map(|path| (path, false))
        .into_iter()
        .chain(secret.map(|path| (path, true)))
    {
        let Some(path) = path else { continue };
        if path.parent() == Some(&own) {
            match std::fs::remove_file(path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(error).with_context(|| format!("{} cannot be removed", path.display()));
                }
                Ok(()) | Err(_) => {}
            }
        } else if is_secret {
            kept.push(path.clone());
        }
    }
    let _ = std::fs::remove_file(own.join(ATTEMPT));
    // If an operator has put another file into the directory, this fails, and the file and the directory stay.
    let _ = std::fs::remove_dir(own);
    Ok(kept)
}

/// Writes `fleet.toml`.
///
/// # Errors
/// If it cannot be written.
pub(crate) fn write_config(directory: &Path, config: &FleetConfig) -> anyhow::Result<()> {
    write_config_at(&FleetConfig::path(directory), config)
}

/// Like [`write_config`], at another path.
///
/// # Errors
/// If it cannot be written.
pub(crate) fn write_config_at(path: &Path, config: &FleetConfig) -> anyhow::Result<()> {
    let text = toml::to_string(config)?;
    let head = "# The fleet of this exit, for `warren-fleet run`. `warren fleet init` or `warren fleet join` has written it.\n";
    write(path, format!("{head}{text}").as_bytes())
}

fn group() -> Option<u32> {
    let groups = std::fs::read_to_string("/etc/group").ok()?;
    let line = groups.lines().find(|line| line.split(':').next() == Some(GROUP))?;
    line.split(':').nth(2)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_of_a_fleet_that_was_left_are_removed_and_others_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let (own, other) = (credentials_directory(directory.path()), directory.path().join("root.key"));
        std::fs::create_dir(&own).unwrap();
        for path in [&own.join("store-ca.pem"), &own.join("store.password"), &own.join(ATTEMPT), &other] {
            std::fs::write(path, "secret").unwrap();
        }
        let store = StoreConfig {
            ca: Some(own.join("store-ca.pem")),
            certificate: Some(directory.path().join("root.pem")),
            key: Some(other.clone()),
            password_file: Some(own.join("store.password")),
            ..StoreConfig::default()
        };
        assert_eq!(forget_credentials(directory.path(), &store).unwrap(), std::slice::from_ref(&other));
        assert!(other.exists() && !own.exists());
        // The function is called once more, as after a failure.
        assert_eq!(forget_credentials(directory.path(), &store).unwrap(), [other]);
    }
}
