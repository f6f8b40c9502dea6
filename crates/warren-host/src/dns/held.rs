//! The changes that one profile has made to the host's resolvers. Each is recorded before it is made, so that it can be undone
//! after a SIGKILL or a power cut.

use std::{
    fs::{self, DirBuilder, File},
    io, iter,
    net::IpAddr,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};
use serde::{Deserialize, Serialize};

use crate::{DeviceName, lock_file::open_lock_file};

use super::{
    DIRECTORY, DnsError, DnsPlan, command,
    method::{Method, RESOLVCONF, RESOLVECTL, Resolvconf, resolved_runs},
    nameserver_lines, nameservers,
    record::{Found, Record},
    state,
};

/// The record of one profile's changes, locked against other processes.
#[derive(Debug)]
pub(super) struct Held {
    directory: PathBuf,
    owner: String,
    note: Note,
    _alive: File,
}

/// The content of the record on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    methods: Vec<Method>,
    /// The name of the record of `resolv.conf`, if the profile changed that file.
    record: Option<String>,
}

/// Lists the profiles that have changed the resolvers, whether or not their daemons run.
///
/// # Errors
/// If the state directory cannot be read. A missing directory means no profiles.
pub fn owners(state: &Path) -> Result<Vec<String>, DnsError> {
    let directory = state.join(DIRECTORY);
    let failed = |source| DnsError::State { path: directory.clone(), source };
    let entries = match fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut owners = Vec::new();
    for entry in entries {
        let name = entry.map_err(failed)?.file_name();
        owners.extend(name.to_str().and_then(|name| name.strip_suffix(NOTE)).map(str::to_owned));
    }
    owners.sort_unstable();
    Ok(owners)
}

/// Puts back what the killed daemon of `owner` had replaced. Returns one phrase for each thing that was put back, for use in a
/// message.
///
/// # Errors
/// If a running daemon of `owner` still holds the DNS settings, or something cannot be put back.
pub async fn recover(state: &Path, owner: &str) -> Result<Vec<String>, DnsError> {
    let directory = state.join(DIRECTORY);
    if !note_path(&directory, owner).exists() {
        return Ok(Vec::new());
    }
    let held = Held::open(&directory, owner)?;
    let undone = held.note.methods.iter().rev().map(Method::to_string).collect();
    held.release().await?;
    Ok(undone)
}

impl Held {
    /// Opens and locks the record of `owner`.
    fn open(directory: &Path, owner: &str) -> Result<Self, DnsError> {
        let failed = |source| DnsError::State { path: directory.to_owned(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
        // The lock is a separate file, because each write replaces the record's file, and a lock on the old file would not
        // protect the new one.
        let lock = directory.join(format!("{owner}{LOCK}"));
        let alive = open_lock_file(&lock).map_err(failed)?;
        match flock(&alive, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Err(DnsError::Busy(lock)),
            locked => locked.map_err(|errno| failed(errno.into()))?,
        }
        let path = note_path(directory, owner);
        let failed = |source| DnsError::State { path: path.clone(), source };
        let note = match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).map_err(|error| failed(error.into()))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Note::default(),
            Err(error) => return Err(failed(error)),
        };
        Ok(Self { directory: directory.to_owned(), owner: owner.to_owned(), note, _alive: alive })
    }

    /// Carries out `plan`, after putting back the resolvers that a killed daemon of the same profile had replaced. If any part
    /// fails, nothing is set.
    pub(super) async fn take(plan: &DnsPlan) -> Result<Self, DnsError> {
        let mut held = Self::open(&plan.state, &plan.owner)?;
        held.put_back().await?;
        held.set(plan).await?;
        Ok(held)
    }

    /// Carries out another plan of the same profile. If the methods stay the same, the host's own resolvers are not restored in
    /// between.
    pub(super) async fn change(&mut self, plan: &DnsPlan) -> Result<(), DnsError> {
        // If the methods differ, the old change must be undone first, because a method can undo only its own change.
        if plan.methods != self.note.methods {
            self.put_back().await?;
        }
        self.set(plan).await
    }

    async fn set(&mut self, plan: &DnsPlan) -> Result<(), DnsError> {
        // The record is written before any change, and contains the name of the `resolv.conf` record that the change will use.
        let mut record = None;
        for method in &plan.methods {
            if let Method::File { path } = method {
                record = Some(Record::open(&self.directory, path)?.name());
            }
        }
        self.note = Note { methods: plan.methods.clone(), record };
        let path = note_path(&self.directory, &self.owner);
        let failed = |source| DnsError::State { path: path.clone(), source };
        let text = serde_json::to_vec_pretty(&self.note).map_err(|error| failed(error.into()))?;
        state::write(&path, &text).map_err(failed)?;
        for method in &plan.methods {
            if let Err(error) = self.make(method, plan).await {
                // An error of this undo is ignored, because the first error is more useful to the user.
                drop(self.put_back().await);
                return Err(error);
            }
        }
        Ok(())
    }

    async fn make(&self, method: &Method, plan: &DnsPlan) -> Result<(), DnsError> {
        match method {
            Method::Resolved { device } => {
                for (property, values) in plan.link_properties() {
                    let values = values.iter().map(String::as_str);
                    let arguments: Vec<&str> =
                        [property, device.as_str()].into_iter().chain(values).collect();
                    command::run(RESOLVECTL, &arguments, "").await?;
                }
            }
            Method::Resolvconf { entry, flavour } => {
                let lines = nameserver_lines(&plan.in_files());
                let arguments: Vec<&str> =
                    flavour.options().iter().copied().chain(iter::once(entry.as_str())).collect();
                command::run(RESOLVCONF, &arguments, &lines).await?;
            }
            Method::File { path } => {
                let mut record = Record::open(&self.directory, path)?;
                record.add(&self.owner, &plan.in_files(), plan.split.is_some())?;
            }
        }
        Ok(())
    }

    /// Repeats the changes that another program has undone. Returns whether there were any.
    pub(super) async fn repair(&self, plan: &DnsPlan) -> Result<bool, DnsError> {
        let mut repaired = false;
        for method in &self.note.methods {
            repaired |= match method {
                Method::File { path } => Record::open(&self.directory, path)?.repair()? != Found::Ours,
                Method::Resolved { .. } | Method::Resolvconf { .. } => {
                    let is_in_effect = method.is_in_effect(plan).await;
                    if !is_in_effect {
                        self.make(method, plan).await?;
                    }
                    !is_in_effect
                }
            };
        }
        Ok(repaired)
    }

    /// Undoes all changes and deletes the record.
    pub(super) async fn release(mut self) -> Result<(), DnsError> {
        self.put_back().await
    }

    async fn put_back(&mut self) -> Result<(), DnsError> {
        for method in self.note.methods.iter().rev() {
            self.unmake(method).await?;
        }
        self.note = Note::default();
        let path = note_path(&self.directory, &self.owner);
        state::remove(&path).map_err(|source| DnsError::State { path, source })
    }

    async fn unmake(&self, method: &Method) -> Result<(), DnsError> {
        match method {
            // systemd-resolved forgets a link's resolvers together with the link.
            Method::Resolved { device } if !(resolved_runs() && is_there(device)) => {}
            Method::Resolved { device } => {
                command::run(RESOLVECTL, &["revert", device.as_str()], "").await?;
            }
            Method::Resolvconf { entry, flavour } => {
                command::run(RESOLVCONF, &flavour.delete_options(entry), "").await?;
                // After a power cut, resolvconf's entry is gone, but the file that it wrote may still contain the entry's
                // resolvers.
                command::run(RESOLVCONF, &["-u"], "").await?;
            }
            Method::File { path } => {
                let mut record = Record::open(&self.directory, path)?;
                if record.remove(&self.owner)? {
                    return Ok(());
                }
                let other = self.note.record.as_ref().filter(|name| **name != record.name());
                let other = other.map(|name| self.directory.join(name)).filter(|other| other.exists());
                return other.map_or(Ok(()), |other| Err(DnsError::OtherNamespace(other)));
            }
        }
        Ok(())
    }
}

impl Method {
    /// Whether the change is still visible.
    async fn is_in_effect(&self, plan: &DnsPlan) -> bool {
        match self {
            Self::Resolved { device } => {
                let said = command::run(RESOLVECTL, &["dns", device.as_str()], "").await;
                // If systemd-resolved does not run, or the link is gone, nothing can be set, so the change counts as in effect.
                let Ok(said) = said else { return true };
                let known: Vec<&str> = said.split_whitespace().collect();
                plan.servers.iter().all(|server| known.contains(&server.to_string().as_str()))
            }
            Self::Resolvconf { .. } => {
                let text = fs::read_to_string(super::RESOLV_CONF).unwrap_or_default();
                let named = nameservers(&text);
                let servers = plan.in_files();
                // The file may list only resolvers on this host, which may forward queries to the tunnel's resolvers.
                let is_forwarded = plan.split.is_none() && named.iter().all(IpAddr::is_loopback);
                is_forwarded || servers.iter().any(|server| named.contains(server))
            }
            // The file itself does not show this. `repair` compares the file with its record.
            Self::File { .. } => true,
        }
    }
}

impl Resolvconf {
    /// The options that add an entry. The entry's name follows them.
    pub(super) fn options(self) -> &'static [&'static str] {
        match self {
            // These are wg-quick's options: `-x` makes the entry exclusive, so that no other entry's servers are used, and `-m 0`
            // gives it the lowest metric.
            Self::Openresolv => &["-x", "-m", "0", "-a"],
            Self::Debian => &["-a"],
        }
    }

    fn delete_options(self, entry: &str) -> Vec<&str> {
        match self {
            // With `-f`, the command succeeds even if the entry is gone already.
            Self::Openresolv => vec!["-f", "-d", entry],
            Self::Debian => vec!["-d", entry],
        }
    }
}

impl std::fmt::Display for Method {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Resolved { device } => write!(f, "resolvers of {device} in systemd-resolved"),
            Self::Resolvconf { entry, .. } => write!(f, "resolvconf entry {entry}"),
            Self::File { path } => write!(f, "{}", path.display()),
        }
    }
}

fn is_there(device: &DeviceName) -> bool {
    Path::new("/sys/class/net").join(device.as_str()).exists()
}

fn note_path(directory: &Path, owner: &str) -> PathBuf {
    directory.join(format!("{owner}{NOTE}"))
}

/// The suffix of records.
const NOTE: &str = ".held";
/// The suffix of locks, which show whether the daemon is alive.
const LOCK: &str = ".alive";
