//! The clients' store: an append-only file of transactions, `clients.store` beside `clients.toml`.
//!
//! The first line names the format. Each further line is a transaction ([`super::record`]). If several lines set the same row,
//! the last one counts. A change appends one line with one write and one sync. Once the file has many outdated lines, it is
//! replaced by a snapshot with a line for each row. So a copy of the file is consistent at any moment. If the last line is torn,
//! its change was never reported as successful, and is ignored.

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use warren_host::{open_plain, open_plain_to_write};
use warren_session::clients::{ClientRegistry, RowChange, RowId};

use super::access::{MODE, refuse_what_others_write, unwritten};
use super::record;
use super::tail::Tail;
use crate::ConfigError;
use crate::storage;
use crate::wording::describe;

/// The first word of the file.
const NAME: &str = "warren-clients";

/// The newest format. The second word of the file is the oldest format that can hold its rows.
const FORMAT: u32 = 2;

/// The format of a file without WireGuard clients and forwards. Earlier versions can read it too.
const FIRST_FORMAT: u32 = 1;

/// The longest line that is read.
const MOST_LINE: u64 = 4 * 1024 * 1024;

/// Maximum length of a line that is written. A larger transaction becomes a snapshot, which is atomic too.
const LONGEST: usize = 1024 * 1024;

/// A snapshot is due once there are this many outdated rows, or as many outdated rows as current ones if that is more. So the
/// cost of snapshots per change stays low.
const OUTDATED: usize = 10_000;

/// The store of an exit that holds the registry's lock, and the state in which this process left the file.
#[derive(Debug)]
pub struct ClientStore {
    path: PathBuf,
    /// The file as this process left it. `None` if there was no file.
    known: Option<Identity>,
    /// The format in the file's first line.
    format: u32,
    /// The end of the file, for appending. `None` if the file must be replaced as a whole by the next change.
    tail: Option<Tail>,
    /// The mark of the last import ([`super::ClientsImport::mark`]).
    imported: String,
    /// Rows that were appended since the last snapshot.
    appended: usize,
    /// The number of appended rows at which the next snapshot is due.
    snapshot_at: usize,
}

/// The mark in the first line if nothing was imported.
const NO_IMPORT: &str = "-";

impl ClientStore {
    /// Opens the store to change it. A missing file means no clients. The caller holds the lock.
    ///
    /// # Errors
    /// When the file cannot be read, is damaged, or has a format that is newer than this version.
    pub fn open(path: PathBuf) -> Result<(Self, ClientRegistry), ConfigError> {
        let file = match open_plain_to_write(&path) {
            Err(error) if is_missing(&path, &error) => {
                return Ok((Self::missing(path), ClientRegistry::new()));
            }
            opened => opened.map_err(|error| unreadable(&path, &error))?,
        };
        let metadata = file.metadata().map_err(|error| unreadable(&path, &error))?;
        let Contents { registry, imported, format, length, written } = read(&path, &file)?;
        let kept = registry.rows().count();
        let store = Self {
            known: Some(Identity::of(&metadata)),
            format,
            tail: Some(Tail::new(length, length < metadata.len())),
            imported,
            appended: written.saturating_sub(kept),
            snapshot_at: OUTDATED.max(kept),
            path,
        };
        Ok((store, registry))
    }

    fn missing(path: PathBuf) -> Self {
        Self {
            path,
            known: None,
            format: FIRST_FORMAT,
            tail: None,
            imported: NO_IMPORT.to_owned(),
            appended: 0,
            snapshot_at: OUTDATED,
        }
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether there was a file when the store was opened, or has been one since.
    pub fn exists(&self) -> bool {
        self.known.is_some()
    }

    /// Returns the mark of the last import.
    pub fn imported(&self) -> &str {
        &self.imported
    }

    /// Makes a transaction durable. `all` are the rows of the whole registry, with or without `changes`.
    ///
    /// # Errors
    /// When another program has changed the file, or it cannot be written. In that case the store is unchanged.
    pub fn save<Rows>(&mut self, changes: &[RowChange], all: impl Fn() -> Rows) -> Result<(), ConfigError>
    where
        Rows: Iterator<Item = RowChange>,
    {
        self.refuse_if_edited()?;
        let whole = || all().chain(changes.iter().cloned());
        let file = match open_plain_to_write(&self.path) {
            // If somebody has deleted the file, it is written again as a whole.
            Err(error) if is_missing(&self.path, &error) => return self.replace(whole()),
            opened => opened.map_err(|error| unwritten(&self.path, &describe(&error)))?,
        };
        if changes.is_empty() && self.tail.is_some() {
            return Ok(());
        }
        let mut line = String::new();
        record::write(&mut line, changes).map_err(|error| unwritten(&self.path, &error.to_string()))?;
        let needed = changes.iter().map(format_of).max().unwrap_or(FIRST_FORMAT);
        if self.tail.is_none() || line.len() > LONGEST || needed > self.format {
            return self.replace(whole());
        }
        if self.appended >= self.snapshot_at {
            if self.replace(whole()).is_ok() {
                return Ok(());
            }
            // If the snapshot fails, for instance because the disk is full, there may still be room for one more line.
            self.snapshot_at = self.appended + OUTDATED;
        }
        self.append(&file, line.as_bytes())?;
        self.appended += changes.len();
        Ok(())
    }

    /// Replaces the store with these rows, even if somebody else has changed the file. If the rows were imported,
    /// `mark` is the mark of their file.
    ///
    /// # Errors
    /// When the file cannot be written. In that case the store is unchanged.
    pub fn save_all(
        &mut self,
        rows: impl Iterator<Item = RowChange>,
        mark: Option<&str>,
    ) -> Result<(), ConfigError> {
        let before = self.imported.clone();
        if let Some(mark) = mark {
            mark.clone_into(&mut self.imported);
        }
        self.replace(rows).inspect_err(|_| self.imported = before)
    }

    /// Makes the difference between two registries durable.
    ///
    /// # Errors
    /// As [`Self::save`].
    pub fn save_difference(
        &mut self,
        before: &ClientRegistry,
        after: &ClientRegistry,
    ) -> Result<(), ConfigError> {
        self.save(&difference(before, after), || after.rows())
    }

    fn append(&mut self, file: &File, line: &[u8]) -> Result<(), ConfigError> {
        let Some(tail) = &mut self.tail else {
            return Err(unwritten(&self.path, "the last change left it unfinished"));
        };
        let appended = tail.append(file, line);
        // The identity is also updated after a failure, because a part of the line may have been written.
        if let Ok(metadata) = file.metadata() {
            self.known = Some(Identity::of(&metadata));
        }
        appended.map_err(|error| unwritten(&self.path, &describe(&error)))
    }

    /// Replaces the file by a snapshot.
    fn replace(&mut self, rows: impl Iterator<Item = RowChange>) -> Result<(), ConfigError> {
        let (mut lines, mut count, mut format) = (String::new(), 0, FIRST_FORMAT);
        for row in rows {
            format = format.max(format_of(&row));
            record::write(&mut lines, [&row]).map_err(|error| unwritten(&self.path, &error.to_string()))?;
            count += 1;
        }
        let text = format!("{NAME} {format} {}\n{lines}", self.imported);
        let before = identity_at(&self.path);
        let written = storage::write_atomic(&self.path, text.as_bytes(), MODE);
        let after = identity_at(&self.path);
        if written.is_ok() || after != before {
            // If only the sync of the directory has failed, the new file is already in place, but a power cut may undo that, and
            // its changes are reported as failed. So the next change replaces the file again.
            (self.known, self.tail) = (after, None);
        }
        written.map_err(|error| unwritten(&self.path, &describe(&error)))?;
        self.tail = Some(Tail::new(text.len() as u64, false));
        (self.appended, self.snapshot_at, self.format) = (0, OUTDATED.max(count), format);
        Ok(())
    }

    /// Refuses to continue if another program has changed the file, because the next write would undo that change. A deleted file
    /// does not count as changed.
    ///
    /// # Errors
    /// When the file differs from the state in which this process left it.
    pub fn refuse_if_edited(&self) -> Result<(), ConfigError> {
        if !self.is_edited() {
            return Ok(());
        }
        Err(ConfigError::of_file(
            &self.path,
            "was changed by somebody else while the exit runs; run `warren reload exit` first to load the change",
        ))
    }

    /// Whether somebody else has changed the file.
    pub fn is_edited(&self) -> bool {
        identity_at(&self.path).is_some_and(|found| self.known != Some(found))
    }
}

/// The oldest format that can hold a row.
fn format_of(row: &RowChange) -> u32 {
    match row {
        RowChange::Client { client: Some(client), .. }
            if client.wireguard.is_some() || !client.forwards.is_empty() =>
        {
            FORMAT
        }
        RowChange::Invitation { invitation: Some(invitation), .. } if invitation.upgrades.is_some() => FORMAT,
        RowChange::Client { .. } | RowChange::Invitation { .. } | RowChange::Removed { .. } => FIRST_FORMAT,
    }
}

/// The changes that turn the first registry into the second.
fn difference(before: &ClientRegistry, after: &ClientRegistry) -> Vec<RowChange> {
    let mut gone: BTreeMap<RowId, RowChange> = before.rows().map(|row| (row.id(), row)).collect();
    let mut changes: Vec<RowChange> =
        after.rows().filter(|row| gone.remove(&row.id()).as_ref() != Some(row)).collect();
    changes.extend(gone.into_keys().map(RowId::deletion));
    changes
}

/// Reads the clients of an exit without the lock. The result is consistent.
///
/// # Errors
/// As [`ClientStore::open`].
pub(super) fn read_clients(path: &Path) -> Result<Option<ClientRegistry>, ConfigError> {
    match open_plain(path) {
        Err(error) if is_missing(path, &error) => Ok(None),
        opened => {
            let file = opened.map_err(|error| unreadable(path, &error))?;
            Ok(Some(read(path, &file)?.registry))
        }
    }
}

/// The content of a store.
struct Contents {
    registry: ClientRegistry,
    imported: String,
    format: u32,
    /// The number of bytes of the store's complete lines.
    length: u64,
    /// How many rows these lines contain.
    written: usize,
}

fn read(path: &Path, file: &File) -> Result<Contents, ConfigError> {
    let metadata = file.metadata().map_err(|error| unreadable(path, &error))?;
    refuse_what_others_write(path, &metadata)?;
    read_lines(path, BufReader::with_capacity(1 << 16, file))
}

fn read_lines(path: &Path, reader: impl io::BufRead) -> Result<Contents, ConfigError> {
    let mut lines = Lines { reader, line: Vec::new() };
    let first = lines.next().map_err(|error| unreadable(path, &error))?;
    let ((imported, format), length) = (header(path, first)?, first.len() as u64);
    let mut rows =
        Rows { path, lines, number: 1, length, written: 0, line: Vec::new().into_iter(), failure: None };
    let registry = ClientRegistry::from_rows(&mut rows);
    let Rows { length, written, failure, .. } = rows;
    if let Some(failure) = failure {
        return Err(failure);
    }
    let registry = registry.map_err(|error| ConfigError::of_file(path, error.to_string()))?;
    Ok(Contents { registry, imported, format, length, written })
}

/// The rows of a file, one line after the other.
struct Rows<'a, R> {
    path: &'a Path,
    lines: Lines<R>,
    /// The line number of the last line that was read.
    number: usize,
    /// The length of all whole lines so far.
    length: u64,
    written: usize,
    /// The remaining changes of the last line.
    line: std::vec::IntoIter<RowChange>,
    /// Why the rows ended before the file did.
    failure: Option<ConfigError>,
}

impl<R: io::BufRead> Iterator for Rows<'_, R> {
    type Item = RowChange;

    fn next(&mut self) -> Option<RowChange> {
        loop {
            if let Some(row) = self.line.next() {
                self.written += 1;
                return Some(row);
            }
            match self.transaction() {
                Ok(Some(rows)) => self.line = rows.into_iter(),
                Ok(None) => return None,
                Err(failure) => {
                    self.failure = Some(failure);
                    return None;
                }
            }
        }
    }
}

impl<R: io::BufRead> Rows<'_, R> {
    /// The rows of the next line. `None` at the end of the file, and if the last line is torn.
    fn transaction(&mut self) -> Result<Option<Vec<RowChange>>, ConfigError> {
        self.number += 1;
        let line = self.lines.next().map_err(|error| unreadable(self.path, &error))?;
        if line.is_empty() {
            return Ok(None);
        }
        if let Some(rows) = line.strip_suffix(b"\n").and_then(record::read) {
            self.length += line.len() as u64;
            return Ok(Some(rows));
        }
        // A power cut can leave part of the last line, or zeros in its place. Any other invalid line means that the file is
        // damaged.
        let can_be_torn = !line.ends_with(b"\n") || line.contains(&0);
        if can_be_torn && self.lines.next().is_ok_and(<[u8]>::is_empty) {
            return Ok(None);
        }
        let sentence = "is damaged or was edited by hand; restore the file from a backup";
        Err(ConfigError::at_line(self.path, self.number, sentence))
    }
}

/// Checks the first line. Returns the mark of the last import, and the format.
fn header(path: &Path, line: &[u8]) -> Result<(String, u32), ConfigError> {
    let text = std::str::from_utf8(line).unwrap_or_default();
    let mut words = text.strip_suffix('\n').unwrap_or_default().split(' ');
    let (name, format) = (words.next(), words.next().and_then(|format| format.parse::<u32>().ok()));
    let sentence = match (name, format, words.next(), words.next()) {
        (Some(NAME), Some(format @ FIRST_FORMAT..=FORMAT), Some(imported), None) => {
            return Ok((imported.to_owned(), format));
        }
        (Some(NAME), Some(format), ..) if format > FORMAT => format!(
            "was written by a newer version of Warren (format {format}, this one reads {FORMAT}); install that version again"
        ),
        _ => "is damaged or not an exit's clients; restore the file from a backup".to_owned(),
    };
    Err(ConfigError::at_line(path, 1, sentence))
}

/// A file's lines, each with its line break.
struct Lines<R> {
    reader: R,
    line: Vec<u8>,
}

impl<R: io::BufRead> Lines<R> {
    /// Returns the next line. If no line break is left, returns the rest of the file. At the end, returns nothing.
    fn next(&mut self) -> io::Result<&[u8]> {
        self.line.clear();
        let mut limited = (&mut self.reader).take(MOST_LINE);
        limited.read_until(b'\n', &mut self.line)?;
        Ok(&self.line)
    }
}

/// Metadata that differs if the file was replaced or rewritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    file: (u64, u64),
    length: u64,
    modified: (i64, i64),
}

impl Identity {
    fn of(metadata: &Metadata) -> Self {
        let modified = (metadata.mtime(), metadata.mtime_nsec());
        Self { file: (metadata.dev(), metadata.ino()), length: metadata.len(), modified }
    }
}

fn identity_at(path: &Path) -> Option<Identity> {
    std::fs::metadata(path).ok().as_ref().map(Identity::of)
}

/// Whether there is no file. A dangling link is not a missing file.
fn is_missing(path: &Path, error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound && std::fs::symlink_metadata(path).is_err()
}

fn unreadable(path: &Path, error: &io::Error) -> ConfigError {
    let sentence = if error.kind() == io::ErrorKind::PermissionDenied {
        "cannot be read by this user; run the command as root".to_owned()
    } else if error.kind() == io::ErrorKind::Other {
        format!("cannot be read: {error}")
    } else {
        format!("cannot be read: {}; check the file and its disk", describe(error))
    };
    ConfigError::of_file(path, sentence)
}

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;

#[cfg(test)]
mod tests;
