//! The order of the variants, and when to stop.

use super::variant::Side;

/// Returns the order of the variants in a round: A B in even rounds, B A in odd ones. So a steady drift of the machine's speed
/// affects both variants equally.
pub(super) fn order(round: u32) -> [Side; 2] {
    if round.is_multiple_of(2) { [Side::A, Side::B] } else { [Side::B, Side::A] }
}

/// The rule for the number of rounds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Schedule {
    pub(super) min: u32,
    pub(super) max: u32,
    /// The requested half width of the interval, in per cent.
    pub(super) precision: f64,
}

impl Schedule {
    /// Returns whether `kept` rounds are enough.
    ///
    /// Between the minimum and the maximum, only the width of the interval decides. A rule that stopped at the first significant
    /// difference would sooner or later report a difference between equal variants.
    pub(super) fn is_done(&self, kept: u32, half_width: Option<f64>) -> bool {
        kept >= self.max || (kept >= self.min && half_width.is_some_and(|width| width <= self.precision))
    }

    /// Estimates the number of rounds that the precision needs. An interval narrows with the square root of that
    /// number.
    pub(super) fn expected(&self, kept: u32, half_width: Option<f64>) -> u32 {
        let Some(width) = half_width else { return self.max };
        let rounds = f64::from(kept) * (width / self.precision).powi(2);
        let rounds = rounds.ceil().clamp(f64::from(self.min), f64::from(self.max));
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is between min and max"
        )]
        let rounds = rounds as u32;
        // This is called only while `is_done` returns false, so at least one more round follows.
        rounds.max(kept.saturating_add(1)).min(self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEDULE: Schedule = Schedule { min: 5, max: 20, precision: 3.0 };

    #[test]
    fn variants_alternate_as_a_b_b_a() {
        let runs: Vec<Side> = (0..4).flat_map(order).collect();
        assert_eq!(runs, [Side::A, Side::B, Side::B, Side::A, Side::A, Side::B, Side::B, Side::A]);
    }

    #[test]
    fn rounds_end_when_narrow_enough_but_not_before_the_least_number() {
        assert!(!SCHEDULE.is_done(4, Some(0.1)));
        assert!(SCHEDULE.is_done(5, Some(2.9)));
        assert!(!SCHEDULE.is_done(5, Some(3.1)));
        assert!(!SCHEDULE.is_done(5, None));
        assert!(SCHEDULE.is_done(20, Some(50.0)));
    }

    #[test]
    fn expected_rounds_follow_the_square_of_the_width() {
        assert_eq!(SCHEDULE.expected(0, None), 20);
        assert_eq!(SCHEDULE.expected(4, Some(6.0)), 16);
        assert_eq!(SCHEDULE.expected(4, Some(1.0)), 5);
        assert_eq!(SCHEDULE.expected(8, Some(60.0)), 20);
        assert_eq!(SCHEDULE.expected(7, Some(3.0)), 8);
    }
}
