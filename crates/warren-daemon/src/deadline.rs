//! Waits for the deadline of a state machine.

use std::time::Instant;

/// Waits until an instant, or for ever without one.
pub async fn until(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant.into()).await,
        None => std::future::pending().await,
    }
}
