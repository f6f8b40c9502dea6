//! The rates of the last minutes and of the last day, kept in memory for the page's chart.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde::Serialize;

use warren_tunnel::Traffic;

/// The rates of all clients together.
#[derive(Debug)]
pub(crate) struct History {
    pub(crate) minutes: Ring,
    pub(crate) day: Ring,
}

impl History {
    pub(crate) fn new() -> Self {
        Self {
            minutes: Ring::new(Duration::from_secs(2), 300),
            day: Ring::new(Duration::from_secs(60), 1440),
        }
    }

    /// Takes the totals of now. Call it about once a second.
    pub(crate) fn take(&mut self, now: Instant, total: Traffic) {
        self.minutes.take(now, total);
        self.day.take(now, total);
    }
}

/// Rates at equal intervals, the newest last. When the ring is full, the oldest rate is dropped.
#[derive(Debug)]
pub(crate) struct Ring {
    every: Duration,
    places: usize,
    since: Option<(Instant, Traffic)>,
    rates: VecDeque<Rate>,
}

/// Bits of inner packets per second.
#[derive(Clone, Copy, Debug)]
struct Rate {
    to_clients: u64,
    from_clients: u64,
}

/// A ring in the form in which the page draws it.
#[derive(Debug, Serialize)]
pub(crate) struct RateSeries {
    /// Seconds from one value to the next.
    every: u64,
    /// The most values that there can be.
    places: usize,
    to_clients: Vec<u64>,
    from_clients: Vec<u64>,
}

impl Ring {
    fn new(every: Duration, places: usize) -> Self {
        Self { every, places, since: None, rates: VecDeque::new() }
    }

    fn take(&mut self, now: Instant, total: Traffic) {
        let Some((since, before)) = self.since else {
            self.since = Some((now, total));
            return;
        };
        let elapsed = now.duration_since(since);
        if elapsed < self.every {
            return;
        }
        let per_second = |after: u64, before: u64| {
            let bits = 8 * u128::from(after.saturating_sub(before));
            u64::try_from(1_000 * bits / elapsed.as_millis().max(1)).unwrap_or(u64::MAX)
        };
        let rate = Rate {
            to_clients: per_second(total.bytes_out, before.bytes_out),
            from_clients: per_second(total.bytes_in, before.bytes_in),
        };
        // If more than one interval has passed (the host slept), each one gets the mean, so that intervals stay equal.
        let steps = elapsed.as_nanos() / self.every.as_nanos().max(1);
        for _ in 0..steps.min(self.places as u128) {
            if self.rates.len() == self.places {
                self.rates.pop_front();
            }
            self.rates.push_back(rate);
        }
        self.since = Some((now, total));
    }

    pub(crate) fn series(&self) -> RateSeries {
        RateSeries {
            every: self.every.as_secs(),
            places: self.places,
            to_clients: self.rates.iter().map(|rate| rate.to_clients).collect(),
            from_clients: self.rates.iter().map(|rate| rate.from_clients).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn total(bytes: u64) -> Traffic {
        Traffic { packets_out: 0, bytes_out: bytes, packets_in: 0, bytes_in: bytes / 2 }
    }

    #[test]
    fn rates_are_those_between_two_looks_and_the_oldest_make_room() {
        let start = Instant::now();
        let mut ring = Ring::new(Duration::from_secs(2), 3);
        for second in 0..=20 {
            ring.take(start + Duration::from_secs(second), total(1_000 * second * second));
        }
        let series = ring.series();
        assert_eq!(series.to_clients, [8 * 30_000, 8 * 34_000, 8 * 38_000]);
        assert_eq!(series.from_clients, [4 * 30_000, 4 * 34_000, 4 * 38_000]);
    }

    #[test]
    fn time_that_passed_unseen_has_its_mean() {
        let start = Instant::now();
        let mut ring = Ring::new(Duration::from_secs(2), 10);
        ring.take(start, total(0));
        ring.take(start + Duration::from_secs(6), total(6_000));
        assert_eq!(ring.series().to_clients, [8_000; 3]);
        ring.take(start + Duration::from_secs(1_000_000), total(6_000));
        assert_eq!(ring.series().to_clients, [0; 10]);
    }

    #[test]
    fn an_exit_that_begins_to_count_anew_shows_no_rate_below_zero() {
        let start = Instant::now();
        let mut history = History::new();
        history.take(start, total(5_000));
        history.take(start + Duration::from_secs(60), total(0));
        assert_eq!(history.day.series().to_clients, [0]);
        assert_eq!(history.minutes.series().from_clients, [0; 30]);
    }
}
