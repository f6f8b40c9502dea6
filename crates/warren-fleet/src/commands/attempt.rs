//! Records how far `warren fleet join` has come on this host. The attempt's file is written before the ticket is used. So the
//! host can prove that it has used the ticket, and a later command can finish or undo what a killed one has begun.
//!
//! The order of steps: write the attempt's file, the store's credentials, and `fleet.toml` under another name. Use the ticket.
//! Rename `fleet.toml`. Write the attempt's file again, without the names of the credentials. While it names credentials, they
//! belong to an unfinished attempt.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};
use warren_host::durable_file::{remove, remove_abandoned, rename};

use super::files::{ATTEMPT, credentials_directory, write, write_config_at};
use super::ticket::Ticket;
use crate::config::{FleetConfig, StoreConfig};
use crate::planted::reached;
use crate::run::random_name;
use crate::users::Grant;

/// The names that the store's credentials may have.
const CREDENTIALS: [&str; 4] = ["store-ca.pem", "store.pem", "store.key", "store.password"];

/// A host's attempt to join with a ticket.
pub(super) struct Attempt {
    directory: PathBuf,
    /// The ticket's digest.
    ticket: String,
    /// The random text that this host has drawn.
    pub(super) host: String,
    /// Whether an earlier attempt was with the same ticket.
    pub(super) is_again: bool,
}

/// The file's content.
#[derive(Serialize, Deserialize)]
struct Kept {
    ticket: String,
    host: String,
    /// The credentials that the attempt may have written. Unset once it has succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unfinished: Option<Vec<String>>,
}

impl Kept {
    /// Reads the file. `None` if it does not exist or is damaged.
    ///
    /// # Errors
    /// If the file exists but cannot be read.
    fn read(directory: &Path) -> anyhow::Result<Option<Self>> {
        let path = file_of(directory);
        match std::fs::read(&path) {
            // A damaged one proves nothing.
            Ok(text) => Ok(serde_json::from_slice(&text).ok()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("{} cannot be read", path.display())),
        }
    }
}

fn file_of(directory: &Path) -> PathBuf {
    credentials_directory(directory).join(ATTEMPT)
}

/// The name of `fleet.toml` until the ticket is used.
fn pending_path(directory: &Path) -> PathBuf {
    FleetConfig::path(directory).with_extension("toml.joining")
}

/// The random text that this host has drawn for the ticket with which it has joined. `None` if it did not join with one.
pub(super) fn host_of_join(directory: &Path) -> Option<String> {
    Kept::read(directory).ok()?.map(|kept| kept.host)
}

impl Attempt {
    /// Reads the file of an earlier attempt with the same ticket, or draws a new random text.
    ///
    /// # Errors
    /// If the file of an earlier attempt cannot be read.
    pub(super) fn of(directory: &Path, ticket: &Ticket) -> anyhow::Result<Self> {
        // A killed command may have left secrets.
        [directory, &credentials_directory(directory)].into_iter().for_each(remove_abandoned);
        let (kept, ticket) = (Kept::read(directory)?, ticket.digest());
        let directory = directory.to_owned();
        Ok(match kept.filter(|kept| kept.ticket == ticket) {
            Some(Kept { host, .. }) => Self { directory, ticket, host, is_again: true },
            None => Self { directory, ticket, host: random_name()?, is_again: false },
        })
    }

    /// Writes everything that the exit needs, before the ticket is used.
    ///
    /// # Errors
    /// If one of the files cannot be written.
    pub(super) fn begin(&self, files: &Files) -> anyhow::Result<()> {
        self.keep(Some(files.names()))?;
        reached("attempt kept");
        files.write()?;
        reached("credentials written");
        write_config_at(&pending_path(&self.directory), &files.config)?;
        reached("configuration pending");
        Ok(())
    }

    /// Gives `fleet.toml` its name, because the ticket was used.
    ///
    /// # Errors
    /// If a file cannot be renamed or written.
    pub(super) fn finish(&self) -> anyhow::Result<()> {
        if !FleetConfig::path(&self.directory).exists() {
            give_name(&self.directory)?;
        }
        reached("configuration named");
        if Kept::read(&self.directory)?.is_none_or(|kept| kept.unfinished.is_some()) {
            self.keep(None)?;
        }
        Ok(())
    }

    /// Undoes an attempt that has failed for good. Without `fleet.toml` the exit belongs to no fleet, and the ticket still
    /// contains the secrets.
    pub(super) fn undo(&self, files: &Files) {
        let kept = Kept::read(&self.directory).ok().flatten();
        if kept.is_some_and(|kept| kept.ticket == self.ticket) {
            undo(&self.directory, &files.names());
        }
    }

    fn keep(&self, unfinished: Option<Vec<String>>) -> anyhow::Result<()> {
        let kept = Kept { ticket: self.ticket.clone(), host: self.host.clone(), unfinished };
        write(&file_of(&self.directory), &serde_json::to_vec(&kept)?)
    }
}

fn give_name(directory: &Path) -> anyhow::Result<()> {
    let (pending, path) = (pending_path(directory), FleetConfig::path(directory));
    rename(&pending, &path).with_context(|| format!("{} cannot be renamed", pending.display()))
}

/// Removes the files of an attempt, and the attempt's own file last. So if this command is killed, the next one can continue.
fn undo(directory: &Path, credentials: &[String]) {
    let own = credentials_directory(directory);
    let _ = remove(&pending_path(directory));
    for name in credentials {
        let _ = remove(&own.join(name));
    }
    reached("credentials removed");
    let _ = remove(&own.join(ATTEMPT));
    // Fails if an operator has put another file there. That file stays.
    let _ = std::fs::remove_dir(own);
}

/// An attempt with another ticket that has neither succeeded nor failed for good.
pub(super) struct Earlier {
    directory: PathBuf,
    kept: Kept,
    credentials: Vec<String>,
}

impl Earlier {
    /// The earlier attempt, if there is one. There must be no `fleet.toml`.
    pub(super) fn find(directory: &Path) -> Option<Self> {
        let mut kept = Kept::read(directory).ok()??;
        let mut credentials = kept.unfinished.take()?;
        // An operator may edit this file. Other names in it must not cause the removal of other files.
        credentials.retain(|name| CREDENTIALS.contains(&name.as_str()));
        Some(Self { directory: directory.to_owned(), kept, credentials })
    }

    /// The `fleet.toml` that it has written before it used its ticket.
    pub(super) fn config(&self) -> Option<FleetConfig> {
        FleetConfig::read_at(&self.pending()).ok()
    }

    pub(super) fn pending(&self) -> PathBuf {
        pending_path(&self.directory)
    }

    /// Whether the store says that this host has used this attempt's ticket.
    pub(super) fn is_of(&self, grant: &Grant) -> bool {
        let used =
            Grant { ticket: self.kept.ticket.clone(), host: Some(self.kept.host.clone()), is_ending: false };
        *grant == used
    }

    /// Gives `fleet.toml` its name, because the ticket was used.
    ///
    /// # Errors
    /// If a file cannot be renamed or written.
    pub(super) fn finish(self) -> anyhow::Result<()> {
        let Self { directory, kept, .. } = self;
        give_name(&directory)?;
        Attempt { directory, ticket: kept.ticket, host: kept.host, is_again: true }.keep(None)
    }

    /// Undoes the attempt. Its ticket was not used, and will not be used by it.
    pub(super) fn undo(self) {
        undo(&self.directory, &self.credentials);
    }
}

/// The files that joining writes: the ticket's credentials, and the `fleet.toml` that names them.
pub(super) struct Files {
    pub(super) config: FleetConfig,
    credentials: Vec<(PathBuf, String)>,
}

impl Files {
    /// The files to write. `is_again`: an earlier attempt with this ticket may have left them.
    ///
    /// # Errors
    /// If one of them exists.
    pub(super) fn of(directory: &Path, ticket: &Ticket, is_again: bool) -> anyhow::Result<Self> {
        let mut credentials = Vec::new();
        let mut file = |name: &str, content: Option<&String>| {
            let Some(content) = content else { return Ok(None) };
            let path = std::path::absolute(credentials_directory(directory).join(name))?;
            // Unlike `exists`, this also finds a link that leads nowhere.
            if !is_again && std::fs::symlink_metadata(&path).is_ok() {
                bail!("{} exists and stays as it is; move it away, then run this again", path.display());
            }
            credentials.push((path.clone(), content.clone()));
            Ok(Some(path))
        };
        let [ca, certificate, key, password] = CREDENTIALS;
        let identity = ticket.identity.as_ref();
        let store = StoreConfig {
            endpoints: ticket.endpoints.clone(),
            ca: file(ca, ticket.ca.as_ref())?,
            certificate: file(certificate, identity.map(|(certificate, _)| certificate))?,
            key: file(key, identity.map(|(_, key)| key))?,
            user: ticket.user.as_ref().map(|(user, _)| user.clone()),
            password_file: file(password, ticket.user.as_ref().map(|(_, password)| password))?,
        };
        let config = FleetConfig { fleet: ticket.fleet.clone(), exit: ticket.exit.clone(), store };
        Ok(Self { config, credentials })
    }

    fn names(&self) -> Vec<String> {
        let names = self.credentials.iter().filter_map(|(path, _)| path.file_name()?.to_str());
        names.map(str::to_owned).collect()
    }

    fn write(&self) -> anyhow::Result<()> {
        self.credentials.iter().try_for_each(|(path, content)| write(path, content.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::ticket::tests::a_ticket;
    use super::*;

    #[test]
    fn a_refused_join_leaves_no_secret_and_touches_no_file_that_was_there() {
        let directory = tempfile::tempdir().unwrap();
        let files = Files::of(directory.path(), &a_ticket(), false).unwrap();
        let attempt = Attempt::of(directory.path(), &a_ticket()).unwrap();
        attempt.begin(&files).unwrap();
        assert!(directory.path().join("fleet/store.password").exists());
        assert!(!FleetConfig::path(directory.path()).exists(), "the ticket is not used");
        attempt.undo(&files);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);

        let own = directory.path().join("fleet/store.password");
        std::fs::create_dir(own.parent().unwrap()).unwrap();
        std::fs::write(&own, "mine").unwrap();
        let refused = Files::of(directory.path(), &a_ticket(), false).map(|_| ()).unwrap_err().to_string();
        assert!(refused.contains("store.password exists"), "{refused}");
        // Nothing of this attempt is there.
        attempt.undo(&files);
        assert_eq!(std::fs::read_to_string(&own).unwrap(), "mine");
    }

    #[test]
    fn an_attempt_is_known_again_by_its_ticket_and_another_ticket_begins_another() {
        let directory = tempfile::tempdir().unwrap();
        let first = Attempt::of(directory.path(), &a_ticket()).unwrap();
        assert!(!first.is_again && Earlier::find(directory.path()).is_none());
        let files = Files::of(directory.path(), &a_ticket(), true).unwrap();
        first.begin(&files).unwrap();
        let again = Attempt::of(directory.path(), &a_ticket()).unwrap();
        assert!(again.is_again && again.host == first.host);
        let other = Ticket { secret: "y".to_owned(), ..a_ticket() };
        assert!(!Attempt::of(directory.path(), &other).unwrap().is_again);
        // Files of the earlier attempt are no obstacle. Files of another one are.
        assert!(Files::of(directory.path(), &a_ticket(), true).is_ok());
        assert!(Files::of(directory.path(), &other, false).is_err());

        // A file that the attempt could not have written stays, whatever its own file says.
        let foreign = directory.path().join("fleet.key");
        std::fs::write(&foreign, "secret").unwrap();
        first.keep(Some([&["../fleet.key".to_owned()][..], &files.names()].concat())).unwrap();
        let earlier = Earlier::find(directory.path()).unwrap();
        assert_eq!(earlier.config().as_ref(), Some(&files.config));
        earlier.undo();
        assert!(foreign.exists() && Files::of(directory.path(), &other, false).is_ok());
        // The control: nothing of a successful attempt is undone.
        first.begin(&files).unwrap();
        first.finish().unwrap();
        assert!(Earlier::find(directory.path()).is_none());
        assert!(FleetConfig::read(directory.path()).is_ok() && !pending_path(directory.path()).exists());
    }
}
