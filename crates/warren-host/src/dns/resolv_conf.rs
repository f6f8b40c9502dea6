//! Reads and replaces the file from which programs read the resolvers.
//!
//! A regular file is changed in place, so its inode, mode, owner and labels stay. This is also the only way to change a
//! file that is mounted over another one, as in containers. A symbolic link is replaced as a link and never followed,
//! because its target belongs to another program.

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io::{self, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::{DnsError, error::is};
use crate::durable_file::{self, Owner, Unfinished, sync_directory_of};

/// The object at a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Standing {
    /// There is no file.
    Missing,
    /// A symbolic link, dangling or not.
    Link {
        /// The link's target as written.
        target: PathBuf,
    },
    /// A regular file.
    File {
        /// The content.
        content: Content,
        /// Permission bits, as for chmod(2).
        mode: u32,
        /// The owner's number.
        user: u32,
        /// The group's number.
        group: u32,
    },
}

/// A file's bytes, kept as text where possible so that a person can read a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Content {
    Text(String),
    Bytes(Vec<u8>),
}

/// A value that changes whenever anybody writes the file, even with the same content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stamp {
    inode: u64,
    seconds: i64,
    nanoseconds: i64,
}

impl Standing {
    /// Reads the object at `path`.
    pub(super) fn at(path: &Path) -> Result<Self, DnsError> {
        let failed = |source| DnsError::Read { path: path.to_owned(), source };
        let metadata = match fs::symlink_metadata(path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::Missing),
            Err(error) => return Err(failed(error)),
        };
        if metadata.is_symlink() {
            return Ok(Self::Link { target: fs::read_link(path).map_err(failed)? });
        }
        if !metadata.is_file() {
            return Err(DnsError::NotAFile(path.to_owned()));
        }
        let content = Content::from(fs::read(path).map_err(failed)?);
        Ok(Self::File {
            content,
            // Keeps only the permission bits, not those that encode the kind of file.
            mode: metadata.mode() & 0o7777,
            user: metadata.uid(),
            group: metadata.gid(),
        })
    }

    /// Puts the object at `path`, durably, in place of anything there.
    pub(super) fn put(&self, path: &Path) -> Result<(), DnsError> {
        let failed = |source: io::Error| DnsError::of_write(path, source);
        match self {
            Self::Missing => match fs::remove_file(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                // A mount point cannot be removed. An empty file means the same to its readers.
                Err(error) if is(&error, Errno::BUSY) => overwrite(path, b"").map(drop).map_err(failed)?,
                removed => removed.map_err(failed)?,
            },
            Self::Link { target } => {
                durable_file::link(target, path, &unfinished(path)).map_err(failed)?;
            }
            Self::File { content, mode, user, group } => {
                let owner = Owner { user: *user, group: *group };
                put_file(path, content.bytes(), *mode, owner).map_err(failed)?;
            }
        }
        sync_directory_of(path).map_err(failed)
    }

    /// The file's text. `None` if the object is not a file, or if the file's content is not UTF-8.
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::File { content: Content::Text(text), .. } => Some(text),
            Self::File { .. } | Self::Link { .. } | Self::Missing => None,
        }
    }
}

/// Writes `text` to `path` durably: into an existing file, or as a new file if there is a link or nothing.
pub(super) fn write(path: &Path, text: &str) -> Result<(), DnsError> {
    let (mode, owner) = match Standing::at(path)? {
        Standing::File { mode, user, group, .. } => (mode, Owner { user, group }),
        // Programs of every user read this file.
        Standing::Link { .. } | Standing::Missing => (0o644, Owner::own()),
    };
    put_file(path, text.as_bytes(), mode, owner)
        .and_then(|()| sync_directory_of(path))
        .map_err(|source| DnsError::of_write(path, source))
}

/// The stamp of the file at `path`. `None` if there is no file.
pub(super) fn stamp(path: &Path) -> Option<Stamp> {
    let metadata = fs::symlink_metadata(path).ok()?;
    Some(Stamp { inode: metadata.ino(), seconds: metadata.mtime(), nanoseconds: metadata.mtime_nsec() })
}

impl Content {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Bytes(bytes) => bytes,
        }
    }
}

impl From<Vec<u8>> for Content {
    fn from(bytes: Vec<u8>) -> Self {
        String::from_utf8(bytes).map_or_else(|error| Self::Bytes(error.into_bytes()), Self::Text)
    }
}

fn put_file(path: &Path, content: &[u8], mode: u32, owner: Owner) -> io::Result<()> {
    if fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file()) {
        return give(&overwrite(path, content)?, mode, owner);
    }
    // There is no regular file to keep, so a new one takes the path's place in one step.
    durable_file::replace(path, Unfinished::At(&unfinished(path)), content, mode, Some(owner))
}

/// Overwrites a file's content in place, from its start, and then cuts off the rest of the old content. So a concurrent
/// reader sees the new first lines, and after a power cut the file still begins with them.
fn overwrite(path: &Path, content: &[u8]) -> io::Result<File> {
    let mut file = OpenOptions::new().write(true).custom_flags(NO_FOLLOW).open(path)?;
    file.write_all(content)?;
    file.set_len(u64::try_from(content.len()).map_err(io::Error::other)?)?;
    file.sync_all()?;
    Ok(file)
}

fn give(file: &File, mode: u32, owner: Owner) -> io::Result<()> {
    owner.give(file)?;
    // Set after the owner, because chown(2) can clear bits of the mode.
    if file.metadata()?.mode() & 0o7777 != mode {
        file.set_permissions(Permissions::from_mode(mode))?;
    }
    Ok(())
}

/// The temporary name beside `path`. It is always the same, so that a killed daemon leaves at most one such file.
fn unfinished(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    path.with_file_name(format!(".{name}.warren"))
}

/// O_NOFOLLOW. A link that appears between the check and the write must not redirect the text.
const NO_FOLLOW: i32 = rustix::fs::OFlags::NOFOLLOW.bits() as i32;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn whatever_stood_there_comes_back_as_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("resolv.conf");
        let odd = vec![b'#', 0xff, 0xfe, b'\n'];
        for prepare in [
            &(|| {}) as &dyn Fn(),
            &|| symlink("../run/nowhere/stub-resolv.conf", &path).unwrap(),
            &|| fs::write(&path, "nameserver 192.0.2.1\noptions edns0").unwrap(),
            &|| {
                fs::write(&path, &odd).unwrap();
                fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
            },
        ] {
            drop(fs::remove_file(&path));
            prepare();
            let before = Standing::at(&path).unwrap();

            write(&path, "nameserver 10.66.0.1\n").unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), "nameserver 10.66.0.1\n");
            before.put(&path).unwrap();

            assert_eq!(Standing::at(&path).unwrap(), before);
            let record = serde_json::to_string(&before).unwrap();
            assert_eq!(serde_json::from_str::<Standing>(&record).unwrap(), before);
            let litter = fs::read_dir(directory.path()).unwrap().count();
            assert!(litter <= 1, "nothing lies beside the file");
        }
    }

    #[test]
    fn a_regular_file_stays_the_same_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("resolv.conf");
        fs::write(&path, "nameserver 192.0.2.1\nnameserver 192.0.2.2\n").unwrap();
        let before = fs::metadata(&path).unwrap().ino();

        write(&path, "# short\n").unwrap();

        assert_eq!(fs::read_to_string(&path).unwrap(), "# short\n");
        assert_eq!(fs::metadata(&path).unwrap().ino(), before);
    }

    #[test]
    fn what_a_link_leads_to_is_never_written() {
        let directory = tempfile::tempdir().unwrap();
        let (path, target) = (directory.path().join("resolv.conf"), directory.path().join("theirs"));
        fs::write(&target, "theirs").unwrap();
        symlink(&target, &path).unwrap();

        write(&path, "ours").unwrap();

        assert_eq!(fs::read_to_string(&target).unwrap(), "theirs");
        assert_eq!(fs::read_to_string(&path).unwrap(), "ours");
    }
}
