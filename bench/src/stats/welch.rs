//! Welch's t-test: whether two means differ, without assuming equal variances.

use serde::Serialize;
use statrs::distribution::{ContinuousCDF, StudentsT};

use super::Sample;

/// The result of the two-sided test for equal means.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Welch {
    /// Positive if the second mean is larger.
    pub(crate) t: f64,
    pub(crate) degrees_of_freedom: f64,
    pub(crate) p: f64,
}

impl Welch {
    /// Tests two samples. None if one has fewer than two measurements.
    pub(crate) fn test(a: &Sample, b: &Sample) -> Option<Self> {
        let (share_a, share_b) = (a.variance()? / a.n(), b.variance()? / b.n());
        let difference = b.mean() - a.mean();
        let error = (share_a + share_b).sqrt();
        if error == 0.0 {
            // If no sample varies, the means are certainly equal or certainly different. `f64::MAX` stands for infinity, which
            // JSON does not have.
            let (t, p) = if difference == 0.0 { (0.0, 1.0) } else { (f64::MAX.copysign(difference), 0.0) };
            return Some(Self { t, degrees_of_freedom: a.n() + b.n() - 2.0, p });
        }
        let t = difference / error;
        let degrees_of_freedom = satterthwaite((share_a, a.n()), (share_b, b.n()));
        Some(Self { t, degrees_of_freedom, p: two_sided_p(t, degrees_of_freedom)? })
    }
}

/// Returns the degrees of freedom of the sum of two variances (Welch and Satterthwaite). Each argument is the variance of a mean
/// and the size of its sample.
pub(super) fn satterthwaite(a: (f64, f64), b: (f64, f64)) -> f64 {
    let below = a.0.powi(2) / (a.1 - 1.0) + b.0.powi(2) / (b.1 - 1.0);
    (a.0 + b.0).powi(2) / below
}

/// Returns the number of standard errors around the mean within which Student's t lies with the given confidence.
pub(super) fn t_quantile(confidence: f64, degrees_of_freedom: f64) -> Option<f64> {
    let distribution = StudentsT::new(0.0, 1.0, degrees_of_freedom).ok()?;
    Some(distribution.inverse_cdf(f64::midpoint(1.0, confidence)))
}

fn two_sided_p(t: f64, degrees_of_freedom: f64) -> Option<f64> {
    let distribution = StudentsT::new(0.0, 1.0, degrees_of_freedom).ok()?;
    Some((2.0 * distribution.cdf(-t.abs())).min(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test(a: &[f64], b: &[f64]) -> Welch {
        Welch::test(&Sample::new(a.to_vec()).unwrap(), &Sample::new(b.to_vec()).unwrap()).unwrap()
    }

    fn assert_near(what: &str, value: f64, expected: f64, tolerance: f64) {
        assert!((value - expected).abs() <= tolerance, "{what} is {value}, not {expected}");
    }

    /// The three examples of Wikipedia's article "Welch's t-test", with the results printed there.
    #[test]
    fn published_examples_come_out_as_printed() {
        let first =
            [27.5, 21.0, 19.0, 23.6, 17.0, 17.9, 16.9, 20.1, 21.9, 22.6, 23.1, 19.6, 19.0, 21.7, 21.4];
        let second =
            [27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8, 22.0, 24.8, 20.2, 21.9, 22.1, 22.9, 20.5, 24.4];
        let welch = test(&first, &second);
        assert_near("t", welch.t, 2.46, 0.005);
        assert_near("degrees of freedom", welch.degrees_of_freedom, 25.0, 0.05);
        assert_near("p", welch.p, 0.021, 0.0005);

        let first = [17.2, 20.9, 22.6, 18.1, 21.7, 21.4, 23.5, 24.2, 14.7, 21.8];
        let second = [
            21.5, 22.8, 21.0, 23.0, 21.6, 23.6, 22.5, 20.7, 23.4, 21.8, 20.7, 21.7, 21.5, 22.5, 23.6, 21.5,
            22.5, 23.5, 21.5, 21.8,
        ];
        let welch = test(&first, &second);
        assert_near("t", welch.t, 1.57, 0.005);
        assert_near("degrees of freedom", welch.degrees_of_freedom, 9.9, 0.05);
        assert_near("p", welch.p, 0.149, 0.0005);

        let first = [19.8, 20.4, 19.6, 17.8, 18.5, 18.9, 18.3, 18.9, 19.5, 22.0];
        let second = [
            28.2, 26.6, 20.1, 23.3, 25.2, 22.1, 17.7, 27.6, 20.6, 13.7, 23.2, 17.5, 20.6, 18.0, 23.9, 21.6,
            24.3, 20.4, 24.0, 13.2,
        ];
        let welch = test(&first, &second);
        assert_near("t", welch.t, 2.22, 0.005);
        assert_near("degrees of freedom", welch.degrees_of_freedom, 24.5, 0.05);
        assert_near("p", welch.p, 0.036, 0.0005);
    }

    /// R's `t.test(extra ~ group, data = sleep)`: t = -1.8608, df = 17.776, p-value = 0.07939 (group 1 less group 2).
    #[test]
    fn students_sleep_data_come_out_as_in_r() {
        let first = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0];
        let second = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4];
        let welch = test(&first, &second);
        assert_near("t", welch.t, 1.8608, 5e-5);
        assert_near("degrees of freedom", welch.degrees_of_freedom, 17.776, 5e-4);
        assert_near("p", welch.p, 0.07939, 5e-6);
    }

    /// Values from the table of critical values of Student's t in the NIST/SEMATECH e-Handbook, section 1.3.6.7.2.
    #[test]
    fn quantiles_are_those_of_the_nist_table() {
        for (degrees, expected) in [(1.0, 12.706), (5.0, 2.571), (10.0, 2.228), (30.0, 2.042), (100.0, 1.984)]
        {
            assert_near("quantile", t_quantile(0.95, degrees).unwrap(), expected, 5e-4);
        }
    }

    #[test]
    fn what_never_varies_differs_for_sure_or_not_at_all() {
        assert_eq!(test(&[3.0, 3.0], &[3.0, 3.0]).p, 1.0);
        let welch = test(&[3.0, 3.0], &[2.0, 2.0]);
        assert_eq!(welch.p, 0.0);
        assert!(welch.t < 0.0 && welch.t.is_finite());
    }

    #[test]
    fn single_measurement_cannot_be_tested() {
        let one = Sample::new(vec![1.0]).unwrap();
        assert_eq!(Welch::test(&one, &one), None);
    }
}
