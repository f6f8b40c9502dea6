//! Bugs planted on purpose. The tests must find each one, which shows that they can find real ones.

/// A bug that a test plants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// Rows are written whatever the store has.
    ReadThenPut,
    /// A request is judged by what the link knows, not by what the exit had seen.
    NewestBasis,
    /// What was read after a compaction is not compared with what the exit has.
    CompactionIgnored,
    /// A lost answer counts as a transaction that did not hold, and may hold later.
    LateTransactionMissed,
    /// A session that waited for the store takes the record from a newer one.
    QueuedClaimOverwrites,
    /// A recovery brings back no removed keys.
    TombstoneForgotten,
}

/// Whether the running test has planted the bug.
#[cfg(not(test))]
pub(crate) const fn is_planted(_: Bug) -> bool {
    false
}

#[cfg(test)]
pub(crate) use self::planting::{is_planted, with};

#[cfg(test)]
mod planting {
    use std::cell::Cell;

    use super::Bug;

    thread_local! {
        static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    pub(crate) fn is_planted(bug: Bug) -> bool {
        PLANTED.get() == Some(bug)
    }

    /// Runs something with a bug planted. Returns whether it failed.
    pub(crate) fn with(bug: Bug, run: impl FnOnce() + std::panic::UnwindSafe) -> bool {
        PLANTED.set(Some(bug));
        let failed = std::panic::catch_unwind(run).is_err();
        PLANTED.set(None);
        failed
    }
}
