//! When to try again: after a quarter of the outage so far, within bounds and with jitter.

use std::time::Duration;

/// Shortest wait between the beginnings of two attempts.
pub(super) const SHORTEST: Duration = Duration::from_millis(250);

/// Longest wait.
pub(super) const LONGEST: Duration = Duration::from_secs(30);

/// Largest deviation from the wait, in percent: keeps clients of one exit from coming back all at once.
const JITTER_PERCENT: u32 = 20;

/// The wait after an outage of `outage` so far; `random` spreads it evenly over 80 % to 120 %.
pub(super) fn wait(outage: Duration, random: u16) -> Duration {
    let middle = (outage / 4).clamp(SHORTEST, LONGEST);
    let spread = 2 * JITTER_PERCENT * u32::from(random) / u32::from(u16::MAX);
    middle * (100 - JITTER_PERCENT + spread) / 100
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_is_a_quarter_of_the_outage_within_its_bounds() {
        let middle = u16::MAX / 2 + 1;
        assert_eq!(wait(Duration::ZERO, middle), SHORTEST);
        assert_eq!(wait(Duration::from_secs(8), middle), Duration::from_secs(2));
        assert_eq!(wait(Duration::from_secs(86_400), middle), LONGEST);
    }

    #[test]
    fn jitter_stays_within_twenty_percent() {
        let outage = Duration::from_secs(40);
        assert_eq!(wait(outage, 0), Duration::from_secs(8));
        assert_eq!(wait(outage, u16::MAX), Duration::from_secs(12));
        for random in (0..u16::MAX).step_by(97) {
            assert!((Duration::from_secs(8)..=Duration::from_secs(12)).contains(&wait(outage, random)));
        }
    }
}
