//! Statistics of repeated measurements: the summary of one sample and the comparison of two.

mod compare;
mod ratio;
mod sample;
mod verdict;
mod welch;

pub(crate) use compare::Comparison;
pub(crate) use ratio::Ratio;
pub(crate) use sample::Sample;
pub(crate) use verdict::{Better, Probability, Verdict};
pub(crate) use welch::Welch;

/// The confidence of every interval. Tests use 1 minus this as their significance level.
pub(crate) const CONFIDENCE: f64 = 0.95;

/// Converts a count to a float.
#[expect(clippy::cast_precision_loss, reason = "no run counts to 2^53")]
pub(crate) fn float(count: u64) -> f64 {
    count as f64
}

/// Returns `part` divided by `whole`, and 0 if `whole` is 0.
pub(crate) fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { float(part) / float(whole) }
}
