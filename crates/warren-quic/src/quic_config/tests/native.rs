//! A TCP flow outside the tunnel that shares the bottleneck with the client's packets: CUBIC (RFC 9438) without pacing.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// Bytes of a packet, and the packets of one send.
pub(super) const PACKET: usize = 1_500;
const AT_ONCE: usize = 10;
const CUBIC_CUT: f64 = 0.7;
const CUBIC_GROWTH: f64 = 0.4;
const RETRANSMISSION_TIMEOUT: Duration = Duration::from_millis(300);

/// A sender that always has data. Windows are in packets.
pub(super) struct Native {
    window: f64,
    threshold: f64,
    /// The window at the last loss, and the time at which CUBIC reaches it again.
    largest: f64,
    epoch: Option<Instant>,
    has_lost: bool,
    next: u64,
    /// The first packet number sent after the last window reduction. Losses of lower numbers do not reduce the window again.
    recovers_at: u64,
    /// The number of each packet in flight, and when its acknowledgement arrives; `None` if it is lost.
    in_flight: VecDeque<(u64, Instant, Option<Instant>)>,
    heard: Instant,
    rtt: Duration,
    base: Duration,
    recent: [Duration; 8],
    pub(super) delivered: u64,
}

impl Native {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            window: 10.0,
            threshold: f64::MAX,
            largest: 0.0,
            epoch: None,
            has_lost: false,
            next: 0,
            recovers_at: 0,
            in_flight: VecDeque::new(),
            heard: now,
            rtt: Duration::from_millis(100),
            base: Duration::MAX,
            recent: [Duration::ZERO; 8],
            delivered: 0,
        }
    }

    /// The number of packets to send now.
    #[expect(clippy::cast_possible_truncation, reason = "a window of packets is small")]
    pub(super) fn wants(&self) -> usize {
        let room = (self.window - self.in_flight.len() as f64).max(0.0) as usize;
        if room >= AT_ONCE || self.in_flight.len() < AT_ONCE { room } else { 0 }
    }

    /// Records a sent packet. `acknowledged` is when its acknowledgement arrives; `None` if the packet is lost.
    pub(super) fn sent(&mut self, now: Instant, acknowledged: Option<Instant>) {
        if self.in_flight.is_empty() {
            self.heard = now;
        }
        self.in_flight.push_back((self.next, now, acknowledged));
        self.next += 1;
        if let Some(at) = acknowledged {
            self.rtt = at - now;
        }
    }

    /// When the sender next has something to do.
    pub(super) fn due(&self) -> Option<Instant> {
        let arrival = self.in_flight.iter().find_map(|(.., at)| *at);
        (!self.in_flight.is_empty()).then(|| arrival.unwrap_or(self.heard + RETRANSMISSION_TIMEOUT))
    }

    /// Takes the acknowledgements that have arrived.
    pub(super) fn hear(&mut self, now: Instant) {
        while let Some(place) = self.in_flight.iter().position(|(.., at)| at.is_some()) {
            let (number, sent, at) = self.in_flight[place];
            if at.unwrap() > now {
                break;
            }
            self.in_flight.remove(place);
            self.heard = now;
            self.delivered += 1;
            self.notice_delay(now - sent);
            self.grow(now);
            // A packet is lost once a packet sent three later is acknowledged.
            while self.in_flight.front().is_some_and(|&(lost, _, at)| at.is_none() && lost + 3 <= number) {
                let (lost, ..) = self.in_flight.pop_front().unwrap();
                if lost >= self.recovers_at {
                    self.cut();
                }
            }
        }
        let all_lost = self.in_flight.iter().all(|(.., at)| at.is_none());
        if !self.in_flight.is_empty() && all_lost && now >= self.heard + RETRANSMISSION_TIMEOUT {
            self.in_flight.clear();
            self.cut();
            self.window = 2.0;
        }
    }

    fn cut(&mut self) {
        self.recovers_at = self.next;
        self.largest =
            if self.window < self.largest { self.window * (1.0 + CUBIC_CUT) / 2.0 } else { self.window };
        self.window = (self.window * CUBIC_CUT).max(2.0);
        self.threshold = self.window;
        self.epoch = None;
        self.has_lost = true;
    }

    /// Ends slow start as HyStart does (RFC 9406), when the shortest of the last few round-trip times is clearly longer than the
    /// shortest of all.
    fn notice_delay(&mut self, rtt: Duration) {
        self.base = self.base.min(rtt);
        self.recent.rotate_right(1);
        self.recent[0] = rtt;
        let longer = (self.base / 8).clamp(Duration::from_millis(4), Duration::from_millis(16));
        if self.window < self.threshold && self.recent.iter().all(|&rtt| rtt > self.base + longer) {
            self.threshold = self.window;
            self.largest = self.window;
        }
    }

    fn grow(&mut self, now: Instant) {
        if self.window < self.threshold {
            self.window += 1.0;
            return;
        }
        let epoch = *self.epoch.get_or_insert(now);
        let time = (now - epoch + self.rtt).as_secs_f64();
        let inflection = (self.largest * (1.0 - CUBIC_CUT) / CUBIC_GROWTH).cbrt();
        let cubic = CUBIC_GROWTH * (time - inflection).powi(3) + self.largest;
        // RFC 9438 section 4.3: the window is never smaller than Reno's would be.
        let reno = self.threshold + 0.529 * (now - epoch).as_secs_f64() / self.rtt.as_secs_f64();
        let target = cubic.max(reno).clamp(self.window, self.window * 1.5);
        // Until its first loss, Linux's CUBIC grows the window by at least a twentieth per round trip.
        let least = if self.has_lost { 0.0 } else { 0.05 };
        self.window += ((target - self.window) / self.window).max(least);
    }
}
