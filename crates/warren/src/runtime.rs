//! Runs a command's asynchronous code on the calling thread.

use anyhow::Context as _;

/// Runs a future to its end.
///
/// # Errors
/// The future's own errors. Also when no runtime can be started.
pub(crate) fn block_on<T>(future: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    // The runtime has one thread, because a daemon enters its sandbox in it. The sandbox applies to the calling thread and to
    // threads that it starts later, but not to threads that already run.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime; check the limits on descriptors and memory")?;
    let outcome = runtime.block_on(future);
    // This does not wait for a blocking look-up by the system's resolver, whose answer is no longer needed.
    runtime.shutdown_background();
    outcome
}
