//! Runs of nft as data, so that a process which may start no program can have another make them.

use std::{collections::BTreeMap, fmt, fs::File, future::Future, pin::Pin, sync::OnceLock};

use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

use super::{NftError, owner::Process, run, run_with};

/// One run of nft on Warren's tables.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NftCall {
    /// Lists the names of all tables of a family.
    ListTables {
        /// Whose.
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
    /// Loads a ruleset, all of which takes effect or nothing.
    Load {
        /// The text of nft(8).
        ruleset: String,
    },
    /// Loads a ruleset in the process of a table's owner, which is started if there is none of that number.
    LoadOwned {
        /// The owner's number.
        owner: u64,
        /// The text of nft(8).
        ruleset: String,
    },
    /// Ends an owner's process, and so its tables.
    EndOwner {
        /// The owner's number.
        owner: u64,
    },
}

/// What the packets are that a table looks at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TableFamily {
    /// IP of both versions.
    #[default]
    Inet,
    /// ARP.
    Arp,
}

/// Makes the runs of a process that may make none itself, and keeps the processes that own its tables.
#[derive(Debug, Default)]
pub struct NftService {
    owners: Mutex<BTreeMap<u64, Process>>,
}

/// What makes the runs of a process that may make none itself.
pub trait NftRunner: fmt::Debug + Send + Sync {
    /// Has the run made, and returns what nft printed.
    fn run(&self, call: NftCall) -> Pin<Box<dyn Future<Output = Result<String, NftError>> + Send + '_>>;
}

/// Has every later run of this process made by `runner`. The first one that is set stays.
pub fn run_nft_by(runner: Box<dyn NftRunner>) {
    // A second one would be of the same process, for the same purpose.
    drop(RUNNER.set(runner));
}

impl NftService {
    /// Makes a run, and returns what nft printed.
    ///
    /// nft keeps `lock` open while it loads something, so that whoever undoes what a killed process has begun waits until nft
    /// has ended too.
    ///
    /// # Errors
    /// If it is about anything but Warren's own tables, or nft fails.
    pub async fn run(&self, call: NftCall, lock: Option<File>) -> Result<String, NftError> {
        if !call.is_ours() {
            return Err(NftError::Refused("it is not about a table of Warren's".into()));
        }
        match call {
            NftCall::LoadOwned { owner, ruleset } => {
                let mut owners = self.owners.lock().await;
                if !owners.contains_key(&owner) && owners.len() < MOST_OWNERS {
                    owners.insert(owner, Process::start()?);
                }
                let process = owners.get_mut(&owner).ok_or(NftError::Gone)?;
                process.load(&ruleset).await.map(|()| String::new())
            }
            NftCall::EndOwner { owner } => {
                if let Some(process) = self.owners.lock().await.remove(&owner) {
                    process.end().await;
                }
                Ok(String::new())
            }
            NftCall::ListTables { family } => run(&["list", "tables", family.name()], "").await,
            NftCall::ListTable { family, table, stateless: true } => {
                run(&["-s", "list", "table", family.name(), &table], "").await
            }
            NftCall::ListTable { family, table, stateless: false } => {
                run(&["list", "table", family.name(), &table], "").await
            }
            NftCall::DeleteTable { family, table } => {
                run(&["delete", "table", family.name(), &table], "").await
            }
            // It prints nothing where the lock is put in the place of its output.
            NftCall::Load { ruleset } => run_with(&["-f", "-"], &ruleset, lock).await,
        }
    }
}

impl NftCall {
    /// Whether it concerns nothing but tables whose names begin as all of Warren's do, and reads no file.
    fn is_ours(&self) -> bool {
        match self {
            Self::ListTables { .. } | Self::EndOwner { .. } => true,
            Self::ListTable { table, .. } | Self::DeleteTable { table, .. } => is_own_table(table),
            Self::Load { ruleset } | Self::LoadOwned { ruleset, .. } => is_own_ruleset(ruleset),
        }
    }
}

impl TableFamily {
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

/// Makes a run, by this process or by the one that it asks.
pub(super) async fn make(call: NftCall, lock: Option<File>) -> Result<String, NftError> {
    match runner() {
        Some(runner) => runner.run(call).await,
        None => NftService::default().run(call, lock).await,
    }
}

/// Who makes this process's runs, if it does not itself.
pub(super) fn runner() -> Option<&'static dyn NftRunner> {
    RUNNER.get().map(Box::as_ref)
}

fn is_own_table(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-@".contains(&byte);
    name.starts_with("warren") && name.bytes().all(allowed)
}

/// Whether a ruleset has nothing outside blocks of Warren's tables, and no `include`, which reads a file.
fn is_own_ruleset(ruleset: &str) -> bool {
    // nft passes over braces in comments and in quotes, so neither may hold any.
    let quoted = ruleset.split('"').skip(1).step_by(2);
    if ruleset.contains('#') || quoted.into_iter().any(|text| text.contains(['{', '}', '\n', ';'])) {
        return false;
    }
    let mut depth = 0_usize;
    for line in ruleset.lines() {
        let is_part = |character: char| character.is_ascii_alphanumeric() || "._-@".contains(character);
        if line.split(|character| !is_part(character)).any(|word| word == "include") {
            return false;
        }
        if depth == 0 {
            let statement: Vec<&str> = line.split_whitespace().collect();
            let table = match statement.as_slice() {
                [] => continue,
                ["add" | "create" | "delete", "table", "inet" | "arp", table]
                | ["table", "inet" | "arp", table, "{"]
                | ["create", "table", "inet" | "arp", table, "{"] => table,
                _ => return false,
            };
            if !is_own_table(table) || line.contains(';') {
                return false;
            }
        }
        depth += line.matches('{').count();
        match depth.checked_sub(line.matches('}').count()) {
            // Nothing follows the end of a table on its line.
            Some(0) if depth > 0 && line.trim() != "}" => return false,
            Some(inner) => depth = inner,
            None => return false,
        }
    }
    depth == 0
}

static RUNNER: OnceLock<Box<dyn NftRunner>> = OnceLock::new();
/// Far more than a daemon has tables that go with it.
const MOST_OWNERS: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rulesets_of_warrens_tables_are_taken() {
        for ruleset in [
            "table inet warren_home {\n\tchain a {\n\t\tip daddr { 1.1.1.1,\n 2.2.2.2 } drop; counter\n\t}\n}\n",
            "create table inet warren_exit {\n\tflags owner;\n}\ntable inet warren_exit {\n\tiifname \"warren0\" accept\n}\n",
            "create table inet warren_exit\ntable inet warren_exit {\n\tflags owner;\n}\n",
            "create table arp warren_exit\ntable arp warren_exit {\n\tchain a {\n\t\tdrop\n\t}\n}\n",
            "add table inet warren-kill-switch_a\ndelete table inet warren-kill-switch_a\ntable inet warren-kill-switch_a {\n}\n",
        ] {
            assert!(NftCall::Load { ruleset: ruleset.into() }.is_ours(), "{ruleset}");
        }
    }

    #[tokio::test]
    async fn whatever_else_is_refused_before_nft_runs() {
        let load = |ruleset: &str| NftCall::Load { ruleset: ruleset.into() };
        let foreign = [
            load("flush ruleset"),
            load("table inet filter {\n}\n"),
            load("table ip warren_home {\n}\n"),
            load("include \"/etc/shadow\""),
            load("table inet warren_home {\n\tinclude \"/etc/shadow\"\n}\n"),
            load("table inet warren_home {\n\tchain a { ; include\"/etc/shadow\"; }\n}\n"),
            load("table inet warren_home {\n\tchain a {include \"/etc/shadow\";}\n}\n"),
            load("table inet warren_home {\n} flush ruleset\n"),
            load("table inet warren_home {\n# {\n}\nflush ruleset\n# }\n"),
            load("table inet warren_home {\n\tcomment \"{\"\n}\nflush ruleset\n\tcomment \"}\"\n"),
            load("create table inet filter {\n}\n"),
            load("table inet warren_home {\n}; flush ruleset\n"),
            load("table inet warren_home { }\nflush ruleset"),
            load("add table inet warren_home; flush ruleset"),
            load("table inet warren_home {\n"),
            load("}\n"),
            NftCall::DeleteTable { family: TableFamily::Inet, table: "filter".into() },
            NftCall::ListTable { family: TableFamily::Inet, table: "warren x".into(), stateless: true },
        ];

        for call in foreign {
            let refused = NftService::default().run(call.clone(), None).await;
            assert!(matches!(refused, Err(NftError::Refused(_))), "{call:?}");
        }
    }
}
