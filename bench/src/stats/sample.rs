//! A sample: repeated measurements of the same figure.

use serde::Serialize;
use statrs::statistics::Statistics as _;

/// One or more finite measurements, in the order in which they were taken.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sample {
    values: Vec<f64>,
    ordered: Vec<f64>,
}

impl Sample {
    /// Makes a sample. None without measurements, or if one of them is not finite.
    pub(crate) fn new(values: Vec<f64>) -> Option<Self> {
        if values.is_empty() || values.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let mut ordered = values.clone();
        // All values are finite, so `total_cmp` orders them like numbers.
        ordered.sort_by(f64::total_cmp);
        Some(Self { values, ordered })
    }

    pub(crate) fn values(&self) -> &[f64] {
        &self.values
    }

    pub(crate) fn count(&self) -> usize {
        self.values.len()
    }

    /// Returns the number of measurements as a float.
    #[expect(clippy::cast_precision_loss, reason = "no sample has 2^52 measurements")]
    pub(crate) fn n(&self) -> f64 {
        self.values.len() as f64
    }

    pub(crate) fn mean(&self) -> f64 {
        self.values.iter().sum::<f64>() / self.n()
    }

    /// Returns the unbiased estimate of the variance, with n - 1 in the denominator. None for a single measurement.
    pub(crate) fn variance(&self) -> Option<f64> {
        (self.count() > 1).then(|| self.values.iter().variance())
    }

    pub(crate) fn standard_deviation(&self) -> Option<f64> {
        self.variance().map(f64::sqrt)
    }

    /// Returns the coefficient of variation: the standard deviation divided by the mean.
    pub(crate) fn variation(&self) -> Option<f64> {
        let mean = self.mean();
        self.standard_deviation().filter(|_| mean != 0.0).map(|deviation| deviation / mean.abs())
    }

    /// Returns a quantile, interpolated linearly (type 7 of Hyndman and Fan, the default of R and NumPy).
    pub(crate) fn quantile(&self, part: f64) -> f64 {
        // The position of the quantile between index 0 and index n - 1 of the ordered values.
        let place = part.clamp(0.0, 1.0) * (self.n() - 1.0);
        let at = |place: f64| {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "0 to n - 1, a whole number"
            )]
            let index = place as usize;
            // A sample is never empty, so the index is in range and the fallback is not used.
            self.ordered.get(index).copied().unwrap_or(f64::NAN)
        };
        let (below, above) = (at(place.floor()), at(place.ceil()));
        below + (place - place.floor()) * (above - below)
    }

    pub(crate) fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    pub(crate) fn summary(&self) -> Summary {
        Summary {
            n: self.count(),
            mean: self.mean(),
            median: self.median(),
            standard_deviation: self.standard_deviation(),
            variation: self.variation(),
            p10: self.quantile(0.1),
            p50: self.quantile(0.5),
            p90: self.quantile(0.9),
        }
    }
}

/// The figures of a sample in a table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Summary {
    pub(crate) n: usize,
    pub(crate) mean: f64,
    pub(crate) median: f64,
    pub(crate) standard_deviation: Option<f64>,
    pub(crate) variation: Option<f64>,
    pub(crate) p10: f64,
    pub(crate) p50: f64,
    pub(crate) p90: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sample_needs_finite_measurements() {
        assert_eq!(Sample::new(vec![]), None);
        assert_eq!(Sample::new(vec![1.0, f64::NAN]), None);
        assert_eq!(Sample::new(vec![f64::INFINITY]), None);
    }

    /// Computed by hand: 2, 4, 4, 4, 5, 5, 7, 9 has a mean of 5 and, with n as the divisor, a deviation of 2.
    #[test]
    fn deviation_is_the_unbiased_one() {
        let sample = Sample::new(vec![2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).unwrap();
        assert_eq!(sample.mean(), 5.0);
        assert!((sample.variance().unwrap() - 32.0 / 7.0).abs() < 1e-12);
        assert!((sample.variation().unwrap() - (32.0_f64 / 7.0).sqrt() / 5.0).abs() < 1e-12);
    }

    /// NIST StRD "NumAcc3": 1000000.2 once, then 1000000.1 and 1000000.3 alternating; certified mean 1000000.2, deviation 0.1.
    #[test]
    fn deviation_of_large_close_numbers_keeps_its_digits() {
        let mut values = vec![1_000_000.2];
        values.extend([1_000_000.1, 1_000_000.3].into_iter().cycle().take(1_000));
        let sample = Sample::new(values).unwrap();
        assert!((sample.mean() - 1_000_000.2).abs() < 1e-6);
        assert!((sample.standard_deviation().unwrap() - 0.1).abs() < 1e-8);
    }

    #[test]
    fn quantiles_interpolate_as_r_does() {
        // quantile(c(1, 2, 3, 4, 10), c(0.1, 0.5, 0.9)) in R: 1.4, 3.0, 7.6.
        let sample = Sample::new(vec![10.0, 1.0, 3.0, 2.0, 4.0]).unwrap();
        assert!((sample.quantile(0.1) - 1.4).abs() < 1e-12);
        assert_eq!(sample.median(), 3.0);
        assert!((sample.quantile(0.9) - 7.6).abs() < 1e-12);
    }

    #[test]
    fn single_measurement_has_no_deviation() {
        let summary = Sample::new(vec![7.0]).unwrap().summary();
        assert_eq!((summary.mean, summary.p10, summary.p90), (7.0, 7.0, 7.0));
        assert_eq!(summary.standard_deviation, None);
    }
}
