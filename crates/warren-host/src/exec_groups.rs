//! For `warren exec`: runs a program inside the tunnel while the rest of the host is outside, or outside while the rest of the
//! host is inside.
//!
//! A program's cgroup ([`ExecGroup`]) decides on which side it is. An nftables table recognises the packets of these cgroups and
//! marks them. It drops packets that would leave on the wrong side. No process owns the table, so it stays no matter how the
//! daemon ends. So packets of a program in the inside group never leave outside the tunnel. [`release`] removes the table, unless
//! a program is still in the inside group. In that case the table stays and drops all packets of the program.

mod cgroup;
mod rules;
mod ruleset;
mod steps;

use std::path::{Path, PathBuf};

pub(crate) use self::cgroup::LEVEL;
pub use self::cgroup::{ExecGroup, Side};
pub use self::rules::{ExecRules, Marks};
pub use self::steps::steps;
pub use crate::table_names::exec_table;
use crate::{
    HostError, NftError, TableFamily, connections, host::open_journal, journal::Journal, nft,
    plan::table_text, undo::Undo,
};

#[cfg(test)]
impl ExecRules {
    /// Returns the step that creates the table of the profile `name` with these rules.
    pub(crate) fn step(&self, name: &str) -> crate::Step {
        crate::Step::Nftables {
            family: FAMILY,
            table: exec_table(name),
            ruleset: ruleset::ruleset(self),
            owned: false,
        }
    }
}

/// Errors of making the table.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// The journal cannot be used.
    #[error(transparent)]
    Host(#[from] HostError),
    /// nft failed.
    #[error("nft cannot load the table, for which it needs version 0.9.7 and Linux 5.13 (CONFIG_NFT_SOCKET)")]
    Nft(#[from] NftError),
}

/// The table in the kernel, held by the daemon. Dropping this leaves the table in place.
#[derive(Debug)]
pub struct ExecTable {
    path: PathBuf,
    journal: Journal,
    table: String,
    /// The loaded table. `None` if the last load has failed.
    loaded: Option<Loaded>,
}

/// The rules and cgroups from which the kernel's table was made, and its listing.
#[derive(Debug)]
struct Loaded {
    rules: ExecRules,
    /// The numbers of both cgroups. nft refers to a cgroup by number.
    groups: [Option<u64>; 2],
    /// The kernel's listing. `None` if nft could not list the table. In that case changes by other programs are not noticed.
    listing: Option<String>,
}

impl ExecTable {
    /// Creates the table of the profile `name`, whose journal is at `journal`. Replaces a table that an earlier daemon has left.
    /// Both cgroups must exist.
    ///
    /// # Errors
    /// If another process has the journal open, the journal is about another network namespace, or nft fails.
    pub async fn make(
        journal: impl AsRef<Path>,
        name: &str,
        groups: [Option<u64>; 2],
        rules: ExecRules,
    ) -> Result<Self, ExecError> {
        let path = journal.as_ref();
        let table = exec_table(name);
        let mut journal = open_journal(path)?;
        let undo = undo(&table);
        let is_new = !journal.outstanding().values().any(|outstanding| *outstanding == undo);
        let failed = |source| HostError::Journal { path: path.to_owned(), source };
        // The table is recorded in the journal before it is created, so that it is found if this process is killed in between.
        let entry = if is_new { Some(journal.begin(undo).map_err(failed)?) } else { None };
        let mut made = Self { path: path.to_owned(), journal, table, loaded: None };
        if let Err(error) = made.load(groups, rules).await {
            // nft may have created the table although it reported an error. So the table stays in the journal unless it certainly
            // does not exist.
            if let Some(entry) = entry
                && nft::delete(FAMILY, &made.table).await.is_ok()
            {
                made.journal.end(entry).map_err(failed)?;
            }
            return Err(error);
        }
        Ok(made)
    }

    /// Adapts the table to the tunnel and its cgroups, and restores it if another program has changed it. Returns whether one
    /// had.
    ///
    /// # Errors
    /// If nft fails. In that case the old table stays.
    pub async fn follow(&mut self, groups: [Option<u64>; 2], rules: ExecRules) -> Result<bool, ExecError> {
        let listing = match &self.loaded {
            Some(loaded) if loaded.rules == rules && loaded.groups == groups => loaded.listing.as_ref(),
            _ => None,
        };
        if let Some(listing) = listing
            && nft::listing(FAMILY, &self.table).await?.as_ref() == Some(listing)
        {
            return Ok(false);
        }
        let was_changed = listing.is_some();
        self.load(groups, rules).await?;
        Ok(was_changed)
    }

    /// The table's change to this host, in a few words.
    pub fn change(&self) -> String {
        undo(&self.table).to_string()
    }

    async fn load(&mut self, groups: [Option<u64>; 2], rules: ExecRules) -> Result<(), ExecError> {
        let failed = |source| HostError::Journal { path: self.path.clone(), source };
        let text = table_text(FAMILY, &self.table, &ruleset::ruleset(&rules), false);
        self.loaded = None;
        nft::replace(FAMILY, &self.table, &text, self.journal.share_lock().map_err(failed)?).await?;
        // The table is in force even if it cannot be listed. In that case the next check creates it again.
        let listing = nft::listing(FAMILY, &self.table).await.unwrap_or(None);
        self.loaded = Some(Loaded { rules, groups, listing });
        Ok(())
    }
}

/// What [`release`] has done about the programs in the inside group after their tunnel has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// There was nothing to release.
    Nothing,
    /// The table and the cgroups are gone.
    All,
    /// Programs are still in the inside group. The table stays and drops all their packets.
    CutOff,
}

/// Removes the table of [`ExecTable::make`] and the cgroups, if no program is in the inside group. Must not be called while the
/// profile's daemon runs.
///
/// # Errors
/// If a daemon holds the journal, the journal is about another network namespace, or nft fails.
pub async fn release(journal: impl AsRef<Path>, name: &str) -> Result<Released, ExecError> {
    let path = journal.as_ref();
    let failed = |source| HostError::Journal { path: path.to_owned(), source };
    if !path.try_exists().map_err(failed)? {
        return Ok(Released::Nothing);
    }
    let mut journal = open_journal(path)?;
    if journal.outstanding().is_empty() {
        return Ok(Released::Nothing);
    }
    let table = exec_table(name);
    let groups = [Side::Inside, Side::Outside].map(|side| ExecGroup::of(name, side));
    if let [Ok(inside), Ok(outside)] = &groups {
        if inside.is_populated() {
            let rules = ExecRules::cut_off(inside.nft_path(), outside.nft_path());
            // nft accepts the rules only if both cgroups to which they refer exist.
            outside.make().map_err(failed)?;
            let text = table_text(FAMILY, &table, &ruleset::ruleset(&rules), false);
            nft::replace(FAMILY, &table, &text, journal.share_lock().map_err(failed)?).await?;
            return Ok(Released::CutOff);
        }
        // The kernel keeps retransmitting for a connection after its program has ended, so such connections are ended too.
        connections::end_in_groups(&inside.ids()).map_err(failed)?;
    }
    nft::delete(FAMILY, &table).await?;
    for group in groups.iter().flatten() {
        group.remove();
    }
    journal.clear().map_err(failed)?;
    Ok(Released::All)
}

fn undo(table: &str) -> Undo {
    Undo::Nftables { family: FAMILY, table: table.to_owned() }
}

/// The table covers both IP versions.
const FAMILY: TableFamily = TableFamily::Inet;
