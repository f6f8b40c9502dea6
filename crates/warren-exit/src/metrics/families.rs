//! Writes metric families as OpenMetrics text, one call for each.
//!
//! Labels are written unescaped. Their values are names from this program and names of clients, and none of these contain
//! characters that need escaping.

use std::fmt::Result;

use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabelSet, NoLabelSet,
};
use prometheus_client::metrics::MetricType;

/// Writes one family after the other.
pub(super) struct Families<'encoder>(pub(super) DescriptorEncoder<'encoder>);

impl Families<'_> {
    /// Writes a counter without labels. Its name gets the suffix `_total`.
    pub(super) fn counter(&mut self, name: &str, help: &str, value: impl EncodeCounterValue) -> Result {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        // The type parameters describe an exemplar, which is not used.
        metric.encode_counter::<NoLabelSet, _, f64>(&value, None)
    }

    /// A counter for each set of labels.
    pub(super) fn counters<Labels: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Labels, impl EncodeCounterValue)>,
    ) -> Result {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        values.into_iter().try_for_each(|(labels, value)| {
            metric.encode_family(&labels)?.encode_counter::<NoLabelSet, _, f64>(&value, None)
        })
    }

    /// A gauge without labels.
    pub(super) fn gauge(&mut self, name: &str, help: &str, value: impl EncodeGaugeValue) -> Result {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        metric.encode_gauge(&value)
    }

    /// A gauge for each set of labels.
    pub(super) fn gauges<Labels: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Labels, f64)>,
    ) -> Result {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        values.into_iter().try_for_each(|(labels, value)| metric.encode_family(&labels)?.encode_gauge(&value))
    }

    /// A histogram. Each bucket of `places` has an upper bound and a count. The last bound is [`f64::MAX`], which stands for
    /// infinity.
    pub(super) fn histogram(&mut self, name: &str, help: &str, sum: f64, places: &[(f64, u64)]) -> Result {
        let count = places.iter().map(|(_, count)| count).sum();
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        // `encode_histogram` adds up the counts, because a bucket of OpenMetrics includes all smaller buckets.
        metric.encode_histogram::<NoLabelSet>(sum, count, places, None)
    }

    /// Facts about the whole process, as labels.
    pub(super) fn info(&mut self, name: &str, help: &str, labels: &impl EncodeLabelSet) -> Result {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Info)?;
        metric.encode_info(labels)
    }
}

/// The buckets of a histogram from counts by size. The index is the size. The last count includes larger sizes.
pub(super) fn by_size(counts: &[u64]) -> Vec<(f64, u64)> {
    const BOUNDS: [usize; 10] = [1, 2, 4, 8, 16, 24, 32, 40, 48, 56];
    // The cast is exact, because an f64 holds whole numbers up to 2^53.
    let mut places: Vec<(f64, u64)> = BOUNDS.iter().map(|bound| (*bound as f64, 0)).collect();
    places.push((f64::MAX, 0));
    for (size, count) in counts.iter().enumerate() {
        let place = BOUNDS.iter().position(|bound| size <= *bound).unwrap_or(BOUNDS.len());
        if let Some((_, sum)) = places.get_mut(place) {
            *sum += count;
        }
    }
    places
}

/// The buckets of a histogram from counts by power of two. Index i counts sizes from 2^i to 2^(i+1) - 1. The last count includes
/// larger sizes.
pub(super) fn by_power(counts: &[u64]) -> Vec<(f64, u64)> {
    let last = counts.len().saturating_sub(1);
    let mut bound = 1.0;
    let mut places = Vec::with_capacity(counts.len());
    for (place, count) in counts.iter().enumerate() {
        places.push((if place == last { f64::MAX } else { bound }, *count));
        // Computes the largest size of each bucket: 1, 3, 7 and so on.
        bound = 2.0 * bound + 1.0;
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_counted_below_the_bound_that_holds_them_and_none_is_lost() {
        let counts: Vec<u64> = (0..65).map(|size| 1_000 + size).collect();
        let places = by_size(&counts);
        assert_eq!(places.first(), Some(&(1.0, 1_000 + 1_001)));
        assert_eq!(places.get(2), Some(&(4.0, 1_003 + 1_004)));
        assert_eq!(places.last().map(|(bound, _)| *bound), Some(f64::MAX));
        assert_eq!(places.iter().map(|(_, count)| count).sum::<u64>(), counts.iter().sum::<u64>());
        assert_eq!(by_size(&[]).iter().map(|(_, count)| count).sum::<u64>(), 0);
    }

    #[test]
    fn powers_have_the_largest_size_of_each_place_as_bound() {
        assert_eq!(by_power(&[5, 6, 7]), [(1.0, 5), (3.0, 6), (f64::MAX, 7)]);
    }
}
