//! A rate limiter: a token bucket stored as the moment at which it is full again (the generic cell rate algorithm, ITU-T I.371
//! annex A). One atomic integer holds its state, so threads share it without a lock.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Size of the burst: the bytes that the rate allows in this time.
pub const BURST_TIME: Duration = Duration::from_millis(100);

/// Smallest burst in bytes: a whole super-packet.
pub const MINIMUM_BURST: u64 = 64 * 1_024;

/// Limits traffic to a number of bits per second after a burst. Without a rate, everything passes.
#[derive(Debug)]
pub struct RateLimiter {
    epoch: Instant,
    /// 0 means no limit.
    bits_per_second: AtomicU64,
    /// When the bucket is full again, in nanoseconds after the epoch.
    full_at: AtomicU64,
    refused: AtomicU64,
}

impl RateLimiter {
    /// Makes a limiter without a rate. No time that is passed in later may be before `epoch`.
    pub const fn new(epoch: Instant) -> Self {
        Self {
            epoch,
            bits_per_second: AtomicU64::new(0),
            full_at: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// Sets or removes the rate. A new rate starts with a full burst.
    pub fn set(&self, bits_per_second: Option<u64>) {
        let rate = bits_per_second.unwrap_or(0);
        // Setting the same rate again must not refill the bucket.
        if self.bits_per_second.swap(rate, Relaxed) != rate {
            self.full_at.store(0, Relaxed);
        }
    }

    /// Whether a packet of this length may pass now. Refused packets are counted.
    pub fn admits(&self, bytes: usize, now: Instant) -> bool {
        let rate = self.bits_per_second.load(Relaxed);
        rate == 0 || self.take(rate, bytes as u64, now)
    }

    /// Number of refused packets.
    pub fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    fn take(&self, rate: u64, bytes: u64, now: Instant) -> bool {
        let now = nanoseconds(now.saturating_duration_since(self.epoch));
        let cost = time_of(bytes, rate);
        let burst = time_of(MINIMUM_BURST, rate).max(nanoseconds(BURST_TIME));
        // `Relaxed` is enough, because this value guards no other memory.
        let taken = self.full_at.fetch_update(Relaxed, Relaxed, |full_at| {
            let after = full_at.max(now).saturating_add(cost);
            // `after` is never below `now`, so the subtraction does not wrap.
            (after - now <= burst).then_some(after)
        });
        if taken.is_err() {
            self.refused.fetch_add(1, Relaxed);
        }
        taken.is_ok()
    }
}

/// The time that `bytes` take at `rate` bits per second, in nanoseconds.
fn time_of(bytes: u64, rate: u64) -> u64 {
    // A packet has at most 2^16 bytes, so the product stays far below 2^64. `admits` has handled a rate of 0.
    bytes.saturating_mul(8 * 1_000_000_000) / rate
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEGABIT: u64 = 1_000_000;

    #[test]
    fn without_a_rate_everything_passes_and_nothing_is_counted() {
        let now = Instant::now();
        let limiter = RateLimiter::new(now);
        assert!((0..100_000).all(|_| limiter.admits(65_535, now)));
        limiter.set(Some(MEGABIT));
        limiter.set(None);
        assert!((0..100_000).all(|_| limiter.admits(65_535, now)));
        assert_eq!(limiter.refused(), 0);
    }

    #[test]
    fn after_a_burst_the_rate_is_what_passes() {
        let start = Instant::now();
        let limiter = RateLimiter::new(start);
        limiter.set(Some(80 * MEGABIT));
        let mut passed = 0;
        // Twice the allowed rate for ten seconds.
        for millisecond in 0..10_000 {
            let now = start + Duration::from_millis(millisecond);
            passed += (0..20).filter(|_| limiter.admits(1_000, now)).count();
        }
        let allowed = 10 * 10_000 + 1_000;
        assert!((allowed - 20..=allowed + 20).contains(&passed), "{passed} of {allowed}");
        assert_eq!(limiter.refused(), 200_000 - passed as u64);
    }

    #[test]
    fn largest_packet_passes_at_any_rate_once_enough_time_has_gone_by() {
        let start = Instant::now();
        for rate in [1_000, 64_000, MEGABIT, 1_000_000 * MEGABIT] {
            let limiter = RateLimiter::new(start);
            limiter.set(Some(rate));
            assert!(limiter.admits(65_535, start), "{rate}");
            let later = start + Duration::from_nanos(time_of(MINIMUM_BURST, rate));
            assert!(limiter.admits(65_535, later), "{rate}");
        }
    }

    #[test]
    fn another_rate_counts_at_once_and_the_same_one_changes_nothing() {
        let now = Instant::now();
        let limiter = RateLimiter::new(now);
        limiter.set(Some(1_000));
        while limiter.admits(1_000, now) {}
        limiter.set(Some(1_000));
        assert!(!limiter.admits(1_000, now));
        limiter.set(Some(800 * MEGABIT));
        assert!(limiter.admits(1_000, now), "the debt of the slow rate is forgotten");
    }

    #[test]
    fn threads_that_share_one_pass_no_more_together() {
        let start = Instant::now();
        let limiter = RateLimiter::new(start);
        limiter.set(Some(8 * MEGABIT));
        let passed: usize = std::thread::scope(|scope| {
            let admitted = || (0..10_000).filter(|_| limiter.admits(1_000, start)).count();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(admitted)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(passed, 100, "100 ms at 1 MB/s");
    }
}
