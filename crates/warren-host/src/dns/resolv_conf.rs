//! Reads `resolv.conf` as an object: a file, a link, or nothing.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::{DnsError, error::is};

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
        let mut looks = 1;
        loop {
            match Self::look(path) {
                // Another program has replaced the object between two system calls, so it is read again.
                Err(error) if looks < MOST_LOOKS && is_change(&error) => looks += 1,
                Err(source) => return Err(DnsError::Read { path: path.to_owned(), source }),
                Ok(None) => return Err(DnsError::NotAFile(path.to_owned())),
                Ok(Some(standing)) => return Ok(standing),
            }
        }
    }

    /// Reads the object once. `None` if it is neither a file nor a link.
    fn look(path: &Path) -> io::Result<Option<Self>> {
        let metadata = match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Some(Self::Missing)),
            found => found?,
        };
        if metadata.is_symlink() {
            return Ok(Some(Self::Link { target: fs::read_link(path)? }));
        }
        if !metadata.is_file() {
            return Ok(None);
        }
        let file = OpenOptions::new().read(true).custom_flags(NO_FOLLOW).open(path)?;
        Self::of(&file).map(Some)
    }

    /// Reads an open file, from its current position.
    pub(super) fn of(mut file: &File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        let mut content = Vec::new();
        file.read_to_end(&mut content)?;
        Ok(Self::File {
            content: content.into(),
            // Keeps only the permission bits, not those that encode the kind of file.
            mode: metadata.mode() & 0o7777,
            user: metadata.uid(),
            group: metadata.gid(),
        })
    }

    /// The same file without content.
    pub(super) fn emptied(&self) -> Self {
        let mut emptied = self.clone();
        if let Self::File { content, .. } = &mut emptied {
            *content = Content::Text(String::new());
        }
        emptied
    }

    /// The file's text. `None` if the object is not a file, or if the file's content is not UTF-8.
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::File { content: Content::Text(text), .. } => Some(text),
            Self::File { .. } | Self::Link { .. } | Self::Missing => None,
        }
    }
}

/// The stamp of the file at `path`. `None` if there is no file.
pub(super) fn stamp(path: &Path) -> Option<Stamp> {
    let metadata = fs::symlink_metadata(path).ok()?;
    Some(Stamp { inode: metadata.ino(), seconds: metadata.mtime(), nanoseconds: metadata.mtime_nsec() })
}

impl Content {
    pub(super) fn bytes(&self) -> &[u8] {
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

/// Whether the error says that another program has just replaced or removed the object.
fn is_change(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || [Errno::LOOP, Errno::INVAL].iter().any(|errno| is(error, *errno))
}

/// O_NOFOLLOW, so that a link that appears between two system calls does not redirect the access to another program's file.
pub(super) const NO_FOLLOW: i32 = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
/// Maximum number of attempts to read the object. It is enough unless a program replaces the file all the time.
const MOST_LOOKS: u32 = 10;
