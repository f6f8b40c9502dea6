//! The comparison of two samples of one metric.

use serde::Serialize;

use super::{Better, Ratio, Sample, Verdict, Welch, sample::Summary};

/// The comparison of two variants.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Comparison {
    pub(crate) a: Summary,
    pub(crate) b: Summary,
    /// The ratio of the means, on which the verdict is based.
    pub(crate) ratio: Ratio,
    /// The geometric mean of the rounds' ratios. None unless both samples have the same size.
    pub(crate) paired_ratio: Option<Ratio>,
    pub(crate) welch: Welch,
    pub(crate) verdict: Verdict,
}

impl Comparison {
    /// Compares two samples. Measurements with the same index belong to the same round. None if a sample is too small
    /// or a mean is not positive.
    pub(crate) fn new(a: &Sample, b: &Sample, precision: f64, better: Better) -> Option<Self> {
        let ratio = Ratio::of_means(a, b)?;
        let welch = Welch::test(a, b)?;
        let paired_ratio = (a.count() == b.count()).then(|| Ratio::of_rounds(a, b)).flatten();
        let verdict = Verdict::new(ratio, welch, precision, better);
        Some(Self { a: a.summary(), b: b.summary(), ratio, paired_ratio, welch, verdict })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If both samples have the same distribution, a difference is reported in about 5 % of the cases, as the confidence of 95 %
    /// allows.
    #[test]
    fn equal_variants_are_rarely_called_different() {
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut draw = || {
            // The sum of twelve uniform random numbers has nearly a normal distribution.
            let sum: f64 = (0..12)
                .map(|_| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    (state >> 11) as f64 / (1_u64 << 53) as f64
                })
                .sum();
            100.0 + 4.0 * (sum - 6.0)
        };
        let mut real = 0;
        for _ in 0..1_000 {
            let mut sample = || Sample::new((0..8).map(|_| draw()).collect()).unwrap();
            let comparison = Comparison::new(&sample(), &sample(), 3.0, Better::Higher).unwrap();
            real += u32::from(matches!(comparison.verdict, Verdict::Real { .. }));
        }
        assert!((20..=80).contains(&real), "{real} of 1000");
    }
}
