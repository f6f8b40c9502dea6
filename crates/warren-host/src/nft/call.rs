//! Runs of nft as data. A process that may not start programs can ask another process to carry them out.

use std::{fmt, future::Future, pin::Pin, sync::OnceLock};

use serde::{Deserialize, Serialize};

use super::error::NftError;
use crate::TableFamily;

/// One run of nft on Warren's tables.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NftCall {
    /// Starts an nft that waits for the next calls. Without it, each call starts an nft of its own.
    GetReady,
    /// Lists the names of all tables of a family.
    ListTables {
        /// The tables' family.
        family: TableFamily,
    },
    /// Prints a table.
    ListTable {
        /// The table's family.
        family: TableFamily,
        /// The table's name.
        table: String,
        /// Whether counters are left out.
        stateless: bool,
    },
    /// Deletes a table.
    DeleteTable {
        /// The table's family.
        family: TableFamily,
        /// The table's name.
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
    /// Lets the process of an owner that no longer has a table carry out other calls. The process ends by itself.
    ReleaseOwner {
        /// The owner's number.
        owner: u64,
    },
    /// Ends an owner's process, and its tables with it.
    EndOwner {
        /// The owner's number.
        owner: u64,
    },
}

/// Runs nft for a process that may not start programs itself.
pub trait NftRunner: fmt::Debug + Send + Sync {
    /// Runs nft and returns its output.
    fn run(&self, call: NftCall) -> Pin<Box<dyn Future<Output = Result<String, NftError>> + Send + '_>>;
}

/// Uses `runner` for every later run of this process. Only the first call has an effect.
pub fn set_nft_runner(runner: Box<dyn NftRunner>) {
    // A second runner would call the same helper as the first, so it is ignored.
    drop(RUNNER.set(runner));
}

/// The runner of this process, if it does not run nft itself.
pub(super) fn runner() -> Option<&'static dyn NftRunner> {
    RUNNER.get().map(Box::as_ref)
}

static RUNNER: OnceLock<Box<dyn NftRunner>> = OnceLock::new();
