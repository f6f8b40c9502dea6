//! Records how far `warren fleet join` has come on this host. The attempt's file is written before the ticket is used. With this
//! file, the host can prove that it has used the ticket, and a later command can finish or undo what a killed command has begun.
//!
//! The order of steps: write the attempt's file, the store's credentials, and `fleet.toml` under another name. Use the ticket.
//! Rename `fleet.toml`. Write the attempt's file again, without the names of the credentials. As long as the attempt's file names
//! credentials, they belong to an unfinished attempt.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};
use warren_host::durable_file::{remove_abandoned, rename};

use super::files::{ATTEMPT, credentials_directory, forget, write, write_config_at};
use super::ticket::Ticket;
use crate::config::{FleetConfig, StoreConfig, is_absent, is_there};
use crate::exits::{Member, new_number};
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
    /// The number of the membership that the attempt begins. `None` if an earlier release has begun the attempt.
    membership: Option<u64>,
    /// The names of the credentials that the attempt writes.
    credentials: Vec<String>,
    /// Whether an earlier command with the same ticket has left the attempt's file.
    pub(super) is_again: bool,
}

/// The file's content.
#[derive(Serialize, Deserialize)]
struct Kept {
    ticket: String,
    host: String,
    /// A link that has never read the store learns its membership from this number (`joined.rs`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    membership: Option<u64>,
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
            // A damaged file proves nothing, so it counts as absent.
            Ok(text) => Ok(serde_json::from_slice(&text).ok()),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(error).with_context(|| format!("{} cannot be read", path.display())),
        }
    }
}

fn file_of(directory: &Path) -> PathBuf {
    credentials_directory(directory).join(ATTEMPT)
}

/// The random text that this host has drawn for the ticket with which it has joined. `None` if the host did not join with a ticket.
///
/// # Errors
/// If the attempt's file exists but cannot be read.
pub(super) fn host_of_join(directory: &Path) -> anyhow::Result<Option<String>> {
    Ok(Kept::read(directory)?.map(|kept| kept.host))
}

impl Attempt {
    /// Reads the file of an earlier attempt with the same ticket, or draws a new random text.
    ///
    /// # Errors
    /// If the file of an earlier attempt cannot be read.
    pub(super) fn of(directory: &Path, ticket: &Ticket) -> anyhow::Result<Self> {
        // A killed command may have left parts of secrets.
        [directory, &credentials_directory(directory)].into_iter().for_each(remove_abandoned);
        let digest = ticket.digest();
        let earlier = Kept::read(directory)?.filter(|kept| kept.ticket == digest);
        let is_again = earlier.is_some();
        let (host, membership) = match earlier {
            Some(kept) => (kept.host, kept.membership),
            None => (random_name()?, Some(new_number()?)),
        };
        let credentials = credentials_of(ticket).into_iter().map(|(name, _)| name.to_owned()).collect();
        Ok(Self { directory: directory.to_owned(), ticket: digest, host, membership, credentials, is_again })
    }

    /// Finds an attempt that has neither succeeded nor failed for good, whichever ticket it uses.
    ///
    /// # Errors
    /// If its file cannot be read.
    pub(super) fn find(directory: &Path) -> anyhow::Result<Option<Self>> {
        let Some(Kept { ticket, host, membership, unfinished: Some(mut credentials) }) =
            Kept::read(directory)?
        else {
            return Ok(None);
        };
        // An operator may edit this file. Unknown names in the file must not cause the removal of other files.
        credentials.retain(|name| CREDENTIALS.contains(&name.as_str()));
        let directory = directory.to_owned();
        Ok(Some(Self { directory, ticket, host, membership, credentials, is_again: true }))
    }

    /// The first value of the exit in the fleet. Each try with the same ticket has the same value, unless an earlier
    /// release has begun the attempt.
    ///
    /// # Errors
    /// If the operating system gives no random bytes.
    pub(super) fn member(&self) -> anyhow::Result<Member> {
        self.membership.map_or_else(Member::joining, |number| Ok(Member::joining_as(number)))
    }

    /// The name of `fleet.toml` until the ticket is used.
    pub(super) fn pending(&self) -> PathBuf {
        FleetConfig::path(&self.directory).with_extension("toml.joining")
    }

    /// Reads the `fleet.toml` that this attempt wrote under a temporary name. `None` if it is not written yet, or has been
    /// renamed.
    ///
    /// # Errors
    /// If the file cannot be read, or is wrong.
    pub(super) fn pending_config(&self) -> anyhow::Result<Option<FleetConfig>> {
        FleetConfig::find_at(&self.pending())
    }

    /// Whether this attempt has already renamed its temporary file to `fleet.toml`. An operator may have edited `fleet.toml`
    /// since.
    ///
    /// # Errors
    /// If the exit belongs to another fleet, or the file cannot be read or is wrong.
    pub(super) fn is_named(&self, ticket: &Ticket) -> anyhow::Result<bool> {
        let Some(config) = FleetConfig::find_at(&FleetConfig::path(&self.directory))? else {
            FleetConfig::check_free(&self.directory)?;
            return Ok(false);
        };
        let is_of_ticket = config.fleet == ticket.fleet && config.exit == ticket.exit;
        // Once the attempt has renamed its file, the temporary name is gone.
        if !self.is_again || !is_of_ticket || is_there(&self.pending())? {
            FleetConfig::check_free(&self.directory)?;
        }
        Ok(true)
    }

    /// Writes everything that the exit needs, before the ticket is used.
    ///
    /// # Errors
    /// If one of the files cannot be written.
    pub(super) fn begin(&self, files: &Files) -> anyhow::Result<()> {
        self.keep(Some(self.credentials.clone()))?;
        reached("attempt kept");
        files.write()?;
        reached("credentials written");
        write_config_at(&self.pending(), &files.config)?;
        reached("configuration pending");
        Ok(())
    }

    /// Renames the temporary file to `fleet.toml`, because the ticket was used.
    ///
    /// # Errors
    /// If a file cannot be read, renamed or written.
    pub(super) fn finish(&self) -> anyhow::Result<()> {
        let (pending, path) = (self.pending(), FleetConfig::path(&self.directory));
        if !is_there(&path)? {
            rename(&pending, &path).with_context(|| format!("{} cannot be renamed", pending.display()))?;
        }
        reached("configuration named");
        if Kept::read(&self.directory)?.is_none_or(|kept| kept.unfinished.is_some()) {
            self.keep(None)?;
        }
        Ok(())
    }

    /// Undoes an attempt that has failed for good. Does nothing if the attempt has not begun. Nothing is lost: without
    /// `fleet.toml` the exit belongs to no fleet, and the ticket still contains the credentials.
    ///
    /// # Errors
    /// If a file cannot be read or removed. The attempt's own file is removed last, so the next command can continue.
    pub(super) fn undo(&self) -> anyhow::Result<()> {
        // Another attempt may have used the same ticket.
        let is_begun = Kept::read(&self.directory)?
            .is_some_and(|kept| kept.ticket == self.ticket && kept.host == self.host);
        if !is_begun {
            return Ok(());
        }
        let own = credentials_directory(&self.directory);
        forget(&self.pending())?;
        self.credentials.iter().try_for_each(|name| forget(&own.join(name)))?;
        reached("credentials removed");
        forget(&own.join(ATTEMPT))?;
        // If an operator has put another file into the directory, this fails, and the file and the directory stay.
        let _ = std::fs::remove_dir(own);
        Ok(())
    }

    /// The exit's grant once this host has used this attempt's ticket.
    pub(super) fn grant(&self) -> Grant {
        Grant { ticket: self.ticket.clone(), host: Some(self.host.clone()), is_ending: false }
    }

    fn keep(&self, unfinished: Option<Vec<String>>) -> anyhow::Result<()> {
        let (ticket, host) = (self.ticket.clone(), self.host.clone());
        let kept = Kept { ticket, host, membership: self.membership, unfinished };
        write(&file_of(&self.directory), &serde_json::to_vec(&kept)?)
    }
}

/// Refuses to begin a fleet on a host where a join was interrupted: the join may have made the host an exit of another fleet.
///
/// # Errors
/// If a join was interrupted, or its file cannot be read.
pub(super) fn check_not_joining(directory: &Path) -> anyhow::Result<()> {
    let Some(attempt) = Attempt::find(directory)? else { return Ok(()) };
    bail!(
        "an earlier `warren fleet join` was interrupted and may have made this host an exit of another fleet; run `warren fleet join` again \
         with its ticket, or delete {} and {} to give it up",
        file_of(directory).display(),
        attempt.pending().display()
    )
}

/// The store's credentials in a ticket, each with the name of its file.
fn credentials_of(ticket: &Ticket) -> Vec<(&'static str, &String)> {
    let identity = ticket.identity.as_ref();
    // The contents are in the order of `CREDENTIALS`.
    let contents = [
        ticket.ca.as_ref(),
        identity.map(|(certificate, _)| certificate),
        identity.map(|(_, key)| key),
        ticket.user.as_ref().map(|(_, password)| password),
    ];
    CREDENTIALS.into_iter().zip(contents).filter_map(|(name, content)| Some((name, content?))).collect()
}

/// The files that joining writes: the ticket's credentials, and the `fleet.toml` that names them.
pub(super) struct Files {
    pub(super) config: FleetConfig,
    credentials: Vec<(PathBuf, String)>,
}

impl Files {
    /// The files to write. `is_again`: an earlier attempt with this ticket may have left these files.
    ///
    /// # Errors
    /// If one of the files exists, or cannot be examined.
    pub(super) fn of(directory: &Path, ticket: &Ticket, is_again: bool) -> anyhow::Result<Self> {
        let own = std::path::absolute(credentials_directory(directory))?;
        let credentials: Vec<(PathBuf, String)> = credentials_of(ticket)
            .into_iter()
            .map(|(name, content)| (own.join(name), content.clone()))
            .collect();
        for (path, _) in credentials.iter().filter(|_| !is_again) {
            // Unlike `exists`, this call also finds a dangling symbolic link.
            match std::fs::symlink_metadata(path) {
                Err(error) if is_absent(&error) => {}
                Err(error) => {
                    return Err(error).with_context(|| format!("{} cannot be read", path.display()));
                }
                Ok(_) => {
                    bail!("{} exists and stays as it is; move it away, then run this again", path.display())
                }
            }
        }
        let [ca, certificate, key, password_file] = CREDENTIALS.map(|name| {
            let path = own.join(name);
            credentials.iter().any(|(written, _)| *written == path).then_some(path)
        });
        let user = ticket.user.as_ref().map(|(user, _)| user.clone());
        let endpoints = ticket.endpoints.clone();
        let store = StoreConfig { endpoints, ca, certificate, key, user, password_file };
        let config = FleetConfig { fleet: ticket.fleet.clone(), exit: ticket.exit.clone(), store };
        Ok(Self { config, credentials })
    }

    fn write(&self) -> anyhow::Result<()> {
        self.credentials.iter().try_for_each(|(path, content)| write(path, content.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::files::write_config;
    use super::super::ticket::tests::a_ticket;
    use super::*;
    use crate::joined::joined_as;

    /// An attempt that has written its files, in a new directory.
    fn begun() -> (tempfile::TempDir, Attempt, Files) {
        let directory = tempfile::tempdir().unwrap();
        let files = Files::of(directory.path(), &a_ticket(), false).unwrap();
        let attempt = Attempt::of(directory.path(), &a_ticket()).unwrap();
        attempt.begin(&files).unwrap();
        (directory, attempt, files)
    }

    fn found(directory: &tempfile::TempDir) -> Option<Attempt> {
        Attempt::find(directory.path()).unwrap()
    }

    #[test]
    fn a_refused_join_leaves_no_secret_and_touches_no_file_that_was_there() {
        let (directory, attempt, _) = begun();
        assert!(directory.path().join("fleet/store.password").exists());
        assert!(!FleetConfig::path(directory.path()).exists(), "the ticket is not used");
        attempt.undo().unwrap();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);

        let own = directory.path().join("fleet/store.password");
        std::fs::create_dir(own.parent().unwrap()).unwrap();
        std::fs::write(&own, "mine").unwrap();
        let refused = Files::of(directory.path(), &a_ticket(), false).map(|_| ()).unwrap_err().to_string();
        assert!(refused.contains("store.password exists"), "{refused}");
        // Nothing of this attempt exists yet.
        attempt.undo().unwrap();
        assert_eq!(std::fs::read_to_string(&own).unwrap(), "mine");
    }

    #[test]
    fn what_another_attempt_with_the_same_ticket_has_written_stays() {
        let directory = tempfile::tempdir().unwrap();
        let slower = Attempt::of(directory.path(), &a_ticket()).unwrap();
        let faster = Attempt::of(directory.path(), &a_ticket()).unwrap();
        faster.begin(&Files::of(directory.path(), &a_ticket(), false).unwrap()).unwrap();
        faster.finish().unwrap();
        slower.undo().unwrap();
        assert!(directory.path().join("fleet/store.password").exists());
        // The control: an attempt undoes its own files.
        faster.undo().unwrap();
        assert!(!directory.path().join("fleet").exists());
    }

    #[test]
    fn an_attempt_is_known_again_by_its_ticket_and_another_ticket_begins_another() {
        let (directory, first, files) = begun();
        assert!(!first.is_again);
        let again = Attempt::of(directory.path(), &a_ticket()).unwrap();
        assert!(again.is_again && again.host == first.host);
        assert!(again.membership.is_some() && again.member().unwrap() == first.member().unwrap());
        assert_eq!(joined_as(directory.path()), first.membership);
        let other = Ticket { secret: "y".to_owned(), ..a_ticket() };
        assert!(!Attempt::of(directory.path(), &other).unwrap().is_again);
        // Files of the earlier attempt are no obstacle, but files of another attempt are.
        assert!(Files::of(directory.path(), &a_ticket(), true).is_ok());
        assert!(Files::of(directory.path(), &other, false).is_err());

        // A file that the attempt could not have written stays, even if the attempt's file names it.
        let foreign = directory.path().join("fleet.key");
        std::fs::write(&foreign, "secret").unwrap();
        first.keep(Some([&["../fleet.key".to_owned()][..], &first.credentials].concat())).unwrap();
        let earlier = found(&directory).unwrap();
        assert_eq!(earlier.pending_config().unwrap().as_ref(), Some(&files.config));
        earlier.undo().unwrap();
        assert!(foreign.exists() && Files::of(directory.path(), &other, false).is_ok());
        // The control: nothing of a successful attempt is undone.
        first.begin(&files).unwrap();
        first.finish().unwrap();
        assert!(found(&directory).is_none());
        assert!(joined_as(directory.path()).is_some() && joined_as(directory.path()) == first.membership);
        assert!(FleetConfig::read(directory.path()).is_ok() && !first.pending().exists());
    }

    #[test]
    fn a_ticket_that_is_remembered_is_not_used_by_an_exit_of_another_fleet() {
        let (directory, first, files) = begun();
        let is_named = || Attempt::of(directory.path(), &a_ticket()).unwrap().is_named(&a_ticket());
        assert!(!is_named().unwrap());
        let renamed = |fleet: &str| FleetConfig { fleet: fleet.to_owned(), ..files.config.clone() };
        // A fleet of the same name is refused too, because the attempt's own file still has its temporary name.
        for fleet in ["other", "home"] {
            write_config(directory.path(), &renamed(fleet)).unwrap();
            let refused = is_named().unwrap_err().to_string();
            assert!(refused.contains("belongs to a fleet already; leave it"), "{fleet}: {refused}");
        }
        // The control: the fleet of the ticket, even after an operator has edited the file.
        std::fs::remove_file(FleetConfig::path(directory.path())).unwrap();
        first.finish().unwrap();
        let mut edited = files.config.clone();
        edited.store.endpoints.push("https://b:2379".to_owned());
        write_config(directory.path(), &edited).unwrap();
        assert!(is_named().unwrap());
        write_config(directory.path(), &renamed("other")).unwrap();
        assert!(is_named().is_err());
    }

    #[test]
    fn no_fleet_is_begun_where_a_join_was_interrupted() {
        let (directory, attempt, _) = begun();
        let refused = check_not_joining(directory.path()).unwrap_err().to_string();
        assert!(
            refused.contains("join.json and ") && refused.contains("fleet.toml.joining to give"),
            "{refused}"
        );
        // The controls: a join that has ended, and a host without any join.
        attempt.finish().unwrap();
        check_not_joining(directory.path()).unwrap();
        check_not_joining(tempfile::tempdir().unwrap().path()).unwrap();
    }

    #[test]
    fn files_that_cannot_be_read_prove_nothing_and_nothing_is_removed() {
        let password = "fleet/store.password";
        // A directory cannot be read as a file, not even by root.
        let replace = |path: PathBuf| {
            std::fs::remove_file(&path).unwrap();
            std::fs::create_dir(path).unwrap();
        };
        let (directory, attempt, _) = begun();
        replace(attempt.pending());
        assert!(found(&directory).unwrap().pending_config().is_err());
        let (directory, attempt, _) = begun();
        std::fs::write(attempt.pending(), "damaged").unwrap();
        assert!(found(&directory).unwrap().pending_config().is_err());

        let (directory, attempt, _) = begun();
        replace(file_of(directory.path()));
        assert!(Attempt::find(directory.path()).is_err() && host_of_join(directory.path()).is_err());
        assert!(check_not_joining(directory.path()).is_err() && attempt.undo().is_err());
        assert!(directory.path().join(password).exists() && attempt.pending().exists());

        // The next command removes what could not be removed.
        let (directory, attempt, _) = begun();
        replace(attempt.pending());
        assert!(attempt.undo().is_err() && directory.path().join(password).exists());
        std::fs::remove_dir(attempt.pending()).unwrap();
        found(&directory).unwrap().undo().unwrap();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
