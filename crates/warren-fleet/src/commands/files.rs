//! Files that commands write as root and the user `warren-fleet` reads.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use serde::Deserialize;
use warren_config::load_exit;
use warren_config::storage::{LockFile, make_directory, write_atomic};
use warren_host::durable_file::{Owner, Unfinished, remove, remove_leftovers, replace};

use crate::config::{FleetConfig, StoreConfig, exit_toml, is_there};
pub(crate) use crate::joined::{ATTEMPT, credentials_directory};
use crate::run::Directories;

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
    remove_leftovers(&own);
    // If an operator has put another file into the directory, this fails, and the file and the directory stay.
    let _ = std::fs::remove_dir(own);
    Ok(kept)
}

/// The file in which this host's exit keeps the changes that it has not sent to its fleet yet, and whether its fleet has removed it
/// (`warren-exit/src/fleet/file.rs`).
fn exits_file(directories: &Directories<'_>) -> anyhow::Result<PathBuf> {
    let path = exit_toml(directories.config);
    let clients = match is_there(&path)? {
        true => load_exit(&path)?.clients_path(directories.state),
        // An earlier exit of this host may have left the file at its usual place.
        false => directories.state.join("exit").join("clients.toml"),
    };
    Ok(clients.with_file_name("fleet.json"))
}

/// The other name of `fleet.json`, while the disk lacks a change that shuts a client out.
fn aside(path: &Path) -> PathBuf {
    path.with_extension("json.unsaved")
}

/// How many changes of clients this host's exit has not sent to its fleet yet.
///
/// # Errors
/// If its configuration cannot be read.
pub(crate) fn owed_changes(directories: &Directories<'_>) -> anyhow::Result<usize> {
    /// The part of the file that counts here.
    #[derive(Deserialize)]
    struct Kept {
        unsent: Vec<Unsent>,
    }
    #[derive(Deserialize)]
    struct Unsent {
        /// Whether only the time at which a client was last online has changed.
        #[serde(default)]
        is_date: bool,
    }
    let path = exits_file(directories)?;
    let text = std::fs::read(&path).or_else(|_| std::fs::read(aside(&path))).unwrap_or_default();
    Ok(serde_json::from_slice::<Kept>(&text)
        .map_or(0, |kept| kept.unsent.iter().filter(|row| !row.is_date).count()))
}

/// Replaces the `fleet.json` of an exit that joins a fleet. The exit serves nobody before it has read the fleet's clients, because its own
/// copy may have clients that were removed elsewhere.
///
/// # Errors
/// If it cannot be written.
pub(crate) fn begin_exits_file(directories: &Directories<'_>) -> anyhow::Result<()> {
    let path = exits_file(directories)?;
    // Without the directory, the exit has no clients.
    if !path.parent().is_some_and(Path::is_dir) {
        return Ok(());
    }
    let content = br#"{"answered":null,"revision":0,"unsent":[],"must_hear":true}"#;
    write_atomic(&path, content, 0o600).with_context(|| format!("{} cannot be written", path.display()))?;
    forget(&aside(&path))
}

/// Removes the exit's `fleet.json`. In another fleet, the exit would send the changes that were meant for the old fleet.
///
/// # Errors
/// If it cannot be removed.
pub(crate) fn forget_exits_file(directories: &Directories<'_>) -> anyhow::Result<()> {
    let path = exits_file(directories)?;
    forget(&aside(&path))?;
    forget(&path)
}

/// Removes a file, if it exists.
///
/// # Errors
/// If it cannot be removed.
pub(crate) fn forget(path: &Path) -> anyhow::Result<()> {
    remove(path).with_context(|| format!("{} cannot be removed", path.display()))
}

/// Removes the file of an earlier `join`, because this host begins a fleet of its own. The file names another membership.
///
/// # Errors
/// If it cannot be removed.
pub(crate) fn forget_attempt(configuration: &Path) -> anyhow::Result<()> {
    forget(&credentials_directory(configuration).join(ATTEMPT))
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
    use std::os::unix::fs::PermissionsExt as _;

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

    #[test]
    fn the_exits_file_of_a_fleet_that_was_left_is_counted_and_removed() {
        let directory = tempfile::tempdir().unwrap();
        let (config, state) = (directory.path().join("config"), directory.path().join("state"));
        for path in [&config, &state.join("exit"), &state.join("other")] {
            std::fs::create_dir_all(path).unwrap();
        }
        let directories = Directories { config: &config, runtime: &config, state: &state };
        let file = |place: &str| state.join(place).join("fleet.json");
        for place in ["exit", "other"] {
            std::fs::write(file(place), r#"{"revision": 7, "unsent": [{"row": 1}, {"row": 2}, {"row": 3, "is_date": true}], "is_removed": true}"#).unwrap();
        }
        let exit = "[exit]\nprivate_key_file = \"exit.key\"\n[addresses]\nipv4 = \"10.66.0.0/16\"\n[clients]\nfile = \"other/clients.toml\"\n";
        std::fs::write(exit_toml(&config), exit).unwrap();
        let key = config.join("exit.key");
        std::fs::write(&key, format!("{}=", "A".repeat(43))).unwrap();
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(owed_changes(&directories).unwrap(), 2);
        forget_exits_file(&directories).unwrap();
        assert_eq!(owed_changes(&directories).unwrap(), 0);
        assert!(!file("other").exists() && file("exit").exists(), "the place is as exit.toml says");
        // The disk lacked a removal.
        std::fs::write(file("other").with_extension("json.unsaved"), r#"{"unsent": [{"row": 1}]}"#).unwrap();
        assert_eq!(owed_changes(&directories).unwrap(), 1);
        begin_exits_file(&directories).unwrap();
        assert!(!file("other").with_extension("json.unsaved").exists());
        assert!(std::fs::read_to_string(file("other")).unwrap().contains(r#""must_hear":true"#));
        assert_eq!(owed_changes(&directories).unwrap(), 0);
        // A host that has no exit any more.
        std::fs::remove_file(exit_toml(&config)).unwrap();
        forget_exits_file(&directories).unwrap();
        assert!(!file("exit").exists());
        forget_exits_file(&directories).unwrap();
    }
}
