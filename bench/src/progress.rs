//! Code that all progress bars share. The bars are drawn on standard error, and are hidden if it is not a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// Makes a bar from a template in indicatif's syntax.
pub(crate) fn bar(length: u64, template: &str) -> ProgressBar {
    let bar = ProgressBar::new(length);
    // With a wrong template, the bar keeps indicatif's default style.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

/// Prints a line above the bar, on standard error.
pub(crate) fn print(bar: &ProgressBar, line: &str) {
    // `println` of a hidden bar prints nothing.
    if bar.is_hidden() { eprintln!("{line}") } else { bar.println(line) }
}

/// Formats a time as in `2 min 05 s left`.
pub(crate) fn left(time: Duration) -> String {
    format!("{} min {:02} s left", time.as_secs() / 60, time.as_secs() % 60)
}

/// Estimates the time left: the planned time that is left, multiplied by the ratio of elapsed to planned time so far.
pub(crate) fn time_left(elapsed: Duration, done: Duration, total: Duration) -> Duration {
    let left = total.saturating_sub(done);
    if done.is_zero() {
        return left;
    }
    // The first steps may be unusually fast or slow, so the ratio is limited to a factor of five.
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
