//! Back-off: how long to wait between attempts, and how long an attempt may take. Both are an eighth of the outage so far, within
//! bounds. The wait has jitter.

use std::time::Duration;

use crate::HANDSHAKE_TIMEOUT;

/// Shortest time from the start of one attempt to the start of the next.
pub(super) const SHORTEST: Duration = Duration::from_millis(250);

/// Longest time from the start of one attempt to the start of the next.
pub(super) const LONGEST: Duration = Duration::from_secs(30);

/// Longest time that an attempt may take. QUIC resends its first packet after 1, 3, 6, 8 s and so on. During the first two minutes
/// of an outage, each attempt lasts until the next one begins. So the client notices within two or three seconds that a path works
/// again.
const LONGEST_ATTEMPT: Duration = Duration::from_secs(15);

/// Largest deviation from the wait, in percent. It keeps the clients of one exit from reconnecting all at once.
const JITTER_PERCENT: u32 = 20;

/// The wait after an outage that has lasted `outage`. `random` spreads it evenly over 80 % to 120 %, never above [`LONGEST`].
pub(super) fn wait(outage: Duration, random: u16) -> Duration {
    let middle = (outage / 8).clamp(SHORTEST, LONGEST);
    let spread = 2 * JITTER_PERCENT * u32::from(random) / u32::from(u16::MAX);
    (middle * (100 - JITTER_PERCENT + spread) / 100).min(LONGEST)
}

/// How long an attempt may take to reach the exit if the outage has lasted `outage` when it begins.
pub(super) fn patience(outage: Duration) -> Duration {
    (outage / 8).clamp(HANDSHAKE_TIMEOUT, LONGEST_ATTEMPT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_is_an_eighth_of_the_outage_within_its_bounds() {
        let middle = u16::MAX / 2 + 1;
        assert_eq!(wait(Duration::ZERO, middle), SHORTEST);
        assert_eq!(wait(Duration::from_secs(16), middle), Duration::from_secs(2));
        assert_eq!(wait(Duration::from_secs(86_400), middle), LONGEST);
    }

    #[test]
    fn jitter_stays_within_twenty_percent_and_the_bound() {
        let outage = Duration::from_secs(80);
        assert_eq!(wait(outage, 0), Duration::from_secs(8));
        assert_eq!(wait(outage, u16::MAX), Duration::from_secs(12));
        for random in (0..u16::MAX).step_by(97) {
            assert!((Duration::from_secs(8)..=Duration::from_secs(12)).contains(&wait(outage, random)));
            assert!(wait(Duration::from_secs(86_400), random) <= LONGEST);
        }
    }

    /// The limits of rows F6 and L8 of the reliability scorecard (docs/torture.md): a client tries an exit at most 40 times in
    /// ten minutes of outage. If the exit is back after two minutes, the client finds it at once.
    #[test]
    fn ten_minutes_of_outage_take_at_most_forty_attempts_and_two_minutes_leave_no_gap() {
        for random in [0, u16::MAX / 2, u16::MAX] {
            let mut attempts = 0;
            let mut at = Duration::ZERO;
            while at < Duration::from_secs(600) {
                attempts += 1;
                let (tries, waits) = (patience(at), wait(at, random));
                let gap = waits.saturating_sub(tries);
                assert!(gap <= Duration::from_secs(4) || at > Duration::from_secs(120), "{gap:?} at {at:?}");
                at += tries.max(waits);
            }
            assert!(attempts <= 40, "{attempts} attempts");
        }
    }
}
