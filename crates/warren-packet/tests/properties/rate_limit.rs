//! In any period at most the burst plus the rate's share passes. A sender below the rate loses nothing.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use warren_packet::rate_limit::{BURST_TIME, MINIMUM_BURST, RateLimiter};

/// Packets: microseconds since the previous packet, and size in bytes.
fn arrivals() -> impl Strategy<Value = Vec<(u64, usize)>> {
    prop::collection::vec((0..20_000_u64, 1..=65_535_usize), 1..300)
}

fn burst(rate: u64) -> u128 {
    u128::from(MINIMUM_BURST).max(u128::from(rate) * BURST_TIME.as_millis() / 8_000)
}

proptest! {
    #[test]
    fn rate_limit_holds_over_every_stretch_of_time(rate in 8_000_u64..10_000_000_000, arrivals in arrivals()) {
        let start = Instant::now();
        let limiter = RateLimiter::new(start);
        limiter.set(Some(rate));
        let mut at = 0;
        let mut passed: Vec<(u64, u128)> = Vec::new();
        for (gap, bytes) in arrivals {
            at += gap;
            if limiter.admits(bytes, start + Duration::from_micros(at)) {
                passed.push((at, bytes as u128));
            }
        }
        for (first, (from, _)) in passed.iter().enumerate() {
            let mut sum = 0;
            for (until, bytes) in &passed[first..] {
                sum += bytes;
                let earned = u128::from(rate) * u128::from(until - from) / 8_000_000;
                // Each packet's time is rounded down to a nanosecond.
                prop_assert!(sum <= burst(rate) + earned + 1 + u128::from(rate) * 300 / 8_000_000_000);
            }
        }
    }

    #[test]
    fn rate_limit_costs_a_flow_below_it_nothing(
        rate in 64_000_u64..10_000_000_000,
        lengths in prop::collection::vec(1..=65_535_usize, 1..300),
    ) {
        let start = Instant::now();
        let limiter = RateLimiter::new(start);
        limiter.set(Some(rate));
        let mut now = start;
        for bytes in lengths {
            prop_assert!(limiter.admits(bytes, now));
            now += Duration::from_nanos(bytes as u64 * 8_000_000_000 / rate + 1);
        }
        prop_assert_eq!(limiter.refused(), 0);
    }
}
