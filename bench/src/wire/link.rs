//! One direction of the wire as a pure state machine. The caller passes in frames and the current time, and gets frames and
//! deadlines.
//!
//! A frame passes these stages: blackout, MTU, policer, rate limit with a queue, loss, corruption, and delay (with jitter,
//! reordering and duplication). Times are computed from the time at which the previous event was due, and not from the time of
//! the call. So a late call does not slow the link down. Frames that are not held back for reordering keep their order, even if
//! settings change.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    time::{Duration, Instant},
};

use warren_packet::queue::codel::{Codel, Patience};

use super::{
    account::Account,
    frame::{self, Frame},
    settings::{Blackout, Burst, Change, Police, Reorder, Setting, Settings},
    too_big,
    unit::FRAME,
};
use crate::{
    random::{self, Random},
    stats::float,
};

/// One direction of the wire.
#[derive(Debug)]
pub(super) struct Link {
    settings: Settings,
    account: Account,
    chance: Chance,
    seed: u64,
    start: Instant,
    blackout_set: Instant,
    bucket: Bucket,
    /// The rate limiter's queue: frames with their times of arrival.
    queue: VecDeque<(Instant, Frame)>,
    /// Whether the first frame of the queue is being sent. CoDel decides about a frame before it is sent.
    is_on_line: bool,
    codel: Codel,
    queued_bytes: u64,
    /// The time at which the last frame that left the queue was completely sent, and the line became free.
    line_free: Instant,
    flying: BinaryHeap<Reverse<Flying>>,
    /// The latest arrival time of the frames that were not held back.
    last_due: Instant,
    launched: u64,
}

impl Link {
    /// Makes a link that passes frames unchanged. The seed decides all random choices.
    pub(super) fn new(seed: u64, now: Instant) -> Self {
        Self {
            settings: Settings::default(),
            account: Account::default(),
            chance: Chance::new(seed),
            seed,
            start: now,
            blackout_set: now,
            bucket: Bucket { bytes: 0.0, at: now },
            queue: VecDeque::new(),
            is_on_line: false,
            codel: Codel::default(),
            queued_bytes: 0,
            line_free: now,
            flying: BinaryHeap::new(),
            last_due: now,
            launched: 0,
        }
    }

    /// Changes settings from `now` on.
    pub(super) fn change(&mut self, change: &Change, now: Instant) {
        // The old settings apply to frames that leave the queue before `now`.
        self.advance(now);
        for &setting in &change.0 {
            // The time of a blackout starts when it is set.
            if matches!(setting, Setting::Blackout(_)) {
                self.blackout_set = now;
            }
            // A new policer starts with a full bucket.
            if let Setting::Police(Some(police)) = setting {
                self.bucket = Bucket { bytes: float(police.bucket), at: now };
            }
            self.settings.apply(setting);
        }
        // With a higher rate, frames may leave the queue at `now`.
        self.advance(now);
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(super) fn account(&self) -> Account {
        let count = |length: usize| u64::try_from(length).unwrap_or(u64::MAX);
        Account { queued: count(self.queue.len()), in_flight: count(self.flying.len()), ..self.account }
    }

    /// Accepts a frame from the sender. If it returns a frame, this is an ICMP message to the sender.
    pub(super) fn offer(&mut self, mut frame: Frame, now: Instant) -> Option<Frame> {
        self.advance(now);
        self.account.received += 1;
        self.account.received_bytes += bytes(&frame);
        if self.is_dark(now) {
            self.account.blacked_out += 1;
            return None;
        }
        // The MTU applies only to IP packets, so ARP and other protocols pass.
        if let Some(mtu) = self.settings.mtu
            && frame::packet_bytes(&frame).is_some_and(|bytes| bytes > usize::from(mtu.bytes))
        {
            self.account.too_large += 1;
            let told = if mtu.loud { too_big::message(&frame, mtu.bytes) } else { None };
            self.account.told += u64::from(told.is_some());
            return told;
        }
        if self.settings.police.is_some_and(|police| !self.bucket.take(police, bytes(&frame), now)) {
            self.account.policed += 1;
            return None;
        }
        let rate = self.settings.rate;
        let packets = u64::try_from(self.queue.len()).unwrap_or(u64::MAX).saturating_add(1);
        let backlog = self.queued_bytes + bytes(&frame);
        // Without a rate, frames leave the queue immediately, so it cannot be full.
        if self.settings.queue.is_exceeded(packets, backlog, rate) && rate.is_some() {
            self.account.queue_full += 1;
            return None;
        }
        if self.settings.ecn.is_some_and(|ecn| ecn.is_exceeded(packets, backlog, rate))
            && frame::mark(&mut frame)
        {
            self.account.marked += 1;
        }
        self.queued_bytes = backlog;
        self.queue.push_back((now, frame));
        // Without a rate, the frame leaves the queue immediately.
        self.advance(now);
        None
    }

    /// Returns the next frame that has arrived by `now`.
    pub(super) fn take(&mut self, now: Instant) -> Option<Frame> {
        self.advance(now);
        self.flying.peek().filter(|Reverse(first)| first.due <= now)?;
        let Reverse(Flying { frame, .. }) = self.flying.pop()?;
        self.account.delivered += 1;
        self.account.delivered_bytes += bytes(&frame);
        Some(frame)
    }

    /// Counts a frame that [`Self::take`] has returned as refused instead of delivered.
    pub(super) fn refused(&mut self, frame: &Frame) {
        self.account.delivered -= 1;
        self.account.delivered_bytes -= bytes(frame);
        self.account.refused += 1;
    }

    /// Returns the time of the next event if no frame is offered before it.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let arrival = self.flying.peek().map(|Reverse(first)| first.due);
        // The frame that is being sent cannot arrive before its departure, so its departure is early enough as a deadline.
        let departure = self.departure();
        match (arrival, departure) {
            (Some(arrival), Some(departure)) => Some(arrival.min(departure)),
            (one, other) => one.or(other),
        }
    }

    /// Returns the time at which the first frame of the queue will be completely sent.
    fn departure(&self) -> Option<Instant> {
        let (arrived, frame) = self.queue.front()?;
        let begin = self.line_free.max(*arrived);
        Some(self.settings.rate.map_or(begin, |rate| begin + time_on_line(frame, rate)))
    }

    /// Removes from the queue the frames that are completely sent by `now`, and launches them.
    fn advance(&mut self, now: Instant) {
        loop {
            self.put_on_line();
            let Some(departure) = self.departure().filter(|departure| *departure <= now) else { return };
            let Some((_, frame)) = self.queue.pop_front() else { return };
            self.is_on_line = false;
            self.queued_bytes -= bytes(&frame);
            self.line_free = departure;
            self.launch(frame, departure);
        }
    }

    /// Starts to send the next frame, unless a frame is being sent. CoDel may drop frames before that.
    fn put_on_line(&mut self) {
        while !self.is_on_line
            && let Some((arrived, frame)) = self.queue.front_mut()
        {
            self.is_on_line = true;
            let Some(target) = self.settings.codel else { return };
            // The frame has waited from its arrival until the line is free.
            let begin = self.line_free.max(*arrived);
            let rest = self.queued_bytes - bytes(frame);
            // If at most one full frame is behind this frame, CoDel does not treat its wait as congestion (`maxpacket` in RFC
            // 8289).
            let patience = Patience { target, ..Patience::default() };
            if !self.codel.signals(begin, patience, begin - *arrived, rest <= FRAME) {
                return;
            }
            if frame::mark(frame) {
                self.account.marked += 1;
                return;
            }
            self.account.codel += 1;
            self.queued_bytes = rest;
            self.queue.pop_front();
            self.is_on_line = false;
        }
    }

    fn launch(&mut self, mut frame: Frame, at: Instant) {
        let Settings { loss, burst, reorder, duplicate, corrupt, corrupt_udp, delay, .. } = self.settings;
        if self.chance.loss.chance(loss.value()) {
            self.account.lost += 1;
            return;
        }
        if self.chance.in_burst(burst) {
            self.account.lost_in_burst += 1;
            return;
        }
        let mut corrupted = false;
        if self.chance.corrupt.chance(corrupt.value()) {
            frame::corrupt(&mut frame, &mut self.chance.corrupt);
            corrupted = true;
        }
        if self.chance.corrupt_udp.chance(corrupt_udp.value()) {
            corrupted |= frame::corrupt_udp(&mut frame, &mut self.chance.corrupt_udp);
        }
        // A frame counts only once, even if both kinds of corruption are applied to it.
        self.account.corrupted += u64::from(corrupted);
        // If the jitter is larger than the delay, the sum could be before the departure, so the departure is the minimum.
        let arrival = wander(at + delay, self.jitter(at)).max(at);
        let held = reorder.filter(|reorder| self.chance.reorder.chance(reorder.share.value()));
        let due = match held {
            Some(Reorder { by, .. }) => {
                self.account.held_back += 1;
                // `last_due` is not changed, so that later frames can overtake this one.
                self.last_due.max(arrival) + by
            }
            None => {
                self.last_due = self.last_due.max(arrival);
                self.last_due
            }
        };
        if self.chance.duplicate.chance(duplicate.value()) {
            self.account.duplicated += 1;
            self.fly(frame.clone(), due);
        }
        self.fly(frame, due);
    }

    fn fly(&mut self, frame: Frame, due: Instant) {
        self.launched += 1;
        self.flying.push(Reverse(Flying { due, order: self.launched, frame }));
    }

    /// Returns the deviation of the delay from its configured value, in seconds.
    ///
    /// The deviation is a random value at each multiple of four jitters, and is interpolated linearly in between. So within a
    /// time t, it changes by at most t / 2, and one frame cannot overtake another.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the whole part of a time")]
    fn jitter(&self, at: Instant) -> f64 {
        let jitter = self.settings.jitter.as_secs_f64();
        if jitter == 0.0 {
            return 0.0;
        }
        let place = at.saturating_duration_since(self.start).as_secs_f64() / (4.0 * jitter);
        // The random value depends only on the index, so that the jitter does not depend on the number of frames.
        let point = |index: u64| 2.0 * random::at(self.seed, Chance::JITTER, index) - 1.0;
        let (index, rest) = (place.floor() as u64, place.fract());
        jitter * (point(index) * (1.0 - rest) + point(index + 1) * rest)
    }

    fn is_dark(&self, now: Instant) -> bool {
        let since = now.saturating_duration_since(self.blackout_set);
        match self.settings.blackout {
            Blackout::Off => false,
            Blackout::On => true,
            Blackout::Once(time) => since < time,
            // The parser does not accept a period of 0. `max(1)` is only a safeguard against a division by zero.
            Blackout::Every { dark, period } => since.as_nanos() % period.as_nanos().max(1) < dark.as_nanos(),
        }
    }
}

/// The token bucket of a policer.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    bytes: f64,
    /// The time at which the bucket had this many bytes.
    at: Instant,
}

impl Bucket {
    /// Takes the tokens of a frame. If there are too few, takes none and returns false.
    fn take(&mut self, police: Police, frame: u64, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        let full = float(police.bucket);
        // The tokens never exceed the size of the bucket.
        *self = Self { bytes: (self.bytes + passed * float(police.rate) / 8.0).min(full), at: now };
        let passes = self.bytes >= float(frame);
        self.bytes -= if passes { float(frame) } else { 0.0 };
        passes
    }
}

/// A frame in flight. Frames are ordered by arrival time, then by the order of launch.
#[derive(Debug)]
struct Flying {
    due: Instant,
    order: u64,
    frame: Frame,
}

impl Ord for Flying {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.due, self.order).cmp(&(other.due, other.order))
    }
}

impl PartialOrd for Flying {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Eq for Flying {}

impl PartialEq for Flying {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

/// The random generators. Each setting has its own generator, so a change of one setting does not affect the random choices of
/// the others.
#[derive(Debug)]
struct Chance {
    loss: Random,
    burst: Random,
    is_bad: bool,
    corrupt: Random,
    corrupt_udp: Random,
    reorder: Random,
    duplicate: Random,
}

impl Chance {
    const JITTER: u64 = 7;

    fn new(seed: u64) -> Self {
        Self {
            loss: Random::for_purpose(seed, 1),
            burst: Random::for_purpose(seed, 2),
            is_bad: false,
            corrupt: Random::for_purpose(seed, 3),
            corrupt_udp: Random::for_purpose(seed, 4),
            reorder: Random::for_purpose(seed, 5),
            duplicate: Random::for_purpose(seed, 6),
        }
    }

    /// Advances the burst model by one frame, and returns whether this frame is lost.
    fn in_burst(&mut self, burst: Option<Burst>) -> bool {
        let Some(Burst { enter, leave, loss }) = burst else {
            self.is_bad = false;
            return false;
        };
        let change = if self.is_bad { leave } else { enter };
        self.is_bad ^= self.burst.chance(change.value());
        self.is_bad && self.burst.chance(loss.value())
    }
}

fn bytes(frame: &Frame) -> u64 {
    u64::try_from(frame.len()).unwrap_or(u64::MAX)
}

fn time_on_line(frame: &Frame, rate: u64) -> Duration {
    const BITS_IN_NANOSECONDS: u64 = 8_000_000_000;
    Duration::from_nanos(bytes(frame).saturating_mul(BITS_IN_NANOSECONDS) / rate.max(1))
}

fn wander(at: Instant, seconds: f64) -> Instant {
    let time = Duration::from_secs_f64(seconds.abs());
    if seconds < 0.0 { at.checked_sub(time).unwrap_or(at) } else { at + time }
}

#[cfg(test)]
mod tests;
