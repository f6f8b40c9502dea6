//! The state that an exit of a fleet keeps across a restart besides its clients: when the store answered last, the revision of its copy,
//! its changes that the store may lack, and the addresses of the store.
//!
//! If the disk lacks a change that shuts a client out, the file has another name (`fleet.json.unsaved`). An exit that finds this name at
//! its start serves nobody until it has read the store.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use warren_config::ConfigError;
use warren_config::storage::write_atomic;
use warren_fleet_link::StoreMembers;
use warren_host::durable_file::remove;
use warren_session::exit::UnsentRow;

/// How much the saved time of the store's last answer may lag behind the true time.
const LAG: Duration = Duration::from_secs(300);

/// Maximum number of bytes that are read from the file.
const MOST_BYTES: u64 = 64 << 20;

/// The content of the file. Fields of other versions are ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Kept {
    /// When the store answered last, in seconds since 1970. `None` if it never answered.
    pub(super) answered: Option<u64>,
    /// The store's revision that the copy has reached.
    pub(super) revision: i64,
    /// Rows in force that the store may lack.
    pub(super) unsent: Vec<UnsentRow>,
    /// The store's members, each with its last known addresses.
    #[serde(default)]
    pub(super) members: StoreMembers,
    /// Whether the store has said that this exit was removed from the fleet.
    #[serde(default)]
    pub(super) is_removed: bool,
    /// Whether the exit's copy may have clients that were removed elsewhere. The exit then serves nobody until it has read the store.
    /// `warren fleet join` sets this.
    #[serde(default)]
    pub(super) must_hear: bool,
}

impl Kept {
    /// How long ago the store answered last. `None` if it never answered, or if the time cannot be
    /// represented.
    pub(super) fn age(&self, now: SystemTime) -> Option<Duration> {
        let answered = UNIX_EPOCH.checked_add(Duration::from_secs(self.answered?))?;
        // If the clock was set back, the answer counts as fresh.
        Some(now.duration_since(answered).unwrap_or_default())
    }
}

/// The file and its contents.
#[derive(Debug)]
pub(super) struct FleetFile {
    path: PathBuf,
    written: Kept,
    /// Whether a file with the other name exists, because the disk lacks a change that shuts a client out.
    is_aside: bool,
    /// The exit's copy has at least this revision, even if the link reports a lower one.
    floor: i64,
    /// How much the saved time of the store's latest answer may lag behind while the store answers.
    lag: Duration,
}

impl FleetFile {
    /// Reads the file, which is beside the clients' store. A missing file means that the exit is new in its fleet.
    ///
    /// # Errors
    /// When the file cannot be read or is damaged. The message says what to do.
    pub(super) fn read(store: &Path, max_staleness: Option<Duration>) -> anyhow::Result<(Self, Kept)> {
        let path = store.with_file_name("fleet.json");
        let aside = load(&aside(&path))?;
        let is_aside = aside.is_some();
        // After it was renamed, the file may have been written again.
        let kept = load(&path)?.or(aside).unwrap_or_default();
        let kept = Kept { must_hear: kept.must_hear || is_aside, ..kept };
        let lag = max_staleness.map_or(LAG, |time| (time / 10).clamp(Duration::from_secs(1), LAG));
        Ok((Self { path, written: kept.clone(), is_aside, floor: 0, lag }, kept))
    }

    /// Makes a restarted exit read the store before it serves anybody, because a change that shuts a client out could not be written.
    /// Unlike writing, renaming needs no room on the disk.
    pub(super) fn set_aside(&mut self) {
        if self.is_aside {
            return;
        }
        let aside = aside(&self.path);
        let renamed = match std::fs::rename(&self.path, &aside) {
            // An empty file needs little room.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                std::fs::File::create(&aside).map(drop)
            }
            renamed => renamed,
        };
        self.is_aside = renamed.is_ok();
    }

    /// Records that the disk has everything.
    pub(super) fn has_saved_all(&mut self) {
        if self.is_aside {
            self.is_aside = remove(&aside(&self.path)).is_err();
        }
    }

    /// Prevents lower revisions from being written from now on.
    pub(super) fn stay_at(&mut self, revision: i64) {
        self.floor = revision;
    }

    /// The lowest revision that may be written.
    pub(super) fn floor(&self) -> i64 {
        self.floor
    }

    /// The time after which a later answer of the store must be written.
    pub(super) fn lag(&self) -> Duration {
        self.lag
    }

    /// The revision that was written last.
    pub(super) fn revision(&self) -> i64 {
        self.written.revision
    }

    /// Whether a restarted exit must read the store before it serves anybody.
    pub(super) fn must_hear(&self) -> bool {
        self.written.must_hear
    }

    /// Whether `warren fleet join` has replaced the file while the exit runs.
    pub(super) fn was_replaced(&self) -> bool {
        /// The command's file is shorter, and only a short file is worth reading each time.
        const LONGEST: u64 = 200;
        let is_short = self.path.metadata().is_ok_and(|metadata| metadata.len() < LONGEST);
        let has_order = || load(&self.path).is_ok_and(|kept| kept.is_some_and(|kept| kept.must_hear));
        is_short && !self.written.must_hear && has_order()
    }

    /// Writes the changes. If only the time of the store's last answer has changed, writes it only now and then.
    ///
    /// # Errors
    /// When the file cannot be written. In that case it is unchanged.
    pub(super) fn keep(&mut self, kept: Kept) -> Result<(), ConfigError> {
        let kept = Kept { revision: kept.revision.max(self.floor), ..kept };
        // If the clock has been set back since, the written time may be in the future. Then it must be written again.
        let waited = kept.answered.unwrap_or_default().abs_diff(self.written.answered.unwrap_or_default());
        let is_same = kept.unsent == self.written.unsent
            && kept.members == self.written.members
            && kept.is_removed == self.written.is_removed
            && kept.must_hear == self.written.must_hear
            && kept.revision == self.written.revision;
        if is_same && !self.is_aside && waited < self.lag.as_secs() {
            return Ok(());
        }
        self.write(kept)
    }

    /// Writes the file, unless nothing has changed.
    ///
    /// # Errors
    /// As [`Self::keep`].
    pub(super) fn write(&mut self, kept: Kept) -> Result<(), ConfigError> {
        if kept == self.written && !self.is_aside {
            return Ok(());
        }
        let failed = |error: std::io::Error| {
            ConfigError::of_file(&self.path, format!("cannot be written: {error}; check its directory"))
        };
        let text = serde_json::to_vec(&kept).map_err(|error| failed(error.into()))?;
        write_atomic(&self.path, &text, 0o600).map_err(failed)?;
        self.written = kept;
        Ok(())
    }
}

/// The file's other name.
fn aside(path: &Path) -> PathBuf {
    path.with_extension("json.unsaved")
}

/// Reads the file. `None` if it does not exist.
fn load(path: &Path) -> anyhow::Result<Option<Kept>> {
    let damaged = |why: String| {
        let sentence = format!(
            "cannot be read: {why}; it may contain removals that the fleet does not know yet, so restore it from a backup, or remove it and remove those clients again"
        );
        ConfigError::of_file(path, sentence)
    };
    let file = match warren_host::open_plain(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(|error| damaged(error.to_string()))?,
    };
    // `FleetFile::set_aside` may have made an empty file.
    if path.extension().is_some_and(|end| end == "unsaved") && file.metadata().is_ok_and(|it| it.len() == 0) {
        return Ok(Some(Kept::default()));
    }
    let file = std::io::BufReader::new(std::io::Read::take(file, MOST_BYTES));
    Ok(Some(serde_json::from_reader(file).map_err(|error| damaged(error.to_string()))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_read_again_and_damage_is_one_sentence() {
        let directory = tempfile::tempdir().unwrap();
        let store = directory.path().join("clients.store");
        let (mut file, kept) = FleetFile::read(&store, None).unwrap();
        assert_eq!(kept, Kept::default());
        assert_eq!(kept.age(SystemTime::now()), None);
        let answered = Some(1_800_000_000);
        file.keep(Kept { answered, revision: 7, ..Kept::default() }).unwrap();
        let (mut file, kept) = FleetFile::read(&store, None).unwrap();
        assert_eq!((kept.answered, kept.revision), (answered, 7));
        let later = UNIX_EPOCH + Duration::from_secs(1_800_000_060);
        assert_eq!(kept.age(later), Some(Duration::from_secs(60)));
        assert_eq!(kept.age(UNIX_EPOCH), Some(Duration::ZERO), "a clock that was set back");
        // A later answer alone is written only when the written one is old.
        file.keep(Kept { answered: Some(1_800_000_299), ..kept.clone() }).unwrap();
        assert_eq!(FleetFile::read(&store, None).unwrap().1, kept);
        file.keep(Kept { answered: Some(1_800_000_300), ..kept }).unwrap();
        assert_eq!(FleetFile::read(&store, None).unwrap().1.answered, Some(1_800_000_300));
        file.keep(Kept { answered: Some(1_799_900_000), ..Kept::default() }).unwrap();
        assert_eq!(
            FleetFile::read(&store, None).unwrap().1.answered,
            Some(1_799_900_000),
            "the clock was set back"
        );
        let older = r#"{"answered": 5, "revision": 7, "unsent": [], "store": [], "is_store_known": true}"#;
        std::fs::write(directory.path().join("fleet.json"), older).unwrap();
        assert_eq!(
            FleetFile::read(&store, None).unwrap().1.answered,
            Some(5),
            "a file of an earlier version"
        );
        std::fs::write(directory.path().join("fleet.json"), "{").unwrap();
        let error = FleetFile::read(&store, None).unwrap_err().to_string();
        assert!(error.contains("fleet.json") && error.contains("restore it"), "{error}");
    }
}
