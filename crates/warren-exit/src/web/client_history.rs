//! The rates of each client over the last day, kept in memory for the page.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant};

use warren_session::PublicKey;
use warren_tunnel::Traffic;

use super::rate_series::RateSeries;

/// The time that one value covers.
const EVERY: Duration = Duration::from_secs(300);
/// The number of values that cover a day.
const PLACES: u64 = 288;

/// The rates of each client over the last day. A client takes 8 bytes for each five minutes between its first and its last traffic
/// of the day, which is 4 kB at most. Clients are visited only every five minutes, and never by a worker.
#[derive(Debug, Default)]
pub(crate) struct ClientHistory {
    /// When the current step began. `None` before the first call of [`Self::take`].
    since: Option<Instant>,
    /// The number of completed steps.
    over: u64,
    /// How much each client had carried when the current step began. A missing client had carried nothing.
    before: BTreeMap<PublicKey, Traffic>,
    clients: HashMap<PublicKey, Steps>,
}

/// The rates of one client.
#[derive(Debug)]
struct Steps {
    /// The step of the first rate.
    first: u64,
    rates: VecDeque<StepRate>,
}

/// Inner packets' bits per second, in units of [`UNIT`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct StepRate {
    to_client: u32,
    from_client: u32,
}

/// Rates are kept in this unit, so that 32 bits are enough for 42 Gbit/s.
const UNIT: u64 = 10;

impl StepRate {
    fn between(before: Traffic, after: Traffic, elapsed: Duration) -> Self {
        let per_second = |before: u64, after: u64| {
            // Calculated in 128 bits, because the number of bytes times 8,000 may exceed 64 bits.
            let bits = 8_000 * u128::from(after.saturating_sub(before)) / elapsed.as_millis().max(1);
            u32::try_from(bits / u128::from(UNIT)).unwrap_or(u32::MAX)
        };
        Self {
            to_client: per_second(before.bytes_out, after.bytes_out),
            from_client: per_second(before.bytes_in, after.bytes_in),
        }
    }
}

impl ClientHistory {
    /// Records the current totals of all clients. Call it about once a second.
    pub(crate) fn take(&mut self, now: Instant, totals: &BTreeMap<PublicKey, Traffic>) {
        let Some(since) = self.since else {
            self.since = Some(now);
            self.before.clone_from(totals);
            return;
        };
        let elapsed = now.duration_since(since);
        if elapsed < EVERY {
            return;
        }
        // If the host slept, more than one step has passed. Each step then gets the mean, so that all steps stay equally long.
        let steps = u64::try_from(elapsed.as_nanos() / EVERY.as_nanos()).unwrap_or(u64::MAX);
        for (key, after) in totals {
            let before = self.before.get(key).copied().unwrap_or_default();
            if before != *after {
                let rate = StepRate::between(before, *after, elapsed);
                let client = self
                    .clients
                    .entry(*key)
                    .or_insert_with(|| Steps { first: self.over, rates: VecDeque::new() });
                client.add(self.over, steps.min(PLACES), rate);
            }
        }
        self.over = self.over.saturating_add(steps);
        self.since = Some(now);
        self.before.clone_from(totals);
        let oldest = self.over.saturating_sub(PLACES);
        self.clients.retain(|_, client| {
            client.forget_before(oldest);
            !client.rates.is_empty()
        });
    }

    /// Returns a client's rates: one for each step of the day that this exit has run, and the rate since the last of them.
    /// `total` is what the client has carried so far.
    pub(crate) fn series(&self, now: Instant, key: PublicKey, total: Traffic) -> RateSeries {
        let begun = self.since.filter(|since| now > *since).map(|since| {
            let before = self.before.get(&key).copied().unwrap_or_default();
            StepRate::between(before, total, now.duration_since(since))
        });
        // The current step takes one place, so the oldest rate may have to go.
        let places = PLACES - u64::from(begun.is_some());
        let client = self.clients.get(&key);
        let steps = (self.over.saturating_sub(places)..self.over).map(|step| {
            // If there is no rate for the step, the client carried nothing in it.
            client.and_then(|client| client.at(step)).unwrap_or_default()
        });
        let rates: Vec<StepRate> = steps.chain(begun).collect();
        let bits = |of: fn(&StepRate) -> u32| rates.iter().map(|rate| UNIT * u64::from(of(rate))).collect();
        RateSeries {
            every: EVERY.as_secs(),
            places: usize::try_from(PLACES).unwrap_or(usize::MAX),
            to_clients: bits(|rate| rate.to_client),
            from_clients: bits(|rate| rate.from_client),
        }
    }
}

impl Steps {
    /// Adds a rate for `count` steps, the first of which has the number `step`.
    fn add(&mut self, step: u64, count: u64, rate: StepRate) {
        let missing = step.saturating_sub(self.first.saturating_add(self.rates.len() as u64)).min(PLACES);
        self.rates.extend((0..missing).map(|_| StepRate::default()));
        self.rates.extend((0..count).map(|_| rate));
    }

    fn forget_before(&mut self, step: u64) {
        while self.first < step && self.rates.pop_front().is_some() {
            self.first += 1;
        }
    }

    fn at(&self, step: u64) -> Option<StepRate> {
        self.rates.get(usize::try_from(step.checked_sub(self.first)?).ok()?).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAPTOP: PublicKey = PublicKey([1; 32]);
    const PHONE: PublicKey = PublicKey([2; 32]);

    fn carried(bytes: u64) -> Traffic {
        Traffic { packets_out: 1, bytes_out: bytes, packets_in: 1, bytes_in: bytes / 2 }
    }

    fn totals(clients: &[(PublicKey, u64)]) -> BTreeMap<PublicKey, Traffic> {
        clients.iter().map(|(key, bytes)| (*key, carried(*bytes))).collect()
    }

    fn to_client(history: &ClientHistory, now: Instant, key: PublicKey, bytes: u64) -> Vec<u64> {
        history.series(now, key, carried(bytes)).to_clients
    }

    #[test]
    fn the_first_rate_is_right_and_there_is_none_before_it() {
        let start = Instant::now();
        let mut history = ClientHistory::default();
        assert!(to_client(&history, start, LAPTOP, 9).is_empty(), "nothing is known yet");

        // The page was turned on after the client had already carried some traffic.
        history.take(start, &totals(&[(LAPTOP, 1_000_000)]));
        assert!(to_client(&history, start, LAPTOP, 1_000_000).is_empty());
        let soon = start + Duration::from_secs(10);
        assert_eq!(to_client(&history, soon, LAPTOP, 1_010_000), [8_000]);
        // A client that appears later had carried nothing before.
        assert_eq!(to_client(&history, soon, PHONE, 5_000), [4_000]);
    }

    #[test]
    fn steps_are_equally_long_idle_ones_are_zero_and_a_day_is_all() {
        let start = Instant::now();
        let mut history = ClientHistory::default();
        let step = |number: u64| start + EVERY * u32::try_from(number).unwrap();
        history.take(start, &totals(&[]));
        history.take(step(1), &totals(&[(LAPTOP, 300_000)]));
        history.take(step(2), &totals(&[(LAPTOP, 300_000)]));
        history.take(step(3), &totals(&[(LAPTOP, 900_000), (PHONE, 300_000)]));
        assert_eq!(to_client(&history, step(3), LAPTOP, 900_000), [8_000, 0, 16_000]);
        assert_eq!(to_client(&history, step(3), PHONE, 300_000), [0, 0, 8_000]);

        // The host slept for an hour, then nothing happened for a day.
        history.take(step(15), &totals(&[(LAPTOP, 900_000 + 12 * 300_000), (PHONE, 300_000)]));
        let woken = to_client(&history, step(15), LAPTOP, 900_000 + 12 * 300_000);
        assert_eq!((woken.len(), &woken[2..4], woken[14]), (15, &[16_000, 8_000][..], 8_000));
        for number in 16..16 + PLACES {
            history.take(step(number), &totals(&[(LAPTOP, 4_500_000), (PHONE, 300_000)]));
        }
        assert!(history.clients.is_empty(), "a client without traffic takes no memory");
        let now = step(15 + PLACES) + Duration::from_secs(1);
        let idle = history.series(now, LAPTOP, carried(4_500_000));
        assert_eq!((idle.to_clients.len(), idle.places), (288, 288));
        assert!(idle.to_clients.iter().all(|rate| *rate == 0));
    }

    #[test]
    fn memory_of_a_client_is_bounded() {
        let start = Instant::now();
        let mut history = ClientHistory::default();
        for number in 0..1_000_u32 {
            history.take(start + EVERY * number, &totals(&[(LAPTOP, u64::from(number) * 1_000)]));
        }
        let rates = &history.clients[&LAPTOP].rates;
        assert!(
            rates.len() == 288 && rates.capacity() * size_of::<StepRate>() <= 4_608,
            "{}",
            rates.capacity()
        );
    }
}
