//! The values of a daemon's status since the watch began.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use warren_control::status::{ConnectionStatus, Status, percent};

/// The latest status, and the values of earlier ones.
#[derive(Debug, Default)]
pub(super) struct History {
    latest: Option<(Instant, Status)>,
    out: Series,
    into: Series,
    connections: BTreeMap<u64, ConnectionHistory>,
}

/// The values of one connection.
#[derive(Debug, Default)]
pub(super) struct ConnectionHistory {
    /// Bits per second, both directions together.
    pub(super) rate: Series,
    pub(super) rtt_ms: Series,
    pub(super) loss_percent: Series,
}

/// Values in the order in which they were seen.
#[derive(Debug, Default)]
pub(super) struct Series(VecDeque<f64>);

impl History {
    /// Adds a status that was requested at the time `at`.
    pub(super) fn add(&mut self, at: Instant, status: Status) {
        // If the process ID has changed, this is another daemon, whose counters start at zero.
        if self.status().is_some_and(|before| before.pid != status.pid) {
            *self = Self::default();
        }
        if let Some((since, before)) = &self.latest {
            let seconds = at.duration_since(*since).as_secs_f64();
            let mut sum = Change::default();
            for connection in &status.connections {
                let earlier = before.connections.iter().find(|earlier| earlier.id == connection.id);
                let change = Change::between(earlier, connection);
                sum.bytes_out += change.bytes_out;
                sum.bytes_in += change.bytes_in;
                let history = self.connections.entry(connection.id).or_default();
                history.rate.push(bits_per_second(change.bytes_out + change.bytes_in, seconds));
                history.rtt_ms.push(connection.rtt_ms);
                history.loss_percent.push(percent(change.lost, change.sent));
            }
            self.out.push(bits_per_second(sum.bytes_out, seconds));
            self.into.push(bits_per_second(sum.bytes_in, seconds));
        }
        // Connections that have ended are removed, so that they do not fill the memory during a long watch.
        self.connections.retain(|id, _| status.connections.iter().any(|connection| connection.id == *id));
        self.latest = Some((at, status));
    }

    pub(super) fn status(&self) -> Option<&Status> {
        self.latest.as_ref().map(|(_, status)| status)
    }

    /// Returns the bits per second to the carrier, and from it.
    pub(super) fn rates(&self) -> (&Series, &Series) {
        (&self.out, &self.into)
    }

    pub(super) fn connection(&self, id: u64) -> Option<&ConnectionHistory> {
        self.connections.get(&id)
    }
}

impl Series {
    pub(super) fn values(&self) -> impl DoubleEndedIterator<Item = f64> + '_ {
        self.0.iter().copied()
    }

    pub(super) fn last(&self) -> f64 {
        self.0.back().copied().unwrap_or_default()
    }

    fn push(&mut self, value: f64) {
        if self.0.len() == MOST_VALUES {
            self.0.pop_front();
        }
        self.0.push_back(value);
    }
}

/// A connection's sent, received and lost packets between two samples.
#[derive(Debug, Default)]
struct Change {
    bytes_out: u64,
    bytes_in: u64,
    sent: u64,
    lost: u64,
}

impl Change {
    fn between(before: Option<&ConnectionStatus>, after: &ConnectionStatus) -> Self {
        // A connection that is missing from the earlier sample is new, so its counts begin at zero.
        let since =
            |of: fn(&ConnectionStatus) -> u64| of(after).saturating_sub(before.map(of).unwrap_or_default());
        Self {
            bytes_out: since(|one| one.bytes_out),
            bytes_in: since(|one| one.bytes_in),
            sent: since(|one| one.sent_packets),
            lost: since(|one| one.lost_packets),
        }
    }
}

fn bits_per_second(bytes: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { 8.0 * bytes as f64 / seconds } else { 0.0 }
}

/// Maximum number of values that are kept. Hardly any terminal has more columns.
const MOST_VALUES: usize = 512;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::example;
    use super::*;

    #[test]
    fn values_are_what_happened_between_two_looks() {
        let start = Instant::now();
        let mut history = History::default();
        history.add(start, example(&[(7, 1_000, 10)]));
        history.add(start + Duration::from_secs(2), example(&[(7, 3_000, 30)]));

        let connection = history.connection(7).unwrap();

        assert_eq!(connection.rate.values().collect::<Vec<_>>(), [2.0 * 8.0 * 1_000.0]);
        assert_eq!(connection.loss_percent.last(), 50.0);
        assert_eq!(history.rates().0.last(), 8_000.0);
    }

    #[test]
    fn connection_that_is_gone_is_forgotten_and_another_daemon_begins_anew() {
        let start = Instant::now();
        let mut history = History::default();
        for (second, connections) in [(0, [(7, 0, 0)]), (1, [(7, 9, 0)]), (2, [(8, 9, 0)])] {
            history.add(start + Duration::from_secs(second), example(&connections));
        }
        assert!(history.connection(7).is_none());
        assert_eq!(history.rates().0.values().count(), 2);

        let another = Status { pid: 1, ..example(&[(8, 1, 0)]) };
        history.add(start + Duration::from_secs(3), another);

        assert_eq!(history.rates().0.values().count(), 0);
        assert!(history.connection(8).is_none());
    }
}
