//! How the daemon ends.

/// How the daemon was told to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// SIGTERM or SIGINT: end for good.
    Stop,
    /// SIGUSR1: another daemon follows, however long that takes.
    Restart,
}
