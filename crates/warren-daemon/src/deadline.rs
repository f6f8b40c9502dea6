//! Waiting for what a state machine asks for.

use std::time::Instant;

/// Waits until an instant, or for ever.
pub async fn until(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant.into()).await,
        None => std::future::pending().await,
    }
}
