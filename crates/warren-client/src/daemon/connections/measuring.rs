//! The state of round-trip time measurements: when the next one is due, and the results of the current one.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use warren_quic::driver::ConnectionId;

use crate::exits::Way;

/// When to measure, and the measurement under way.
#[derive(Debug, Default)]
pub(super) struct Measuring {
    pub(super) due: Option<Instant>,
    /// The exits that are asked, by name, each with its round-trip time once it has answered. `None` while nothing is measured.
    pub(super) asked: Option<BTreeMap<String, Option<Duration>>>,
    /// Connections without an answer yet.
    pub(super) running: HashMap<ConnectionId, Way>,
}
