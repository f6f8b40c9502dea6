//! A competition with other flows for a share of a full queue.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use noq_proto::congestion::{Controller, ControllerFactory as _, CubicConfig};

use super::rounds::scaled;
use crate::stats::ControllerState;

/// Share of its window that CUBIC keeps after a loss (RFC 9438 section 4.6).
pub(super) const CUBIC_CUT: f64 = 0.7;
/// Growth per round trip until the first loss, as a share of the window. Before its first loss, Linux's CUBIC grows at the same
/// rate. So both flows keep their shares until the queue overflows.
const GROWTH: f64 = 0.05;
/// The growth is slower while the queue is shorter than this share of the round-trip time. A short queue overflows often, and would
/// leave a rival too little.
const LONG_QUEUE: f64 = 0.5;
/// The window grows to at most this many times its size before the competition. If no queue has overflowed by then, the path's rate
/// may have fallen instead.
const MOST_GROWTH: u64 = 3;
/// Rounds of a competition after which the controller decides whether there is a rival at all. It may be that the path's delay
/// only fluctuates (Wi-Fi).
const ROUNDS: u32 = 12;
/// If the queueing delay moves back and forth by more than this share of itself each round, no queue causes it.
const WANDERS: f64 = 0.15;

/// Why the connection competes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// A queue that is not this connection's.
    Rival,
    /// A queue that overflows.
    Overflow,
    /// Marks from the bottleneck (ECN).
    Mark,
}

/// The window while the connection competes. CUBIC sets the window from the first loss on. Before that, nothing shows CUBIC how
/// large the window may be.
#[derive(Debug)]
pub(super) struct Competition {
    cause: Cause,
    /// `None` until the first loss.
    cubic: Option<Box<dyn Controller>>,
    /// The window until the first loss.
    window: u64,
    /// The window before the competition.
    before: u64,
    /// When to check again whose queue it is.
    until: Instant,
    delays: Delays,
}

impl Competition {
    /// A competition with a new rival.
    pub(super) fn new(window: u64, until: Instant) -> Self {
        Self { cause: Cause::Rival, cubic: None, window, before: window, until, delays: Delays::default() }
    }

    /// A competition with a known rival, or one that begins with a loss or a mark. CUBIC continues from
    /// `window`.
    pub(super) fn continued(now: Instant, window: u64, mtu: u16, cause: Cause, until: Instant) -> Self {
        // The made-up loss cuts the larger window to `window`, and ends CUBIC's slow start at once.
        let mut cubic = cubic(now, scaled(window, 1.0 / CUBIC_CUT), mtu);
        cubic.on_congestion_event(now, now, false, false, 0, 0);
        Self { cause, cubic: Some(cubic), ..Self::new(window, until) }
    }

    pub(super) fn state(&self) -> ControllerState {
        match self.cause {
            Cause::Mark => ControllerState::Marked,
            Cause::Rival | Cause::Overflow if self.cubic.is_none() && self.window < self.most() => {
                ControllerState::Growing
            }
            Cause::Rival | Cause::Overflow => ControllerState::Competing,
        }
    }

    pub(super) fn window(&self) -> u64 {
        self.cubic.as_ref().map_or(self.window, |cubic| cubic.window())
    }

    fn most(&self) -> u64 {
        MOST_GROWTH * self.before
    }

    pub(super) fn before(&self) -> u64 {
        self.before
    }

    pub(super) fn is_over(&self, now: Instant) -> bool {
        now >= self.until
    }

    /// CUBIC, once there was a loss.
    pub(super) fn cubic(&mut self) -> Option<&mut Box<dyn Controller>> {
        self.cubic.as_mut()
    }

    /// Returns CUBIC, so that the caller can report a loss or a mark to it. The first such call starts CUBIC.
    pub(super) fn cubic_at_loss(&mut self, now: Instant, mtu: u16) -> &mut dyn Controller {
        self.delays.was_cut = true;
        &mut **self.cubic.get_or_insert_with(|| cubic(now, self.window, mtu))
    }

    /// Grows the window by a share of these acknowledged bytes. `queue` is the part of the round-trip time `rtt` that packets spend
    /// in the queue.
    pub(super) fn grow(&mut self, bytes: u64, queue: Duration, rtt: Duration) {
        let share = queue.as_secs_f64() / rtt.as_secs_f64().max(f64::EPSILON);
        let grown = self.window + scaled(bytes, GROWTH * (share / LONG_QUEUE).min(1.0));
        self.window = grown.min(self.most());
    }

    /// Records a round with this queueing delay. Returns the path's jitter if the jitter alone has caused the
    /// competition.
    pub(super) fn on_round(&mut self, queue: Duration) -> Option<Duration> {
        self.delays.add(queue);
        if self.delays.rounds < ROUNDS {
            return None;
        }
        // The rounds judged here do not count towards the next judgement.
        let delays = std::mem::take(&mut self.delays);
        (self.cause != Cause::Mark && delays.wander()).then_some(delays.longest)
    }
}

fn cubic(now: Instant, window: u64, mtu: u16) -> Box<dyn Controller> {
    let mut config = CubicConfig::default();
    config.initial_window(window);
    Arc::new(config).build(now, mtu)
}

/// The queueing delays of a competition's rounds.
#[derive(Clone, Copy, Debug, Default)]
struct Delays {
    rounds: u32,
    last: Duration,
    longest: Duration,
    sum: Duration,
    /// The sum of the changes that made the delay longer from one round to the next, and the sum of those
    /// that made it shorter.
    rises: Duration,
    falls: Duration,
    /// Whether the window was cut since the last round.
    was_cut: bool,
}

impl Delays {
    fn add(&mut self, queue: Duration) {
        let was_cut = std::mem::take(&mut self.was_cut);
        if self.rounds > 0 {
            self.rises += queue.saturating_sub(self.last);
            // A cut shortens the queue, so this fall of the delay is not a fluctuation.
            if !was_cut {
                self.falls += self.last.saturating_sub(queue);
            }
        }
        self.rounds += 1;
        self.longest = self.longest.max(queue);
        self.sum += queue;
        self.last = queue;
    }

    /// Whether the delays fluctuate. The delay of a queue keeps rising or falling for longer.
    fn wander(&self) -> bool {
        2 * self.rises.min(self.falls) > self.sum.mul_f64(WANDERS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    fn with_rival() -> Competition {
        Competition::new(1_000_000, Instant::now())
    }

    #[test]
    fn the_window_grows_by_a_twentieth_a_round_trip_until_the_first_loss() {
        let (mut long, mut short) = (with_rival(), with_rival());
        long.grow(1_000_000, 100 * MILLISECOND, 130 * MILLISECOND);
        short.grow(1_000_000, 10 * MILLISECOND, 40 * MILLISECOND);
        assert_eq!((long.window(), short.window()), (1_050_000, 1_025_000));
        assert_eq!(long.state(), ControllerState::Growing);

        let now = Instant::now();
        long.cubic_at_loss(now, 1_200).on_congestion_event(now, now, false, false, 0, 0);

        assert_eq!((long.window(), long.state()), (735_000, ControllerState::Competing));
    }

    #[test]
    fn a_delay_that_fluctuates_is_jitter_and_a_queue_that_overflows_is_not() {
        let jitter_of = |cut_at: &[usize]| {
            let mut competition = with_rival();
            [40, 70, 100].into_iter().cycle().take(12).enumerate().find_map(|(round, delay)| {
                if cut_at.contains(&round) {
                    competition.cubic_at_loss(Instant::now(), 1_200);
                }
                competition.on_round(delay * MILLISECOND)
            })
        };
        assert_eq!(jitter_of(&[3, 6, 9]), None);
        assert_eq!(jitter_of(&[]), Some(100 * MILLISECOND));
        // Random losses also reduce the window while the delay is long. The jitter is recognised nevertheless.
        assert_eq!(jitter_of(&[1, 2, 4, 5, 7, 8, 10, 11]), Some(100 * MILLISECOND));
    }
}
