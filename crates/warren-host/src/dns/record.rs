//! The record of the profiles that have put resolvers into a host's `resolv.conf`, and of the file's earlier content.
//!
//! Several profiles may be up at once, and they go down in any order. Each profile is a layer. The file contains the newest
//! layer's resolvers, and the original is restored when the last layer is removed. The record is in the state directory, because
//! the changed file stays after a reboot. Every text that Warren writes contains a marker, so Warren never mistakes its own text
//! for an original.
//!
//! If another program writes the file while layers exist (a DHCP client after a network change), its text is the new original.
//! The earlier original is kept too. For instance, a VPN that started after Warren has saved Warren's text, and puts this text
//! back when it stops. Then the VPN's own text no longer counts as the original, and the earlier one does again.

use std::{
    fs::{self, File},
    io,
    net::{IpAddr, SocketAddr},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, FlockOperation, StatxFlags, flock, statx},
    io::Errno,
};
use serde::{Deserialize, Serialize};

use crate::{durable_file::Owner, lock_file::open_lock_file};

use super::{
    DnsError,
    nameservers::{self, DNS_PORT, nameserver_lines},
    replace,
    resolv_conf::{self, Content, Stamp, Standing},
    state,
};

/// The record of one `resolv.conf`, locked against every other Warren.
#[derive(Debug)]
pub(super) struct Record {
    /// The `resolv.conf`.
    file: PathBuf,
    /// The path of the record.
    path: PathBuf,
    contents: Contents,
    _lock: File,
}

/// The state of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The file is exactly as Warren wrote it.
    Ours,
    /// The file contains Warren's marker but differs from what Warren wrote, because another program wrote into it at the same
    /// time.
    Garbled,
    /// Another program wrote the file.
    Foreign,
}

#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Contents {
    /// Texts that other programs wrote, the newest last.
    originals: Vec<Standing>,
    /// The profiles that are up, the newest last.
    layers: Vec<Layer>,
    /// The stamp of the file as Warren last wrote it. `None` during a write.
    written: Option<Stamp>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Layer {
    owner: String,
    servers: Vec<IpAddr>,
    /// Whether the layer's resolver is a stub. In that case the original's other settings stay in the file. Records of earlier
    /// versions lack this field.
    #[serde(default)]
    is_split: bool,
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
        let mut record = Self { file: file.to_owned(), path, contents, _lock: lock };
        record.settle()?;
        Ok(record)
    }

    /// Adds a layer with `servers` to the file on behalf of `owner`, above all other layers. If it `is_split`, the original's
    /// other settings, such as `search`, stay.
    pub(super) fn add(&mut self, owner: &str, servers: &[IpAddr], is_split: bool) -> Result<(), DnsError> {
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
            self.contents.originals = vec![standing.clone()];
        } else {
            self.take_notice(&standing);
        }
        let before = self.contents.layers.clone();
        self.contents.layers.retain(|layer| layer.owner != owner);
        let layer = Layer { owner: owner.to_owned(), servers: servers.to_owned(), is_split };
        self.contents.layers.push(layer);
        let Err(error) = self.write(standing) else { return Ok(()) };
        if before.is_empty() {
            // The error of the write is returned. A failure to restore the file is ignored, because the file may not have been
            // changed at all.
            drop(self.restore());
        }
        self.contents.layers = before;
        self.keep()?;
        Err(error)
    }

    /// Removes the layer of `owner`. Returns whether there was one.
    pub(super) fn remove(&mut self, owner: &str) -> Result<bool, DnsError> {
        if !self.has(owner) {
            return Ok(false);
        }
        let (standing, found) = self.look()?;
        let was_on_top = self.contents.layers.last().is_some_and(|layer| layer.owner == owner);
        if self.contents.layers.iter().all(|layer| layer.owner == owner) {
            self.restore()?;
            self.contents.layers.clear();
            self.keep()?;
            return Ok(true);
        }
        self.contents.layers.retain(|layer| layer.owner != owner);
        match was_on_top || found != Found::Ours {
            true => self.write(standing)?,
            false => self.keep()?,
        }
        Ok(true)
    }

    /// If another program has written the file, writes the newest layer's resolvers into it again.
    pub(super) fn repair(&mut self) -> Result<Found, DnsError> {
        if self.contents.layers.is_empty() {
            return Ok(Found::Ours);
        }
        let (standing, found) = self.look()?;
        if found != Found::Ours {
            self.write(standing)?;
        }
        Ok(found)
    }

    /// The record's name in the state directory.
    pub(super) fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Whether `owner` has a layer.
    pub(super) fn has(&self, owner: &str) -> bool {
        self.contents.layers.iter().any(|layer| layer.owner == owner)
    }

    /// The resolvers that programs would ask without the layer of `owner` and all newer layers.
    pub(super) fn below(&self, owner: &str) -> Vec<SocketAddr> {
        let layers = self.contents.layers.iter().take_while(|layer| layer.owner != owner);
        match layers.last() {
            Some(layer) => layer.servers.iter().map(|server| SocketAddr::new(*server, DNS_PORT)).collect(),
            None => self.original_text().map(|text| nameservers::to_ask(&text)).unwrap_or_default(),
        }
    }

    /// Returns the text of the newest original. If the original is a link, returns the text of the link's target.
    fn original_text(&self) -> Option<String> {
        match self.contents.originals.last()? {
            Standing::Link { target } => {
                let directory = self.file.parent().unwrap_or(Path::new("/"));
                fs::read_to_string(directory.join(target)).ok()
            }
            standing @ (Standing::File { .. } | Standing::Missing) => standing.text().map(str::to_owned),
        }
    }

    /// The text of the newest layer.
    fn wanted(&self) -> Option<String> {
        let top = self.contents.layers.last()?;
        let mut wanted = text(&top.owner, &top.servers, &self.path);
        // The original's settings are kept only if no layer is a full tunnel. In a full tunnel, a network's `search` would
        // complete short names with the network's own domain.
        if self.contents.layers.iter().all(|layer| layer.is_split) {
            let original = self.original_text().unwrap_or_default();
            let is_kept = |line: &&str| {
                line.split_whitespace().next().is_some_and(|word| KEPT_SETTINGS.contains(&word))
            };
            for line in original.lines().filter(is_kept) {
                wanted.push_str(line);
                wanted.push('\n');
            }
        }
        Some(wanted)
    }

    /// Reads the file, and compares it with the record.
    fn look(&mut self) -> Result<(Standing, Found), DnsError> {
        let standing = Standing::at(&self.file)?;
        let before = self.contents.originals.len();
        let found = self.take_notice(&standing);
        if found == Found::Ours && self.contents.originals.len() != before {
            self.contents.written = resolv_conf::stamp(&self.file);
            self.keep()?;
        }
        Ok((standing, found))
    }

    /// Compares the file with the record, and updates the originals.
    fn take_notice(&mut self, standing: &Standing) -> Found {
        let is_marked = self.is_ours(standing);
        let wanted = if is_marked { self.wanted() } else { None };
        let originals = &mut self.contents.originals;
        if is_marked {
            if standing.text() != wanted.as_deref() {
                return Found::Garbled;
            }
            let is_untouched =
                self.contents.written.is_none() || resolv_conf::stamp(&self.file) == self.contents.written;
            // Another program, such as a VPN, had saved Warren's text and has put it back. So the text that this program had
            // written before no longer counts as an original.
            if !is_untouched && originals.len() > 1 {
                originals.pop();
            }
            return Found::Ours;
        }
        // An empty file is the result of a power cut during a write, or somebody emptied it. It counts as Warren's, because
        // replacing it loses no resolver.
        let is_empty = standing.text() == Some("");
        if is_empty && self.contents.written.is_none() {
            return Found::Garbled;
        }
        self.add_original(standing.clone());
        Found::Foreign
    }

    /// Makes `standing` the newest original.
    fn add_original(&mut self, standing: Standing) {
        let originals = &mut self.contents.originals;
        // If the host returns to a network, the network's text becomes the newest original again.
        originals.retain(|original| *original != standing);
        originals.push(standing);
        if originals.len() > MOST_ORIGINALS {
            originals.remove(0);
        }
    }

    /// Whether the text contains the marker of this record.
    fn is_ours(&self, standing: &Standing) -> bool {
        marker(standing).is_some_and(|record| record == self.path)
    }

    /// Writes the newest layer's resolvers into the file in place of `standing`, which the caller has read and compared with the
    /// record. If another program writes first, its text becomes the newest original, and Warren replaces that text.
    fn write(&mut self, mut standing: Standing) -> Result<(), DnsError> {
        for _ in 0..MOST_TRIES {
            let Some(wanted) = self.wanted() else { return Ok(()) };
            // The record is on the disk before the file changes. If this process is killed during the write, the record has no
            // stamp, so the next check treats the file as unchanged since Warren's last write.
            self.contents.written = None;
            self.keep()?;
            if replace::replace(&self.file, &standing, &with_text(&standing, wanted))? {
                self.contents.written = resolv_conf::stamp(&self.file);
                return self.keep();
            }
            standing = Standing::at(&self.file)?;
            self.take_notice(&standing);
        }
        Err(self.contended())
    }

    /// Puts the newest original back in place of Warren's text. If another program has written the file meanwhile, its text
    /// stays.
    fn restore(&mut self) -> Result<(), DnsError> {
        for _ in 0..MOST_TRIES {
            let (standing, found) = self.look()?;
            let Some(original) = self.contents.originals.last() else { return Ok(()) };
            if found == Found::Foreign || replace::replace(&self.file, &standing, original)? {
                return Ok(());
            }
        }
        Err(self.contended())
    }

    fn contended(&self) -> DnsError {
        DnsError::of_write(&self.file, io::Error::other("another program writes it again and again"))
    }

    /// Completes a replacement of the file during which a process was killed.
    fn settle(&mut self) -> Result<(), DnsError> {
        if self.contents.layers.is_empty() {
            return Ok(());
        }
        let left = replace::left_behind(&self.file)?;
        if left == Standing::Missing {
            return Ok(());
        }
        let standing = Standing::at(&self.file)?;
        // An empty file is Warren's: the process was killed before it wrote the text.
        let is_theirs = !self.is_ours(&left) && left.text() != Some("");
        if is_theirs && self.is_ours(&standing) {
            // The process was killed after Warren's text had replaced this object, or before this object (an original) could
            // replace Warren's text.
            if self.contents.originals.last() != Some(&left) {
                self.add_original(left);
                self.keep()?;
            }
        } else if is_theirs && self.contents.originals.contains(&standing) {
            // The process was killed after an original had replaced this object. Another program wrote this object later, so it
            // is put back.
            return replace::put_back(&self.file, &standing, &left);
        }
        replace::forget(&self.file)
    }

    /// Writes the record, or removes it once it is empty.
    fn keep(&self) -> Result<(), DnsError> {
        let failed = |source| DnsError::State { path: self.path.clone(), source };
        if self.contents.layers.is_empty() {
            return state::remove(&self.path).map_err(failed);
        }
        let text = serde_json::to_vec_pretty(&self.contents).map_err(|error| failed(error.into()))?;
        state::write(&self.path, &text).map_err(failed)
    }
}

/// The text that Warren writes.
pub(super) fn text(owner: &str, servers: &[IpAddr], record: &Path) -> String {
    let servers = nameserver_lines(servers);
    format!(
        "# Written by Warren while the profile {owner} is up. `warren down {owner}` puts back what was here.\n\
         {MARKER}{}\n{servers}",
        record.display()
    )
}

/// Returns a file with this text, and with the mode and owner of `standing`.
fn with_text(standing: &Standing, text: String) -> Standing {
    let content = Content::Text(text);
    match standing {
        Standing::File { mode, user, group, .. } => {
            Standing::File { content, mode: *mode, user: *user, group: *group }
        }
        Standing::Link { .. } | Standing::Missing => {
            let Owner { user, group } = Owner::own();
            // A new file must be readable by all users.
            Standing::File { content, mode: 0o644, user, group }
        }
    }
}

/// Returns the path of the record in the marker of a text that Warren wrote. `None` if the text has no marker.
fn marker(standing: &Standing) -> Option<&Path> {
    standing.text()?.lines().take(2).find_map(|line| line.strip_prefix(MARKER)).map(Path::new)
}

/// Returns the record's name.
///
/// If the file's marker refers to a record in this state directory, this is the record. Otherwise the name is made from the inode
/// of the file's directory, or of the file itself if it is a mount point. So mount namespaces that share a state directory but
/// not `/etc` have separate records.
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

/// Returns the ID of the mount that contains `path`. `None` if the path does not exist or the kernel does not report the mount.
fn mount(path: &Path) -> io::Result<Option<u64>> {
    match statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::MNT_ID) {
        Ok(found) => Ok(Some(found.stx_mnt_id).filter(|_| found.stx_mask & StatxFlags::MNT_ID.bits() != 0)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// The settings of resolv.conf(5) besides resolvers.
const KEPT_SETTINGS: [&str; 4] = ["search", "domain", "options", "sortlist"];
/// The start of the second line of Warren's text. The record's path follows.
const MARKER: &str = "# warren-record ";
/// The prefix of records' names.
const PREFIX: &str = "resolv.conf.";
const LOCK: &str = "lock";
/// Maximum number of originals. It is enough for a laptop that roams for days. Older originals are forgotten.
const MOST_ORIGINALS: usize = 16;
/// Maximum number of tries to write the file. Each takes milliseconds. A program that has replaced the file first this many times
/// in a row will not stop.
const MOST_TRIES: usize = 10;

#[cfg(test)]
mod tests;
