//! Statistics of repeated measurements: what a sample looks like, and whether two of them differ.

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

/// The confidence of every interval, and one less the risk that the tests take.
pub(crate) const CONFIDENCE: f64 = 0.95;
