//! The audit log's file. It only grows. When it is full, it becomes the older half of the log, and the previous older half
//! is deleted.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use warren_host::durable_file::{self, Owner};
use warren_host::{directory_of, make_lock_file, open_plain};

use super::Entry;

/// The largest size in bytes of each of the log's two files.
pub(super) const HALF: u64 = 1024 * 1024;

/// The content of the audit log.
#[derive(Debug, Default)]
pub struct Found {
    /// The entries, the oldest first.
    pub entries: Vec<Entry>,
    /// Lines that are not entries.
    pub damaged: usize,
}

/// The file to which entries are added. A running exit has it open. If no exit runs, a command opens it.
#[derive(Debug)]
pub struct AuditFile {
    path: PathBuf,
    /// The largest size in bytes of each of the log's two files.
    half: u64,
}

impl AuditFile {
    /// The file of the exit whose clients' store is in this directory.
    pub fn of(directory: &Path) -> Self {
        Self { path: path(directory), half: HALF }
    }

    /// Adds an entry. The entry is on the disk when this function returns.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn add(&self, entry: &Entry) -> io::Result<()> {
        let mut line = serde_json::to_vec(entry).map_err(io::Error::other)?;
        line.push(b'\n');
        let mut file = self.open()?;
        let mut length = file.metadata()?.len();
        if length > 0 && length + line.len() as u64 > self.half {
            durable_file::rename(&self.path, &older(&self.path))?;
            file = self.open()?;
            length = 0;
        }
        if length > 0 && !ends_with_line_break(&file, length)? {
            // A power cut has left the last line incomplete. That line stays, and a line break separates it from the new one.
            line.insert(0, b'\n');
        }
        let written = file.write_all_at(&line, length).and_then(|()| file.sync_data());
        // If the disk is full, this removes the part of the line that was written.
        written.inspect_err(|_| drop(file.set_len(length)))
    }

    /// Opens the file, and makes it if it is missing. A link or another user's file is refused.
    fn open(&self) -> io::Result<File> {
        let (file, is_new) = make_lock_file(&self.path)?;
        if is_new {
            let directory = directory_of(&self.path);
            // A command that runs as root may create the file, which the exit's service must write later.
            if rustix::process::geteuid().is_root() {
                Owner::of(&std::fs::metadata(directory)?).give(&file)?;
            }
            File::open(directory)?.sync_all()?;
        }
        Ok(file)
    }
}

/// The audit log's file in the directory of the clients' store.
pub fn path(directory: &Path) -> PathBuf {
    directory.join("audit.log")
}

fn older(path: &Path) -> PathBuf {
    path.with_extension("log.1")
}

fn ends_with_line_break(file: &File, length: u64) -> io::Result<bool> {
    let mut last = [0];
    file.read_exact_at(&mut last, length.saturating_sub(1))?;
    Ok(last == *b"\n")
}

impl Found {
    /// Returns the entries about every client that has ever had this name, including their entries under earlier names. The
    /// oldest come first.
    pub fn about(&self, name: &str) -> Vec<&Entry> {
        let mut found = follow(self.entries.iter().rev(), Vec::new(), Some(name));
        found.reverse();
        found
    }
}

/// Selects the entries about the clients whose present names are `names`, including entries under earlier names of these clients.
/// With `any`, also selects the entries about every other client that has had one of these names. Both the given and the returned
/// entries begin with the newest.
pub(super) fn follow<'entries, 'name>(
    newest_first: impl Iterator<Item = &'entries Entry>,
    mut names: Vec<&'name str>,
    any: Option<&str>,
) -> Vec<&'entries Entry>
where
    'entries: 'name,
{
    let mut found = Vec::new();
    for entry in newest_first {
        let Some(client) = entry.change.client.as_deref() else { continue };
        let renamed = names.iter().position(|name| entry.change.is_rename_to(name));
        if let Some(position) = renamed {
            // Even older entries under the later name belong to another client.
            names.swap_remove(position);
        }
        if renamed.is_some() || any.is_some_and(|name| entry.change.is_rename_to(name)) {
            names.push(client);
        } else {
            if entry.change.frees_name() {
                // In older entries, the name belongs to another client.
                names.retain(|name| *name != client);
            }
            if any != Some(client) && !names.contains(&client) {
                continue;
            }
        }
        found.push(entry);
    }
    found
}

/// Reads both halves.
///
/// # Errors
/// When a file exists and cannot be read.
pub fn read(directory: &Path) -> io::Result<Found> {
    let path = path(directory);
    let mut found = Found::default();
    for half in [older(&path), path] {
        let file = match open_plain(&half) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(io::Error::new(error.kind(), format!("{}: {error}", half.display()))),
        };
        let mut text = Vec::new();
        // The read is bounded, because another program may have made the file longer than the exit would.
        file.take(2 * HALF).read_to_end(&mut text)?;
        for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            match serde_json::from_slice(line) {
                Ok(entry) => found.entries.push(entry),
                Err(_) => found.damaged += 1,
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use warren_control::ClientChange;

    use super::*;
    use crate::audit::{Change, Way, Who};

    fn entry(number: usize) -> Entry {
        let who = Who { user: Some("root".to_owned()), ..Who::by(Way::Command) };
        Entry::now(who, Change::removed(&format!("client-{number}")))
    }

    #[test]
    fn entries_come_back_in_order_and_the_oldest_go_when_both_halves_are_full() {
        let directory = tempfile::tempdir().unwrap();
        let file = AuditFile { half: 1_000, ..AuditFile::of(directory.path()) };
        let entries: Vec<Entry> = (0..100).map(entry).collect();

        for entry in &entries {
            file.add(entry).unwrap();
        }

        let found = read(directory.path()).unwrap();
        assert_eq!(found.damaged, 0);
        assert_eq!(found.entries, entries[100 - found.entries.len()..]);
        assert!((8..=20).contains(&found.entries.len()), "{}", found.entries.len());
        for half in [path(directory.path()), older(&path(directory.path()))] {
            let metadata = std::fs::metadata(half).unwrap();
            assert!(metadata.len() <= 1_000);
            assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn a_torn_line_is_counted_and_harms_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let file = AuditFile::of(directory.path());
        file.add(&entry(1)).unwrap();
        let whole = std::fs::read(&file.path).unwrap();
        std::fs::write(&file.path, &whole[..whole.len() - 9]).unwrap();

        file.add(&entry(2)).unwrap();

        let found = read(directory.path()).unwrap();
        assert_eq!((found.entries.as_slice(), found.damaged), ([entry_at(&found, 2)].as_slice(), 1));
    }

    fn entry_at(found: &Found, number: usize) -> Entry {
        Entry { time: found.entries[0].time.clone(), ..entry(number) }
    }

    #[test]
    fn a_hostile_name_stays_within_its_line() {
        let directory = tempfile::tempdir().unwrap();
        let file = AuditFile::of(directory.path());
        let hostile = Entry::now(
            Who { user: Some("a\n{\"time\":\"\"}".to_owned()), ..Who::by(Way::Page) },
            Change::removed("x\",\"what\":\"y\n"),
        );
        file.add(&hostile).unwrap();
        assert_eq!(std::fs::read_to_string(&file.path).unwrap().lines().count(), 1);
        assert_eq!(read(directory.path()).unwrap().entries, [hostile]);
    }

    #[test]
    fn a_client_has_the_entries_of_its_earlier_names_even_once_it_is_removed() {
        let rename =
            |from: &str, to: &str| Change::of_client(from, &ClientChange::Rename { to: to.to_owned() });
        let entries = [
            Change::removed("laptop"),
            Change::joined("laptop"),
            rename("laptop", "desk"),
            Change::of_client("desk", &ClientChange::Disable),
            Change::joined("laptop"),
            Change::removed("desk"),
        ];
        let entries = entries.map(|change| Entry::now(Who::by(Way::Command), change)).to_vec();
        let found = Found { entries, ..Found::default() };
        let about =
            |name: &str| found.about(name).iter().map(|entry| entry.change.what.as_str()).collect::<Vec<_>>();
        assert_eq!(about("desk"), ["enrolled by invitation", "renamed to desk", "disabled", "removed"]);
        let laptop = ["removed", "enrolled by invitation", "renamed to desk", "enrolled by invitation"];
        assert_eq!(about("laptop"), laptop);
        assert!(about("nosuch").is_empty());
    }

    #[test]
    fn a_link_in_its_place_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("target");
        std::fs::write(&target, "").unwrap();
        let file = AuditFile::of(directory.path());
        symlink(&target, &file.path).unwrap();
        assert!(file.add(&entry(1)).is_err());
        assert_eq!(std::fs::read(&target).unwrap(), b"");
    }
}
