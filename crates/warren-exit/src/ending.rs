//! How the daemon ends.

/// What the daemon was told to do when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// SIGTERM or SIGINT: end for good.
    Stop,
    /// SIGUSR1: another daemon follows, however long that takes.
    Restart,
}
