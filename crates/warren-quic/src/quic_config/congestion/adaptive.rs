//! A congestion controller for tunnels, which carry flows that have a congestion control of their own.
//!
//! Random loss is the inner flows' business and never shrinks the window. A queue at the bottleneck does: when the round-trip
//! time of whole rounds rises, the window shrinks to what the path holds without a queue. Packets then wait in the tunnel's
//! own queue, where flows are kept apart. A queue that stays although this connection feeds it less belongs to another flow.
//! CUBIC (RFC 9438) then competes for a fair share, and losses count while the queue is full. Whatever the queue, losses also
//! count if the path loses far more than usual. A bottleneck that marks packets (ECN) keeps its own queue short. Nothing can
//! be learnt from such a queue, so CUBIC answers the marks.

use std::{
    any::Any,
    sync::Arc,
    time::{Duration, Instant},
};

use noq_proto::{
    RttEstimator,
    congestion::{Controller, ControllerFactory as _, CubicConfig},
};

mod base_rtt;
mod rounds;
mod usual_loss;

use self::{
    base_rtt::BaseRtt,
    rounds::{Round, Rounds, loss_share},
    usual_loss::UsualLoss,
};
use crate::stats::ControllerState;

/// Queueing delay that is always tolerated: more than the peer's acknowledgement delay (5 ms) and the jitter of timers.
const MIN_QUEUE: Duration = Duration::from_millis(7);
/// On a long path, a queueing delay of an eighth of the round-trip time is tolerated.
const QUEUE_SHARE: u32 = 8;

/// The smallest window, in packets.
const MIN_PACKETS: u64 = 4;
/// The first window, in packets. The pacer spreads them over a round trip. The window is large, because a drop in the tunnel's
/// own queue during an inner flow's slow start costs that flow seconds on a long path.
const INITIAL_PACKETS: u64 = 128;
/// A cut leaves at least this share of the used part of the window.
const CUT: f64 = 0.85;
/// Growth per round as a share of the window: a 32nd at first, an eighth at most.
const FIRST_GROWTH_SHARE: u64 = 32;
const GROWTH_SHARE: u64 = 8;
/// The window stops growing at this many times the bytes that a round delivers.
const UNFILLED: u64 = 4;

/// Rounds with a queue and a smaller window after which the controller decides whose queue it is.
const ROUNDS_BEFORE_VERDICT: u32 = 3;
/// Rounds of a competition after which the controller decides whether there is a rival at all, or the path's delay only
/// fluctuates (Wi-Fi).
const ROUNDS_OF_RIVAL: u32 = 12;
/// If the queueing delay moves back and forth by more than this share of itself each round, no queue causes it.
const WANDERS: f64 = 0.15;
/// Share of the learnt jitter that is left after a round.
const JITTER_LEFT: f64 = 0.9995;
/// Rounds with a small window after which the controller decides whether its own packets cause the loss. The first of them
/// acknowledges packets that left before the window shrank.
const DRAIN_ROUNDS: u32 = 3;
/// If all of the queue were this connection's, a smaller window would shorten the round-trip time by a known amount. The queue
/// belongs to a rival flow if the round-trip time falls by less than this share of that amount.
const OWN_SHARE: f64 = 0.7;
/// How long CUBIC competes before the controller checks again whose queue it is. Each check that finds the rival again doubles
/// this time.
const FIRST_COMPETITION: Duration = Duration::from_secs(5);
const LONGEST_COMPETITION: Duration = Duration::from_secs(40);
/// A competition that begins this soon after the last one is with the same rival, and lasts twice as long.
const RIVAL_MEMORY: Duration = Duration::from_secs(10);
/// Share of its window that CUBIC keeps after a loss (RFC 9438 section 4.6).
const CUBIC_CUT: f64 = 0.7;

/// A loss is congestion only if the queue is at least this share of its recent maximum, because only full queues drop.
const FULL_SHARE: f64 = 0.7;
/// If a queue overflows a second time within this many rounds, it is full.
const OVERFLOW_ROUNDS: u32 = 8;

/// The controller of one path. It counts bytes of UDP payload.
#[derive(Debug)]
pub(super) struct Adaptive {
    mtu: u64,
    initial_window: u64,
    window: u64,
    phase: Phase,
    rounds: Rounds,
    base: BaseRtt,
    /// Largest queueing delay of recent rounds.
    full_queue: Duration,
    /// Delay that looked like a queue but was not one, because the path's delay fluctuates.
    jitter: Duration,
    usual_loss: UsualLoss,
    /// Rounds in a row that lost much more than usual.
    lossy_rounds: u32,
    /// Rounds left in which one more overflow means that a queue is full.
    overflow_rounds: u32,
    competition: Duration,
    /// Whether a queue ended slow start, and its owner is not known yet.
    is_cut_short: bool,
    /// When the last competition ended, or will end.
    last_competition: Option<Instant>,
    /// When the window was last cut. Losses of packets that left earlier belong to that cut.
    last_cut: Option<Instant>,
}

/// How the window is set.
#[derive(Debug)]
enum Phase {
    /// The window doubles each round until there is a queue.
    SlowStart,
    /// The window grows, faster each round, while there is no queue.
    Bounded {
        /// How many bytes the next round adds.
        step: u64,
        /// The queue of the last rounds, while there is one.
        queue: Option<Queue>,
    },
    /// The window is a little less than the path holds without a queue, to find out whether the loss falls with it.
    Draining {
        /// The share of packets that was lost before.
        loss: f64,
        /// Rounds until the controller decides.
        left: u32,
        /// The window to return to.
        before: u64,
        /// Packets delivered and lost since the first of these rounds.
        delivered: u64,
        lost: u64,
    },
    /// CUBIC sets the window, for one of the reasons in [`Cause`].
    Competing {
        cubic: Box<dyn Controller>,
        cause: Cause,
        /// When to check again whose queue it is.
        until: Instant,
        /// The window before the competition.
        before: u64,
        /// The queueing delays of its rounds.
        delays: Delays,
    },
}

/// Why CUBIC competes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// A queue that is not this connection's.
    Rival,
    /// A queue that overflows.
    Overflow,
    /// Marks from the bottleneck (ECN).
    Mark,
}

/// A queue whose owner is not known yet. The connection's own queue shrinks with its window.
#[derive(Clone, Copy, Debug)]
struct Queue {
    /// Rounds in a row.
    rounds: u32,
    /// The window and the round-trip time when it was first seen.
    window: u64,
    rtt: Duration,
    /// The previous round's window, which caused this round's round-trip time.
    last_window: u64,
}

/// The queueing delays of a competition's rounds.
#[derive(Clone, Copy, Debug, Default)]
struct Delays {
    rounds: u32,
    first: Duration,
    last: Duration,
    longest: Duration,
    /// The sum of all delays, and the sum of all changes from round to round.
    sum: Duration,
    changes: Duration,
}

impl Delays {
    fn add(&mut self, queue: Duration) {
        if self.rounds == 0 {
            (self.first, self.last) = (queue, queue);
        }
        self.rounds += 1;
        self.longest = self.longest.max(queue);
        self.sum += queue;
        self.changes += queue.abs_diff(self.last);
        self.last = queue;
    }

    /// Whether the delays fluctuate, which a queue's delays do not.
    fn wander(&self) -> bool {
        // A queue that grows or shrinks changes the delay too, but in one direction. That part is subtracted.
        let to_and_fro = self.changes.saturating_sub(self.last.abs_diff(self.first));
        to_and_fro > self.sum.mul_f64(WANDERS)
    }
}

impl Queue {
    /// Whether somebody else fills the queue too: the round-trip time fell clearly less than the smaller window would have
    /// made it fall.
    fn is_rivals(&self, rtt: Duration, base: Duration) -> bool {
        // The path's rate stays, so the round-trip time of a queue that is ours alone is proportional to the window.
        let alone = self.rtt.mul_f64(self.last_window as f64 / self.window.max(1) as f64).max(base);
        self.rtt.saturating_sub(rtt) < self.rtt.saturating_sub(alone).mul_f64(OWN_SHARE)
    }
}

impl Adaptive {
    pub(super) fn new(mtu: u16) -> Self {
        let initial_window = INITIAL_PACKETS * u64::from(mtu);
        Self {
            mtu: mtu.into(),
            initial_window,
            window: initial_window,
            phase: Phase::SlowStart,
            rounds: Rounds::default(),
            base: BaseRtt::default(),
            full_queue: Duration::ZERO,
            jitter: Duration::ZERO,
            usual_loss: UsualLoss::default(),
            lossy_rounds: 0,
            overflow_rounds: 0,
            competition: FIRST_COMPETITION,
            is_cut_short: false,
            last_competition: None,
            last_cut: None,
        }
    }

    /// A controller for a new path, which begins with this one's window.
    pub(super) fn copy(&self) -> Self {
        // Always fits, because `mtu` was a `u16`.
        let mtu = u16::try_from(self.mtu).unwrap_or(u16::MAX);
        Self { window: self.window, ..Self::new(mtu) }
    }

    pub(super) fn state(&self) -> ControllerState {
        match self.phase {
            Phase::SlowStart => ControllerState::Starting,
            Phase::Bounded { .. } => ControllerState::ShortQueue,
            Phase::Draining { .. } => ControllerState::Probing,
            Phase::Competing { cause: Cause::Rival | Cause::Overflow, .. } => ControllerState::Competing,
            Phase::Competing { cause: Cause::Mark, .. } => ControllerState::Marked,
        }
    }

    fn base(&self) -> Duration {
        self.base.get().unwrap_or_default()
    }

    /// The queueing delay that is tolerated on this path.
    fn allowed_queue(&self) -> Duration {
        MIN_QUEUE.max(self.base() / QUEUE_SHARE).max(self.jitter)
    }

    /// The queueing delay that the last acknowledgement showed.
    fn latest_queue(&self) -> Duration {
        self.rounds.latest_rtt().saturating_sub(self.base())
    }

    /// The bytes that the path holds with half of the allowed queue. Half a queue keeps the bottleneck from idling.
    fn filled_path(&self) -> u64 {
        self.rounds.carried_in(self.base() + self.allowed_queue() / 2).max(self.least())
    }

    fn first_step(&self) -> u64 {
        (self.window / FIRST_GROWTH_SHARE).max(self.mtu)
    }

    fn least(&self) -> u64 {
        MIN_PACKETS * self.mtu
    }

    fn bound(&mut self, now: Instant, window: u64) {
        self.window = window;
        self.last_cut = Some(now);
        self.phase = Phase::Bounded { step: self.first_step(), queue: None };
    }

    fn on_round(&mut self, now: Instant, round: Round) {
        self.base.add(now, round.least_rtt);
        let queue = round.least_rtt.saturating_sub(self.base());
        // If no packet was held back, a longer round trip is jitter or somebody else's queue.
        let has_queue = round.was_limited && queue > self.allowed_queue();
        // Forgotten within some 64 rounds, because the path may have changed.
        self.full_queue = queue.max(self.full_queue - self.full_queue / 64);
        let excess = self.judge_loss(&round, has_queue);
        let filled_path = self.filled_path();
        // A window that is never filled says nothing about the path.
        let most = UNFILLED.saturating_mul(round.bytes).max(filled_path);
        let used = self.used(&round);
        let base = self.base();
        self.jitter = self.jitter.mul_f64(JITTER_LEFT);
        let first_step = self.first_step();
        if has_queue && matches!(self.phase, Phase::SlowStart) {
            // The window is cut below, as in every round with a queue.
            self.is_cut_short = true;
            let window = self.window;
            self.bound(now, window);
        }
        match &mut self.phase {
            Phase::SlowStart | Phase::Bounded { .. } if !has_queue && excess.is_some() => {
                self.drain(excess.unwrap_or_default());
            }
            Phase::SlowStart => {
                // The window grows in `on_ack`. Here it only loses the part that was never filled, down to the initial window.
                self.window = self.window.min(most).max(self.initial_window.min(self.window));
            }
            Phase::Bounded { step, queue: seen } if has_queue => {
                *step = first_step;
                let (window, rtt) = (used, round.least_rtt);
                let now_seen = seen.unwrap_or(Queue { rounds: 0, window, rtt, last_window: window });
                if now_seen.rounds < ROUNDS_BEFORE_VERDICT {
                    // The first window and round-trip time stay: the verdict compares with them.
                    *seen = Some(Queue { rounds: now_seen.rounds + 1, last_window: window, ..now_seen });
                    self.cut(now, &round);
                } else if now_seen.is_rivals(rtt, base) {
                    self.compete(now, now_seen.window, Cause::Rival);
                } else {
                    self.is_cut_short = false;
                    *seen = None;
                    self.cut(now, &round);
                }
            }
            Phase::Bounded { step, queue } => {
                *queue = None;
                if round.was_limited && self.window < most {
                    // On a path without delay, the window must hold more than a round delivers. Otherwise it cuts batches
                    // short.
                    self.window = (self.window + *step).max(filled_path);
                    *step = (*step * 2).min(self.window / GROWTH_SHARE).max(first_step);
                }
            }
            Phase::Draining { .. } => self.judge_drain(now, &round),
            Phase::Competing { .. } => self.judge_competition(now, queue),
        }
    }

    /// Returns the share of lost packets, if it is much higher than usual for the second round in a row.
    fn judge_loss(&mut self, round: &Round, has_queue: bool) -> Option<f64> {
        let exceeds = self.usual_loss.is_exceeded(round);
        self.lossy_rounds = if exceeds { self.lossy_rounds + 1 } else { 0 };
        self.overflow_rounds = self.overflow_rounds.saturating_sub(1);
        // Losses from a full queue or a policer are not part of the path's usual loss.
        if !has_queue && !exceeds {
            self.usual_loss.add(round);
        }
        (self.lossy_rounds >= 2).then(|| round.loss())
    }

    fn judge_competition(&mut self, now: Instant, queue: Duration) {
        let base = self.base();
        let Phase::Competing { cubic, until, cause, before, delays } = &mut self.phase else { return };
        self.window = cubic.window();
        delays.add(queue);
        let is_judged = delays.rounds == ROUNDS_OF_RIVAL;
        if is_judged && *cause == Cause::Rival && delays.wander() {
            self.jitter = delays.longest.min(base);
            let window = self.window.max(*before);
            self.bound(now, window);
        } else if now >= *until {
            // Time to check again. If the rival is still there, the next rounds find its queue again.
            let window = self.window;
            self.bound(now, window);
        } else if is_judged {
            // The next rounds are judged by themselves.
            *delays = Delays::default();
        }
    }

    fn judge_drain(&mut self, now: Instant, round: &Round) {
        let Phase::Draining { loss: usual, left, before, delivered, lost } = &mut self.phase else { return };
        *left = left.saturating_sub(1);
        // Packets that were lost in the first round had left before the window shrank.
        if *left + 1 < DRAIN_ROUNDS {
            *delivered += round.delivered;
            *lost += round.lost;
        }
        if *left > 0 {
            return;
        }
        let (usual, before, loss) = (*usual, *before, loss_share(*lost, *delivered));
        self.lossy_rounds = 0;
        // If this connection's packets caused the loss, the loss falls with the window.
        let is_own = loss < usual / 2.0;
        // Otherwise it is the path's usual loss, and is not judged again.
        if !is_own {
            self.usual_loss.set(usual);
        }
        let window = if is_own { self.window } else { before };
        self.bound(now, window);
    }

    /// About how much of the window a round used.
    fn used(&self, round: &Round) -> u64 {
        self.window.min(round.in_flight.max(self.filled_path()))
    }

    /// Shrinks the window by what waits in the queue, but not by too much at a time: a longer round-trip time may have other
    /// causes.
    fn cut(&mut self, now: Instant, round: &Round) {
        let used = self.used(round);
        let mut least = scaled(used, CUT);
        // A round that left most of the window unused says little about the path.
        if round.in_flight < self.window / 2 {
            least = least.max(self.initial_window.min(self.window));
        }
        self.window = self.filled_path().clamp(least, used.max(least)).max(self.least());
        self.last_cut = Some(now);
    }

    fn drain(&mut self, loss: f64) {
        let before = self.window;
        self.window = (self.rounds.carried_in(self.base()) / 10 * 9).max(self.least()).min(self.window);
        self.phase = Phase::Draining { loss, left: DRAIN_ROUNDS, before, delivered: 0, lost: 0 };
    }

    /// Hands control to CUBIC, which continues from `window`. CUBIC begins with a slow start if the rival's queue cut this
    /// connection's slow start short. Otherwise, a made-up loss ends CUBIC's slow start at once.
    fn compete(&mut self, now: Instant, window: u64, cause: Cause) {
        let is_newcomer = std::mem::take(&mut self.is_cut_short);
        let mut config = CubicConfig::default();
        // The made-up loss below cuts the larger window to `window`.
        config.initial_window(if is_newcomer { window } else { scaled(window, 1.0 / CUBIC_CUT) });
        let mtu = u16::try_from(self.mtu).unwrap_or(u16::MAX);
        let mut cubic = Arc::new(config).build(now, mtu);
        if !is_newcomer {
            cubic.on_congestion_event(now, now, false, false, 0, 0);
        }
        self.window = cubic.window();
        self.competition = match self.last_competition {
            Some(last) if now < last + RIVAL_MEMORY => (self.competition * 2).min(LONGEST_COMPETITION),
            _ => FIRST_COMPETITION,
        };
        let until = now + self.competition;
        self.last_competition = Some(until);
        self.phase = Phase::Competing { cubic, cause, until, before: window, delays: Delays::default() };
    }

    /// Answers a loss or a mark that is congestion as CUBIC does, and lets CUBIC go on.
    fn give_way(&mut self, now: Instant, cause: Cause) {
        self.last_cut = Some(now);
        self.is_cut_short = false;
        let window = scaled(self.window, CUBIC_CUT).max(self.least());
        self.compete(now, window, cause);
    }

    /// Starts anew after silence from the path, because what was known about it may be wrong.
    fn start_again(&mut self, now: Instant) {
        self.window = self.initial_window.min(self.window / 2).max(self.least());
        self.rounds.forget_rates();
        self.base = BaseRtt::default();
        self.full_queue = Duration::ZERO;
        self.phase = Phase::SlowStart;
        self.last_cut = Some(now);
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "windows are far below 2^53, and a float is cut to what fits"
)]
fn scaled(window: u64, factor: f64) -> u64 {
    (window as f64 * factor) as u64
}

impl Controller for Adaptive {
    fn on_packet_sent(&mut self, _: Instant, _: u16, number: u64) {
        self.rounds.on_packet_sent(number);
    }

    fn on_cwnd_limited(&mut self) {
        self.rounds.on_limited();
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        number: u64,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        self.rounds.on_ack(sent, bytes);
        if !app_limited {
            self.rounds.on_limited();
        }
        match &mut self.phase {
            // A window that is not used must not grow (RFC 9002 section 7.8).
            Phase::SlowStart if self.rounds.is_limited() => self.window = self.window.saturating_add(bytes),
            Phase::Competing { cubic, .. } => cubic.on_ack(now, sent, bytes, number, app_limited, rtt),
            Phase::SlowStart | Phase::Bounded { .. } | Phase::Draining { .. } => {}
        }
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest: Option<u64>) {
        if let Phase::Competing { cubic, .. } = &mut self.phase {
            cubic.on_end_acks(now, in_flight, app_limited, largest);
            self.window = cubic.window();
        }
        if let Some(round) = self.rounds.on_end_acks(now, in_flight, largest) {
            self.on_round(now, round);
        }
    }

    fn on_packet_lost(&mut self, _: u16, number: u64, _: Instant) {
        self.rounds.on_packet_lost(number);
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        is_ecn: bool,
        lost_bytes: u64,
        largest_lost: u64,
    ) {
        // Everything was lost for several probe timeouts (RFC 9002 section 7.6), so the path may be another one now.
        if is_persistent_congestion {
            return self.start_again(now);
        }
        let (queue, allowed) = (self.latest_queue(), self.allowed_queue());
        let is_long = queue > allowed;
        let is_near_full = queue >= self.full_queue.mul_f64(FULL_SHARE);
        let (delivered, lost) = self.rounds.so_far();
        let is_unusual = self.usual_loss.is_unusual(delivered, lost);
        // A short queue may be full before it is long.
        let is_filled = is_unusual && is_near_full && queue > allowed / 2;
        // A packet that left before the last cut belongs to the event that caused that cut.
        let is_recent = self.last_cut.is_none_or(|cut| sent > cut);
        match &mut self.phase {
            Phase::Competing { cubic, .. } if is_ecn || is_unusual || is_long && is_near_full => {
                cubic.on_congestion_event(now, sent, false, is_ecn, lost_bytes, largest_lost);
                self.window = cubic.window();
            }
            Phase::SlowStart | Phase::Bounded { .. } | Phase::Draining { .. } if is_ecn => {
                // Only one mark per round counts.
                if is_recent {
                    self.give_way(now, Cause::Mark);
                }
            }
            Phase::SlowStart if is_long => {
                self.is_cut_short = true;
                let window = scaled(self.window, CUBIC_CUT).max(self.least());
                self.bound(now, window);
            }
            // After the window has shrunk, a second burst of random loss is unlikely within so few rounds. So the first one only
            // cuts the window.
            Phase::Bounded { .. } if is_filled && is_recent && self.overflow_rounds == 0 => {
                self.last_cut = Some(now);
                self.overflow_rounds = OVERFLOW_ROUNDS;
                self.window = scaled(self.window, CUT).max(self.least());
            }
            Phase::Bounded { .. } if is_filled && is_recent => self.give_way(now, Cause::Overflow),
            Phase::SlowStart | Phase::Bounded { .. } | Phase::Draining { .. } | Phase::Competing { .. } => {}
        }
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.mtu = new_mtu.into();
        // The smallest window grows with the MTU.
        self.window = self.window.max(self.least());
        if let Phase::Competing { cubic, .. } = &mut self.phase {
            cubic.on_mtu_update(new_mtu);
        }
    }

    fn window(&self) -> u64 {
        self.window
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.copy())
    }

    fn initial_window(&self) -> u64 {
        self.initial_window
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
