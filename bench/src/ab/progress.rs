//! The progress bar: rounds done and expected, the current width of the interval, and the time left.

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

use indicatif::ProgressBar;

use super::variant::Side;
use crate::progress;

/// A progress bar on standard error. It is hidden if standard error is not a terminal.
pub(super) struct Progress {
    bar: ProgressBar,
    start: Instant,
    runs: Cell<u32>,
    expected_runs: Cell<u32>,
}

impl Progress {
    pub(super) fn new() -> Self {
        let bar = progress::bar(0, "{bar:30} round {pos}/{len}  {msg}");
        Self { bar, start: Instant::now(), runs: Cell::new(0), expected_runs: Cell::new(0) }
    }

    /// Shows the progress. `kept` and `expected` do not count the first round, which is discarded.
    pub(super) fn round(&self, kept: u32, expected: u32, half_width: Option<f64>) {
        // Each round has two runs. The added 1 is the discarded first round.
        self.expected_runs.set(2 * (expected + 1));
        self.bar.set_length(u64::from(expected));
        self.bar.set_position(u64::from(kept));
        let width = half_width.map_or_else(|| "±?".to_owned(), |width| format!("±{width:.1} %"));
        self.bar.set_prefix(width);
    }

    pub(super) fn running(&self, side: Side) {
        let left = time_left(self.start.elapsed(), self.runs.get(), self.expected_runs.get());
        let left = left.map_or_else(String::new, |left| format!(", about {} s left", left.as_secs()));
        self.bar.set_message(format!("{}  running {side:?}{left}", self.bar.prefix()));
    }

    pub(super) fn ran(&self) {
        self.runs.set(self.runs.get() + 1);
    }

    pub(super) fn tick(&self) {
        self.bar.tick();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Estimates the time that the remaining runs take at the pace so far.
fn time_left(elapsed: Duration, runs: u32, expected: u32) -> Option<Duration> {
    (runs > 0).then(|| elapsed / runs * expected.saturating_sub(runs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_left_follows_the_pace_so_far() {
        assert_eq!(time_left(Duration::from_secs(9), 3, 10), Some(Duration::from_secs(21)));
        assert_eq!(time_left(Duration::from_secs(9), 10, 10), Some(Duration::ZERO));
        assert_eq!(time_left(Duration::ZERO, 0, 10), None);
    }
}
