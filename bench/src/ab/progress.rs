//! The progress bar: rounds so far, rounds expected, how wide the interval still is, and the time left.

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};

use super::variant::Side;

/// Draws on standard error, and nothing where that is no terminal.
pub(super) struct Progress {
    bar: ProgressBar,
    start: Instant,
    runs: Cell<u32>,
    expected_runs: Cell<u32>,
}

impl Progress {
    pub(super) fn new() -> Self {
        let bar = ProgressBar::new(0);
        if let Ok(style) = ProgressStyle::with_template("{bar:30} round {pos}/{len}  {msg}") {
            bar.set_style(style);
        }
        Self { bar, start: Instant::now(), runs: Cell::new(0), expected_runs: Cell::new(0) }
    }

    /// Shows how far it is: one round more than is kept gets run, the one thrown away.
    pub(super) fn round(&self, kept: u32, expected: u32, half_width: Option<f64>) {
        self.expected_runs.set(2 * (expected + 1));
        self.bar.set_length(u64::from(expected));
        self.bar.set_position(u64::from(kept));
        let width = half_width.map_or_else(|| "±?".to_owned(), |width| format!("±{width:.1} %"));
        self.bar.set_prefix(width);
    }

    pub(super) fn running(&self, side: Side) {
        let left = time_left(self.start.elapsed(), self.runs.get(), self.expected_runs.get());
        let left = left.map_or_else(String::new, |left| format!(", about {} s left", left.as_secs()));
        self.bar.set_message(format!("{}  running {side}{left}", self.bar.prefix()));
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

/// The time that the runs still expected take at the pace so far.
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
