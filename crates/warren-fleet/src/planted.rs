//! Bugs planted on purpose. The tests must find each one, which shows that they can find real ones.
//!
//! Unit tests plant a bug in their thread. A link of its own process has the bug that `WARREN_FLEET_PLANTED` names, but only in a
//! build with debug assertions, which no release has.

/// A bug that a test plants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// Rows are written whatever the store contains.
    ReadThenPut,
    /// A request is judged by what the link knows, not by what the exit had seen.
    NewestBasis,
    /// What was read after a compaction is not compared with what the exit has.
    CompactionIgnored,
    /// A transaction whose answer was lost counts as failed, although it may still hold later.
    LateTransactionMissed,
    /// A session that waited for the store takes the record from a newer one.
    QueuedClaimOverwrites,
    /// The numbers that a client process gives its sessions are ignored.
    ClaimsIgnored,
    /// A recovery brings back no removed keys.
    TombstoneForgotten,
}

/// Whether the test that runs this link has planted the bug.
#[cfg(all(not(test), debug_assertions))]
pub(crate) fn is_planted(bug: Bug) -> bool {
    use std::sync::OnceLock;

    static PLANTED: OnceLock<Option<String>> = OnceLock::new();
    let planted = PLANTED.get_or_init(|| std::env::var("WARREN_FLEET_PLANTED").ok());
    planted.as_deref().is_some_and(|planted| planted == format!("{bug:?}"))
}

/// No release has a bug on purpose.
#[cfg(all(not(test), not(debug_assertions)))]
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
