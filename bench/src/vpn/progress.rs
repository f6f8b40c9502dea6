//! The progress bar: the current measurement and the time left.

use std::time::{Duration, Instant};

use indicatif::ProgressBar;

use super::schedule::Plan;
use crate::progress;

/// A progress bar on standard error. Without a terminal, a line is printed for each visit instead.
#[derive(Debug)]
pub(super) struct Progress {
    bar: ProgressBar,
    plan: Plan,
    start: Instant,
    /// The planned time of the tests and visits that are done.
    done: Duration,
}

impl Progress {
    pub(super) fn new(plan: Plan) -> Self {
        let bar = progress::bar(plan.total().as_secs(), "{bar:30} {msg}");
        bar.enable_steady_tick(Duration::from_millis(500));
        Self { bar, plan, start: Instant::now(), done: Duration::ZERO }
    }

    /// Records the start of the visit to a peer.
    pub(super) fn visit(&self, round: u32, peer: &str) {
        let line = format!("{}, {peer}, {}", self.round(round), self.left());
        if self.bar.is_hidden() {
            eprintln!("{line}");
        }
        self.bar.set_message(line);
    }

    pub(super) fn test(&self, round: u32, peer: &str, test: &str) {
        self.bar.set_message(format!("{}, {peer}, {test}, {}", self.round(round), self.left()));
    }

    pub(super) fn tested(&mut self, round: u32) {
        self.advance(self.plan.test(round));
    }

    /// Records the end of the visit to a peer. `missing` is the number of tests that were not run.
    pub(super) fn visited(&mut self, round: u32, missing: u32) {
        // Adds the planned time of the visit that the tests did not add: the overhead, and the tests that were not run.
        let of_tests = self.plan.test(round) * self.plan.tests;
        self.advance(self.plan.visit(round).saturating_sub(of_tests) + self.plan.test(round) * missing);
    }

    pub(super) fn remark(&self, text: &str) {
        progress::print(&self.bar, text);
    }

    fn advance(&mut self, time: Duration) {
        self.done += time;
        self.bar.set_position(self.done.as_secs());
    }

    fn round(&self, round: u32) -> String {
        match round {
            0 => "warm-up round".to_owned(),
            _ => format!("round {round} of {}", self.plan.rounds),
        }
    }

    fn left(&self) -> String {
        let left = progress::time_left(self.start.elapsed(), self.done, self.plan.total());
        format!("about {}", progress::left(left))
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
