//! Reads a configuration file as text: a regular file of limited size, in UTF-8, without NUL bytes.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use zeroize::Zeroizing;

use super::ConfigError;
use super::wording::describe;

/// The largest configuration that is read. A real one has a few hundred bytes.
const MAX_BYTES: u64 = 1024 * 1024;

/// A file's text and metadata.
#[derive(Debug)]
pub(super) struct ConfigText {
    /// The text is erased when dropped, because it may hold a private key.
    pub(super) text: Zeroizing<String>,
    /// The metadata of the file that was read, even if it was replaced since.
    pub(super) metadata: Metadata,
}

impl ConfigText {
    /// The permission bits of the file.
    pub(super) fn mode(&self) -> u32 {
        self.metadata.mode() & 0o7777
    }
}

/// Reads a configuration file. `if_missing` says what to do when it does not exist.
pub(super) fn read(path: &Path, if_missing: &str) -> Result<ConfigText, ConfigError> {
    // Without O_NONBLOCK, a FIFO would hang the command instead of being refused.
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let opened = OpenOptions::new().read(true).custom_flags(nonblocking).open(path);
    read_opened(opened, MAX_BYTES, path, if_missing)
}

/// Like [`read`], for a file that was opened without blocking and may have up to `most` bytes.
pub(super) fn read_opened(
    opened: io::Result<File>,
    most: u64,
    path: &Path,
    if_missing: &str,
) -> Result<ConfigText, ConfigError> {
    let file = opened.map_err(|error| unreadable(path, &error, if_missing))?;
    let metadata = regular(&file, path, if_missing)?;
    if metadata.len() > most {
        return Err(too_large(path, most));
    }
    // The buffer is allocated with room for the whole file, because a vector that grows frees its old buffer without erasing it.
    let length = usize::try_from(metadata.len()).map_err(|_| too_large(path, most))?;
    let mut bytes = Zeroizing::new(Vec::with_capacity(length + 1));
    // Reads one byte more than allowed, to notice a file that has grown meanwhile.
    file.take(most + 1).read_to_end(&mut bytes).map_err(|error| unreadable(path, &error, if_missing))?;
    if bytes.len() as u64 > most {
        return Err(too_large(path, most));
    }
    Ok(ConfigText { text: Zeroizing::new(decode(path, &bytes)?.to_owned()), metadata })
}

fn regular(file: &File, path: &Path, if_missing: &str) -> Result<Metadata, ConfigError> {
    let metadata = file.metadata().map_err(|error| unreadable(path, &error, if_missing))?;
    if metadata.is_dir() {
        return Err(ConfigError::of_file(path, "is a directory; name a configuration file in it"));
    }
    if !metadata.is_file() {
        return Err(ConfigError::of_file(path, "is not a regular file; copy the configuration to one"));
    }
    Ok(metadata)
}

/// A file's bytes as UTF-8.
pub fn utf8<'a>(path: &Path, bytes: &'a [u8]) -> Result<&'a str, ConfigError> {
    std::str::from_utf8(bytes).map_err(|error| {
        let line = line_of(bytes, error.valid_up_to());
        ConfigError::at_line(path, line, "is not UTF-8 text; save the file as UTF-8")
    })
}

/// A configuration's bytes as text.
pub(super) fn decode<'a>(path: &Path, bytes: &'a [u8]) -> Result<&'a str, ConfigError> {
    let text = utf8(path, bytes)?;
    match bytes.iter().position(|byte| *byte == 0) {
        Some(offset) => {
            let sentence = "holds a NUL byte; the file is damaged or not text, so restore it";
            Err(ConfigError::at_line(path, line_of(bytes, offset), sentence))
        }
        None => Ok(text),
    }
}

/// The line, counted from 1, of the byte at `offset`.
pub(super) fn line_of(bytes: &[u8], offset: usize) -> usize {
    1 + bytes.iter().take(offset).filter(|byte| **byte == b'\n').count()
}

fn too_large(path: &Path, most: u64) -> ConfigError {
    let sentence = format!("is larger than {} MiB; this is not a Warren configuration", most >> 20);
    ConfigError::of_file(path, sentence)
}

fn unreadable(path: &Path, error: &io::Error, if_missing: &str) -> ConfigError {
    let sentence = if error.kind() == io::ErrorKind::NotFound {
        format!("does not exist; {if_missing}")
    } else if error.kind() == io::ErrorKind::PermissionDenied {
        "cannot be read by this user; run the command as root".to_owned()
    } else {
        format!("cannot be read: {}; check the file and its disk", describe(error))
    };
    ConfigError::of_file(path, sentence)
}
