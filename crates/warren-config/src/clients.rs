//! The exit's clients on disk. Only the exit and its commands change the store. People write `clients.toml`, and the exit imports
//! it.

mod access;
mod record;
mod store;
mod tail;
#[cfg(test)]
mod tests;

use std::fs::{DirBuilder, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use warren_host::{durable_file, open_plain};
use warren_session::clients::ClientRegistry;

use self::access::{refuse_what_others_write, unwritten};
pub use self::store::ClientStore;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use self::store::fuzzing;
use super::document::Source;
use super::file;
use super::wording::describe;
use super::{ConfigError, document};
use crate::storage::{self, LockFile};

/// Maximum size of a `clients.toml`. It is enough for several hundred thousand clients of about 300 bytes each.
const MOST_BYTES: u64 = 256 * 1024 * 1024;

/// The path of the store, beside the file that `[clients] file` names: `clients.store` for `clients.toml`.
pub fn store_path(clients: &Path) -> PathBuf {
    let name = clients.file_name().unwrap_or_default();
    let stem = name.to_str().and_then(|name| name.strip_suffix(".toml"));
    // A name without `.toml` is kept as a whole: `clients` becomes `clients.store`.
    let mut store = stem.map_or_else(|| name.to_owned(), Into::into);
    store.push(".store");
    clients.with_file_name(store)
}

/// The path of the file that a command writes for the exit to import: `clients.toml.import` for `clients.toml`.
pub fn staged_path(clients: &Path) -> PathBuf {
    with_suffix(clients, ".import")
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Reads the clients of an exit at this moment, without the lock: from its store, or from `clients.toml` if it has no store yet.
///
/// # Errors
/// When a file cannot be read, or is damaged.
pub fn load_clients(clients: &Path) -> Result<ClientRegistry, ConfigError> {
    // Once there is a store, `clients.toml` has an effect only when it is imported.
    if let Some(registry) = store::read_clients(&store_path(clients))? {
        return Ok(registry);
    }
    Ok(ClientsImport::read(clients)?.map(|import| import.registry).unwrap_or_default())
}

/// The registry as the text of a `clients.toml`.
///
/// # Errors
/// When it cannot be written as TOML. The error names `path`.
pub fn clients_text(path: &Path, registry: &ClientRegistry) -> Result<String, ConfigError> {
    toml::to_string(registry).map_err(|error| unwritten(path, &error.to_string()))
}

/// Reads the text of a `clients.toml`.
pub(super) fn parse(path: &Path, text: &str) -> Result<ClientRegistry, ConfigError> {
    toml::from_str(text).map_err(|error| {
        // An error without a position is reported at the first line.
        let offset = error.span().map_or(0, |span| span.start);
        let sentence = document::deserialization_sentence(error.message());
        Source { path, text }.error(offset, sentence)
    })
}

/// A `clients.toml` that waits to be imported.
#[derive(Debug)]
pub struct ClientsImport {
    /// The clients that the file lists.
    pub registry: ClientRegistry,
    path: PathBuf,
    mark: String,
    /// Whether the file has no `client` key at all.
    is_silent: bool,
}

impl ClientsImport {
    /// Reads the file. `None` if there is no file.
    ///
    /// # Errors
    /// When the file cannot be read, is invalid, or is writable by other users.
    pub fn read(path: &Path) -> Result<Option<Self>, ConfigError> {
        // `metadata` would follow links, but a dangling link does not count as a missing file.
        match std::fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            // `read` below reports any other error.
            _ => {}
        }
        let file::ConfigText { text, metadata } = read(path)?;
        refuse_what_others_write(path, &metadata)?;
        let registry = parse(path, &text)?;
        // `client = []` parses to the same registry as an empty file, so the text decides.
        let says_who = !registry.is_empty()
            || toml::from_str::<toml::Table>(&text).is_ok_and(|table| table.contains_key("client"));
        let mark = mark_of(&metadata, &text);
        Ok(Some(Self { registry, path: path.to_path_buf(), mark, is_silent: !says_who }))
    }

    /// Returns a text that identifies this file. A file that is written later has another mark, even if its content is the same.
    pub fn mark(&self) -> &str {
        &self.mark
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the file has no `client` key at all, like an empty file. In contrast, `client = []` states that there are no
    /// clients.
    pub fn is_silent(&self) -> bool {
        self.is_silent
    }

    /// Renames the file after its clients are in the store, for example `clients.toml` to `clients.toml.imported`. Returns the
    /// new path.
    ///
    /// # Errors
    /// When it cannot be renamed. Even then, the store knows that the file was imported.
    pub fn put_away(self, clients: &Path) -> io::Result<PathBuf> {
        let kept = with_suffix(clients, ".imported");
        durable_file::rename(&self.path, &kept)?;
        Ok(kept)
    }
}

fn mark_of(metadata: &Metadata, text: &str) -> String {
    // Inode and modification time are part of the mark, because they differ if the same text was written again.
    let stamp = (metadata.ino(), metadata.mtime(), metadata.mtime_nsec());
    record::digest_of(format!("{stamp:?}{text}").as_bytes())
}

/// Reads the file as text. Follows no links, because the exit's own user could use a link in its directory to make root read
/// another file.
fn read(path: &Path) -> Result<file::ConfigText, ConfigError> {
    match open_plain(path) {
        // `open_plain` refuses links and special files with errors of this kind, which say what to do.
        Err(error) if error.kind() == io::ErrorKind::Other => {
            Err(ConfigError::of_file(path, format!("cannot be read: {error}")))
        }
        opened => file::read_opened(opened, MOST_BYTES, path, "restore it from a backup"),
    }
}

/// Takes the lock for changing the registry. A command holds it for one change, a running exit for its lifetime.
/// Creates the registry's directory for its owner alone if it is missing.
pub fn lock_clients(path: &Path, wait: Duration) -> Result<LockFile, ConfigError> {
    make_clients_directory(path)?;
    let Some(held) = lock_beside(path, wait)? else {
        return Err(ConfigError::of_file(
            &with_suffix(path, ".lock"),
            "is held by a running exit or another command; wait for it to end and try again",
        ));
    };
    // Only the holder of the lock writes, so all temporary files are left over from interrupted writes.
    path.parent().into_iter().for_each(storage::remove_leftovers);
    Ok(held)
}

/// Takes the lock beside a file: `FILE.lock`. `None` if another process still holds it after `wait`.
///
/// # Errors
/// When the lock's file cannot be made.
pub fn lock_beside(file: &Path, wait: Duration) -> Result<Option<LockFile>, ConfigError> {
    let lock = with_suffix(file, ".lock");
    LockFile::acquire(&lock, wait).map_err(|error| {
        let sentence = format!("cannot be locked: {}; check its directory", describe(&error));
        ConfigError::of_file(&lock, sentence)
    })
}

/// Creates the clients' directory for its owner alone if it is missing.
///
/// # Errors
/// When it cannot be created.
pub fn make_clients_directory(clients: &Path) -> Result<(), ConfigError> {
    let Some(directory) = clients.parent() else { return Ok(()) };
    let make = |path: &Path, mode| DirBuilder::new().recursive(true).mode(mode).create(path);
    // The directories above may be used by others too, so they get the usual mode.
    let above = directory.parent().map_or(Ok(()), |above| make(above, 0o755));
    above.and_then(|()| make(directory, 0o700)).map_err(|error| {
        let sentence = format!("cannot be created: {}; choose another --state-dir", describe(&error));
        ConfigError::of_file(directory, sentence)
    })
}
