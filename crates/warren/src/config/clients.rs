//! The client registry's file, `clients.toml` in the exit's state directory.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use warren_session::clients::ClientRegistry;

use super::document::Source;
use super::file::{self, describe};
use super::{ConfigError, document};
use crate::storage::{self, LockFile};

/// The registry's mode when it is made: who may connect is nobody else's business.
const MODE: u32 = 0o600;

/// Reads the registry; a file that does not exist yet has no clients.
pub(crate) fn load_clients(path: &Path) -> Result<ClientRegistry, ConfigError> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(ClientRegistry::new()),
        _ => {}
    }
    let text = file::read(path, "restore it from a backup")?.text;
    toml::from_str(&text).map_err(|error| {
        let offset = error.span().map_or(0, |span| span.start);
        let sentence = document::deserialization_sentence(error.message());
        Source { path, text: &text }.error(offset, sentence)
    })
}

/// Replaces the registry's file, durably.
pub(crate) fn save_clients(path: &Path, registry: &ClientRegistry) -> Result<(), ConfigError> {
    let refuse = |reason: String| {
        ConfigError::of_file(path, format!("cannot be written: {reason}; check its directory"))
    };
    let text = toml::to_string(registry).map_err(|error| refuse(error.to_string()))?;
    storage::write_atomic(path, text.as_bytes(), MODE).map_err(|error| refuse(describe(&error)))
}

/// Takes the lock that whoever changes the registry holds: a command for one change, a running exit for its life. Makes the
/// registry's directory if it is missing, for its owner alone.
pub(crate) fn lock_clients(path: &Path, wait: Duration) -> Result<LockFile, ConfigError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let lock = PathBuf::from(name);
    make_directory(path)?;
    match LockFile::acquire(&lock, wait) {
        Ok(Some(held)) => {
            path.parent().into_iter().for_each(storage::remove_leftovers);
            Ok(held)
        }
        Ok(None) => Err(ConfigError::of_file(
            &lock,
            "is held by a running exit or another command; wait for it to end and try again",
        )),
        Err(error) => {
            let sentence = format!("cannot be locked: {}; check its directory", describe(&error));
            Err(ConfigError::of_file(&lock, sentence))
        }
    }
}

fn make_directory(registry: &Path) -> Result<(), ConfigError> {
    let Some(directory) = registry.parent() else { return Ok(()) };
    let make = |path: &Path, mode| DirBuilder::new().recursive(true).mode(mode).create(path);
    // Those above are not the exit's alone.
    let above = directory.parent().map_or(Ok(()), |above| make(above, 0o755));
    above.and_then(|()| make(directory, 0o700)).map_err(|error| {
        let sentence = format!("cannot be made: {}; choose another --state-dir", describe(&error));
        ConfigError::of_file(directory, sentence)
    })
}
