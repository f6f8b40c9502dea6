//! The runtime of one command: this thread alone.

use anyhow::Context as _;

/// Runs a future to its end.
///
/// # Errors
/// The future's own, or that no runtime can be started.
pub(crate) fn block_on<T>(future: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    // A daemon enters its sandbox in here, which confines the calling thread and those that it starts later.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime; check the limits on descriptors and memory")?;
    let outcome = runtime.block_on(future);
    // A look-up that the system's resolver has not answered would hold the command up, and nobody needs it any more.
    runtime.shutdown_background();
    outcome
}
