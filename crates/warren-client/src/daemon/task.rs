//! Waiting for a task that may not be running.

use tokio::task::{JoinError, JoinHandle};

/// Waits for a task's end. Without a task, waits for ever. Cancelling the wait loses nothing.
pub(super) async fn finished<T>(task: &mut Option<JoinHandle<T>>) -> Result<T, JoinError> {
    match task {
        Some(task) => task.await,
        None => std::future::pending().await,
    }
}
