//! The runtime of one command. It runs on the calling thread alone.

use anyhow::Context as _;

/// Runs a future to its end.
///
/// # Errors
/// The future's own errors. Also when no runtime can be started.
pub(crate) fn block_on<T>(future: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    // Uses one thread, because a daemon enters its sandbox in here. The sandbox confines the calling thread and threads that it
    // starts later, but not threads that run already.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime; check the limits on descriptors and memory")?;
    let outcome = runtime.block_on(future);
    // Does not wait for a look-up that the system's resolver has not answered, because its answer is no longer needed.
    runtime.shutdown_background();
    outcome
}
