//! Rates over time in the form in which the page draws them.

use serde::Serialize;

/// Rates at equal intervals, the newest last.
#[derive(Debug, Serialize)]
pub(crate) struct RateSeries {
    /// Seconds from one value to the next.
    pub(super) every: u64,
    /// Maximum number of values.
    pub(super) places: usize,
    pub(super) to_clients: Vec<u64>,
    pub(super) from_clients: Vec<u64>,
}
