//! Rates of traffic and loss over the last few seconds.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use warren_session::exit::SessionId;

use warren_tunnel::{ConnectionSnapshot, Snapshot};

/// Rates over the last [`Rates::seconds`]. "Out" is towards the carrier, "in" is from it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// The time that the rates cover. 0 if it is too short for a rate.
    pub seconds: f64,
    /// Bits of inner packets sent per second, headers included.
    pub bits_per_second_out: f64,
    /// Bits of inner packets received per second.
    pub bits_per_second_in: f64,
    /// Inner packets sent per second.
    pub packets_per_second_out: f64,
    /// Inner packets received per second.
    pub packets_per_second_in: f64,
    /// QUIC packets from this side that were declared lost, in per cent of those sent. The loss of the other direction is known
    /// only to the other side.
    pub loss_percent: f64,
}

/// Keeps a daemon's counters of the last few seconds.
#[derive(Debug)]
pub struct RateMeter {
    samples: VecDeque<Sample>,
    next: Instant,
}

/// The counters of each connection at one moment.
#[derive(Debug)]
struct Sample {
    at: Instant,
    connections: BTreeMap<u64, Counters>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counters {
    packets_out: u64,
    bytes_out: u64,
    packets_in: u64,
    bytes_in: u64,
    sent_packets: u64,
    lost_packets: u64,
    sent_datagrams: u64,
    given_up: u64,
}

impl RateMeter {
    /// A meter that has measured nothing yet.
    pub fn new(now: Instant) -> Self {
        Self { samples: VecDeque::new(), next: now }
    }

    /// When to take the next sample.
    pub fn due(&self) -> Instant {
        self.next
    }

    /// Takes a sample.
    pub fn take(&mut self, now: Instant, snapshot: &Snapshot) {
        // The interval begins now, not at the time when this sample was due. Otherwise the next sample could follow at once after
        // a late one.
        self.next = now + SAMPLE_EVERY;
        // The oldest sample is the reference, so rates cover the whole window.
        while self.samples.len() >= SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back(Sample::of(now, snapshot));
    }

    /// The rates of each connection since the oldest sample, by connection number.
    pub(super) fn rates(&self, now: Instant, snapshot: &Snapshot) -> BTreeMap<u64, Rates> {
        let Some(before) = self.samples.front() else { return BTreeMap::new() };
        let elapsed = now.duration_since(before.at);
        let rates = |(id, after): (&u64, &Counters)| {
            // A new connection is not in the sample, so it counts from zero.
            let before = before.connections.get(id).copied().unwrap_or_default();
            (*id, after.since(before).over(elapsed))
        };
        Sample::of(now, snapshot).connections.iter().map(rates).collect()
    }

    /// Returns the share of datagrams that a connection has lost for good since the oldest sample, in per cent of those it sent.
    pub(super) fn given_up_percent(&self, connection: &ConnectionSnapshot) -> f64 {
        let Some(before) = self.samples.front() else { return 0.0 };
        let before = before.connections.get(&connection.connection.0).copied().unwrap_or_default();
        let change = Counters::of(connection).since(before);
        percent(change.given_up, change.sent_datagrams)
    }

    /// The rates of each session's connections together.
    pub fn sessions(&self, now: Instant, snapshot: &Snapshot) -> BTreeMap<SessionId, Rates> {
        let Some(before) = self.samples.front() else { return BTreeMap::new() };
        let mut sums: BTreeMap<SessionId, Counters> = BTreeMap::new();
        for connection in &snapshot.connections {
            let earlier = before.connections.get(&connection.connection.0).copied().unwrap_or_default();
            if let Some(session) = connection.session {
                sums.entry(session).or_default().add(Counters::of(connection).since(earlier));
            }
        }
        let elapsed = now.duration_since(before.at);
        sums.into_iter().map(|(session, sum)| (session, sum.over(elapsed))).collect()
    }

    /// The rates of all connections together.
    pub fn total(&self, now: Instant, snapshot: &Snapshot) -> Rates {
        let Some(before) = self.samples.front() else { return Rates::default() };
        let mut sum = Counters::default();
        for (id, after) in &Sample::of(now, snapshot).connections {
            sum.add(after.since(before.connections.get(id).copied().unwrap_or_default()));
        }
        sum.over(now.duration_since(before.at))
    }
}

impl Sample {
    fn of(at: Instant, snapshot: &Snapshot) -> Self {
        let counters = |connection: &ConnectionSnapshot| (connection.connection.0, Counters::of(connection));
        Self { at, connections: snapshot.connections.iter().map(counters).collect() }
    }
}

impl Counters {
    fn of(connection: &ConnectionSnapshot) -> Self {
        let quic = connection.quic.as_ref();
        Self {
            packets_out: connection.packets_out,
            bytes_out: connection.bytes_out,
            packets_in: connection.packets_in,
            bytes_in: connection.bytes_in,
            sent_packets: quic.map(|quic| quic.sent_packets).unwrap_or_default(),
            lost_packets: quic.map(|quic| quic.lost_packets).unwrap_or_default(),
            sent_datagrams: quic.map(|quic| quic.datagrams_sent).unwrap_or_default(),
            given_up: connection.repair.given_up,
        }
    }

    fn since(self, before: Self) -> Self {
        Self {
            // The subtraction saturates, because a connection's counters start again at zero when the connection leaves its
            // session.
            packets_out: self.packets_out.saturating_sub(before.packets_out),
            bytes_out: self.bytes_out.saturating_sub(before.bytes_out),
            packets_in: self.packets_in.saturating_sub(before.packets_in),
            bytes_in: self.bytes_in.saturating_sub(before.bytes_in),
            sent_packets: self.sent_packets.saturating_sub(before.sent_packets),
            lost_packets: self.lost_packets.saturating_sub(before.lost_packets),
            sent_datagrams: self.sent_datagrams.saturating_sub(before.sent_datagrams),
            given_up: self.given_up.saturating_sub(before.given_up),
        }
    }

    fn add(&mut self, other: Self) {
        self.packets_out += other.packets_out;
        self.bytes_out += other.bytes_out;
        self.packets_in += other.packets_in;
        self.bytes_in += other.bytes_in;
        self.sent_packets += other.sent_packets;
        self.lost_packets += other.lost_packets;
        self.sent_datagrams += other.sent_datagrams;
        self.given_up += other.given_up;
    }

    fn over(self, time: Duration) -> Rates {
        if time < SHORTEST {
            return Rates::default();
        }
        let seconds = time.as_secs_f64();
        let per_second = |count: u64| count as f64 / seconds;
        Rates {
            seconds,
            bits_per_second_out: 8.0 * per_second(self.bytes_out),
            bits_per_second_in: 8.0 * per_second(self.bytes_in),
            packets_per_second_out: per_second(self.packets_out),
            packets_per_second_in: per_second(self.packets_in),
            loss_percent: percent(self.lost_packets, self.sent_packets),
        }
    }
}

/// Returns `part` in per cent of `whole`. The result is at most 100. `part` may be larger than `whole`, because a packet may be
/// sent in one interval and counted as lost in the next.
pub fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { (100.0 * part as f64 / whole as f64).min(100.0) }
}

const SAMPLE_EVERY: Duration = Duration::from_secs(1);
/// The number of samples, one per second, that rates cover.
const SAMPLES: usize = 5;
/// A rate over less time is meaningless.
const SHORTEST: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use warren_quic::driver::ConnectionId;

    use super::*;

    #[test]
    fn rates_are_those_of_the_last_seconds() {
        let start = Instant::now();
        let mut meter = RateMeter::new(start);
        assert_eq!(meter.total(start, &snapshot(&[(1, 5)])), Rates::default());
        for second in 0..20 {
            meter.take(start + Duration::from_secs(second), &snapshot(&[(1, 1000 * second), (2, 0)]));
        }

        let now = start + Duration::from_secs(20);
        let after = snapshot(&[(1, 20_000), (2, 500)]);
        let rates = meter.rates(now, &after);

        assert!((rates[&1].seconds - 5.0).abs() < 1e-9);
        assert!((rates[&1].bits_per_second_out - 8000.0).abs() < 1e-6);
        assert!((rates[&1].packets_per_second_in - 1000.0).abs() < 1e-6);
        assert!((rates[&2].bits_per_second_out - 800.0).abs() < 1e-6);
        assert!((meter.total(now, &after).bits_per_second_out - 8800.0).abs() < 1e-6);
    }

    #[test]
    fn connection_that_is_new_counts_from_its_beginning_and_one_that_is_gone_no_more() {
        let start = Instant::now();
        let mut meter = RateMeter::new(start);
        meter.take(start, &snapshot(&[(1, 1_000_000)]));

        let rates = meter.rates(start + Duration::from_secs(2), &snapshot(&[(2, 100)]));

        assert_eq!(rates.len(), 1);
        assert!((rates[&2].bits_per_second_in - 400.0).abs() < 1e-6);
    }

    #[test]
    fn a_sessions_rates_are_those_of_its_connections_together() {
        let start = Instant::now();
        let mut meter = RateMeter::new(start);
        let of_sessions = |counts: &[(u64, u64)]| {
            let mut snapshot = snapshot(counts);
            for connection in &mut snapshot.connections {
                connection.session = Some(SessionId(connection.connection.0 / 10));
            }
            snapshot
        };
        meter.take(start, &of_sessions(&[(10, 0), (11, 0), (20, 0)]));

        let after = of_sessions(&[(10, 1000), (11, 3000), (20, 500)]);
        let rates = meter.sessions(start + Duration::from_secs(4), &after);

        assert_eq!(rates.len(), 2);
        assert!((rates[&SessionId(1)].bits_per_second_out - 8000.0).abs() < 1e-6);
        assert!((rates[&SessionId(2)].packets_per_second_in - 125.0).abs() < 1e-6);
    }

    #[test]
    fn loss_is_at_most_everything_and_none_of_nothing_is_none() {
        assert!((percent(1, 4) - 25.0).abs() < 1e-9);
        assert!((percent(5, 4) - 100.0).abs() < 1e-9);
        assert!(percent(0, 0).abs() < 1e-9);
    }

    /// Connections by number, each with this many packets and bytes in both directions.
    fn snapshot(connections: &[(u64, u64)]) -> Snapshot {
        let connection = |(id, count): &(u64, u64)| ConnectionSnapshot {
            connection: ConnectionId(*id),
            session: None,
            index: None,
            packets_out: *count,
            bytes_out: *count,
            packets_in: *count,
            bytes_in: *count,
            queue_packets: 0,
            queue_bytes: 0,
            repair: Default::default(),
            quic: None,
        };
        Snapshot { connections: connections.iter().map(connection).collect(), ..Snapshot::default() }
    }
}
