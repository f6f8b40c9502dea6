//! The client registry's file: `clients.toml` in the exit's state directory.

use std::fs::{DirBuilder, Metadata};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use warren_host::open_plain;
use warren_session::clients::ClientRegistry;

use super::document::Source;
use super::file;
use super::wording::describe;
use super::{ConfigError, document};
use crate::storage::{self, LockFile};

/// The mode of a new registry: who may connect is private.
const MODE: u32 = 0o600;

/// Enough for as many clients as a registry can hold, at 1 KiB each, and for 100,000 removed keys, at 160 bytes each. A
/// client without prefixes takes at most 600 bytes.
const MOST_BYTES: u64 = 32 * 1024 * 1024;

/// Reads the registry. A missing file means no clients.
pub fn load_clients(path: &Path) -> Result<ClientRegistry, ConfigError> {
    RegistryFile::open(path.to_path_buf()).map(|(_, registry)| registry)
}

/// Replaces the registry's file, durably.
pub fn save_clients(path: &Path, registry: &ClientRegistry) -> Result<(), ConfigError> {
    write(path, &text_of(path, registry)?)
}

/// The registry as the file's text.
pub(super) fn text_of(path: &Path, registry: &ClientRegistry) -> Result<String, ConfigError> {
    let text = toml::to_string(registry).map_err(|error| unwritten(path, &error.to_string()))?;
    if text.len() as u64 > MOST_BYTES {
        let sentence = format!("would be larger than {} MiB; remove clients first", MOST_BYTES >> 20);
        return Err(ConfigError::of_file(path, sentence));
    }
    Ok(text)
}

fn write(path: &Path, text: &str) -> Result<(), ConfigError> {
    storage::write_atomic(path, text.as_bytes(), MODE).map_err(|error| unwritten(path, &describe(&error)))
}

fn unwritten(path: &Path, reason: &str) -> ConfigError {
    ConfigError::of_file(path, format!("cannot be written: {reason}; check its directory"))
}

/// Reads the registry's text.
pub(super) fn parse(path: &Path, text: &str) -> Result<ClientRegistry, ConfigError> {
    toml::from_str(text).map_err(|error| {
        let offset = error.span().map_or(0, |span| span.start);
        let sentence = document::deserialization_sentence(error.message());
        Source { path, text }.error(offset, sentence)
    })
}

/// The registry's file, and what a running exit knows of it.
#[derive(Debug)]
pub struct RegistryFile {
    path: PathBuf,
    /// Its state when it was last read or written. `None` if there was no file.
    known: Option<Known>,
    /// Whether the file had no `client` key at all when it was read.
    is_silent: bool,
}

impl RegistryFile {
    /// Reads the registry. A missing file means no clients.
    pub fn open(path: PathBuf) -> Result<(Self, ClientRegistry), ConfigError> {
        // Not `metadata`: a dangling link is not a missing file.
        match std::fs::symlink_metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok((Self { path, known: None, is_silent: true }, ClientRegistry::new()));
            }
            _ => {}
        }
        let file::ConfigText { text, metadata } = read(&path)?;
        refuse_what_others_write(&path, &metadata)?;
        let registry = parse(&path, &text)?;
        // `client = []` parses to the same registry as an empty file, so the text decides.
        let says_who = !registry.is_empty()
            || toml::from_str::<toml::Table>(&text).is_ok_and(|table| table.contains_key("client"));
        let known = Known { stamp: Some(Stamp::of(&metadata)), digest: digest(text.as_bytes()) };
        Ok((Self { path, known: Some(known), is_silent: !says_who }, registry))
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it was read without a word about clients, like an emptied file. A file with `client = []` does say that
    /// there are none.
    pub fn is_silent(&self) -> bool {
        self.is_silent
    }

    /// Replaces the file durably, unless somebody else has changed it.
    pub fn save(&mut self, registry: &ClientRegistry) -> Result<(), ConfigError> {
        self.refuse_if_edited()?;
        let before = self.stamp();
        let text = text_of(&self.path, registry)?;
        let saved = write(&self.path, &text);
        // If only syncing the directory failed, the new file is in place all the same.
        let after = self.stamp();
        if saved.is_ok() || after != before {
            self.known = Some(Known { stamp: after, digest: digest(text.as_bytes()) });
        }
        saved
    }

    /// Refuses to continue after somebody else's change, which the next save would undo. A deleted file does not count
    /// as a change.
    pub fn refuse_if_edited(&self) -> Result<(), ConfigError> {
        let Some(stamp) = self.stamp() else { return Ok(()) };
        let is_known = |known: &Known| {
            // Somebody may have restored the same content.
            let is_same = || read(&self.path).is_ok_and(|file| digest(file.text.as_bytes()) == known.digest);
            known.stamp == Some(stamp) || is_same()
        };
        if self.known.as_ref().is_some_and(is_known) {
            return Ok(());
        }
        Err(ConfigError::of_file(
            &self.path,
            "was changed by somebody else while the exit runs; run `warren reload exit` first to load the change",
        ))
    }

    fn stamp(&self) -> Option<Stamp> {
        open_plain(&self.path).and_then(|file| file.metadata()).ok().as_ref().map(Stamp::of)
    }
}

/// Reads the file as text. Root follows no link in a directory of the exit's own user.
fn read(path: &Path) -> Result<file::ConfigText, ConfigError> {
    match open_plain(path) {
        Err(error) if error.kind() == io::ErrorKind::Other => {
            Err(ConfigError::of_file(path, format!("cannot be read: {error}")))
        }
        opened => file::read_opened(opened, MOST_BYTES, path, "restore it from a backup"),
    }
}

/// The state of a file when it was read or written.
#[derive(Debug)]
struct Known {
    /// `None` if the file's metadata could not be read.
    stamp: Option<Stamp>,
    digest: u64,
}

/// Tells contents apart, unless somebody constructs two with the same digest.
fn digest(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

/// Metadata that differs if the file was replaced or rewritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    length: u64,
    modified: (i64, i64),
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        let modified = (metadata.mtime(), metadata.mtime_nsec());
        Self { inode: metadata.ino(), length: metadata.len(), modified }
    }
}

/// Refuses a file that others may write: they could enrol any client.
fn refuse_what_others_write(path: &Path, metadata: &Metadata) -> Result<(), ConfigError> {
    let (mode, owner) = (metadata.mode() & 0o7777, metadata.uid());
    if mode & 0o022 != 0 {
        let sentence = format!(
            "may be written by other users (mode {mode:04o}); check which clients it lists, then run: chmod 600 {}",
            path.display()
        );
        return Err(ConfigError::of_file(path, sentence));
    }
    let own = rustix::process::geteuid().as_raw();
    let of_directory = path.parent().and_then(|parent| std::fs::metadata(parent).ok());
    // Root, this process's user, and the directory's owner can change the file anyway.
    if [Some(0), Some(own), of_directory.map(|directory| directory.uid())].contains(&Some(owner)) {
        return Ok(());
    }
    let sentence = format!(
        "belongs to another user ({owner}) than its directory; check which clients it lists, then chown it to the directory's owner"
    );
    Err(ConfigError::of_file(path, sentence))
}

/// Takes the lock for changing the registry. A command holds it for one change, a running exit for its lifetime.
/// Creates the registry's directory for its owner alone if it is missing.
pub fn lock_clients(path: &Path, wait: Duration) -> Result<LockFile, ConfigError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let lock = PathBuf::from(name);
    make_directory(path)?;
    match LockFile::acquire(&lock, wait) {
        Ok(Some(held)) => {
            // Whoever holds the lock is the only writer, so all temporary files are leftovers.
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
    // Others may use the directories above.
    let above = directory.parent().map_or(Ok(()), |above| make(above, 0o755));
    above.and_then(|()| make(directory, 0o700)).map_err(|error| {
        let sentence = format!("cannot be created: {}; choose another --state-dir", describe(&error));
        ConfigError::of_file(directory, sentence)
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::time::SystemTime;

    use warren_session::PublicKey;
    use warren_session::clients::Client;

    use super::*;

    fn registry_of(clients: u32) -> ClientRegistry {
        let mut registry = ClientRegistry::new();
        for number in 0..clients {
            let mut key = [0; 32];
            key[..4].copy_from_slice(&number.to_be_bytes());
            let name = format!("client-{number}");
            registry.add(Client::new(name, PublicKey(key), SystemTime::UNIX_EPOCH)).unwrap();
        }
        registry
    }

    fn saved(directory: &tempfile::TempDir, clients: u32) -> PathBuf {
        let path = directory.path().join("clients.toml");
        save_clients(&path, &registry_of(clients)).unwrap();
        path
    }

    #[test]
    fn registry_of_more_than_a_mebibyte_is_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = saved(&directory, 9_000);
        assert!(fs::metadata(&path).unwrap().len() > 1 << 20);
        assert_eq!(load_clients(&path).unwrap().len(), 9_000);
    }

    #[test]
    fn emptied_file_is_told_from_one_that_says_there_is_no_client() {
        let directory = tempfile::tempdir().unwrap();
        let path = saved(&directory, 0);
        let is_silent = || RegistryFile::open(path.clone()).unwrap().0.is_silent();
        assert!(!is_silent(), "as the exit writes it once the last client is removed");
        for (text, expected) in [("", true), ("# gone\n", true), ("client = []\n", false)] {
            fs::write(&path, text).unwrap();
            assert_eq!(is_silent(), expected, "{text:?}");
        }
        save_clients(&path, &registry_of(1)).unwrap();
        assert!(!is_silent());
    }

    #[test]
    fn file_that_others_may_write_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = saved(&directory, 1);
        for (mode, is_refused) in
            [(0o666, true), (0o620, true), (0o602, true), (0o644, false), (0o400, false)]
        {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(load_clients(&path).is_err(), is_refused, "{mode:o}");
        }
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(1234), None).unwrap();
            let error = load_clients(&path).unwrap_err().to_string();
            assert!(error.contains("belongs to another user (1234)"), "{error}");
            std::os::unix::fs::chown(directory.path(), Some(1234), None).unwrap();
            load_clients(&path).unwrap();
        }
    }

    #[test]
    fn what_somebody_else_wrote_is_not_overwritten_until_it_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = saved(&directory, 1);
        let (mut file, registry) = RegistryFile::open(path.clone()).unwrap();
        file.save(&registry).unwrap();
        file.save(&registry).unwrap();

        let edited = fs::read_to_string(&path).unwrap() + "# by hand\n";
        fs::write(&path, "half").unwrap();
        fs::write(&path, edited.trim_end_matches("# by hand\n")).unwrap();
        file.save(&registry).unwrap();
        fs::write(&path, &edited).unwrap();

        let refused = file.save(&registry).unwrap_err().to_string();
        assert!(refused.contains("run `warren reload exit` first"), "{refused}");
        assert_eq!(fs::read_to_string(&path).unwrap(), edited);
        let (mut file, registry) = RegistryFile::open(path.clone()).unwrap();
        file.save(&registry).unwrap();
        fs::remove_file(&path).unwrap();
        file.save(&registry).unwrap();
        assert!(path.exists(), "one that is gone is written anew");
    }
}
