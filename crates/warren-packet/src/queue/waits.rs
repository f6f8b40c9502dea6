//! A histogram of packets' waits.

use std::time::Duration;

/// Counts of waits in buckets of powers of two.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Waits {
    counts: [u64; Self::PLACES],
    microseconds: u64,
}

impl Waits {
    const PLACES: usize = 16;
    /// Upper bound of the first bucket in microseconds. Each bucket's bound is twice the previous one.
    const SHORTEST: u64 = 32;

    /// Counts a packet that waited for `wait`.
    pub fn record(&mut self, wait: Duration) {
        let microseconds = u64::try_from(wait.as_micros()).unwrap_or(u64::MAX);
        // Subtracts one, so that a wait of exactly a bucket's bound counts in that bucket.
        let beyond = microseconds.saturating_sub(1) / Self::SHORTEST;
        // 0 has no logarithm: the wait is within the first bucket.
        let place = beyond.checked_ilog2().map_or(0, |log| log as usize + 1);
        self.counts[place.min(Self::PLACES - 1)] += 1;
        self.microseconds = self.microseconds.saturating_add(microseconds);
    }

    /// Adds another histogram's counts.
    pub fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count += more;
        }
        self.microseconds = self.microseconds.saturating_add(other.microseconds);
    }

    /// Returns the upper bound and the count of each bucket. The last bucket has no bound and counts all longer waits.
    pub fn places(&self) -> impl Iterator<Item = (Option<Duration>, u64)> {
        let longest = |place: usize| Duration::from_micros(Self::SHORTEST << place);
        let bounded = move |place| (place < Self::PLACES - 1).then(|| longest(place));
        self.counts.into_iter().enumerate().map(move |(place, count)| (bounded(place), count))
    }

    /// The sum of all waits.
    pub fn sum(&self) -> Duration {
        Duration::from_micros(self.microseconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_counted_in_the_first_place_that_it_fits() {
        for wait in [0, 1, 32, 33, 64, 65, 500_000, 524_288, 524_289, u64::MAX] {
            let mut waits = Waits::default();
            let wait = Duration::from_micros(wait);
            waits.record(wait);
            let fits = |longest: &Option<Duration>| longest.is_none_or(|longest| wait <= longest);
            let first = waits.places().position(|(longest, _)| fits(&longest));
            assert_eq!(waits.places().position(|(_, count)| count == 1), first, "{wait:?}");
            assert_eq!(waits.sum(), wait);
        }
    }

    #[test]
    fn sums_have_the_counts_of_both() {
        let (mut one, mut other) = (Waits::default(), Waits::default());
        one.record(Duration::from_millis(1));
        other.record(Duration::from_millis(1));
        other.record(Duration::from_secs(9));
        one.add(&other);
        assert_eq!(one.places().map(|(_, count)| count).sum::<u64>(), 3);
        assert_eq!(one.sum(), Duration::from_millis(9_002));
    }
}
