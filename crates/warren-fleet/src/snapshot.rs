//! The link's copy on disk. With it, a restarted link can serve its exit, and notice that the store was restored from a backup.
//!
//! The file consists of a line of JSON for its head, a line for each key, and a last line with the SHA-256 of all lines before
//! it. The file is replaced as a whole.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use warren_config::storage::{LockFile, write_atomic};

use crate::link::Pair;
use crate::meta::{Meta, Position};

const FORMAT: u32 = 1;

/// The content of the link's copy on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Snapshot {
    pub(crate) meta: Meta,
    pub(crate) position: Position,
    /// The revision of the copy.
    pub(crate) revision: i64,
    pub(crate) pairs: Vec<Pair>,
}

#[derive(Serialize, Deserialize)]
struct Head {
    warren_fleet_snapshot: u32,
    meta: Meta,
    position: Position,
    revision: i64,
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
pub(crate) struct StateDirectory(PathBuf);

impl StateDirectory {
    /// The directory `fleet` below the directory of Warren's state.
    pub(crate) fn new(state: &Path) -> Self {
        Self(state.join("fleet"))
    }

    fn snapshot(&self) -> PathBuf {
        self.0.join("copy.snapshot")
    }

    fn position(&self) -> PathBuf {
        self.0.join("position.json")
    }

    /// Creates the directory, to which only its owner has access.
    ///
    /// # Errors
    /// If that fails.
    pub(crate) fn create(&self) -> anyhow::Result<()> {
        use std::os::unix::fs::DirBuilderExt as _;
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.0);
        made.with_context(|| format!("{} cannot be created; choose another --state-dir", self.0.display()))
    }

    /// Takes the lock of the exit's link. Of two links, each would take the exit's socket from the other.
    ///
    /// # Errors
    /// If another link has it.
    pub(crate) fn lock(&self) -> anyhow::Result<LockFile> {
        /// A killed link keeps the lock until its last thread has ended.
        const WAIT: Duration = Duration::from_secs(1);
        // No lock file is left when the exit leaves its fleet. Only the directory's owner can open the directory.
        let lock = LockFile::of_directory(&self.0, WAIT)
            .with_context(|| format!("{} cannot be locked; check its file system", self.0.display()))?;
        lock.with_context(|| {
            format!(
                "another `warren fleet run` serves this exit already (it has locked {}); stop that one first",
                self.0.display()
            )
        })
    }

    /// Reads the copy, with the newest position. `None` if there is no copy.
    ///
    /// # Errors
    /// If it is damaged.
    pub(crate) fn load(&self) -> anyhow::Result<Option<Snapshot>> {
        let path = self.snapshot();
        let bytes = match std::fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.with_context(|| format!("{} cannot be read", path.display()))?,
        };
        let damaged = || {
            format!(
                "{} is damaged; restore it from a backup, or delete it if the store is intact",
                path.display()
            )
        };
        let mut snapshot = decode(&bytes).with_context(damaged)?;
        let newer = self.load_position()?.filter(|it| {
            it.fleet == snapshot.position.fleet
                // The epoch counts first, because revisions of different epochs cannot be compared.
                && (it.epoch, it.revision) > (snapshot.position.epoch, snapshot.position.revision)
        });
        // Only the position is replaced. The rows of the copy stay as they were saved.
        snapshot.position = newer.unwrap_or(snapshot.position);
        Ok(Some(snapshot))
    }

    fn load_position(&self) -> anyhow::Result<Option<Position>> {
        match std::fs::read(self.position()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            read => {
                let bytes = read.with_context(|| format!("{} cannot be read", self.position().display()))?;
                let damaged =
                    || format!("{} is damaged; restore it from a backup", self.position().display());
                Ok(Some(serde_json::from_slice(&bytes).with_context(damaged)?))
            }
        }
    }

    /// Replaces the copy.
    ///
    /// # Errors
    /// If the copy cannot be written. In that case the old one is unchanged.
    pub(crate) fn save(&self, snapshot: &Snapshot) -> anyhow::Result<()> {
        let bytes = encode(snapshot)?;
        // Only the owner may read the file, because clients' rows contain preshared keys.
        write_atomic(&self.snapshot(), &bytes, 0o600)
            .with_context(|| format!("{} cannot be written", self.snapshot().display()))
    }

    /// Replaces the position.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn save_position(&self, position: &Position) -> anyhow::Result<()> {
        write_atomic(&self.position(), &serde_json::to_vec(position)?, 0o600)
            .with_context(|| format!("{} cannot be written", self.position().display()))
    }

    /// Removes both files.
    ///
    /// # Errors If one of them cannot be removed.
    pub(crate) fn clear(&self) -> anyhow::Result<()> {
        for path in [self.snapshot(), self.position()] {
            warren_host::durable_file::remove(&path)
                .with_context(|| format!("{} cannot be removed", path.display()))?;
        }
        Ok(())
    }
}

/// Writes a snapshot as the content of a file.
///
/// # Errors
/// If a key is not text.
pub(crate) fn encode(snapshot: &Snapshot) -> anyhow::Result<Vec<u8>> {
    let Snapshot { meta, position, revision, pairs } = snapshot;
    let (meta, position, revision) = (meta.clone(), position.clone(), *revision);
    let head = Head { warren_fleet_snapshot: FORMAT, meta, position, revision };
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
    let head: Head =
        serde_json::from_str(lines.next().context("it is empty")?).context("its head cannot be read")?;
    if head.warren_fleet_snapshot != FORMAT {
        bail!("its format is {}, and this version of Warren knows {FORMAT}", head.warren_fleet_snapshot);
    }
    let pair = |line| {
        let Line { key, modified, value } = serde_json::from_str(line)?;
        anyhow::Ok(Pair::new(key, STANDARD.decode(value)?, modified))
    };
    let pairs = lines.map(pair).collect::<anyhow::Result<_>>()?;
    Ok(Snapshot { meta: head.meta, position: head.position, revision: head.revision, pairs })
}

fn checksum(bytes: &[u8]) -> String {
    digest(&SHA256, bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use warren_fleet_link::Pools;

    use super::*;

    fn snapshot() -> Snapshot {
        let pools = Pools { ipv4: None, ipv6: None };
        let meta = Meta { format: 1, id: "f".to_owned(), epoch: 2, pools, recoveries: Vec::new() };
        let position = Position { fleet: "f".to_owned(), epoch: 2, cluster: 7, revision: 100, own: 90 };
        let pairs =
            vec![Pair::new("/warren/home/ro", [0, 255, 10], 5), Pair::new("/warren/home/cl/x", "{}", 9)];
        Snapshot { meta, position, revision: 100, pairs }
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
    fn a_newer_position_counts_and_the_copy_keeps_its_age() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDirectory::new(directory.path());
        state.create().unwrap();
        assert_eq!(state.load().unwrap(), None);
        state.save(&snapshot()).unwrap();
        let newer = Position { revision: 150, ..snapshot().position };
        state.save_position(&newer).unwrap();
        assert_eq!(state.load().unwrap().unwrap(), Snapshot { position: newer, ..snapshot() });

        let other = Position { fleet: "g".to_owned(), revision: 200, ..snapshot().position };
        state.save_position(&other).unwrap();
        assert_eq!(state.load().unwrap().unwrap(), snapshot());
    }
}
