//! The progress bar: what is being measured and the time left.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::schedule::Plan;

/// Draws on standard error; where that is no terminal, a line for each visit.
#[derive(Debug)]
pub(super) struct Progress {
    bar: ProgressBar,
    plan: Plan,
    start: Instant,
    /// Planned time of what is behind us.
    done: Duration,
}

impl Progress {
    pub(super) fn new(plan: Plan) -> Self {
        let bar = ProgressBar::new(plan.total().as_secs());
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {msg}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(500));
        Self { bar, plan, start: Instant::now(), done: Duration::ZERO }
    }

    /// A peer's turn begins.
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

    /// A peer's turn is over; `missing` of its tests were not run.
    pub(super) fn visited(&mut self, round: u32, missing: u32) {
        let of_tests = self.plan.test(round) * self.plan.tests;
        self.advance(self.plan.visit(round).saturating_sub(of_tests) + self.plan.test(round) * missing);
    }

    /// Says something in between.
    pub(super) fn remark(&self, text: &str) {
        if self.bar.is_hidden() { eprintln!("{text}") } else { self.bar.println(text) }
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
        let left = time_left(self.start.elapsed(), self.done, self.plan.total());
        let seconds = left.as_secs();
        format!("about {} min {:02} s left", seconds / 60, seconds % 60)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// What is left of the plan, at the pace that was kept so far.
fn time_left(elapsed: Duration, done: Duration, total: Duration) -> Duration {
    let left = total.saturating_sub(done);
    if done.is_zero() {
        return left;
    }
    left.mul_f64((elapsed.as_secs_f64() / done.as_secs_f64()).clamp(0.2, 5.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_left_follows_the_plan_and_the_pace() {
        let seconds = Duration::from_secs;
        assert_eq!(time_left(Duration::ZERO, Duration::ZERO, seconds(100)), seconds(100));
        assert_eq!(time_left(seconds(60), seconds(50), seconds(100)), seconds(60));
        assert_eq!(time_left(seconds(60), seconds(100), seconds(100)), Duration::ZERO);
    }
}
