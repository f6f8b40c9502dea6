//! Runs nft on behalf of processes that may not start programs.

use std::{collections::BTreeMap, fs::File, sync::OnceLock};

use tokio::sync::Mutex;

use super::{
    NftCall, NftError, OwnTables, Ruleset, RulesetError,
    call::runner,
    process::Process,
    program::{run, run_with},
    session::Session,
};

/// Runs nft on behalf of a process that may not start programs, and keeps the processes that own its tables.
#[derive(Debug, Default)]
pub struct NftService {
    tables: OwnTables,
    owners: Mutex<BTreeMap<u64, Process>>,
    session: Session,
}

impl NftService {
    /// Serves calls about `tables` alone.
    pub fn of(tables: OwnTables) -> Self {
        Self { tables, ..Self::default() }
    }

    /// Runs nft, and returns its output.
    ///
    /// nft keeps `lock` open while it loads a ruleset. So if the caller is killed, the process that undoes its changes
    /// also waits for the end of nft.
    ///
    /// # Errors
    ///
    /// If the call is about another table, or nft fails.
    pub async fn run(&self, call: NftCall, lock: Option<File>) -> Result<String, NftError> {
        let call = self.checked(call)?;
        if let Some(outcome) = self.session.run(&call).await {
            return outcome;
        }
        match call {
            NftCall::GetReady => {
                // If there is an owner, no second nft is needed, because the owner's process takes other calls
                // once its table is deleted.
                if self.owners.lock().await.is_empty() {
                    self.session.get_ready(lock).await;
                }
                Ok(String::new())
            }
            NftCall::ReleaseOwner { owner } => {
                let process = self.owners.lock().await.remove(&owner);
                if let Some(process) = process {
                    self.session.give(process).await;
                }
                Ok(String::new())
            }
            NftCall::LoadOwned { owner, ruleset } => {
                // The list stays locked until nft has answered, because a process carries out one command at
                // a time.
                let mut owners = self.owners.lock().await;
                if !owners.contains_key(&owner) && owners.len() < MOST_OWNERS {
                    let process = match self.session.take().await {
                        Some(process) => process,
                        None => Process::start(None)?,
                    };
                    owners.insert(owner, process);
                }
                let process = owners.get_mut(&owner).ok_or(NftError::Gone)?;
                process.load(&ruleset).await.map(|()| String::new())
            }
            NftCall::AwaitOwner { owner } => {
                // Waits without holding the lock, because other calls need the lock in the meantime.
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
                let list: &[&str] = if stateless { &["-s", "list"] } else { &["list"] };
                run(&[list, &["table", family.name(), &table]].concat(), "").await
            }
            NftCall::DeleteTable { family, table } => {
                run(&["delete", "table", family.name(), &table], "").await
            }
            // A load prints nothing, so nft can have the lock as its standard output.
            NftCall::Load { ruleset } => run_with(&["-f", "-"], &ruleset, lock).await,
        }
    }

    /// Returns the call if it is about tables of the process that asks. A ruleset is parsed and written anew.
    fn checked(&self, call: NftCall) -> Result<NftCall, NftError> {
        Ok(match call {
            NftCall::Load { ruleset } => NftCall::Load { ruleset: self.understood(&ruleset)? },
            NftCall::LoadOwned { owner, ruleset } => {
                NftCall::LoadOwned { owner, ruleset: self.understood(&ruleset)? }
            }
            NftCall::ListTable { ref table, .. } | NftCall::DeleteTable { ref table, .. } => {
                self.check(table)?;
                call
            }
            // These calls name no table.
            NftCall::GetReady
            | NftCall::ListTables { .. }
            | NftCall::AwaitOwner { .. }
            | NftCall::ReleaseOwner { .. }
            | NftCall::EndOwner { .. } => call,
        })
    }

    /// The ruleset for nft: the parsed text, written anew. So nft gets nothing that the parser did not understand.
    fn understood(&self, ruleset: &str) -> Result<String, NftError> {
        let ruleset = Ruleset::parse(ruleset, &self.tables);
        ruleset.map(|ruleset| ruleset.to_string()).map_err(|error| NftError::Refused(error.to_string()))
    }

    fn check(&self, table: &str) -> Result<(), NftError> {
        let other = || NftError::Refused(RulesetError::OtherTable(table.into()).to_string());
        if self.tables.has(table) { Ok(()) } else { Err(other()) }
    }
}

/// Runs nft in this process or through its runner.
pub(super) async fn make(call: NftCall, lock: Option<File>) -> Result<String, NftError> {
    match runner() {
        Some(runner) => runner.run(call).await,
        None => OWN.get_or_init(NftService::default).run(call, lock).await,
    }
}

/// Runs nft for this process, unless a runner does.
static OWN: OnceLock<NftService> = OnceLock::new();

/// Far more than the owned tables of any daemon.
const MOST_OWNERS: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TableFamily;

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
