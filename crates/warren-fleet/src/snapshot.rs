//! The link's copy on disk. With it, a restarted link can serve its exit, and notice that the store was restored from a backup.
//!
//! The file consists of a line of JSON for its head, a line for each key, and a last line with the SHA-256 of all lines before
//! it. The file is replaced as a whole.
//!
//! The head names the fleet and the exit, so that no exit ever uses another fleet's copy. A link claims the directory when it starts. Once
//! a command has cleared the directory, or another link has claimed it, the link writes nothing more there.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use warren_config::storage::{LockFile, write_atomic};
use warren_fleet_link::ExitId;

use crate::config::{FleetConfig, is_absent, is_there};
use crate::link::Pair;
use crate::meta::{Meta, Position};

const FORMAT: u32 = 2;

/// How long to wait while another process of this host changes the files.
const LOCK_WAIT: Duration = Duration::from_secs(5);

/// Whose copy a snapshot is: the exit that wrote it, and the name of its fleet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Owner {
    pub(crate) fleet: String,
    pub(crate) exit: ExitId,
}

impl Owner {
    pub(crate) fn of(config: &FleetConfig) -> Self {
        Self { fleet: config.fleet.clone(), exit: config.exit.clone() }
    }
}

/// The content of the link's copy on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Snapshot {
    pub(crate) owner: Owner,
    pub(crate) meta: Meta,
    pub(crate) position: Position,
    /// The revision of the copy.
    pub(crate) revision: i64,
    pub(crate) pairs: Vec<Pair>,
}

#[derive(Serialize, Deserialize)]
struct Head {
    warren_fleet_snapshot: u32,
    owner: Owner,
    meta: Meta,
    position: Position,
    revision: i64,
}

/// Why an undamaged snapshot cannot be read.
#[derive(Debug, thiserror::Error)]
#[error(
    "{} version of Warren has written it: its format is {format}, and this version knows {FORMAT}",
    if *format < FORMAT { "an older" } else { "a newer" }
)]
pub(crate) struct OtherFormat {
    format: u32,
}

/// The part of the head that every format has.
#[derive(Deserialize)]
struct Version {
    warren_fleet_snapshot: u32,
}

#[derive(Serialize, Deserialize)]
struct Line {
    key: String,
    modified: i64,
    /// In base64, because the roster is not text.
    value: String,
}

/// The paths of a link's files.
#[derive(Clone, Debug)]
pub(crate) struct StateDirectory {
    path: PathBuf,
    /// The name of the link's process, once it has claimed the directory.
    link: String,
}

impl StateDirectory {
    /// The directory `fleet` below the directory of Warren's state.
    pub(crate) fn new(state: &Path) -> Self {
        Self { path: state.join("fleet"), link: String::new() }
    }

    fn snapshot(&self) -> PathBuf {
        self.path.join("copy.snapshot")
    }

    /// The file with the name of the link that has claimed the directory.
    fn claim_file(&self) -> PathBuf {
        self.path.join("link")
    }

    fn position(&self) -> PathBuf {
        self.path.join("position.json")
    }

    /// Whether there is a copy.
    ///
    /// # Errors
    /// If the directory cannot be examined.
    pub(crate) fn has_copy(&self) -> anyhow::Result<bool> {
        is_there(&self.snapshot())
    }

    /// Whether a link has used the directory since it was cleared.
    ///
    /// # Errors
    /// If the directory cannot be examined.
    pub(crate) fn was_used(&self) -> anyhow::Result<bool> {
        Ok(is_there(&self.claim_file())? || self.has_copy()?)
    }

    /// Creates the directory, to which only its owner has access.
    ///
    /// # Errors
    /// If that fails.
    pub(crate) fn create(&self) -> anyhow::Result<()> {
        use std::os::unix::fs::DirBuilderExt as _;
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.path);
        made.with_context(|| format!("{} cannot be created; choose another --state-dir", self.path.display()))
    }

    /// Claims the directory for a link, and returns what `begin` has read. A command that clears the directory does so before or
    /// after this call, but not during it.
    ///
    /// # Errors
    /// If `begin` fails, or the claim cannot be written.
    pub(crate) fn claim<T>(
        &mut self,
        link: &str,
        begin: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let _lock = self.lock()?;
        let begun = begin()?;
        let file = self.claim_file();
        match write_atomic(&file, link.as_bytes(), 0o600) {
            Ok(()) => link.clone_into(&mut self.link),
            // On a full disk, the link takes over the claim of its predecessor, which has ended. If no link ran, the exit would let in
            // clients that were removed elsewhere.
            Err(error) => {
                let earlier = std::fs::read_to_string(&file).ok().filter(|earlier| !earlier.is_empty());
                self.link = earlier
                    .ok_or_else(|| anyhow!(error).context(format!("{} cannot be written", file.display())))?;
                tracing::error!(
                    "{} cannot be written, so the copy on this disk is not renewed; make room on the disk",
                    file.display()
                );
            }
        }
        Ok(begun)
    }

    /// Whether this link's claim still holds. A claim that cannot be read still holds.
    pub(crate) fn is_claimed(&self) -> bool {
        match std::fs::read(self.claim_file()) {
            Ok(link) => link == self.link.as_bytes(),
            Err(error) => !is_absent(&error),
        }
    }

    fn lock(&self) -> anyhow::Result<LockFile> {
        let path = self.path.join("lock");
        let locked = LockFile::acquire(&path, LOCK_WAIT);
        let locked = locked.with_context(|| format!("{} cannot be locked", path.display()))?;
        locked.with_context(|| format!("{} is locked by another process; try again", path.display()))
    }

    /// Takes the lock of the exit's link. Of two links, each would take the exit's socket from the other.
    ///
    /// # Errors
    /// If another link has it.
    pub(crate) fn lock_link(&self) -> anyhow::Result<LockFile> {
        /// A killed link keeps the lock until its last thread has ended.
        const WAIT: Duration = Duration::from_secs(1);
        // Only the directory's owner can open the directory.
        let lock = LockFile::of_directory(&self.path, WAIT)
            .with_context(|| format!("{} cannot be locked; check its file system", self.path.display()))?;
        lock.with_context(|| {
            format!(
                "another `warren fleet run` serves this exit already (it has locked {}); stop that one first",
                self.path.display()
            )
        })
    }

    /// Reads the copy, with the newest position. `None` if there is no copy.
    ///
    /// # Errors
    /// If it is damaged, or belongs to another exit or fleet.
    pub(crate) fn load(&self, owner: &Owner) -> anyhow::Result<Option<Snapshot>> {
        let path = self.snapshot();
        let bytes = match std::fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.with_context(|| format!("{} cannot be read", path.display()))?,
        };
        let mut snapshot = decode(&bytes).map_err(|error| {
            let what = match error.is::<OtherFormat>() {
                true => {
                    "cannot be used; delete it if the store is intact, and the link makes a new one; otherwise use that version"
                }
                false => "is damaged; delete it if the store is intact: the link makes a new one",
            };
            error.context(format!("{} {what}", path.display()))
        })?;
        if snapshot.owner != *owner {
            let Owner { fleet, exit } = &snapshot.owner;
            bail!(
                "{} is the copy of the exit {exit} of fleet {fleet:?}, and fleet.toml names the exit {} of fleet {:?}; correct \
                 fleet.toml, or delete the copy if this host has left that fleet",
                path.display(),
                owner.exit,
                owner.fleet
            );
        }
        let newer = self
            .load_position()?
            .filter(|it| it.fleet == snapshot.position.fleet && order(it) > order(&snapshot.position));
        // Only the position is replaced. The rows of the copy stay as they were saved.
        snapshot.position = newer.unwrap_or(snapshot.position);
        Ok(Some(snapshot))
    }

    /// The newest position on this disk, without reading all of the copy. `None` if there is none.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub(crate) fn newest_position(&self) -> anyhow::Result<Option<Position>> {
        use std::io::BufRead as _;
        let of_copy = match std::fs::File::open(self.snapshot()) {
            Err(error) if is_absent(&error) => None,
            file => {
                let mut first = String::new();
                io::BufReader::new(file?).read_line(&mut first)?;
                Some(serde_json::from_str::<Head>(&first)?.position)
            }
        };
        Ok(of_copy.into_iter().chain(self.load_position()?).max_by_key(order))
    }

    fn load_position(&self) -> anyhow::Result<Option<Position>> {
        match std::fs::read(self.position()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            read => {
                let bytes = read.with_context(|| format!("{} cannot be read", self.position().display()))?;
                let damaged =
                    || format!("{} is damaged; delete it if the store is intact", self.position().display());
                Ok(Some(serde_json::from_slice(&bytes).with_context(damaged)?))
            }
        }
    }

    /// Replaces the copy, if the link's claim still holds.
    ///
    /// # Errors
    /// If the copy cannot be written. In that case the old one is unchanged.
    pub(crate) fn save(&self, snapshot: &Snapshot) -> anyhow::Result<()> {
        self.write(&self.snapshot(), &encode(snapshot)?)
    }

    /// Replaces the position, if the link's claim still holds.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn save_position(&self, position: &Position) -> anyhow::Result<()> {
        self.write(&self.position(), &serde_json::to_vec(position)?)
    }

    fn write(&self, path: &Path, content: &[u8]) -> anyhow::Result<()> {
        let _lock = self.lock()?;
        if !self.is_claimed() {
            return Ok(());
        }
        // Only the owner may read the files, because clients' rows contain preshared keys.
        write_atomic(path, content, 0o600).with_context(|| format!("{} cannot be written", path.display()))
    }

    /// Removes the copy, and ends the claim of a link that still runs.
    ///
    /// # Errors
    /// If a file cannot be removed.
    pub(crate) fn clear(&self) -> anyhow::Result<()> {
        if !is_there(&self.path)? {
            return Ok(());
        }
        let _lock = self.lock()?;
        for path in [self.claim_file(), self.snapshot(), self.position()] {
            warren_host::durable_file::remove(&path)
                .with_context(|| format!("{} cannot be removed", path.display()))?;
        }
        Ok(())
    }
}

/// Orders positions from older to newer. The epoch counts first, because revisions of different epochs cannot be compared.
fn order(position: &Position) -> (u64, i64, i64, bool) {
    (position.epoch, position.revision, position.own, position.is_removed)
}

/// Writes a snapshot as the content of a file.
///
/// # Errors
/// If a key is not text.
pub(crate) fn encode(snapshot: &Snapshot) -> anyhow::Result<Vec<u8>> {
    let Snapshot { owner, meta, position, revision, pairs } = snapshot;
    let (owner, meta, position) = (owner.clone(), meta.clone(), position.clone());
    let head = Head { warren_fleet_snapshot: FORMAT, owner, meta, position, revision: *revision };
    let mut text = serde_json::to_string(&head)? + "\n";
    for pair in pairs {
        let Some(value) = &pair.value else { continue };
        let key = String::from_utf8(pair.key.clone()).context("a key is not text")?;
        text +=
            &serde_json::to_string(&Line { key, modified: pair.modified, value: STANDARD.encode(value) })?;
        text.push('\n');
    }
    let sum = checksum(text.as_bytes());
    text += &sum;
    text.push('\n');
    Ok(text.into_bytes())
}

/// Reads the content of a snapshot's file.
///
/// # Errors
/// If it is damaged, or of another version.
pub(crate) fn decode(bytes: &[u8]) -> anyhow::Result<Snapshot> {
    let text = std::str::from_utf8(bytes).context("it is not text")?;
    let (rest, sum) =
        text.strip_suffix('\n').and_then(|text| text.rsplit_once('\n')).context("its end is missing")?;
    // The checksum also covers the line feed before it.
    let body = text.get(..=rest.len()).unwrap_or_default();
    if checksum(body.as_bytes()) != sum {
        bail!("its checksum is wrong");
    }
    let mut lines = rest.lines();
    let first = lines.next().context("it is empty")?;
    let Version { warren_fleet_snapshot: format } =
        serde_json::from_str(first).context("its head cannot be read")?;
    if format != FORMAT {
        return Err(OtherFormat { format }.into());
    }
    let head: Head = serde_json::from_str(first).context("its head cannot be read")?;
    let pair = |line| {
        let Line { key, modified, value } = serde_json::from_str(line)?;
        anyhow::Ok(Pair::new(key, STANDARD.decode(value)?, modified))
    };
    let pairs = lines.map(pair).collect::<anyhow::Result<_>>()?;
    let Head { owner, meta, position, revision, .. } = head;
    Ok(Snapshot { owner, meta, position, revision, pairs })
}

fn checksum(bytes: &[u8]) -> String {
    digest(&SHA256, bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use warren_fleet_link::Pools;

    use super::*;

    fn owner(fleet: &str, exit: &str) -> Owner {
        Owner { fleet: fleet.to_owned(), exit: ExitId::try_from(exit.to_owned()).unwrap() }
    }

    fn snapshot() -> Snapshot {
        let pools = Pools { ipv4: None, ipv6: None };
        let meta = Meta { format: 1, id: "f".to_owned(), epoch: 2, pools, recoveries: Vec::new() };
        let position = Position {
            fleet: "f".to_owned(),
            epoch: 2,
            cluster: 7,
            revision: 100,
            own: 90,
            membership: Some(3),
            is_removed: false,
        };
        let pairs =
            vec![Pair::new("/warren/home/ro", [0, 255, 10], 5), Pair::new("/warren/home/cl/x", "{}", 9)];
        Snapshot { owner: owner("home", "a"), meta, position, revision: 100, pairs }
    }

    #[test]
    fn a_snapshot_comes_back() {
        assert_eq!(decode(&encode(&snapshot()).unwrap()).unwrap(), snapshot());
    }

    #[test]
    fn any_damage_is_noticed() {
        let bytes = encode(&snapshot()).unwrap();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(decode(&damaged).is_err(), "at {at}");
            assert!(decode(&bytes[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn a_copy_of_another_version_is_not_called_damaged() {
        let directory = tempfile::tempdir().unwrap();
        let state = claimed(directory.path(), "one");
        let refused = |format: u32| {
            let text = String::from_utf8(encode(&snapshot()).unwrap()).unwrap();
            let body = text.rsplit_once('\n').unwrap().0.rsplit_once('\n').unwrap().0.to_owned() + "\n";
            let body = body.replacen(
                &format!("\"warren_fleet_snapshot\":{FORMAT}"),
                &format!("\"warren_fleet_snapshot\":{format}"),
                1,
            );
            std::fs::write(state.snapshot(), format!("{body}{}\n", checksum(body.as_bytes()))).unwrap();
            state.load(&snapshot().owner).map_err(|error| format!("{error:#}"))
        };
        assert_eq!(refused(FORMAT), Ok(Some(snapshot())), "the control");
        for (format, who) in [(FORMAT - 1, "an older version"), (FORMAT + 1, "a newer version")] {
            let refused = refused(format).unwrap_err();
            assert!(!refused.contains("damaged") && refused.contains(who), "{refused}");
            assert!(refused.contains("delete it if the store is intact"), "{refused}");
        }
    }

    #[test]
    fn a_newer_position_counts_and_the_copy_keeps_its_age() {
        let directory = tempfile::tempdir().unwrap();
        let state = claimed(directory.path(), "one");
        let load = || state.load(&snapshot().owner);
        assert_eq!(load().unwrap(), None);
        state.save(&snapshot()).unwrap();
        let newer = Position { revision: 150, ..snapshot().position };
        state.save_position(&newer).unwrap();
        assert_eq!(load().unwrap().unwrap(), Snapshot { position: newer, ..snapshot() });

        // The removal of this exit counts as its own write.
        let removed = Position { own: 120, ..snapshot().position };
        state.save_position(&removed).unwrap();
        assert_eq!(load().unwrap().unwrap(), Snapshot { position: removed, ..snapshot() });

        let removed = Position { is_removed: true, ..snapshot().position };
        state.save_position(&removed).unwrap();
        assert_eq!(load().unwrap().unwrap(), Snapshot { position: removed, ..snapshot() });

        let other = Position { fleet: "g".to_owned(), revision: 200, ..snapshot().position };
        state.save_position(&other).unwrap();
        assert_eq!(load().unwrap().unwrap(), snapshot());
    }

    #[test]
    fn a_copy_of_another_fleet_or_exit_is_refused_and_named() {
        let directory = tempfile::tempdir().unwrap();
        let state = claimed(directory.path(), "one");
        state.save(&snapshot()).unwrap();
        for other in [owner("hom", "a"), owner("home", "b")] {
            let refused = state.load(&other).unwrap_err().to_string();
            assert!(
                refused.contains("copy of the exit a of fleet \"home\", and fleet.toml names"),
                "{refused}"
            );
        }
        // The control.
        assert!(state.load(&owner("home", "a")).unwrap().is_some());
    }

    #[test]
    fn a_link_writes_nothing_once_its_files_are_cleared_or_another_link_has_them() {
        let directory = tempfile::tempdir().unwrap();
        let first = claimed(directory.path(), "one");
        let is_there = || first.load(&snapshot().owner).unwrap().is_some();
        first.save(&snapshot()).unwrap();
        assert!(first.is_claimed() && first.was_used().unwrap() && is_there(), "the control");
        StateDirectory::new(directory.path()).clear().unwrap();
        assert!(!first.is_claimed() && !first.was_used().unwrap() && !is_there());
        first.save(&snapshot()).unwrap();
        first.save_position(&snapshot().position).unwrap();
        assert!(!is_there() && !first.position().exists());
        let second = claimed(directory.path(), "two");
        first.save(&snapshot()).unwrap();
        assert!(!is_there());
        second.save(&snapshot()).unwrap();
        assert!(is_there());
        // A link that cannot begin claims nothing.
        let mut third = StateDirectory::new(directory.path());
        assert!(third.claim("three", || std::fs::read("/nonexistent").context("no fleet.toml")).is_err());
        assert!(second.is_claimed());
    }

    fn claimed(directory: &Path, link: &str) -> StateDirectory {
        let mut state = StateDirectory::new(directory);
        state.create().unwrap();
        state.claim(link, || Ok(())).unwrap();
        state
    }
}
