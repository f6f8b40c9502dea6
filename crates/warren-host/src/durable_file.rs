//! Writes files that must survive a power cut. A file is replaced atomically: a reader gets either the old content or the new.

use std::{
    fs::{self, File, Metadata, OpenOptions, Permissions},
    io::{self, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::{
    fs::{FlockOperation, Gid, Uid, fchown, flock},
    process::{getegid, geteuid},
};
use tempfile::{NamedTempFile, TempPath};

use crate::plain_file::{directory_of, open_plain};

/// The name that a file has until it is complete.
#[derive(Clone, Copy, Debug)]
pub enum Unfinished<'a> {
    /// A random name. Other processes may write in the same directory at the same time.
    Random,
    /// A fixed path in the target's directory. So killed writers leave at most one file, which the next writer removes. The
    /// caller must hold a lock against other writers.
    At(&'a Path),
}

/// Replaces the file at `path`. A symbolic link at `path` is replaced, not followed. The new file has exactly this mode,
/// independent of the umask. Without `owner`, it belongs to this process's user.
///
/// # Errors
/// If the file cannot be written or renamed. In that case the old file is unchanged.
pub fn replace(
    path: &Path,
    unfinished: Unfinished<'_>,
    content: &[u8],
    mode: u32,
    owner: Option<Owner>,
) -> io::Result<()> {
    let file = complete(directory_of(path), unfinished, content, mode, owner)?;
    file.persist(path).map_err(|error| error.error)?;
    sync_directory_of(path)
}

/// Creates a file that belongs to this process's user. Never replaces a file or a dangling link.
///
/// # Errors
/// `AlreadyExists` if anything exists at `path`.
pub fn create_new(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let file = complete(directory_of(path), Unfinished::Random, content, mode, None)?;
    file.persist_noclobber(path).map_err(|error| error.error)?;
    sync_directory_of(path)
}

/// Writes a complete file under a temporary name, and replaces any file of that name. The caller renames it.
///
/// # Errors
/// If the file cannot be written.
pub(crate) fn prepare(unfinished: &Path, content: &[u8], mode: u32, owner: Owner) -> io::Result<()> {
    let file = complete(directory_of(unfinished), Unfinished::At(unfinished), content, mode, Some(owner))?;
    file.keep().map_err(|error| error.error)?;
    sync_directory_of(unfinished)
}

/// Renames a file durably within its directory. If a file with the new name exists, it is replaced.
///
/// # Errors
/// If the file keeps its old name, or if the new name may not be on the disk yet.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    sync_directory_of(to)
}

/// Removes a file durably. A missing file is not an error.
///
/// # Errors
/// If the file stays.
pub fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.and_then(|()| sync_directory_of(path)),
    }
}

/// The user and group of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The user's number.
    pub user: u32,
    /// The group's number.
    pub group: u32,
}

impl Owner {
    /// The owner of a file.
    pub fn of(metadata: &Metadata) -> Self {
        Self { user: metadata.uid(), group: metadata.gid() }
    }

    /// Returns this process's user and group.
    pub fn own() -> Self {
        Self { user: geteuid().as_raw(), group: getegid().as_raw() }
    }

    /// Changes the owner of the file to this one, unless it is the owner already.
    ///
    /// # Errors
    /// If the owner cannot be changed.
    pub fn give(self, file: &File) -> io::Result<()> {
        if Self::of(&file.metadata()?) == self {
            return Ok(());
        }
        let (user, group) = (Uid::from_raw(self.user), Gid::from_raw(self.group));
        Ok(fchown(file, Some(user), Some(group))?)
    }
}

/// Removes temporary files of killed writers in a directory. No other process may write in the directory at the same time.
pub fn remove_leftovers(directory: &Path) {
    for path in leftovers(directory) {
        // If a file cannot be removed, it takes space but does no other harm.
        drop(fs::remove_file(path));
    }
}

/// Removes temporary files of killed writers in a directory where others may be writing. A living writer holds a lock
/// on its file, so only files without a lock are removed. The files may contain private keys.
pub fn remove_abandoned(directory: &Path) {
    for path in leftovers(directory) {
        let is_abandoned = open_plain(&path).is_ok_and(|file| {
            let age = file.metadata().and_then(|metadata| metadata.modified()).map(|time| time.elapsed());
            // The writer of a younger file may not have locked it yet.
            matches!(age, Ok(Ok(age)) if age > Duration::from_secs(2))
                && flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
        });
        if is_abandoned {
            drop(fs::remove_file(path));
        }
    }
}

/// Files in a directory that still have their temporary name.
fn leftovers(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter(is_leftover).map(|entry| entry.path())
}

fn is_leftover(entry: &fs::DirEntry) -> bool {
    let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
    let name = entry.file_name();
    is_file && name.to_str().is_some_and(|name| name.starts_with(RANDOM.0) && name.ends_with(RANDOM.1))
}

/// Writes a complete file in `directory` under its temporary name. The file is deleted on drop unless it was renamed.
fn complete(
    directory: &Path,
    unfinished: Unfinished<'_>,
    content: &[u8],
    mode: u32,
    owner: Option<Owner>,
) -> io::Result<NamedTempFile<File>> {
    let named = match unfinished {
        Unfinished::Random => {
            tempfile::Builder::new().prefix(RANDOM.0).suffix(RANDOM.1).make_in(directory, create)?
        }
        Unfinished::At(path) => {
            remove_leftover(path)?;
            NamedTempFile::from_parts(create(path)?, TempPath::try_from_path(path)?)
        }
    };
    let mut file = named.as_file();
    // The lock is held until the file is closed. It shows `remove_abandoned` that the writer is alive. On a file system without
    // locks, the error is ignored.
    let _ = flock(file, FlockOperation::NonBlockingLockExclusive);
    file.write_all(content)?;
    if let Some(owner) = owner {
        owner.give(file)?;
    }
    // The mode is set now and not at creation, where the umask would change it. It is set after the owner, so that no other user
    // can read the file in between.
    file.set_permissions(Permissions::from_mode(mode))?;
    // The content is synced before the rename, so that the final name never refers to an incomplete file after a power cut.
    file.sync_all()?;
    Ok(named)
}

/// Creates a file that only its owner can read. `O_EXCL` does not follow links, so the content cannot be redirected.
fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

fn remove_leftover(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Syncs the directory of `path`. Only then is a new, renamed or removed name durable.
///
/// # Errors
/// If the directory cannot be opened or synced.
pub(crate) fn sync_directory_of(path: &Path) -> io::Result<()> {
    File::open(directory_of(path))?.sync_all()
}

/// The beginning and end of a random temporary name.
const RANDOM: (&str, &str) = (".warren-", ".tmp");

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn mode_of(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    fn names_in(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn fixed_unfinished_file_of_a_killed_writer_is_not_in_the_way_and_its_link_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let [path, unfinished, theirs] =
            ["record", "record.new", "theirs"].map(|name| directory.path().join(name));
        let write = |content: &[u8]| replace(&path, Unfinished::At(&unfinished), content, 0o600, None);
        fs::write(&unfinished, "half").unwrap();
        write(b"first").unwrap();
        fs::write(&theirs, "theirs").unwrap();
        symlink(&theirs, &unfinished).unwrap();
        write(b"second").unwrap();

        assert_eq!(fs::read(&path).unwrap(), b"second");
        assert_eq!(fs::read(&theirs).unwrap(), b"theirs");
        assert_eq!(mode_of(&path), 0o600);
        assert_eq!(names_in(directory.path()), ["record", "theirs"]);
    }

    #[test]
    fn failed_replacement_leaves_nothing_behind() {
        let directory = tempfile::tempdir().unwrap();
        let [path, unfinished] = ["occupied", "occupied.new"].map(|name| directory.path().join(name));
        fs::create_dir(&path).unwrap();

        for unfinished in [Unfinished::Random, Unfinished::At(&unfinished)] {
            assert!(replace(&path, unfinished, b"new", 0o600, None).is_err());
            assert_eq!(names_in(directory.path()), ["occupied"]);
        }
    }

    #[test]
    fn what_a_killed_writer_left_is_removed_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let left = unfinished(directory.path(), b"half");
        std::mem::forget(left.into_temp_path());
        for name in ["clients.toml", "clients.toml.lock", ".warren-notes"] {
            fs::write(directory.path().join(name), "").unwrap();
        }
        assert_eq!(names_in(directory.path()).len(), 4);

        remove_leftovers(directory.path());

        assert_eq!(names_in(directory.path()), [".warren-notes", "clients.toml", "clients.toml.lock"]);
    }

    #[test]
    fn what_is_being_written_is_not_taken_for_what_a_killed_writer_left() {
        let directory = tempfile::tempdir().unwrap();
        let write = || unfinished(directory.path(), b"key");
        let (writing, young) = (write(), write());
        let left = write();
        let long_ago = std::time::SystemTime::now() - Duration::from_secs(60);
        for file in [&writing, &left] {
            file.as_file().set_modified(long_ago).unwrap();
        }
        // Simulates that both writers were killed.
        let (_, left) = left.keep().unwrap();
        let (_, young) = young.keep().unwrap();

        remove_abandoned(directory.path());

        assert!(!left.exists() && young.exists() && writing.path().exists());
        remove_leftovers(directory.path());
        assert!(names_in(directory.path()).is_empty());
    }

    #[test]
    fn create_new_never_replaces_a_file_or_a_dangling_link() {
        let directory = tempfile::tempdir().unwrap();
        let (path, link) = (directory.path().join("exit.key"), directory.path().join("link"));
        create_new(&path, b"first", 0o600).unwrap();
        symlink(directory.path().join("nowhere"), &link).unwrap();

        for taken in [&path, &link] {
            let error = create_new(taken, b"second", 0o600).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        }

        assert_eq!(fs::read(&path).unwrap(), b"first");
        assert_eq!(mode_of(&path), 0o600);
        assert_eq!(names_in(directory.path()), ["exit.key", "link"]);
    }

    fn unfinished(directory: &Path, content: &[u8]) -> NamedTempFile<File> {
        complete(directory, Unfinished::Random, content, 0o600, None).unwrap()
    }
}
