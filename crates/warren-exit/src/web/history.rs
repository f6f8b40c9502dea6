//! The rates of the last minutes and of the last day, kept in memory for the page's charts.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use warren_session::PublicKey;
use warren_tunnel::Traffic;

use super::client_history::ClientHistory;
use super::rate_series::RateSeries;

/// The rates of all clients together.
#[derive(Debug)]
pub(crate) struct History {
    pub(crate) minutes: Ring,
    pub(crate) day: Ring,
    /// The rates of each client over the last day.
    pub(crate) clients: ClientHistory,
}

impl History {
    pub(crate) fn new() -> Self {
        // Ten minutes in steps of two seconds, and a day in steps of one minute.
        Self {
            minutes: Ring::new(Duration::from_secs(2), 300),
            day: Ring::new(Duration::from_secs(60), 1440),
            clients: ClientHistory::default(),
        }
    }

    /// Records the current totals of the clients. Call it about once a second.
    pub(crate) fn take(&mut self, now: Instant, clients: &BTreeMap<PublicKey, Traffic>) {
        let mut total = Traffic::default();
        clients.values().for_each(|traffic| total.add(traffic));
        self.minutes.take(now, total);
        self.day.take(now, total);
        self.clients.take(now, clients);
    }
}

/// Rates at equal intervals, the newest last. When the ring is full, the oldest rate is dropped.
#[derive(Debug)]
pub(crate) struct Ring {
    every: Duration,
    places: usize,
    since: Option<(Instant, Traffic)>,
    /// The latest totals in the current interval.
    latest: Option<(Instant, Traffic)>,
    rates: VecDeque<Rate>,
}

/// Bits of inner packets per second.
#[derive(Clone, Copy, Debug)]
struct Rate {
    to_clients: u64,
    from_clients: u64,
}

impl Rate {
    fn between((since, before): (Instant, Traffic), (now, after): (Instant, Traffic)) -> Self {
        // At least 1, because it is a divisor below.
        let milliseconds = now.duration_since(since).as_millis().max(1);
        let per_second = |after: u64, before: u64| {
            // Calculated in 128 bits, because the number of bytes times 8,000 may exceed 64 bits.
            let bits = 8 * u128::from(after.saturating_sub(before));
            u64::try_from(1_000 * bits / milliseconds).unwrap_or(u64::MAX)
        };
        Self {
            to_clients: per_second(after.bytes_out, before.bytes_out),
            from_clients: per_second(after.bytes_in, before.bytes_in),
        }
    }
}

impl Ring {
    fn new(every: Duration, places: usize) -> Self {
        Self { every, places, since: None, latest: None, rates: VecDeque::new() }
    }

    fn take(&mut self, now: Instant, total: Traffic) {
        let look = (now, total);
        self.latest = Some(look);
        let Some(since) = self.since else {
            self.since = Some(look);
            return;
        };
        let elapsed = now.duration_since(since.0);
        if elapsed < self.every {
            return;
        }
        let rate = Rate::between(since, look);
        // If the host slept, more than one interval has passed. Each interval then gets the mean, so that all stay equally long.
        let steps = elapsed.as_nanos() / self.every.as_nanos().max(1);
        for _ in 0..steps.min(self.places as u128) {
            if self.rates.len() == self.places {
                self.rates.pop_front();
            }
            self.rates.push_back(rate);
        }
        self.since = Some(look);
    }

    /// The rate since the last whole interval. Without it, the chart of a day would be empty for the first minute, and up to a
    /// minute late afterwards.
    fn begun(&self) -> Option<Rate> {
        let (since, latest) = (self.since?, self.latest?);
        (latest.0 > since.0).then(|| Rate::between(since, latest))
    }

    pub(crate) fn series(&self) -> RateSeries {
        let begun = self.begun();
        // The rate of the current interval takes one place, so the oldest rate may have to go.
        let whole = self.places.saturating_sub(usize::from(begun.is_some()));
        let too_many = self.rates.len().saturating_sub(whole);
        let rates: Vec<Rate> = self.rates.iter().skip(too_many).copied().chain(begun).collect();
        RateSeries {
            every: self.every.as_secs(),
            places: self.places,
            to_clients: rates.iter().map(|rate| rate.to_clients).collect(),
            from_clients: rates.iter().map(|rate| rate.from_clients).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn total(bytes: u64) -> Traffic {
        Traffic { packets_out: 0, bytes_out: bytes, packets_in: 0, bytes_in: bytes / 2 }
    }

    fn one(bytes: u64) -> BTreeMap<PublicKey, Traffic> {
        BTreeMap::from([(PublicKey([1; 32]), total(bytes))])
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
    fn a_day_has_a_rate_from_the_first_look_on_and_its_newest_is_never_late() {
        let start = Instant::now();
        let mut history = History::new();
        let looks = |history: &mut History, from: u64, to: u64| {
            (from..=to)
                .for_each(|second| history.take(start + Duration::from_secs(second), &one(1_000 * second)));
        };

        looks(&mut history, 0, 0);
        assert_eq!(history.day.series().to_clients, [0; 0], "nothing is known yet");
        looks(&mut history, 1, 1);
        assert_eq!(history.day.series().to_clients, [8_000]);
        looks(&mut history, 2, 90);
        assert_eq!(history.day.series().to_clients, [8_000; 2], "a whole minute and half of one");
        looks(&mut history, 91, 120);
        assert_eq!(history.day.series().to_clients, [8_000; 2], "two whole minutes");

        looks(&mut history, 121, 60 * 1_440 + 30);
        let series = history.day.series();
        assert_eq!(
            (series.to_clients.len(), series.places),
            (1_440, 1_440),
            "never more than there is room for"
        );
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
        history.take(start, &one(5_000));
        history.take(start + Duration::from_secs(60), &one(0));
        assert_eq!(history.day.series().to_clients, [0]);
        assert_eq!(history.minutes.series().from_clients, [0; 30]);
    }
}
