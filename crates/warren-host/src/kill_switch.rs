//! The kill switch: an nftables table that lets out only tunnels and their carriers.
//!
//! No process owns the table. It stays until [`open`], no matter how the daemon that closed the kill switch has ended. The kill
//! switch has its own journal, so that undoing other changes does not remove the table. The table in `docs/kill-switch.md` says
//! which packets it lets out in each state of the client.
//!
//! Another program can still delete the table, as `nft flush ruleset` does. [`look`] detects that, and [`close_again`]
//! recreates the table from the record beside the journal.

mod record;
mod rules;
mod ruleset;

use std::{
    fmt,
    fs::File,
    io,
    path::{Path, PathBuf},
};

use self::record::Record;
pub use self::rules::{ExecLetOut, InboundPort, InboundProtocol, KillSwitchRules};
use crate::{
    HostError, NftError, Step, TableFamily,
    host::{open_journal, recover_and_look_again},
    journal::{Journal, Place},
    nft,
    plan::table_text,
    undo::Undo,
};

/// A closed kill switch, held by the daemon that has closed it or taken it over.
///
/// Dropping this leaves the kill switch closed.
#[derive(Debug)]
pub struct KillSwitch {
    path: PathBuf,
    journal: Journal,
    table: String,
    record: Record,
}

/// The state of a kill switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Open: the kill switch has not been closed since the host booted, or it was opened again.
    Open,
    /// Closed, and its table is in the kernel.
    Closed,
    /// Meant to be closed, but the kernel does not have its table.
    Gone,
    /// Meant to be closed, but the kernel's table differs from the one that was made.
    Changed,
}

/// Errors of closing or checking a kill switch.
#[derive(Debug, thiserror::Error)]
pub enum KillSwitchError {
    /// The journal or the record beside it cannot be used.
    #[error(transparent)]
    Host(#[from] HostError),
    /// nft failed.
    #[error(transparent)]
    Nft(#[from] NftError),
    /// A closed kill switch without a record.
    #[error(
        "the record of the packets that it lets out is missing; run `warren client close {0}`, which reads the profile"
    )]
    Unrecorded(String),
}

impl KillSwitchRules {
    /// Returns the step that makes the table of the profile `name` with these rules, for printing.
    pub fn step(&self, name: &str) -> Step {
        let (table, ruleset) = (table_name(name), ruleset::ruleset(self));
        Step::Nftables { family: FAMILY, table, ruleset, owned: false }
    }
}

impl KillSwitch {
    /// Closes the kill switch of the profile `name`, whose journal is at `journal`. An existing table is replaced atomically,
    /// unless it already matches these rules.
    ///
    /// # Errors
    /// If another process has the journal open, if the journal is about another network namespace, or if nft fails. In that case
    /// an earlier table stays.
    pub async fn close(
        journal: impl AsRef<Path>,
        name: &str,
        rules: KillSwitchRules,
    ) -> Result<Self, KillSwitchError> {
        let path = journal.as_ref();
        let mut table = table_name(name);
        let mut journal = open_journal(path)?;
        let failed = |source| HostError::Journal { path: path.to_owned(), source };
        // The table is recorded in the journal before it is created. So if this process is killed in between, the kill switch
        // counts as closed.
        let new = match is_in(&journal, &table) {
            true => None,
            false => Some(journal.begin(undo(&table)).map_err(failed)?),
        };
        // A record without an entry in the journal is left over from an earlier closing.
        let before = Record::read(path).ok().flatten().filter(|_| new.is_none());
        if let Some(record) = before.clone().filter(|record| record.rules == rules) {
            let closed = Self { path: path.to_owned(), journal, table, record };
            if closed.stands().await? {
                return Ok(closed);
            }
            journal = closed.journal;
            table = closed.table;
        }
        let made = match new {
            Some(_) => make_first(path, &table, &rules, &journal).await,
            None => make(path, &table, rules, &journal).await,
        };
        match made {
            Ok(record) => Ok(Self { path: path.to_owned(), journal, table, record }),
            Err(error) => {
                let Some(entry) = new else {
                    put_back(path, before.as_ref());
                    return Err(error);
                };
                // The kernel may have made the table, for instance if nft gave no answer. Unless the table is certainly gone, it
                // stays in the journal, so that the kill switch counts as closed and can be opened. If nft is not installed, it has made no table.
                if matches!(nft::delete(FAMILY, &table).await, Ok(()) | Err(NftError::Missing)) {
                    put_back(path, None);
                    journal.end(entry).map_err(failed)?;
                }
                Err(error)
            }
        }
    }

    /// Adopts a kill switch that an ended process left closed. `None` if it is open.
    ///
    /// # Errors
    /// If another process has the journal open, the journal is about another network namespace, or there is no
    /// record.
    pub fn take_over(journal: impl AsRef<Path>, name: &str) -> Result<Option<Self>, KillSwitchError> {
        let path = journal.as_ref();
        if !is_closed(path).map_err(|source| HostError::Journal { path: path.to_owned(), source })? {
            return Ok(None);
        }
        let table = table_name(name);
        let journal = open_journal(path)?;
        if !is_in(&journal, &table) {
            return Ok(None);
        }
        let record =
            Record::read(path).map_err(|source| HostError::Journal { path: path.to_owned(), source })?;
        let record = record.ok_or_else(|| KillSwitchError::Unrecorded(name.to_owned()))?;
        Ok(Some(Self { path: path.to_owned(), journal, table, record }))
    }

    /// The kill switch's change to this host, in a few words.
    pub fn change(&self) -> String {
        undo(&self.table).to_string()
    }

    /// The rules in force.
    pub fn rules(&self) -> &KillSwitchRules {
        &self.record.rules
    }

    /// Replaces the rules in force by `rules`, atomically. Does nothing if they are in force already.
    ///
    /// # Errors
    /// If nft fails or the record cannot be written; in that case the old rules stay in force.
    pub async fn set(&mut self, rules: KillSwitchRules) -> Result<(), KillSwitchError> {
        if rules == self.record.rules {
            return Ok(());
        }
        self.make(rules).await
    }

    /// Whether the kernel's table is unchanged since it was created.
    ///
    /// # Errors
    /// If nft fails.
    pub async fn stands(&self) -> Result<bool, NftError> {
        let listing = nft::listing(FAMILY, &self.table).await?;
        Ok(listing.is_some() && listing == self.record.listing)
    }

    /// Recreates the table if it was changed or deleted. Returns whether the table had to be recreated.
    ///
    /// # Errors
    /// If nft fails or the record cannot be written.
    pub async fn repair(&mut self) -> Result<bool, KillSwitchError> {
        if self.stands().await? {
            return Ok(false);
        }
        self.make(self.record.rules.clone()).await?;
        Ok(true)
    }

    async fn make(&mut self, rules: KillSwitchRules) -> Result<(), KillSwitchError> {
        match make(&self.path, &self.table, rules, &self.journal).await {
            Ok(record) => self.record = record,
            Err(error) => {
                put_back(&self.path, Some(&self.record));
                return Err(error);
            }
        }
        Ok(())
    }
}

/// If the kill switch of the profile `name`, whose journal is at `journal`, is closed, compares the kernel's table with the
/// record. While a process makes the table, the result may be `Changed` for a moment.
///
/// # Errors
/// If the journal or its record cannot be read, the journal is about another network namespace, or nft fails.
pub async fn look(journal: impl AsRef<Path>, name: &str) -> Result<Standing, KillSwitchError> {
    let path = journal.as_ref();
    let failed = |source| HostError::Journal { path: path.to_owned(), source };
    let here = Place::here().map_err(failed)?;
    match Place::of_file(path).map_err(failed)? {
        Some(place) if place.boot == here.boot && place.namespace == here.namespace => {}
        Some(place) if place.boot == here.boot => {
            return Err(HostError::OtherNamespace(path.to_owned()).into());
        }
        // A journal of another boot does not count, because the table has ended with that boot.
        _ => return Ok(Standing::Open),
    }
    let record = Record::read(path).map_err(failed)?;
    let Some(listing) = nft::listing(FAMILY, &table_name(name)).await? else { return Ok(Standing::Gone) };
    Ok(match record {
        Some(record) if record.listing.as_ref() != Some(&listing) => Standing::Changed,
        // Without a record, there is nothing to compare the table with.
        _ => Standing::Closed,
    })
}

/// Recreates the table of a closed kill switch if somebody has changed or deleted it and no running process holds its journal. A
/// kill switch that was opened stays open. Returns whether the table was recreated.
///
/// # Errors
/// As [`KillSwitch::take_over`] and [`KillSwitch::repair`].
pub async fn close_again(journal: impl AsRef<Path>, name: &str) -> Result<bool, KillSwitchError> {
    match KillSwitch::take_over(journal, name)? {
        Some(mut closed) => closed.repair().await,
        None => Ok(false),
    }
}

/// Recreates the table of a closed kill switch although another process, such as a hung daemon, holds its journal, and keeps
/// holding it. Returns whether the table was recreated.
///
/// # Errors
/// As [`look`].
pub async fn close_beside(journal: impl AsRef<Path>, name: &str) -> Result<bool, KillSwitchError> {
    let path = journal.as_ref();
    let failed = |source| HostError::Journal { path: path.to_owned(), source };
    let standing = look(path, name).await?;
    let Some(record) = Record::read(path).map_err(failed)? else { return Ok(false) };
    // While the other process is just creating the table, the record has no listing. Then `Changed` does not mean that somebody
    // has changed it.
    let is_lost = standing == Standing::Gone || (standing == Standing::Changed && record.listing.is_some());
    if !is_lost {
        return Ok(false);
    }
    let table = table_name(name);
    let text = table_text(FAMILY, &table, &ruleset::ruleset(&record.rules), false);
    // nft gets a descriptor of /dev/null instead of the journal's lock, because the other process holds the lock.
    nft::replace(FAMILY, &table, &text, File::open("/dev/null").map_err(failed)?).await?;
    if is_closed(path).map_err(failed)? {
        // If another process opens the kill switch at this moment, it also deletes this table, because it deletes the table once
        // more after emptying the journal.
        return Ok(true);
    }
    // Somebody has opened the kill switch meanwhile. This process must delete the new table, because no other process would.
    nft::delete(FAMILY, &table).await?;
    Ok(false)
}

/// Opens the kill switch whose journal is at `journal`, if it is closed. Returns whether it was closed.
///
/// # Errors
/// If a daemon keeps it closed, the journal is about another network namespace, or nft fails.
pub async fn open(journal: impl AsRef<Path>) -> Result<bool, HostError> {
    let journal = journal.as_ref();
    let was_closed = !recover_and_look_again(journal).await?.undone.is_empty();
    // If the journal exists again, another process is closing the kill switch again and needs the record.
    if !journal.exists() {
        Record::remove(journal);
    }
    Ok(was_closed)
}

/// Whether a portal can send packets: the kill switch whose journal is at `journal` allows portals, or is open.
///
/// # Errors
/// If the journal or its record cannot be read.
pub fn lets_portal_out(journal: impl AsRef<Path>) -> io::Result<bool> {
    let journal = journal.as_ref();
    Ok(!is_closed(journal)? || Record::read(journal)?.is_some_and(|record| record.rules.portal))
}

/// Whether the kill switch whose journal is at `journal` is closed in this boot.
///
/// # Errors
/// If the journal cannot be read.
pub fn is_closed(journal: impl AsRef<Path>) -> io::Result<bool> {
    let place = Place::of_file(journal.as_ref())?;
    Ok(match place {
        Some(place) => place.boot == Place::here()?.boot,
        None => false,
    })
}

/// The table filters both IP versions.
const FAMILY: TableFamily = TableFamily::Inet;

pub use crate::table_names::kill_switch_table as table_name;

/// Creates a table that should not exist yet. This is faster than replacing a table, for which nft waits until the kernel has
/// freed the old one.
async fn make_first(
    path: &Path,
    table: &str,
    rules: &KillSwitchRules,
    journal: &Journal,
) -> Result<Record, KillSwitchError> {
    let failed = |source| HostError::Journal { path: path.to_owned(), source };
    let record = Record { rules: rules.clone(), listing: None };
    record.write(path).map_err(failed)?;
    let text = format!(
        "create table {FAMILY} {table}\n{}",
        table_text(FAMILY, table, &ruleset::ruleset(rules), false)
    );
    match nft::load(&text, journal.share_lock().map_err(failed)?).await {
        // nft may have refused because the table exists nevertheless. In that case it is replaced.
        Err(NftError::Refused(_)) => return make(path, table, rules.clone(), journal).await,
        loaded => loaded?,
    }
    listed(path, table, record).await
}

/// Creates or replaces the table. Writes the record before, and again afterwards with the table's listing.
async fn make(
    path: &Path,
    table: &str,
    rules: KillSwitchRules,
    journal: &Journal,
) -> Result<Record, KillSwitchError> {
    let failed = |source| HostError::Journal { path: path.to_owned(), source };
    let text = table_text(FAMILY, table, &ruleset::ruleset(&rules), false);
    let record = Record { rules, listing: None };
    record.write(path).map_err(failed)?;
    nft::replace(FAMILY, table, &text, journal.share_lock().map_err(failed)?).await?;
    listed(path, table, record).await
}

/// Adds the listing of the table that was just created to the record, and writes it.
async fn listed(path: &Path, table: &str, mut record: Record) -> Result<Record, KillSwitchError> {
    let failed = |source| HostError::Journal { path: path.to_owned(), source };
    // The listing is `None` if somebody has already deleted the table. The next check notices this.
    record.listing = nft::listing(FAMILY, table).await?;
    record.write(path).map_err(failed)?;
    Ok(record)
}

/// Writes the record of the rules in force again, after new rules failed.
fn put_back(path: &Path, before: Option<&Record>) {
    match before {
        // If this fails, the next check recreates the table.
        Some(record) => drop(record.write(path)),
        None => Record::remove(path),
    }
}

fn undo(table: &str) -> Undo {
    Undo::Nftables { family: FAMILY, table: table.to_owned() }
}

/// Whether a journal lists the table.
fn is_in(journal: &Journal, table: &str) -> bool {
    let undo = undo(table);
    journal.outstanding().values().any(|outstanding| *outstanding == undo)
}

impl fmt::Display for InboundPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.protocol, self.port)
    }
}

impl fmt::Display for InboundProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        })
    }
}
