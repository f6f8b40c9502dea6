//! Owners of tables: nft processes that are children of this process, or of the process behind its runner.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::task::JoinHandle;

use super::{NftCall, NftError, NftRunner, call::runner, process::Process};
use crate::TableFamily;

/// An owner of tables: a child of this process, or of the process that runs nft for it.
#[derive(Debug)]
pub(crate) enum Owner {
    /// A child.
    Child(Box<Process>),
    /// A child of the process behind the runner.
    Asked(Asked),
}

/// An owner that the process behind the runner keeps.
#[derive(Debug)]
pub(crate) struct Asked {
    number: u64,
    runner: &'static dyn NftRunner,
    /// The task that waits for the owner's end. It starts with the first ruleset.
    end: Option<JoinHandle<()>>,
}

impl Owner {
    pub(crate) fn start() -> Result<Self, NftError> {
        match runner() {
            Some(runner) => {
                let number = NUMBER.fetch_add(1, Ordering::Relaxed);
                Ok(Self::Asked(Asked { number, runner, end: None }))
            }
            None => Ok(Self::Child(Box::new(Process::start(None)?))),
        }
    }

    /// Waits until the process has ended, and its tables with it.
    pub(crate) async fn ended(&mut self) {
        match self {
            Self::Child(process) => process.ended().await,
            Self::Asked(Asked { end, .. }) => {
                match end {
                    Some(end) => drop(end.await),
                    None => std::future::pending().await,
                }
                // The end is reported once.
                *end = None;
            }
        }
    }

    /// Loads a ruleset atomically.
    pub(crate) async fn load(&mut self, ruleset: &str) -> Result<(), NftError> {
        match self {
            Self::Child(process) => process.load(ruleset).await,
            Self::Asked(asked) => asked.load(ruleset).await,
        }
    }

    /// Makes the process delete its only table. Returns whether this succeeded. If so, nobody needs to wait for the end of
    /// the process, which the kernel delays until the table is freed.
    pub(crate) async fn end_without(mut self, family: TableFamily, table: &str) -> bool {
        let is_deleted = self.load(&format!("delete table {family} {table}\n")).await.is_ok();
        match self {
            Self::Child(process) if is_deleted => drop(tokio::spawn(process.end())),
            Self::Asked(Asked { number: owner, runner, .. }) if is_deleted => {
                // If the process behind the runner is gone, so is the owner.
                drop(runner.run(NftCall::ReleaseOwner { owner }).await);
            }
            owner @ (Self::Child(_) | Self::Asked(_)) => owner.end().await,
        }
        is_deleted
    }

    /// Ends the process, and its tables with it.
    pub(crate) async fn end(self) {
        match self {
            Self::Child(process) => process.end().await,
            Self::Asked(asked) => {
                // If the process behind the runner is gone, so is the owner.
                drop(asked.runner.run(NftCall::EndOwner { owner: asked.number }).await);
            }
        }
    }
}

impl Asked {
    async fn load(&mut self, ruleset: &str) -> Result<(), NftError> {
        let Self { number: owner, runner, .. } = *self;
        runner.run(NftCall::LoadOwned { owner, ruleset: ruleset.into() }).await?;
        self.end.get_or_insert_with(|| {
            tokio::spawn(async move {
                // An error means that the process behind the runner has ended. The process that started it notices that, so it
                // need not be reported here.
                if runner.run(NftCall::AwaitOwner { owner }).await.is_err() {
                    std::future::pending::<()>().await;
                }
            })
        });
        Ok(())
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if let Some(end) = &self.end {
            end.abort();
        }
    }
}

/// The next owner's number for the process behind the runner.
static NUMBER: AtomicU64 = AtomicU64::new(0);
