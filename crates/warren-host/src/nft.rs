//! Firewall tables through nft(8), either owned by an nft process or permanent.

mod call;
mod emptied;
mod error;
mod own_tables;
mod owner;
mod process;
mod program;
mod ruleset;
mod service;
mod session;

use std::{fs::File, time::Duration};

use tokio::time::sleep;

use self::program::PATIENCE;
use crate::TableFamily;
pub use call::{NftCall, NftRunner, set_nft_runner};
pub(crate) use emptied::emptied;
pub use error::NftError;
pub use own_tables::OwnTables;
pub(crate) use owner::Owner;
pub use program::is_installed;
pub(crate) use program::{said, said_by};
pub use ruleset::{Ruleset, RulesetError};
pub use service::NftService;

/// Starts an nft process for the next calls, unless one is already waiting. This only saves time. Without it, each call starts
/// an nft of its own.
///
/// # Errors
/// If the process that runs nft for this one has ended.
pub async fn get_ready() -> Result<(), NftError> {
    service::make(NftCall::GetReady, None).await.map(drop)
}

/// Loads a ruleset that belongs to no process.
///
/// nft keeps `lock` open. So if this process is killed, the process that undoes its changes also waits for the end of
/// nft.
pub(crate) async fn load(ruleset: &str, lock: File) -> Result<(), NftError> {
    service::make(NftCall::Load { ruleset: ruleset.into() }, Some(lock)).await.map(drop)
}

/// Replaces the table by `ruleset`, which holds the text of `table` alone, atomically. The table need not exist.
pub(crate) async fn replace(
    family: TableFamily,
    table: &str,
    ruleset: &str,
    lock: File,
) -> Result<(), NftError> {
    // The `add` makes the `delete` valid whether or not the table exists.
    load(&format!("add table {family} {table}\ndelete table {family} {table}\n{ruleset}"), lock).await
}

/// Returns the table as nft prints it, without counters. `None` if it does not exist.
pub(crate) async fn listing(family: TableFamily, table: &str) -> Result<Option<String>, NftError> {
    match service::make(NftCall::ListTable { family, table: table.into(), stateless: true }, None).await {
        Ok(listing) => Ok(Some(listing)),
        // nft refuses for other reasons too, so the list of tables decides.
        Err(NftError::Refused(_)) if !has_table(family, table).await? => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether the table exists.
async fn has_table(family: TableFamily, table: &str) -> Result<bool, NftError> {
    let wanted = format!("table {family} {table}");
    Ok(service::make(NftCall::ListTables { family }, None).await?.lines().any(|line| line == wanted))
}

/// Returns the number of chains and of rules in the table. `None` if it does not exist.
pub(crate) async fn count(family: TableFamily, table: &str) -> Result<Option<(usize, usize)>, NftError> {
    if !has_table(family, table).await? {
        return Ok(None);
    }
    let listing =
        service::make(NftCall::ListTable { family, table: table.into(), stateless: false }, None).await?;
    Ok(Some(count_statements(&listing)))
}

/// The number of chains and of rules in a table's text, from nft or from a plan.
pub(crate) fn count_statements(text: &str) -> (usize, usize) {
    let mut chains = 0;
    let mut rules = 0;
    let mut is_continued = false;
    let mut in_set = false;
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        // Sets are skipped, because the packet path may change their elements.
        if in_set || line.starts_with("set ") {
            in_set = line != "}";
            continue;
        }
        // nft breaks a long anonymous set after a comma.
        let is_start = !std::mem::replace(&mut is_continued, line.ends_with(','));
        if line.starts_with("chain ") {
            chains += 1;
        } else if is_start && !["table ", "flags ", "type ", "}"].iter().any(|other| line.starts_with(other))
        {
            rules += 1;
        }
    }
    (chains, rules)
}

/// Deletes the table if it exists. An owner that was just killed gets time to end.
pub(crate) async fn delete(family: TableFamily, table: &str) -> Result<(), NftError> {
    let mut waited = Duration::ZERO;
    while has_table(family, table).await? {
        let refused = match service::make(NftCall::DeleteTable { family, table: table.into() }, None).await {
            Ok(_) => return Ok(()),
            Err(NftError::Refused(reason)) => NftError::Refused(reason),
            Err(error) => return Err(error),
        };
        if waited >= PATIENCE {
            return Err(refused);
        }
        sleep(PAUSE).await;
        waited += PAUSE;
    }
    Ok(())
}

/// The time between two checks of a table whose owner is ending.
const PAUSE: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_are_counted_as_written_and_as_printed() {
        let written =
            "chain a {\n\ttype filter hook input priority 0;\n\tip daddr { 1.1.1.1, 2.2.2.2 } drop\n}\n";
        let printed = "table inet x { # progname nft\n\tflags owner\n\n\tchain a {\n\t\ttype filter hook input priority \
                       filter; policy accept;\n\t\tip daddr { 1.1.1.1,\n\t\t\t 2.2.2.2 } drop\n\t}\n}\n";

        assert_eq!(count_statements(written), (1, 1));
        assert_eq!(count_statements(printed), (1, 1));
        let filled = "set flows {\n\ttype ipv4_addr\n\telements = { 10.0.0.1 ct count over 9,\n\t\t10.0.0.2 ct count over 9 }\n}\n";
        assert_eq!(count_statements(&format!("{filled}{written}")), (1, 1));
    }
}
