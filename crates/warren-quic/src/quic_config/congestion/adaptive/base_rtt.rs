//! The round-trip time of a path without a queue: the smallest of the last minute.

use std::time::{Duration, Instant};

/// Length of a bucket. If a path has become longer for good, the base is right again after [`BUCKETS`] buckets.
const BUCKET: Duration = Duration::from_secs(10);
const BUCKETS: usize = 6;

/// A windowed minimum over buckets of time.
#[derive(Clone, Debug, Default)]
pub(super) struct BaseRtt {
    /// The smallest sample of each bucket, the newest bucket first.
    buckets: [Option<Duration>; BUCKETS],
    began: Option<Instant>,
}

impl BaseRtt {
    /// Adds a sample.
    pub(super) fn add(&mut self, now: Instant, sample: Duration) {
        let began = *self.began.get_or_insert(now);
        let passed = now.saturating_duration_since(began).as_secs() / BUCKET.as_secs();
        if passed > 0 {
            self.began = Some(now);
            let gone = usize::try_from(passed).unwrap_or(BUCKETS).min(BUCKETS);
            // If all buckets are outdated, they need not move, because all are cleared.
            self.buckets.rotate_right(gone % BUCKETS);
            self.buckets.iter_mut().take(gone).for_each(|bucket| *bucket = None);
        }
        let newest = &mut self.buckets[0];
        *newest = Some(newest.map_or(sample, |least| least.min(sample)));
    }

    /// Returns the smallest sample; `None` before there is one.
    pub(super) fn get(&self) -> Option<Duration> {
        self.buckets.iter().flatten().min().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smallest_sample_is_kept_for_a_minute() {
        let (start, mut base) = (Instant::now(), BaseRtt::default());
        assert_eq!(base.get(), None);
        base.add(start, Duration::from_millis(30));
        for second in 1..120 {
            base.add(start + Duration::from_secs(second), Duration::from_millis(60));
            let expected = if second < 60 { 30 } else { 60 };
            assert_eq!(base.get(), Some(Duration::from_millis(expected)), "after {second} s");
        }
        base.add(start + Duration::from_secs(120), Duration::from_millis(20));
        assert_eq!(base.get(), Some(Duration::from_millis(20)));
    }
}
