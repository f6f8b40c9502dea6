//! The journal of changes to the host. How to undo a change is written to the journal before the change is made.
//!
//! The file has one JSON object per line. The first line contains the boot and the network namespace of the changes. Each step
//! has a line that is written before the step is made, and another once the step is undone. If the last line has no newline, the
//! daemon was killed while it wrote that line, so the line's step was never made. The file is locked while it is open, and
//! removed when it has no entries left.
//!
//! The journal is not synced to the disk. Data that the kernel has accepted survives the end of this process, and after a power
//! cut the journal is not needed, because the changes end with the boot.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::{lock_file::open_lock_file, plain_file::read_plain, undo::Undo};

/// Maximum size of a journal in bytes. A journal of many steps has about ten thousand.
const MOST_BYTES: u64 = 16 * 1024 * 1024;

/// An open, locked journal.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
    contents: Contents,
    next: u64,
}

/// The boot and network namespace of a journal's steps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    /// The kernel's random number for this boot.
    pub(crate) boot: String,
    /// Device and inode of the network namespace.
    pub(crate) namespace: String,
}

impl Journal {
    /// Opens and locks the journal at `path`, and creates it if it is missing. `None` if another process has it open.
    pub(crate) fn open(path: &Path) -> io::Result<Option<Self>> {
        let Some(mut file) = lock(path)? else { return Ok(None) };
        let mut text = Vec::new();
        (&mut file).take(MOST_BYTES).read_to_end(&mut text)?;
        let contents = Contents::read(&text);
        // Numbers of ended entries may be reused, because the file is read in order.
        let next = contents.outstanding.last_key_value().map_or(0, |(entry, _)| entry + 1);
        let mut journal = Self { path: path.to_owned(), file, contents, next };
        journal.drop_torn_line(&text)?;
        Ok(Some(journal))
    }

    /// A second descriptor of the file. The lock is held until both are closed.
    pub(crate) fn share_lock(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Empties a journal of another boot, because none of its changes is in effect any more.
    pub(crate) fn forget_other_boots(&mut self) -> io::Result<()> {
        let here = Place::here()?;
        if self.place().is_some_and(|place| place.boot != here.boot) {
            self.clear()?;
        }
        Ok(())
    }

    /// The boot and network namespace of the journal's steps, if there are any.
    pub(crate) fn place(&self) -> Option<&Place> {
        self.contents.place.as_ref()
    }

    /// The numbers of lines that could not be read.
    pub(crate) fn damaged(&self) -> &[usize] {
        &self.contents.damaged
    }

    /// The steps that were begun and not ended.
    pub(crate) fn outstanding(&self) -> &BTreeMap<u64, Undo> {
        &self.contents.outstanding
    }

    /// Records how to undo a step that is about to be made.
    pub(crate) fn begin(&mut self, undo: Undo) -> io::Result<u64> {
        if self.contents.place.is_none() {
            let place = Place::here()?;
            self.append(&Record::Place(place.clone()))?;
            self.contents.place = Some(place);
        }
        let entry = self.next;
        self.append(&Record::Begin { entry, undo: undo.clone() })?;
        self.next += 1;
        self.contents.outstanding.insert(entry, undo);
        Ok(entry)
    }

    /// Records that a step was undone, or was never made.
    pub(crate) fn end(&mut self, entry: u64) -> io::Result<()> {
        self.contents.outstanding.remove(&entry);
        // The file is emptied when no entries are left, so it stays short even if the daemon runs for a long time.
        if self.contents.outstanding.is_empty() {
            return self.clear();
        }
        self.append(&Record::End { entry })
    }

    /// Removes all entries.
    pub(crate) fn clear(&mut self) -> io::Result<()> {
        self.contents = Contents::default();
        self.file.set_len(0)?;
        // The file is not open in append mode, so the write position must be reset too.
        self.file.seek(SeekFrom::Start(0)).map(drop)
    }

    fn append(&mut self, record: &Record) -> io::Result<()> {
        let mut line = serde_json::to_vec(record)?;
        line.push(b'\n');
        let before = self.file.stream_position()?;
        self.file.write_all(&line).inspect_err(|_| {
            // A full disk may have taken a part of the line, which the next entry must not continue. If the part cannot be cut off
            // either, the first error is more useful to the user.
            drop(self.file.set_len(before).and_then(|()| self.file.seek(SeekFrom::Start(before))));
        })
    }

    /// Cuts off an unfinished last line, so that the next entry starts on a new line.
    fn drop_torn_line(&mut self, text: &[u8]) -> io::Result<()> {
        // A step is made only after its whole line was written, so an unfinished line can be removed.
        let torn = text.iter().rev().take_while(|byte| **byte != b'\n').count();
        let whole = u64::try_from(text.len() - torn).map_err(io::Error::other)?;
        self.file.set_len(whole)?;
        self.file.seek(SeekFrom::Start(whole))?;
        Ok(())
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        if self.contents == Contents::default() {
            // The lock is still held, so no other process can use the file as its journal. If removing fails, an empty file
            // stays, which does no harm.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Opens and locks the file at `path`. `None` if another process keeps it locked.
///
/// Tries several times, because the file may be locked or removed only for a moment: a child process that outlives its parent
/// briefly still holds the lock, and the last user of the file removes it.
fn lock(path: &Path) -> io::Result<Option<File>> {
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            thread::sleep(PAUSE);
        }
        let file = open_lock_file(path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => continue,
            locked => locked?,
        }
        // The last user may have removed the file between opening and locking, so the path must still lead to this
        // file.
        let ours = file.metadata()?;
        if fs::symlink_metadata(path)
            .is_ok_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino()))
        {
            return Ok(Some(file));
        }
    }
    Ok(None)
}

impl Place {
    /// Reads the boot and network namespace of the journal at `path`, even if a process has it open. `None` if it lists no
    /// changes.
    pub(crate) fn of_file(path: &Path) -> io::Result<Option<Self>> {
        match read_plain(path, MOST_BYTES) {
            Ok(text) => {
                let contents = Contents::read(&text);
                Ok(contents.place.filter(|_| !contents.outstanding.is_empty()))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Identifies this boot and the calling thread's network namespace.
    pub(crate) fn here() -> io::Result<Self> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim_end().to_owned();
        let namespace = fs::metadata("/proc/thread-self/ns/net")?;
        Ok(Self { boot, namespace: format!("{}:{}", namespace.dev(), namespace.ino()) })
    }
}

/// One line of a journal.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Record {
    Place(Place),
    Begin { entry: u64, undo: Undo },
    End { entry: u64 },
}

/// The content of a journal's text.
#[derive(Debug, Default, PartialEq, Eq)]
struct Contents {
    place: Option<Place>,
    outstanding: BTreeMap<u64, Undo>,
    damaged: Vec<usize>,
}

impl Contents {
    fn read(text: &[u8]) -> Self {
        let mut contents = Self::default();
        for (number, line) in text.split_inclusive(|byte| *byte == b'\n').enumerate() {
            // An unfinished last line is ignored, because its step was never made.
            let Some(line) = line.strip_suffix(b"\n") else { break };
            match serde_json::from_slice(line) {
                Ok(Record::Place(place)) => contents.place = Some(place),
                Ok(Record::Begin { entry, undo }) => {
                    contents.outstanding.insert(entry, undo);
                }
                Ok(Record::End { entry }) => {
                    contents.outstanding.remove(&entry);
                }
                Err(_) => contents.damaged.push(number + 1),
            }
        }
        contents
    }
}

/// All attempts together last one second ([`PAUSE`] each), in which a killed process's children end even on a busy machine.
const ATTEMPTS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests;
