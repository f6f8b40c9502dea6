//! Who has put resolvers into a host's `resolv.conf`, and what stood there before.
//!
//! Several profiles may be up at once, and they go in any order: each is a layer, the last one's resolvers stand in the
//! file, and the original comes back with the last layer. The record is in the state directory, because the file outlives
//! a boot. Every text that Warren writes bears a marker, so it is never taken for an original.
//!
//! What another program writes while layers stand (a DHCP client after a network change) is the new original. The one
//! before is kept below it: a VPN that came later found Warren's text, puts that back when it goes, and what it had
//! written is then nobody's original any more.

use std::{
    fs::{self, File},
    io,
    net::IpAddr,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, FlockOperation, StatxFlags, flock, statx},
    io::Errno,
};
use serde::{Deserialize, Serialize};

use crate::lock_file::open_lock_file;

use super::{
    DnsError,
    resolv_conf::{self, Stamp, Standing},
    state,
};

/// The record of one `resolv.conf`, locked against every other Warren.
#[derive(Debug)]
pub(super) struct Record {
    /// The `resolv.conf`.
    file: PathBuf,
    /// Where the record is kept.
    path: PathBuf,
    contents: Contents,
    _lock: File,
}

/// What stood in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The file is as Warren wrote it.
    Ours,
    /// It is Warren's, but not as Warren wrote it: another program wrote into it at the same time.
    Garbled,
    /// Another program had written it.
    Foreign,
}

#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Contents {
    /// What other programs wrote, the newest last.
    originals: Vec<Standing>,
    /// The profiles that are up, the newest last.
    layers: Vec<Layer>,
    /// The file as Warren last wrote it; none while it is being written.
    written: Option<Stamp>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Layer {
    owner: String,
    servers: Vec<IpAddr>,
}

impl Record {
    /// Opens the record about `file` in the directory `state`, and waits for its lock.
    pub(super) fn open(state: &Path, file: &Path) -> Result<Self, DnsError> {
        let path = state.join(name(state, file)?);
        let failed = |source| DnsError::State { path: path.clone(), source };
        let lock = open_lock_file(&state.join(LOCK)).map_err(failed)?;
        flock(&lock, FlockOperation::LockExclusive).map_err(|errno| failed(errno.into()))?;
        let contents = match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).map_err(|error| failed(error.into()))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Contents::default(),
            Err(error) => return Err(failed(error)),
        };
        Ok(Self { file: file.to_owned(), path, contents, _lock: lock })
    }

    /// Puts `servers` in the file on behalf of `owner`, above all other layers.
    pub(super) fn add(&mut self, owner: &str, servers: &[IpAddr]) -> Result<(), DnsError> {
        let standing = Standing::at(&self.file)?;
        if let Some(theirs) = marker(&standing)
            && (self.contents.layers.is_empty() || theirs != self.path)
        {
            let (path, record) = (self.file.clone(), theirs.to_owned());
            let is_own = record.parent() == self.path.parent();
            return Err(match is_own && !record.exists() {
                true => DnsError::Returned(path),
                false => DnsError::OtherWarren { path, record },
            });
        }
        if self.contents.layers.is_empty() {
            self.contents.originals = vec![standing];
        } else {
            self.take_notice(standing);
        }
        let before = self.contents.layers.clone();
        self.contents.layers.retain(|layer| layer.owner != owner);
        self.contents.layers.push(Layer { owner: owner.to_owned(), servers: servers.to_owned() });
        let Err(error) = self.write() else { return Ok(()) };
        if let Some(original) = self.contents.originals.last().filter(|_| before.is_empty()) {
            // What could not be written to may well be as it was.
            drop(original.put(&self.file));
        }
        self.contents.layers = before;
        self.keep()?;
        Err(error)
    }

    /// Takes what `owner` put there away. Returns whether there was anything.
    pub(super) fn remove(&mut self, owner: &str) -> Result<bool, DnsError> {
        if !self.has(owner) {
            return Ok(false);
        }
        let standing = Standing::at(&self.file)?;
        let found = self.take_notice(standing);
        let was_on_top = self.contents.layers.last().is_some_and(|layer| layer.owner == owner);
        self.contents.layers.retain(|layer| layer.owner != owner);
        if !self.contents.layers.is_empty() {
            match was_on_top || found != Found::Ours {
                true => self.write()?,
                false => self.keep()?,
            }
            return Ok(true);
        }
        // What another program wrote meanwhile stays: it is the original already.
        if let Some(original) = self.contents.originals.last().filter(|_| found != Found::Foreign) {
            original.put(&self.file)?;
        }
        self.keep()?;
        Ok(true)
    }

    /// Puts the topmost layer's resolvers back if another program has written the file.
    pub(super) fn repair(&mut self) -> Result<Found, DnsError> {
        if self.contents.layers.is_empty() {
            return Ok(Found::Ours);
        }
        let standing = Standing::at(&self.file)?;
        let before = self.contents.originals.len();
        match self.take_notice(standing) {
            found @ (Found::Foreign | Found::Garbled) => {
                self.write()?;
                Ok(found)
            }
            Found::Ours => {
                if self.contents.originals.len() != before {
                    self.contents.written = resolv_conf::stamp(&self.file);
                    self.keep()?;
                }
                Ok(Found::Ours)
            }
        }
    }

    /// The record's name in the state directory.
    pub(super) fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Whether `owner` has put anything there.
    pub(super) fn has(&self, owner: &str) -> bool {
        self.contents.layers.iter().any(|layer| layer.owner == owner)
    }

    /// Learns what the file says about its original.
    fn take_notice(&mut self, standing: Standing) -> Found {
        let originals = &mut self.contents.originals;
        if marker(&standing).is_some_and(|record| record == self.path) {
            let top = self.contents.layers.last();
            let wanted = top.map(|top| text(&top.owner, &top.servers, &self.path));
            if standing.text() != wanted.as_deref() {
                return Found::Garbled;
            }
            let is_untouched =
                self.contents.written.is_none() || resolv_conf::stamp(&self.file) == self.contents.written;
            if !is_untouched && originals.len() > 1 {
                originals.pop();
            }
            return Found::Ours;
        }
        // A file that is empty was being written when the power went, or somebody emptied it: no resolver is lost by it.
        let is_empty = standing.text() == Some("");
        if is_empty && self.contents.written.is_none() {
            return Found::Garbled;
        }
        originals.retain(|original| *original != standing);
        originals.push(standing);
        if originals.len() > MOST_ORIGINALS {
            originals.remove(0);
        }
        Found::Foreign
    }

    /// Writes what the topmost layer wants; the record says so first.
    fn write(&mut self) -> Result<(), DnsError> {
        let Some(top) = self.contents.layers.last().cloned() else { return Ok(()) };
        self.contents.written = None;
        self.keep()?;
        resolv_conf::write(&self.file, &text(&top.owner, &top.servers, &self.path))?;
        self.contents.written = resolv_conf::stamp(&self.file);
        self.keep()
    }

    /// Writes the record, or removes it when nothing is left in it.
    fn keep(&self) -> Result<(), DnsError> {
        let failed = |source| DnsError::State { path: self.path.clone(), source };
        if self.contents.layers.is_empty() {
            return state::remove(&self.path).map_err(failed);
        }
        let text = serde_json::to_vec_pretty(&self.contents).map_err(|error| failed(error.into()))?;
        state::write(&self.path, &text).map_err(failed)
    }
}

/// What Warren writes.
pub(super) fn text(owner: &str, servers: &[IpAddr], record: &Path) -> String {
    let servers: String = servers.iter().map(|server| format!("nameserver {server}\n")).collect();
    format!(
        "# Written by Warren while the profile {owner} is up. `warren down {owner}` puts back what was here.\n\
         {MARKER}{}\n{servers}",
        record.display()
    )
}

/// The record that a text of Warren's names.
fn marker(standing: &Standing) -> Option<&Path> {
    standing.text()?.lines().take(2).find_map(|line| line.strip_prefix(MARKER)).map(Path::new)
}

/// The record's name: that of the record which the file's marker names if it is here, else one by the directory's or, if
/// the file is mounted over another one, the file's inode. So hosts that share a state directory but not `/etc`, as
/// namespaces may, have a record each.
fn name(state: &Path, file: &Path) -> Result<String, DnsError> {
    if let Some(record) = marker(&Standing::at(file)?)
        && record.parent() == Some(state)
        && record.exists()
        && let Some(name) = record.file_name()
    {
        return Ok(name.to_string_lossy().into_owned());
    }
    let failed = |source| DnsError::Read { path: file.to_owned(), source };
    let directory = file.parent().unwrap_or(Path::new("/"));
    let of_file = mount(file).map_err(failed)?;
    let is_mounted = of_file.is_some() && of_file != mount(directory).map_err(failed)?;
    let inode = fs::metadata(if is_mounted { file } else { directory }).map_err(failed)?.ino();
    Ok(format!("{PREFIX}{inode}"))
}

/// The mount that `path` itself is on; none if there is nothing or the kernel does not say.
fn mount(path: &Path) -> io::Result<Option<u64>> {
    match statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::MNT_ID) {
        Ok(found) => Ok(Some(found.stx_mnt_id).filter(|_| found.stx_mask & StatxFlags::MNT_ID.bits() != 0)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// The second line of what Warren writes, before the record's path.
const MARKER: &str = "# warren-record ";
/// What records' names begin with.
const PREFIX: &str = "resolv.conf.";
const LOCK: &str = "lock";
/// A laptop that roams for days need not remember every network.
const MOST_ORIGINALS: usize = 16;

#[cfg(test)]
mod tests;
