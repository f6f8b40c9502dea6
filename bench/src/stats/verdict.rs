//! The verdict on two variants, as a sentence.

use std::fmt;

use serde::Serialize;

use super::{CONFIDENCE, Ratio, Welch};

/// Whether a higher or a lower metric is better.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Better {
    Higher,
    Lower,
}

/// The conclusion that the measurements allow.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum Verdict {
    /// The interval excludes 1, and Welch's test finds a difference.
    Real { percent: f64, low: f64, high: f64, p: f64, improvement: bool },
    /// The interval contains 1 and is at most as wide as requested. Any real difference is within the interval, with the given
    /// confidence.
    Noise { low: f64, high: f64, p: f64 },
    /// The interval contains 1 but is wider than requested, so there may be a difference.
    TooSmallToTell { low: f64, high: f64, p: f64, precision: f64 },
}

impl Verdict {
    /// Judges a ratio. `precision` is the requested half width of its interval in per cent.
    pub(crate) fn new(ratio: Ratio, welch: Welch, precision: f64, better: Better) -> Self {
        let (low, high) = ratio.percent_interval();
        let p = welch.p;
        // The interval of the ratio and Welch's test may disagree if the result is close to the limit. A real difference needs
        // both.
        if !ratio.holds_one() && p < 1.0 - CONFIDENCE {
            let improvement = (ratio.estimate > 1.0) == (better == Better::Higher);
            return Self::Real { percent: ratio.percent(), low, high, p, improvement };
        }
        if ratio.half_width_percent() <= precision {
            Self::Noise { low, high, p }
        } else {
            Self::TooSmallToTell { low, high, p, precision }
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Real { percent, low, high, p, improvement } => {
                let how = if *improvement { "better" } else { "worse" };
                write!(
                    f,
                    "The difference is real: B is {:.1} % {} than A, and {how} (95 % interval {low:+.1} % to {high:+.1} %, \
                     p {}).",
                    percent.abs(),
                    if *percent > 0.0 { "higher" } else { "lower" },
                    Probability(*p),
                )
            }
            Self::Noise { low, high, p } => write!(
                f,
                "The difference is noise: it lies between {low:+.1} % and {high:+.1} % (95 % interval, p {}).",
                Probability(*p),
            ),
            Self::TooSmallToTell { low, high, p, precision } => write!(
                f,
                "These rounds are too few to show a difference: anything between {low:+.1} % and {high:+.1} % is possible \
                 (95 % interval, p {}), which is wider than the requested ±{precision:.1} %.",
                Probability(*p),
            ),
        }
    }
}

/// A probability, formatted for tables.
pub(crate) struct Probability(pub(crate) f64);

impl fmt::Display for Probability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 0.000_1 { f.write_str("< 0.0001") } else { write!(f, "= {:.4}", self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(low: f64, high: f64, p: f64, better: Better) -> Verdict {
        let ratio = Ratio { estimate: (low * high).sqrt(), low, high };
        Verdict::new(ratio, Welch { t: 0.0, degrees_of_freedom: 10.0, p }, 3.0, better)
    }

    #[test]
    fn interval_without_one_is_real_and_says_which_way_is_better() {
        let higher = verdict(1.10, 1.20, 0.000_01, Better::Higher);
        assert!(matches!(higher, Verdict::Real { improvement: true, .. }));
        let sentence = higher.to_string();
        assert!(sentence.contains("14.9 % higher") && sentence.contains("better"), "{sentence}");
        assert!(sentence.contains("p < 0.0001"), "{sentence}");
        assert!(matches!(verdict(1.10, 1.20, 0.01, Better::Lower), Verdict::Real { improvement: false, .. }));
        assert!(matches!(verdict(0.80, 0.90, 0.01, Better::Lower), Verdict::Real { improvement: true, .. }));
    }

    #[test]
    fn narrow_interval_around_one_is_noise_and_a_wide_one_too_small_to_tell() {
        assert!(matches!(verdict(0.98, 1.02, 0.9, Better::Higher), Verdict::Noise { .. }));
        assert!(matches!(verdict(0.90, 1.10, 0.9, Better::Higher), Verdict::TooSmallToTell { .. }));
    }

    #[test]
    fn interval_and_test_must_agree_for_a_difference_to_be_real() {
        assert!(matches!(verdict(1.001, 1.02, 0.06, Better::Higher), Verdict::Noise { .. }));
    }
}
