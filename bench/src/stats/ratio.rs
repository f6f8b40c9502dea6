//! The ratio of two means, with its 95 % confidence interval.
//!
//! The interval is computed with the delta method on logarithms. It is symmetric around ln(b / a), with the standard error
//! sqrt(cv_a^2 / n_a + cv_b^2 / n_b) and Student's t at Welch-Satterthwaite degrees of freedom. The interval is always finite and
//! positive, and exchanging the variants gives the reciprocal interval. Fieller's interval is exact for normal data, but it is
//! unbounded if the first mean is not clearly different from zero. A test checks that both intervals are nearly equal for a
//! throughput that varies by a few per cent.

use serde::Serialize;

use super::{
    CONFIDENCE, Sample,
    welch::{satterthwaite, t_quantile},
};

/// A ratio of means with its confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Ratio {
    pub(crate) estimate: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Ratio {
    /// Estimates mean(b) / mean(a) of independent samples. None if a mean is not positive or a sample is too small.
    pub(crate) fn of_means(a: &Sample, b: &Sample) -> Option<Self> {
        let share = |sample: &Sample| Some(sample.variation()?.powi(2) / sample.n());
        let (share_a, share_b) = (share(a)?, share(b)?);
        let center = positive_ratio(a.mean(), b.mean())?.ln();
        let error = (share_a + share_b).sqrt();
        // If no sample varies, the degrees of freedom would be 0 / 0.
        if error == 0.0 {
            return Some(Self::around(center, 0.0));
        }
        let t = t_quantile(CONFIDENCE, satterthwaite((share_a, a.n()), (share_b, b.n())))?;
        Some(Self::around(center, t * error))
    }

    /// Estimates the ratio as the geometric mean of the rounds' ratios. A round's ratio is the value of `b` divided by that of
    /// `a` with the same index.
    ///
    /// An effect that both runs of a round have cancels out of their ratio, so this interval is narrower on a machine whose speed
    /// drifts.
    pub(crate) fn of_rounds(a: &Sample, b: &Sample) -> Option<Self> {
        let logarithms: Option<Vec<f64>> =
            a.values().iter().zip(b.values()).map(|(a, b)| positive_ratio(*a, *b).map(f64::ln)).collect();
        let logarithms = Sample::new(logarithms?)?;
        let error = (logarithms.variance()? / logarithms.n()).sqrt();
        let t = t_quantile(CONFIDENCE, logarithms.n() - 1.0)?;
        Some(Self::around(logarithms.mean(), t * error))
    }

    /// Returns the difference of the means in per cent of the first mean.
    pub(crate) fn percent(&self) -> f64 {
        (self.estimate - 1.0) * 100.0
    }

    /// Returns the interval as differences in per cent.
    pub(crate) fn percent_interval(&self) -> (f64, f64) {
        ((self.low - 1.0) * 100.0, (self.high - 1.0) * 100.0)
    }

    /// Returns half the interval's width in per cent of the estimate.
    pub(crate) fn half_width_percent(&self) -> f64 {
        (self.high - self.low) / self.estimate * 50.0
    }

    /// Returns whether the interval contains 1, "no difference".
    pub(crate) fn holds_one(&self) -> bool {
        self.low <= 1.0 && self.high >= 1.0
    }

    fn around(center: f64, half: f64) -> Self {
        Self { estimate: center.exp(), low: (center - half).exp(), high: (center + half).exp() }
    }
}

fn positive_ratio(a: f64, b: f64) -> Option<f64> {
    (a > 0.0 && b > 0.0).then(|| b / a)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(values: &[f64]) -> Sample {
        Sample::new(values.to_vec()).unwrap()
    }

    /// Computes Fieller's interval for independent means, with the same t.
    fn fieller(a: &Sample, b: &Sample) -> (f64, f64) {
        let (va, vb) = (a.variance().unwrap() / a.n(), b.variance().unwrap() / b.n());
        let t = t_quantile(CONFIDENCE, satterthwaite((va, a.n()), (vb, b.n()))).unwrap();
        let g = t * t * va / a.mean().powi(2);
        let ratio = b.mean() / a.mean();
        let half = t / a.mean() * (vb + ratio * ratio * va - g * vb).sqrt();
        ((ratio - half) / (1.0 - g), (ratio + half) / (1.0 - g))
    }

    #[test]
    fn interval_agrees_with_fiellers_at_a_throughputs_variation() {
        let a = sample(&[3291.0, 3402.0, 3250.0, 3380.0, 3301.0, 3342.0]);
        let b = sample(&[3901.0, 3850.0, 3922.0, 3870.0, 3830.0, 3950.0]);
        let ratio = Ratio::of_means(&a, &b).unwrap();
        let (low, high) = fieller(&a, &b);
        let width = high - low;
        assert!((ratio.low - low).abs() < width / 20.0, "{ratio:?} {low} {high}");
        assert!((ratio.high - high).abs() < width / 20.0, "{ratio:?} {low} {high}");
        assert!(!ratio.holds_one());
    }

    #[test]
    fn exchanging_the_variants_gives_the_reciprocal() {
        let (a, b) = (sample(&[10.0, 11.0, 9.5]), sample(&[12.0, 13.0, 12.5, 12.2]));
        let (there, back) = (Ratio::of_means(&a, &b).unwrap(), Ratio::of_means(&b, &a).unwrap());
        assert!((there.estimate * back.estimate - 1.0).abs() < 1e-12);
        assert!((there.low * back.high - 1.0).abs() < 1e-12);
    }

    #[test]
    fn drift_that_both_share_narrows_the_interval_of_rounds() {
        let a = sample(&[100.0, 90.0, 80.0, 70.0]);
        let b = sample(&[110.2, 98.9, 88.1, 76.9]);
        let (means, rounds) = (Ratio::of_means(&a, &b).unwrap(), Ratio::of_rounds(&a, &b).unwrap());
        assert!(means.holds_one());
        assert!(!rounds.holds_one());
        assert!(rounds.half_width_percent() < means.half_width_percent() / 10.0);
    }

    #[test]
    fn constant_samples_have_an_interval_of_no_width() {
        let ratio = Ratio::of_means(&sample(&[2.0, 2.0]), &sample(&[3.0, 3.0])).unwrap();
        assert!((ratio.low - 1.5).abs() < 1e-12 && (ratio.high - 1.5).abs() < 1e-12);
    }

    #[test]
    fn zero_has_no_ratio() {
        assert_eq!(Ratio::of_means(&sample(&[0.0, 0.0]), &sample(&[1.0, 2.0])), None);
        assert_eq!(Ratio::of_rounds(&sample(&[0.0, 1.0]), &sample(&[1.0, 2.0])), None);
    }
}
