//! Rounds of a connection. A round ends when the last packet sent before its start is acknowledged.

use std::time::{Duration, Instant};

/// Number of rounds whose delivery rates are remembered. The largest rate counts, because a round may end early in a burst.
pub(super) const RATES: usize = 4;

/// The number of ACK frames whose round-trip times show a queue (RFC 9406 section 4.2 asks for as many).
const RECENT: usize = 8;

/// The measurements of one round.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Round {
    /// The smallest round-trip time, the peer's delay of acknowledgements included.
    pub(super) least_rtt: Duration,
    /// Bytes that were acknowledged.
    pub(super) bytes: u64,
    /// Packets that were acknowledged, and that were lost.
    pub(super) delivered: u64,
    pub(super) lost: u64,
    /// Lost packets whose predecessor was not lost.
    pub(super) bursts: u64,
    /// The largest number of bytes in flight during the round.
    pub(super) in_flight: u64,
    /// Whether the window or the pacer held packets back.
    pub(super) was_limited: bool,
}

impl Round {
    /// Share of the round's packets that were lost.
    pub(super) fn loss(&self) -> f64 {
        loss_share(self.lost, self.delivered)
    }
}

/// Returns the bytes that a rate, in bytes per second, delivers in a time.
#[expect(clippy::cast_possible_truncation, reason = "a float is cut to what fits")]
pub(super) fn bytes_in(rate: f64, time: Duration) -> u64 {
    (rate * time.as_secs_f64()) as u64
}

/// A share of a window, or a multiple of it.
#[expect(
    clippy::cast_possible_truncation,
    reason = "windows are far below 2^53, and a float is cut to what fits"
)]
pub(super) fn scaled(window: u64, factor: f64) -> u64 {
    (window as f64 * factor) as u64
}

/// Share of packets that were lost.
pub(super) fn loss_share(lost: u64, delivered: u64) -> f64 {
    lost as f64 / (lost + delivered).max(1) as f64
}

/// An ACK frame.
#[derive(Clone, Copy, Debug)]
struct Frame {
    arrived: Instant,
    rtt: Duration,
    /// All bytes that were acknowledged up to this frame, including this frame's.
    bytes: u64,
}

/// Divides acknowledgements into rounds.
#[derive(Clone, Debug)]
pub(super) struct Rounds {
    last_sent: u64,
    last_lost: Option<u64>,
    /// Number of the packet whose acknowledgement ends the round.
    ends_with: Option<u64>,
    began: Option<Instant>,
    bytes: u64,
    /// When the newest packet that the present ACK frame acknowledges was sent.
    newest: Option<Instant>,
    latest_rtt: Duration,
    /// The last frames with a round-trip time, the newest first.
    recent: [Option<Frame>; RECENT],
    /// The bytes that were acknowledged since the connection began.
    total: u64,
    /// Whether packets were held back in the previous round.
    was_limited: bool,
    round: Round,
    /// The rates of the last rounds, in bytes per second.
    rates: [f64; RATES],
}

impl Default for Rounds {
    fn default() -> Self {
        Self {
            last_sent: 0,
            last_lost: None,
            ends_with: None,
            began: None,
            bytes: 0,
            newest: None,
            latest_rtt: Duration::ZERO,
            recent: [None; RECENT],
            total: 0,
            was_limited: false,
            round: Round { least_rtt: Duration::MAX, ..Round::default() },
            rates: [0.0; RATES],
        }
    }
}

impl Rounds {
    pub(super) fn on_packet_sent(&mut self, number: u64) {
        self.last_sent = self.last_sent.max(number);
    }

    pub(super) fn on_ack(&mut self, sent: Instant, bytes: u64) {
        // Only the newest packet of an ACK frame gives a round-trip time: the others waited for the acknowledgement (RFC 9002
        // section 5.1).
        self.newest = self.newest.max(Some(sent));
        self.bytes += bytes;
        self.total += bytes;
        self.round.delivered += 1;
    }

    pub(super) fn on_packet_lost(&mut self, number: u64) {
        self.round.lost += 1;
        let before = self.last_lost.replace(number);
        self.round.bursts += u64::from(before.is_none_or(|before| before + 1 != number));
    }

    pub(super) fn on_limited(&mut self) {
        if !self.was_limited && !self.round.was_limited {
            // The rate of sparse packets says nothing about the path.
            self.recent = [None; RECENT];
        }
        self.round.was_limited = true;
    }

    /// Whether packets were held back in this round.
    pub(super) fn is_limited(&self) -> bool {
        self.round.was_limited
    }

    /// Ends an ACK frame. Returns the round that ends with it.
    pub(super) fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        largest: Option<u64>,
    ) -> Option<Round> {
        if let Some(newest) = self.newest.take() {
            self.latest_rtt = now.saturating_duration_since(newest);
            self.round.least_rtt = self.round.least_rtt.min(self.latest_rtt);
            self.recent.rotate_right(1);
            self.recent[0] = Some(Frame { arrived: now, rtt: self.latest_rtt, bytes: self.total });
        }
        self.round.in_flight = self.round.in_flight.max(in_flight);
        if self.ends_with.is_some_and(|last| largest.is_none_or(|largest| largest < last)) {
            return None;
        }
        self.ends_with = Some(self.last_sent);
        self.was_limited = self.round.was_limited;
        let bytes = std::mem::take(&mut self.bytes);
        let mut round = std::mem::replace(
            &mut self.round,
            // The bytes that are in flight now are also in flight in the next round.
            Round { least_rtt: Duration::MAX, in_flight, ..Round::default() },
        );
        round.bytes = bytes;
        // The start of the first round was not measured.
        let began = self.began.replace(now)?;
        let seconds = now.saturating_duration_since(began).as_secs_f64();
        if seconds <= 0.0 || round.least_rtt == Duration::MAX {
            return None;
        }
        self.rates.rotate_right(1);
        self.rates[0] = bytes as f64 / seconds;
        Some(round)
    }

    /// Packets that were acknowledged, and that were lost, since the round began.
    pub(super) fn so_far(&self) -> (u64, u64) {
        (self.round.delivered, self.round.lost)
    }

    /// The round-trip time of the last acknowledgement.
    pub(super) fn latest_rtt(&self) -> Duration {
        self.latest_rtt
    }

    /// The longer round-trip time of the last two acknowledgements. A full queue may drop the end of a burst. That queue may be empty
    /// again when the next packet shows the loss.
    pub(super) fn longer_rtt(&self) -> Duration {
        self.recent.iter().take(2).flatten().map(|frame| frame.rtt).max().unwrap_or_default()
    }

    /// The smallest round-trip time of the last few acknowledgements. `None` if they arrived within less than this time, because
    /// a burst shows only one moment.
    pub(super) fn recent_rtt(&self, time: Duration) -> Option<Duration> {
        let (last, first) = (self.recent[0]?, self.recent[RECENT - 1]?);
        let is_long = last.arrived.saturating_duration_since(first.arrived) >= time;
        self.recent.iter().flatten().map(|frame| frame.rtt).min().filter(|_| is_long)
    }

    /// Returns how many bytes the path carries in this time, at the rate of the last few acknowledgements; `None` before there are
    /// enough.
    pub(super) fn carried_lately_in(&self, time: Duration) -> Option<u64> {
        let (last, first) = (self.recent[0]?, self.recent[RECENT - 1]?);
        let seconds = last.arrived.saturating_duration_since(first.arrived).as_secs_f64();
        (seconds > 0.0).then(|| bytes_in((last.bytes - first.bytes) as f64 / seconds, time))
    }

    /// Returns how many bytes the path carries in this time, at the rate of the fastest of the last rounds.
    pub(super) fn carried_in(&self, time: Duration) -> u64 {
        let rate = self.rates.iter().copied().fold(0.0, f64::max);
        bytes_in(rate, time)
    }

    /// The rate of the last round, in bytes per second.
    pub(super) fn rate(&self) -> f64 {
        self.rates[0]
    }

    /// Forgets the rates of all rounds but the last.
    pub(super) fn forget_rates(&mut self) {
        self.rates = [self.rates[0], 0.0, 0.0, 0.0];
    }

    /// Forgets what past rounds showed about the path.
    pub(super) fn forget_path(&mut self) {
        self.rates = [0.0; RATES];
        self.recent = [None; RECENT];
        self.latest_rtt = Duration::ZERO;
    }
}
