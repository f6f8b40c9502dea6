//! Durable writes of files that may belong to another user, the lock on such a file, and its directory.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use tokio::signal::unix::{SignalKind, signal};
use warren_host::durable_file::{Owner, Unfinished, replace};
pub use warren_host::durable_file::{create_new, remove_abandoned, remove_leftovers};
use warren_host::{directory_of, follows_links_at, make_lock_file};

/// Replaces a file's content and keeps its mode and owner. A new file gets `mode`, and its directory's owner if root
/// writes it.
///
/// Follows a symbolic link if the link and its directory belong to root or to this user, and replaces the file that the link
/// names. Links of other users are not followed, because another user could make root replace any file.
pub fn write_atomic(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let path = follow_link(path)?;
    let (mode, owner) = match fs::symlink_metadata(&path) {
        Ok(replaced) => (replaced.mode() & 0o777, Owner::of(&replaced)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => (mode, owner_of_new_file_at(&path)?),
        Err(error) => return Err(error),
    };
    replace(&path, Unfinished::Random, content, mode, Some(owner))
}

/// Makes writes beyond the process's file size limit fail, as writes to a full disk do. Without this call, such a write ends the
/// process.
///
/// # Errors
/// When SIGXFSZ cannot be watched.
pub fn survive_file_size_limit() -> io::Result<()> {
    // tokio's handler replaces the default action. It stays when this `Signal` is dropped.
    signal(SignalKind::from_raw(libc::SIGXFSZ)).map(drop)
}

/// Creates a directory and those above it with mode 0755, no matter what the umask is. Returns whether the directory was missing.
pub fn make_directory(path: &Path) -> io::Result<bool> {
    if path.is_dir() {
        return Ok(false);
    }
    // This list is made before the directories are created, because only new directories get the mode.
    let missing: Vec<&Path> =
        path.ancestors().take_while(|above| !above.as_os_str().is_empty() && !above.exists()).collect();
    fs::DirBuilder::new().recursive(true).mode(0o755).create(path)?;
    for made in missing {
        // The mode is set again, because the umask may have cleared some of its bits.
        fs::set_permissions(made, Permissions::from_mode(0o755))?;
    }
    Ok(true)
}

/// An advisory lock (`flock`) on a separate file. Released when dropped, or when the process dies.
#[derive(Debug)]
pub struct LockFile {
    _file: File,
}

impl LockFile {
    /// Takes the lock, or returns `None` after `wait`. Blocks the thread.
    pub fn acquire(path: &Path, wait: Duration) -> io::Result<Option<Self>> {
        let (file, is_new) = make_lock_file(path)?;
        if is_new {
            // The lock file gets the directory's owner, so that the service that owns the directory can open a lock file that
            // root has created.
            owner_of_new_file_at(path)?.give(&file)?;
        }
        Self::take(file, wait)
    }

    /// Does the same with a directory, which must exist. Every user who can open the directory can take the lock.
    pub fn of_directory(path: &Path, wait: Duration) -> io::Result<Option<Self>> {
        Self::take(File::open(path)?, wait)
    }

    fn take(file: File, wait: Duration) -> io::Result<Option<Self>> {
        const PAUSE: Duration = Duration::from_millis(20);
        let deadline = Instant::now() + wait;
        loop {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Some(Self { _file: file })),
                Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() >= deadline => return Ok(None),
                Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => std::thread::sleep(PAUSE),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// The owner for a new file. Root writes files for the service that owns the directory. Other users can write only
/// their own files.
fn owner_of_new_file_at(path: &Path) -> io::Result<Owner> {
    if rustix::process::geteuid().is_root() {
        return Ok(Owner::of(&fs::metadata(directory_of(path))?));
    }
    Ok(Owner::own())
}

fn follow_link(path: &Path) -> io::Result<PathBuf> {
    match fs::symlink_metadata(path) {
        Ok(link) if link.is_symlink() && ![0, rustix::process::geteuid().as_raw()].contains(&link.uid()) => {
            Err(io::Error::other("it is another user's symbolic link; put the file itself in its place"))
        }
        Ok(link) if link.is_symlink() && !follows_links_at(path) => Err(io::Error::other(
            "it is a symbolic link in another user's directory; put the file itself in its place",
        )),
        Ok(metadata) if metadata.is_symlink() => fs::canonicalize(path),
        Ok(metadata) if !metadata.is_file() => {
            Err(io::Error::other("it is not a regular file; put a file in its place"))
        }
        _ => Ok(path.to_path_buf()),
    }
}

#[cfg(test)]
mod tests {
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
    fn replaced_file_keeps_mode_and_owner() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("clients.toml");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        let is_root = rustix::process::geteuid().is_root();
        if is_root {
            std::os::unix::fs::chown(&path, Some(1234), Some(1235)).unwrap();
        }

        write_atomic(&path, b"new", 0o600).unwrap();

        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(mode_of(&path), 0o640);
        if is_root {
            let metadata = fs::metadata(&path).unwrap();
            assert_eq!((metadata.uid(), metadata.gid()), (1234, 1235));
        }
        assert_eq!(names_in(directory.path()), ["clients.toml"]);
    }

    #[test]
    fn new_file_has_the_mode_asked_for_and_its_directorys_owner() {
        let directory = tempfile::tempdir().unwrap();
        let is_root = rustix::process::geteuid().is_root();
        if is_root {
            std::os::unix::fs::chown(directory.path(), Some(1234), Some(1235)).unwrap();
        }
        let path = directory.path().join("clients.toml");

        write_atomic(&path, b"new", 0o644).unwrap();

        assert_eq!(mode_of(&path), 0o644);
        if is_root {
            assert_eq!(Owner::of(&fs::metadata(&path).unwrap()), Owner { user: 1234, group: 1235 });
        }
    }

    #[test]
    fn link_is_followed_and_stays_a_link() {
        let directory = tempfile::tempdir().unwrap();
        let (path, link) = (directory.path().join("real"), directory.path().join("link"));
        fs::write(&path, "old").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();

        write_atomic(&link, b"new", 0o600).unwrap();

        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }

    #[test]
    fn link_of_another_user_is_not_followed() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let (path, link) = (directory.path().join("real"), directory.path().join("link"));
        fs::write(&path, "old").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        std::os::unix::fs::lchown(&link, Some(1234), Some(1235)).unwrap();

        assert!(write_atomic(&link, b"new", 0o600).is_err());

        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(names_in(directory.path()), ["link", "real"]);
    }

    #[test]
    fn link_in_another_users_directory_is_not_followed_whoever_made_it() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let [theirs, ours] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let (path, link) = (ours.path().join("real"), theirs.path().join("link"));
        fs::write(&path, "old").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        std::os::unix::fs::chown(theirs.path(), Some(1234), Some(1235)).unwrap();

        let refused = write_atomic(&link, b"new", 0o600).unwrap_err().to_string();

        assert!(refused.contains("symbolic link"), "{refused}");
        assert_eq!(fs::read(&path).unwrap(), b"old");
    }

    #[test]
    fn failed_replacement_leaves_nothing_behind() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("occupied");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("content"), "").unwrap();

        assert!(write_atomic(&path, b"new", 0o600).is_err());

        assert_eq!(names_in(directory.path()), ["occupied"]);
    }

    #[test]
    fn readers_see_whole_content_while_it_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("clients.toml");
        let contents = [vec![b'a'; 100_000], vec![b'b'; 50_000]];
        write_atomic(&path, &contents[0], 0o600).unwrap();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for round in 0..50 {
                    write_atomic(&path, &contents[round % 2], 0o600).unwrap();
                }
            });
            while !writer.is_finished() {
                assert!(contents.contains(&fs::read(&path).unwrap()));
            }
        });
    }

    #[test]
    fn lock_is_held_by_one_and_given_back_when_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("clients.toml.lock");
        let lock = LockFile::acquire(&path, Duration::ZERO).unwrap();
        assert!(lock.is_some());
        assert!(LockFile::acquire(&path, Duration::from_millis(30)).unwrap().is_none());
        drop(lock);
        assert!(LockFile::acquire(&path, Duration::ZERO).unwrap().is_some());
    }
}
