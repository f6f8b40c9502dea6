//! Runs of nft as data, so that a process which may start no programs can have another process make them.

use std::{collections::BTreeMap, fmt, fs::File, future::Future, pin::Pin, sync::OnceLock};

use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

use super::{NftError, OwnTables, Ruleset, RulesetError, owner::Process, run, run_with};
use crate::TableFamily;

/// One run of nft on Warren's tables.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NftCall {
    /// Lists the names of all tables of a family.
    ListTables {
        /// The tables' family.
        family: TableFamily,
    },
    /// Prints a table.
    ListTable {
        /// Its family.
        family: TableFamily,
        /// Its name.
        table: String,
        /// Whether counters are left out.
        stateless: bool,
    },
    /// Deletes a table.
    DeleteTable {
        /// Its family.
        family: TableFamily,
        /// Its name.
        table: String,
    },
    /// Loads a ruleset atomically.
    Load {
        /// The ruleset in nft's language.
        ruleset: String,
    },
    /// Loads a ruleset in the process of a table's owner. If no owner has that number, one is started.
    LoadOwned {
        /// The owner's number.
        owner: u64,
        /// The ruleset in nft's language.
        ruleset: String,
    },
    /// Waits until an owner's process has ended, and its tables with it.
    AwaitOwner {
        /// The owner's number.
        owner: u64,
    },
    /// Ends an owner's process, and its tables with it.
    EndOwner {
        /// The owner's number.
        owner: u64,
    },
}

/// Runs nft on behalf of a process that may start no programs, and keeps the processes that own its tables.
#[derive(Debug, Default)]
pub struct NftService {
    tables: OwnTables,
    owners: Mutex<BTreeMap<u64, Process>>,
}

/// The way by which a process that may start no programs gets nft run.
pub trait NftRunner: fmt::Debug + Send + Sync {
    /// Has nft run, and returns its output.
    fn run(&self, call: NftCall) -> Pin<Box<dyn Future<Output = Result<String, NftError>> + Send + '_>>;
}

/// Uses `runner` for every later run of this process. Only the first call has an effect.
pub fn set_nft_runner(runner: Box<dyn NftRunner>) {
    // A second runner would lead to the same process, for the same purpose.
    drop(RUNNER.set(runner));
}

impl NftService {
    /// Serves calls about `tables` alone.
    pub fn of(tables: OwnTables) -> Self {
        Self { tables, owners: Mutex::default() }
    }

    /// Runs nft, and returns its output.
    ///
    /// nft keeps `lock` open while it loads a ruleset. So a process that undoes a killed one's changes waits until nft
    /// has ended too.
    ///
    /// # Errors
    ///
    /// If the call is about another table, or nft fails.
    pub async fn run(&self, call: NftCall, lock: Option<File>) -> Result<String, NftError> {
        match call {
            NftCall::LoadOwned { owner, ruleset } => {
                let ruleset = self.understood(&ruleset)?;
                let mut owners = self.owners.lock().await;
                if !owners.contains_key(&owner) && owners.len() < MOST_OWNERS {
                    owners.insert(owner, Process::start()?);
                }
                let process = owners.get_mut(&owner).ok_or(NftError::Gone)?;
                process.load(&ruleset).await.map(|()| String::new())
            }
            NftCall::AwaitOwner { owner } => {
                let end = self.owners.lock().await.get(&owner).map(Process::end_of).transpose()?;
                if let Some(end) = end {
                    end.await?;
                }
                Ok(String::new())
            }
            NftCall::EndOwner { owner } => {
                let process = self.owners.lock().await.remove(&owner);
                if let Some(process) = process {
                    process.end().await;
                }
                Ok(String::new())
            }
            NftCall::ListTables { family } => run(&["list", "tables", family.name()], "").await,
            NftCall::ListTable { family, table, stateless } => {
                self.check(&table)?;
                let list: &[&str] = if stateless { &["-s", "list"] } else { &["list"] };
                run(&[list, &["table", family.name(), &table]].concat(), "").await
            }
            NftCall::DeleteTable { family, table } => {
                self.check(&table)?;
                run(&["delete", "table", family.name(), &table], "").await
            }
            // A load prints nothing, and the lock takes the place of its output.
            NftCall::Load { ruleset } => run_with(&["-f", "-"], &self.understood(&ruleset)?, lock).await,
        }
    }

    /// The ruleset that nft gets: the parsed text, written anew.
    fn understood(&self, ruleset: &str) -> Result<String, NftError> {
        let ruleset = Ruleset::parse(ruleset, &self.tables);
        ruleset.map(|ruleset| ruleset.to_string()).map_err(|error| NftError::Refused(error.to_string()))
    }

    fn check(&self, table: &str) -> Result<(), NftError> {
        let other = || NftError::Refused(RulesetError::OtherTable(table.into()).to_string());
        if self.tables.has(table) { Ok(()) } else { Err(other()) }
    }
}

impl TableFamily {
    /// Whether Warren has tables of the family that nft calls by this word.
    pub(super) fn is_known(word: &str) -> bool {
        [Self::Inet, Self::Arp].iter().any(|family| family.name() == word)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Inet => "inet",
            Self::Arp => "arp",
        }
    }
}

impl fmt::Display for TableFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Runs nft in this process or through its runner.
pub(super) async fn make(call: NftCall, lock: Option<File>) -> Result<String, NftError> {
    match runner() {
        Some(runner) => runner.run(call).await,
        None => NftService::default().run(call, lock).await,
    }
}

/// The runner of this process, if it does not run nft itself.
pub(super) fn runner() -> Option<&'static dyn NftRunner> {
    RUNNER.get().map(Box::as_ref)
}

static RUNNER: OnceLock<Box<dyn NftRunner>> = OnceLock::new();
/// Far more than the owned tables of any daemon.
const MOST_OWNERS: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn whatever_is_about_tables_of_others_is_refused_before_nft_runs() {
        let (family, table) = (TableFamily::Inet, "warren_work".to_owned());
        let ruleset = "table inet warren_work {\n}\n".to_owned();
        let service = NftService::of(OwnTables::of_profile("home"));

        for call in [
            NftCall::DeleteTable { family, table: table.clone() },
            NftCall::ListTable { family, table, stateless: true },
            NftCall::ListTable { family, table: "warren_home x".into(), stateless: false },
            NftCall::Load { ruleset: ruleset.clone() },
            NftCall::LoadOwned { owner: 1, ruleset },
        ] {
            let refused = service.run(call.clone(), None).await;
            assert!(matches!(refused, Err(NftError::Refused(_))), "{call:?}");
        }
    }
}
